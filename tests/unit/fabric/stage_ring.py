"""Data paths of several stages in one process, joined by queues instead of sockets, with a test as Coordinator."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from inferswarm.backends.base import (
    Counters,
    MaterializedState,
    Sampler,
    StageAssignment,
    StageExecutor,
    StepOutput,
    UnitThreads,
)
from inferswarm.backends.null import NullExecutor
from inferswarm.backends.partition import prompt_steps
from inferswarm.errors import WireError
from inferswarm.fabric.datapath import DataPath
from inferswarm.fabric.frames import Address, Frame, FrameKind, decode, encode
from inferswarm.fabric.messages import SessionReport
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.strategies.dense.description import plain_decoder

ADDRESS = Address("scope", 4, "r1", "abababababab")

DESCRIPTION = plain_decoder(
    architecture="sample",
    vocabulary_size=1000,
    hidden_size=8,
    feed_forward_size=16,
    num_blocks=4,
    num_heads=2,
    num_key_value_heads=1,
    head_size=4,
    context_positions=4096,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_head=True,
)


class Wire:
    """A socket that keeps what is sent through it, and checks every frame as a receiver would."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.num_bytes = 0
        self.broken = ""
        """What is wrong with it, if anything: nothing can be sent then."""

    def check(self) -> None:
        """Raise what is wrong with it."""
        if self.broken:
            raise WireError("PEER_NOT_RECEIVING", self.broken)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        self.check()
        self.frames.append(decode([bytes(part) for part in parts]))
        self.num_bytes += sum(len(part) for part in parts)

    def close(self) -> None:
        """Lose what waits here."""
        self.frames.clear()

    def kinds(self) -> list[FrameKind]:
        """Return the kinds of the frames that wait here."""
        return [FrameKind(frame.header.kind) for frame in self.frames]

    def positions(self, kind: FrameKind) -> list[int]:
        """Return the positions of the waiting frames of one kind."""
        return [frame.header.position for frame in self.frames if frame.header.kind == kind]


class PlainExecutor:
    """Counts positions and samples token 100 + position. `trouble` is called before each step and may raise."""

    def __init__(self, *, is_last: bool, trouble: Callable[[str, int], None] = lambda session, start: None) -> None:
        self.lengths: dict[str, int] = {}
        self.samplers: dict[str, Sampler | None] = {}
        self.steps: list[tuple[str, int, int]] = []
        self.output: StepOutput | None = None
        self._is_last = is_last
        self._trouble = trouble

    def materialize(self, progress: Callable[[int, int], None]) -> tuple[MaterializedState, ...]:
        return ()

    def open(self, session: str, sampler: Sampler | None = None, *, session_positions: int | None = None) -> None:
        self.lengths[session] = 0
        self.samplers[session] = sampler

    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        self._trouble(session, start)
        self.steps.append((session, start, count))
        self.lengths[session] += count
        if self.output is not None:
            return self.output
        if not self._is_last:
            return StepOutput(payload=bytes(4 * count))
        if sample:
            return StepOutput(token=100 + start + count, logits_digest=f"{start + count:032x}", margin=0.5)
        return StepOutput()

    def length(self, session: str) -> int:
        return self.lengths[session]

    def truncate(self, session: str, length: int) -> None:
        self.lengths[session] = length

    def close(self, session: str) -> None:
        del self.lengths[session]

    def counters(self) -> Counters:
        return Counters(sum(count for _, _, count in self.steps), len(self.steps), 0, 0, 0)

    def kernel(self) -> str:
        return "plain"


class Single:
    """One stage between wires: `index` of `num_stages`."""

    def __init__(self, executor: StageExecutor, index: int, num_stages: int) -> None:
        self.results, self.following, self.first = Wire(), Wire(), Wire()
        is_last = index == num_stages - 1
        self.path = DataPath(
            executor,
            ADDRESS,
            participant=f"stage-{index}",
            node_id=f"n{index}",
            results=self.results,  # type: ignore[arg-type]
            following=None if is_last else self.following,  # type: ignore[arg-type]
            first=self.first if is_last and index > 0 else None,  # type: ignore[arg-type]
            is_first=index == 0,
        )

    def send(self, kind: FrameKind, session: int = 1, payload: bytes = b"", **fields: Any) -> None:
        """Let the stage handle one frame that belongs to its epoch."""
        self.handle(encode(ADDRESS.header(kind, session, **fields), payload))

    def handle(self, parts: Sequence[bytes | memoryview]) -> None:
        """Let the stage handle any frame."""
        self.path.handle(decode(parts))

    def open(self, prompt: int = 3, max_tokens: int = 100, stop: tuple[int, ...] = (), ahead: int = 2) -> None:
        """Open session 1."""
        self.send(FrameKind.OPEN, payload=msgspec.msgpack.encode(SessionTerms(prompt, max_tokens, 99, stop, ahead)))


def null_executor(first_unit: int, end_unit: int, chunk: int = 64) -> NullExecutor:
    """Return a materialized executor of some units of the sample description."""
    assignment = StageAssignment(
        participant=f"units {first_unit} to {end_unit}",
        plan_digest="",
        primitive="null",
        representation="fp32",
        description=DESCRIPTION,
        first_unit=first_unit,
        end_unit=end_unit,
        threads=(UnitThreads(first_unit, end_unit, 1),),
        requirement=None,
        max_positions=4096,
        sessions=8,
        chunk_positions=chunk,
    )
    executor = NullExecutor(assignment)
    executor.materialize(lambda done, total: None)
    return executor


class Ring:
    """A whole route. `run` delivers frames one by one, in an order drawn from `chance`, until nothing moves."""

    def __init__(self, cuts: Sequence[int], *, seed: int = 0) -> None:
        """`cuts` are the units at which a new stage begins (0 excluded)."""
        edges = [0, *cuts, len(DESCRIPTION.unit_ids)]
        self.executors = [null_executor(first, end) for first, end in pairwise(edges)]
        inboxes = [Wire() for _ in self.executors]
        self.results = Wire()
        last = len(self.executors) - 1
        self.paths = [
            DataPath(
                executor,
                ADDRESS,
                participant=f"stage-{index}",
                node_id=f"n{index}",
                results=self.results,  # type: ignore[arg-type]
                following=None if index == last else inboxes[index + 1],  # type: ignore[arg-type]
                first=inboxes[0] if index == last and last > 0 else None,  # type: ignore[arg-type]
                is_first=index == 0,
            )
            for index, executor in enumerate(self.executors)
        ]
        self.inboxes = inboxes
        self.tokens: dict[int, list[int]] = {}
        self.positions: dict[int, list[int]] = {}
        self.reports: dict[int, tuple[SessionReport, ...]] = {}
        self.max_ahead: dict[int, int] = {}
        self._terms: dict[int, SessionTerms] = {}
        self._chance = random.Random(seed)

    def start(self, session: int, prompt: Sequence[int], terms: SessionTerms, chunk: int = 64) -> None:
        """Put a session's opening and its prompt into the first stage's inbox."""
        self._terms[session] = terms
        self.tokens[session], self.positions[session], self.max_ahead[session] = [], [], 0
        self._send(FrameKind.OPEN, session, msgspec.msgpack.encode(terms))
        for step in prompt_steps(len(prompt), chunk):
            ids = prompt[step.start : step.start + step.count]
            payload = b"".join(token.to_bytes(4, "little", signed=True) for token in ids)
            last = step.start + step.count == len(prompt)
            self._send(FrameKind.INPUT, session, payload, position=step.start, count=step.count, sample=last)

    def _send(self, kind: FrameKind, session: int, payload: bytes = b"", **fields: Any) -> None:
        self.inboxes[0].send(encode(ADDRESS.header(kind, session, **fields), payload))

    def run(self) -> None:
        """Deliver until no frame is left anywhere."""
        while any(wire.frames for wire in (*self.inboxes, self.results)):
            self.step()

    def step(self) -> None:
        """Deliver one frame."""
        ready = [index for index, wire in enumerate([*self.inboxes, self.results]) if wire.frames]
        index = self._chance.choice(ready)
        if index == len(self.inboxes):
            self._commit(self.results.frames.popleft())
        else:
            self.paths[index].handle(self.inboxes[index].frames.popleft())
            self._watch_run_ahead()

    def _watch_run_ahead(self) -> None:
        for session, terms in self._terms.items():
            if str(session) in self.executors[0]._sessions:
                committed = terms.prompt_tokens + len(self.tokens[session])
                ahead = self.executors[0].length(str(session)) - committed
                self.max_ahead[session] = max(self.max_ahead[session], ahead)

    def _commit(self, frame: Frame) -> None:
        session = frame.header.session
        terms = self._terms[session]
        if frame.header.kind == FrameKind.RESULT:
            body = msgspec.msgpack.decode(frame.payload, type=ResultBody)
            self.tokens[session].append(body.token)
            self.positions[session].append(frame.header.position)
            self._send(FrameKind.CREDIT, session, position=frame.header.position)
            if len(self.tokens[session]) >= terms.max_tokens or body.token in terms.stop_ids:
                self._send(FrameKind.CLOSE, session)
        elif frame.header.kind == FrameKind.CLOSED:
            self.reports[session] = msgspec.msgpack.decode(frame.payload, type=tuple[SessionReport, ...])
