"""What the first stage is given: sessions opened and closed, tokens in recorded steps, credit for commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from inferswarm.backends.partition import Step
from inferswarm.errors import RealizationFailed, WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.active import ActiveSession
from inferswarm.fabric.frames import FrameKind, encode
from inferswarm.fabric.holding import SessionNeed
from inferswarm.fabric.running import RunningPlan
from inferswarm.fabric.terms import SessionTerms
from inferswarm.fabric.transport import CONNECT_TIMEOUT_SECONDS, pack, parse_endpoint


class FirstStage:
    """The connection to the first stage of one epoch."""

    def __init__(
        self, running: RunningPlan, writer: asyncio.StreamWriter, on_doubt: Callable[[WireError], None]
    ) -> None:
        """`on_doubt` hears when the connection breaks: the stage may have died, which its agent knows better."""
        self.running = running
        self._writer = writer
        self._on_doubt = on_doubt

    def close(self) -> None:
        """Close the connection; what is sent afterwards goes nowhere."""
        self._writer.close()

    async def send(
        self,
        kind: FrameKind,
        session: int,
        payload: bytes = b"",
        *,
        position: int = 0,
        count: int = 0,
        sample: bool = False,
    ) -> None:
        """Send one frame of this epoch."""
        header = self.running.address.header(kind, session, position=position, count=count, sample=sample)
        try:
            self._writer.writelines(pack(encode(header, payload)))
            await self._writer.drain()
        except OSError as error:
            self._on_doubt(WireError("PEER_NOT_RECEIVING", f"the first stage: {error}"))

    async def feed(self, active: ActiveSession, from_position: int | None) -> None:
        """Give the stages what is known of a session, so that the next result is that of the position behind.

        `from_position` None opens the session first; else the stages hold the positions below it. Prompts go in
        their recorded steps, committed tokens one by one as they were computed; only the last step is sampled.
        Raises what the stages say when they cannot open it.
        """
        number = active.row.number
        if from_position is None:
            await self.send(FrameKind.OPEN, number, terms_of(active, self.running.run_ahead))
            await active.opened
        tokens = (*active.row.prompt, *(commit.token for commit in active.commits))
        for step in known_steps(active):
            if step.start < (from_position or 0):
                continue
            active.note_sent(step)
            await self.send_step(number, tokens, step, sample=step.start + step.count == len(tokens))

    async def send_step(self, session: int, tokens: Sequence[int], step: Step, *, sample: bool = False) -> None:
        """Give one step of a session, whose `tokens` are those from its first position on."""
        ids = tokens[step.start : step.start + step.count]
        payload = b"".join(token.to_bytes(4, "little", signed=True) for token in ids)
        await self.send(FrameKind.INPUT, session, payload, position=step.start, count=step.count, sample=sample)


async def reach_first(running: RunningPlan) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first stage of a plan. Raises RealizationFailed when that cannot be had."""
    try:
        connecting = asyncio.open_connection(*parse_endpoint(running.endpoints[0]))
        return await asyncio.wait_for(connecting, CONNECT_TIMEOUT_SECONDS)
    except OSError as error:
        node = running.plan.placements[0].node_name
        raise RealizationFailed(node, f"the first stage cannot be reached: {error}") from error


def known_steps(active: ActiveSession) -> tuple[Step, ...]:
    """Return the steps of all positions whose tokens are known: the prompt's, and one for each committed token."""
    prompt_tokens = len(active.row.prompt)
    return (*active.grid, *(Step(prompt_tokens + index, 1) for index in range(len(active.commits))))


def terms_of(active: ActiveSession, run_ahead: int) -> bytes:
    """Return what an OPEN frame says of a session as it is now."""
    row = active.row
    history = (*row.prompt, *(commit.token for commit in active.commits)) if row.sampling.is_penalized else ()
    terms = SessionTerms(
        prompt_tokens=len(row.prompt),
        max_tokens=row.max_tokens,
        session_positions=active.session_positions,
        stop_ids=row.stop,
        run_ahead=run_ahead,
        sampling=row.sampling,
        history=history,
        committed=len(active.commits),
    )
    return msgspec.msgpack.encode(terms)


def session_needs(order: m.Fallback, sessions: Iterable[ActiveSession]) -> list[SessionNeed]:
    """Return what the stages of a plan would have to hold of some sessions, of as many as it has room for."""
    going_on = [item for item in sessions if item.ending is None]
    fitting = [item for item in going_on if item.session_positions <= order.plan.max_positions]
    return [
        SessionNeed(item.row.number, terms_of(item, order.run_ahead), known_steps(item))
        for item in fitting[: order.plan.sessions]
    ]
