"""What a stage holds of sessions when its route ends: cut where that is exact, opened anew where not, refilled."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from inferswarm.errors import FabricError, SpecError
from inferswarm.fabric.datapath import DataPath
from inferswarm.fabric.frames import Address, Frame, encode
from inferswarm.fabric.frames import FrameKind as K
from inferswarm.fabric.messages import SessionHeld, SessionOrder
from inferswarm.fabric.stage_journal import JournalSettings
from inferswarm.fabric.stage_sessions import HeldSessions
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.strategies.sampling import choose_sampling
from tests.unit.fabric.stage_ring import ADDRESS, PlainExecutor, Ring, Wire, null_executor

PROMPT = tuple(range(10, 31))
NEXT = Address("scope", 5, "r2", "abababababab")
TOKENS = 14


def terms_of(committed: int = 0, *, ahead: int = 2) -> bytes:
    return msgspec.msgpack.encode(SessionTerms(len(PROMPT), TOKENS, 99, (), ahead, committed=committed))


def order(positions: int, passes_from: int = 0, *, session: int = 1, terms: bytes | None = None) -> SessionOrder:
    return SessionOrder(session, terms_of() if terms is None else terms, positions, passes_from)


def computed(steps: list[tuple[int, int]], *, holds_head: bool = False) -> tuple[HeldSessions, PlainExecutor]:
    executor = PlainExecutor(is_last=holds_head)
    held = HeldSessions(executor, holds_head=holds_head, journal_settings=JournalSettings())
    held.open(1, msgspec.msgpack.decode(terms_of(), type=SessionTerms))
    for start, count in steps:
        output = executor.step("1", start, count, bytes(4 * count), sample=False)
        held.computed(1, start, count, output.payload)
    return held, executor


CHUNKS = [(0, 8), (8, 8), (16, 5), (21, 1), (22, 1)]


@pytest.mark.parametrize("positions", [8, 16, 21, 22, 23])
def test_a_session_is_cut_where_a_step_ended(positions: int) -> None:
    held, executor = computed(CHUNKS)
    assert held.held() == (SessionHeld(1, 23, 0),)
    assert held.hold([order(positions)]) == (SessionHeld(1, positions, 0),)
    assert executor.lengths == {"1": positions}


@pytest.mark.parametrize("positions", [0, 1, 12, 20, 24, 100])
def test_one_that_cannot_be_cut_there_holds_nothing_and_says_so(positions: int) -> None:
    held, executor = computed(CHUNKS)
    assert held.hold([order(positions)]) == (SessionHeld(1, 0, 0),)
    assert executor.lengths == {"1": 0}
    assert held.journal is not None
    assert held.journal.kept(1) == (0, 0)


def test_a_session_whose_longest_is_another_is_computed_anew() -> None:
    held, _ = computed(CHUNKS)
    other = msgspec.msgpack.encode(SessionTerms(len(PROMPT), TOKENS, 100, (), 2))
    assert held.hold([order(16, terms=other)]) == (SessionHeld(1, 0, 0),)


def test_sessions_that_are_not_named_are_dropped() -> None:
    held, executor = computed(CHUNKS)
    assert held.hold([order(0, session=7)]) == (SessionHeld(7, 0, 0),)
    assert executor.lengths == {"7": 0}
    assert held.hold([]) == ()
    assert executor.lengths == {}


def test_the_stage_with_the_head_keeps_no_journal_and_says_so() -> None:
    held, _ = computed(CHUNKS, holds_head=True)
    assert held.held() == (SessionHeld(1, 23, 23),)


def test_terms_that_cannot_be_read_change_nothing() -> None:
    held, executor = computed(CHUNKS)
    with pytest.raises(FabricError, match="terms of session 2"):
        held.hold([order(8), order(0, session=2, terms=b"\xc1")])
    assert executor.lengths == {"1": 23}


def test_the_sampler_of_a_kept_session_goes_on_from_the_order_s_history() -> None:
    held, executor = computed(CHUNKS, holds_head=True)
    drawn = choose_sampling(temperature=1.0, repetition_penalty=1.5, seed=7)
    penalized = msgspec.msgpack.encode(SessionTerms(21, TOKENS, 99, (), 2, drawn, (*range(21), 3, 4), 2))
    held.hold([order(22, terms=penalized)])
    sampler = executor.samplers["1"]
    assert sampler is not None
    row = np.linspace(0, 1, 40, dtype=np.float32)
    assert sampler.draw(row, 23).token < 40
    unseeded = msgspec.msgpack.encode([21, TOKENS, 99, [], 2, {"temperature": 1.0}])
    with pytest.raises(SpecError, match="seed"):
        held.hold([order(22, terms=unseeded)])


# -- a whole route, of which one stage is lost --

CUTS = [2, 4]


def undisturbed() -> list[int]:
    ring = Ring(CUTS)
    ring.start(1, PROMPT, SessionTerms(len(PROMPT), TOKENS, 99, (), 2), chunk=8)
    ring.run()
    return ring.tokens[1]


def broken_off(num_tokens: int, seed: int) -> Ring:
    """Compute until so many tokens are committed; what is on its way then is lost with the route."""
    ring = Ring(CUTS, seed=seed)
    ring.start(1, PROMPT, SessionTerms(len(PROMPT), TOKENS, 99, (), 2), chunk=8)
    while len(ring.tokens[1]) < num_tokens:
        ring.step()
    return ring


class Rebuilt:
    """The route of a ring with new stages in place of some, under the next address."""

    def __init__(self, ring: Ring, lost: set[int], num_committed: int) -> None:
        """Hold what survived up to the last committed position, and fill the new stages from their neighbors."""
        self.tokens = ring.tokens[1][:num_committed]
        self.late = [frame for wire in ring.inboxes for frame in wire.frames]
        self.inboxes, self.results = [Wire() for _ in ring.paths], Wire()
        last = len(ring.paths) - 1
        edges = [0, *CUTS, 6]
        kept = len(PROMPT) - 1 + num_committed
        helds = []
        for index, path in enumerate(ring.paths):
            if index not in lost:
                path.close()
                held = path._held
            else:
                executor = null_executor(edges[index], edges[index + 1])
                held = HeldSessions(executor, holds_head=index == last, journal_settings=JournalSettings())
            following_holds = index < last and index + 1 not in lost
            orders = [SessionOrder(1, terms_of(num_committed), 0 if index in lost else kept, kept * following_holds)]
            assert held.hold(orders) == (
                SessionHeld(1, orders[0].positions, kept if index == last not in lost else 0),
            )
            helds.append(held)
        self.paths = [
            DataPath(
                held._executor,
                NEXT,
                participant=f"stage-{index}",
                node_id=f"n{index}",
                results=self.results,  # type: ignore[arg-type]
                following=None if index == last else self.inboxes[index + 1],  # type: ignore[arg-type]
                first=self.inboxes[0] if index == last else None,  # type: ignore[arg-type]
                is_first=index == 0,
                held=held,
            )
            for index, held in enumerate(helds)
        ]
        for index in sorted(lost):
            if index - 1 >= 0 and index - 1 not in lost:
                self.paths[index - 1].refill(1, 0, kept)


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}], ids=str)
@pytest.mark.parametrize("num_committed", [1, 2, 5, 12])
def test_a_lost_stage_is_filled_from_its_neighbor_and_the_answer_is_that_of_an_undisturbed_run(
    lost: set[int], num_committed: int
) -> None:
    ring = broken_off(num_committed, seed=num_committed)
    steps_before = [path._executor._steps for path in ring.paths]
    rebuilt = Rebuilt(ring, lost, num_committed)
    for path in rebuilt.paths:
        for frame in rebuilt.late:
            path.handle(frame)  # under the old address: refused, whatever it is
        assert path.refusals == ({"RETIRED_OR_SUPERSEDED_EPOCH": len(rebuilt.late)} if rebuilt.late else {})
        path.refusals.clear()
    position = len(PROMPT) - 1 + num_committed
    token = rebuilt.tokens[-1].to_bytes(4, "little", signed=True)
    header = NEXT.header(K.INPUT, 1, position=position, count=1, sample=True)
    rebuilt.inboxes[0].send(encode(header, token))
    while any(wire.frames for wire in (*rebuilt.inboxes, rebuilt.results)):
        for index, wire in enumerate(rebuilt.inboxes):
            if wire.frames:
                rebuilt.paths[index].handle(wire.frames.popleft())
        while rebuilt.results.frames:
            commit(rebuilt, rebuilt.results.frames.popleft())
    assert rebuilt.tokens == undisturbed()
    assert all(path.refusals == {} for path in rebuilt.paths)
    computed_again = [
        path._executor._steps - (0 if index in lost else steps_before[index])
        for index, path in enumerate(rebuilt.paths)
    ]
    survivors = {computed_again[index] for index in range(3) if index not in lost}
    assert survivors == {TOKENS - num_committed}, "a survivor computed something again"


def commit(rebuilt: Rebuilt, frame: Frame) -> None:
    assert frame.header.position == len(PROMPT) + len(rebuilt.tokens)
    rebuilt.tokens.append(msgspec.msgpack.decode(frame.payload, type=ResultBody).token)
    rebuilt.inboxes[0].send(encode(NEXT.header(K.CREDIT, 1, position=frame.header.position)))


def test_a_refill_that_is_not_kept_sends_nothing() -> None:
    held, executor = computed(CHUNKS)
    following = Wire()
    path = DataPath(
        executor,
        ADDRESS,
        participant="stage-0",
        node_id="n0",
        results=Wire(),  # type: ignore[arg-type]
        following=following,  # type: ignore[arg-type]
        first=None,
        is_first=True,
        held=held,
    )
    for number, first, end in ((1, 0, 24), (1, 4, 16), (2, 0, 8)):
        with pytest.raises(FabricError):
            path.refill(number, first, end)
    assert not following.frames
    path.refill(1, 8, 22)
    assert following.positions(K.BOUNDARY) == [8, 16, 21]
    assert not any(frame.header.sample for frame in following.frames)
