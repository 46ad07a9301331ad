"""Brings the stages of another plan to where the sessions are, while the plan in force serves these.

The new stages compute the recorded steps of every open session, a few at a time (`fabric/pacing.py`), until of each
session hardly more than the step for its next token is left. Then, and until sessions move, the old stages are held
back: what is left is computed by stages that are alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from inferswarm.backends.partition import Step
from inferswarm.errors import RealizationFailed, WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.active import ActiveSession
from inferswarm.fabric.feeding import FirstStage, known_steps, reach_first, session_needs
from inferswarm.fabric.frames import FrameKind
from inferswarm.fabric.holding import plan_holding
from inferswarm.fabric.pacing import Pace
from inferswarm.fabric.realizing import Realizer
from inferswarm.fabric.running import RunningPlan
from inferswarm.fabric.sessions import Sessions

FEW_STEPS = 2
"""When no session misses more than these, beside the one for its next token, the new stages are nearly there."""
LEFT_STEPS = 2
"""So many they may miss when sessions move: stages compute them one behind the other with the next token's."""
MOST_ROUNDS = 32
"""So often what was committed meanwhile is computed before sessions move all the same."""
LOOK_SECONDS = 0.002
"""How long to wait until stages that have not computed a step are asked again."""
TURN_TIMES = 2.0
"""The old stages' turn ends when each session has its token, or after so many times as long as one usually takes."""
IDLE_SECONDS = 10.0
"""Stages that answer, but compute nothing of what they were given for so long, do not get it."""


class CatchingUp:
    """One plan's stages on their way to where the sessions are."""

    def __init__(
        self, realizer: Realizer, sessions: Sessions, ready: RunningPlan, order: m.Fallback, usual_seconds: float
    ) -> None:
        """`ready` are stages without authority that hold nothing yet, realized as `order` says.

        `usual_seconds` pass between two tokens of a session when nothing is prepared beside it.
        """
        self._realizer = realizer
        self._sessions = sessions
        self._ready = ready
        self._order = order
        self._pace = Pace(usual_seconds)
        self._first: FirstStage | None = None
        self._fed: dict[int, int] = {}
        """Session → the first position that the new stages were not given."""
        self._committed = sessions.num_committed
        self._seen: dict[ActiveSession, int] = {}
        """Session → its tokens when gaps between them were last looked for."""

    async def run(self) -> None:
        """Bring them there; the old stages are held back then. Raises what went wrong, and lets them go on."""
        try:
            for _ in range(MOST_ROUNDS):
                sessions = self._sessions.open()
                if any(active.row.number not in self._fed for active in sessions):
                    self._sessions.let_go()
                    await self._take_in(sessions)
                sessions = [active for active in sessions if active.row.number in self._fed]
                longest = max((len(self._missing(active)) for active in sessions), default=0)
                is_last = longest <= FEW_STEPS
                if is_last:
                    self._sessions.hold_back()
                if self._first is None or longest <= LEFT_STEPS:
                    break
                for active in sessions:
                    await self._feed(self._first, active, is_last)
        except BaseException:
            self._sessions.let_go()
            raise
        finally:
            if self._first is not None:
                self._first.close()

    async def _take_in(self, sessions: list[ActiveSession]) -> None:
        """Have the new stages hold sessions that they do not know yet as well."""
        if self._first is not None:
            self._first.close()
        needs = session_needs(self._order, sessions)
        holding = await self._realizer.warm(self._ready, lambda held: plan_holding(needs, held))
        self._fed = dict(holding.fed_from)
        _, writer = await reach_first(self._ready)
        self._first = FirstStage(self._ready, writer, _nothing_said)

    def _missing(self, active: ActiveSession) -> tuple[Step, ...]:
        """Return the known steps that were not given to the new stages, but the last."""
        return tuple(step for step in known_steps(active)[:-1] if step.start >= self._fed[active.row.number])

    async def _feed(self, first: FirstStage, active: ActiveSession, is_last: bool) -> None:
        """Give the new stages the steps that they miss, but the last: that one is for the plan with authority.

        Where they take turns the old stages compute one token of each session in between; the last time, none.
        """
        number = active.row.number
        tokens = (*active.row.prompt, *(commit.token for commit in active.commits))
        missing = deque(self._missing(active))
        while missing:
            started = time.monotonic()
            steps = [missing.popleft() for _ in range(min(self._pace.at_once, len(missing)))]
            for step in steps:
                await first.send(FrameKind.CREDIT, number, position=step.start)
                await first.send_step(number, tokens, step)
                self._fed[number] = step.start + step.count
            if not await self._is_held(active):
                return
            if not is_last:
                await self._after(len(steps), time.monotonic() - started)

    async def _after(self, steps: int, seconds: float) -> None:
        """Note what was seen while steps were computed, and leave the old stages a turn where they take turns."""
        committed, self._committed = self._sessions.num_committed - self._committed, self._sessions.num_committed
        longest = max((active.longest_gap(since) for active, since in self._seen.items()), default=0.0)
        self._seen = {active: len(active.commits) for active in self._sessions.open()}
        self._pace.saw(steps, committed, seconds, longest)
        if not self._pace.takes_turns:
            self._sessions.let_go()
            return
        self._sessions.hold_back()
        await self._sessions.one_more()
        wanted, until = self._committed + len(self._seen), time.monotonic() + TURN_TIMES * self._pace.usual_seconds
        while self._sessions.num_committed < wanted and time.monotonic() < until:
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_held(self, active: ActiveSession) -> bool:
        """Wait until every stage holds what it was given of a session; False when that has ended meanwhile."""
        number = active.row.number
        until = time.monotonic() + IDLE_SECONDS
        seen = -1
        while active in self._sessions.open():
            positions = [stage[number].positions for stage in await self._realizer.held(self._ready)]
            if min(positions) >= self._fed[number]:
                return True
            if sum(positions) != seen:
                seen, until = sum(positions), time.monotonic() + IDLE_SECONDS
            if time.monotonic() > until:
                node = self._ready.plan.placements[positions.index(min(positions))].node_name
                raise RealizationFailed(node, f"a stage computed nothing of what it was given for {IDLE_SECONDS:g} s")
            await asyncio.sleep(LOOK_SECONDS)
        return False


def _nothing_said(_: WireError) -> None:
    """A connection that breaks shows in what the stages hold."""
