"""One stage's token path: what it refuses, how far it runs ahead, when it ends, and what it reports."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.backends.base import StepOutput
from inferswarm.errors import ArtifactError, FabricError, WireError
from inferswarm.fabric import datapath
from inferswarm.fabric.faults import Fault, to_error
from inferswarm.fabric.frames import ROUTE_SESSION, FrameKind, encode
from inferswarm.fabric.messages import SessionReport
from inferswarm.fabric.terms import ResultBody, SessionTerms
from tests.unit.fabric.stage_ring import ADDRESS, PlainExecutor, Ring, Single

K = FrameKind


def make(index: int = 0, num_stages: int = 2, **executor: object) -> tuple[Single, PlainExecutor]:
    made = PlainExecutor(is_last=index == num_stages - 1, **executor)  # type: ignore[arg-type]
    return Single(made, index, num_stages), made


def prompt(stage: Single, count: int = 3) -> None:
    kind = K.BOUNDARY if stage.path._handlers.get(K.INPUT) is None else K.INPUT
    stage.send(kind, position=0, count=count, sample=True, payload=bytes(4 * count))


def generated(stage: Single, position: int) -> None:
    stage.send(K.INPUT, position=position, count=1, sample=True, payload=bytes(4))


# -- refusals --


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"scope": "another"}, "WRONG_SCOPE"),
        ({"epoch": 3}, "RETIRED_OR_SUPERSEDED_EPOCH"),
        ({"epoch": 5}, "RETIRED_OR_SUPERSEDED_EPOCH"),
        ({"realization": "r0"}, "WRONG_REALIZATION"),
        ({"plan": "cdcdcdcdcdcd"}, "PLAN_DIGEST_MISMATCH"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [K.OPEN, K.INPUT, K.CREDIT, K.CLOSE], ids=lambda kind: kind.name)
def test_a_frame_of_another_epoch_is_refused_and_counted(
    kind: FrameKind, change: dict[str, object], code: str
) -> None:
    stage, executor = make()
    stage.open()
    stage.following.frames.clear()
    header = ADDRESS._replace(**change).header(kind, 1, position=0, count=3, sample=True)  # type: ignore[arg-type]
    stage.handle(encode(header, bytes(12)))
    assert stage.path.refusals == {code: 1}
    assert stage.path.unexplained_bytes_received == 12
    assert executor.steps == []
    assert executor.lengths == {"1": 0}
    assert not stage.following.frames
    assert not stage.results.frames


@pytest.mark.parametrize(
    ("index", "kind"),
    [
        (0, K.BOUNDARY),
        (1, K.INPUT),
        (1, K.CREDIT),
        (0, K.RESULT),
        (0, K.OPENED),
        (0, K.CLOSED),
        (0, K.FAULT),
        (0, 99),
    ],
)
def test_what_a_stage_does_not_do_is_refused_and_counted(index: int, kind: int) -> None:
    stage, executor = make(index)
    stage.send(kind, count=1, payload=bytes(4))  # type: ignore[arg-type]
    assert stage.path.refusals == {"UNKNOWN_OPERATION": 1}
    assert executor.steps == []


@pytest.mark.parametrize("position", [0, 2, 4, 100])
def test_a_position_that_is_not_the_next_is_refused(position: int) -> None:
    stage, executor = make()
    stage.open(ahead=1000)
    prompt(stage)
    generated(stage, position)
    assert stage.path.refusals == {"NON_NEXT_POSITION": 1}
    assert executor.steps == [("1", 0, 3)]
    generated(stage, 3)
    assert executor.steps[1:] == [("1", 3, 1)]


def test_a_position_far_ahead_does_not_take_the_place_of_the_waiting_token() -> None:
    stage, executor = make()
    stage.open(ahead=0)
    prompt(stage)
    generated(stage, 3)
    generated(stage, 9)
    assert stage.path.refusals == {"NON_NEXT_POSITION": 1}
    stage.send(K.CREDIT, position=3)
    assert executor.steps == [("1", 0, 3), ("1", 3, 1)]


def test_a_later_stage_refuses_positions_that_are_not_next() -> None:
    stage, executor = make(index=1)
    stage.open()
    stage.send(K.BOUNDARY, position=1, count=2, payload=bytes(8))
    assert stage.path.refusals == {"NON_NEXT_POSITION": 1}
    assert executor.steps == []


@pytest.mark.parametrize(("index", "kind"), [(0, K.INPUT), (1, K.BOUNDARY)])
def test_a_step_of_an_unknown_session_is_refused(index: int, kind: FrameKind) -> None:
    stage, executor = make(index)
    stage.open()
    stage.send(kind, session=2, position=0, count=1, payload=bytes(4))
    assert stage.path.refusals == {"SESSION_MISMATCH": 1}
    assert executor.steps == []


@pytest.mark.parametrize(("kind", "payload"), [(K.OPEN, b"\xc1"), (K.OPEN, b""), (K.CLOSE, b"\xc1")])
def test_a_payload_that_cannot_be_read_is_refused_and_changes_nothing(kind: FrameKind, payload: bytes) -> None:
    stage, executor = make()
    stage.open()
    stage.send(kind, session=1 if kind is K.CLOSE else 2, payload=payload)
    assert stage.path.refusals == {"MALFORMED_PAYLOAD": 1}
    assert executor.lengths == {"1": 0}
    prompt(stage)
    assert executor.steps == [("1", 0, 3)]


# -- running ahead --


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_the_first_stage_runs_ahead_by_the_window_and_no_further(ahead: int) -> None:
    stage, executor = make()
    stage.open(prompt=3, ahead=ahead)
    prompt(stage)
    for position in range(3, 3 + ahead):
        generated(stage, position)
    assert executor.lengths == {"1": 3 + ahead}
    generated(stage, 3 + ahead)
    assert executor.lengths == {"1": 3 + ahead}  # it waits
    assert stage.path.refusals == {}
    for committed in range(3, 8):
        stage.send(K.CREDIT, position=committed)
        assert executor.lengths == {"1": committed + ahead + 1}
        generated(stage, committed + ahead + 1)
        assert executor.lengths == {"1": committed + ahead + 1}


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_a_stage_alone_runs_ahead_by_the_window_and_no_further(ahead: int) -> None:
    stage, _ = make(0, 1)
    stage.open(prompt=3, ahead=ahead)
    prompt(stage)
    results = list(range(3, 3 + ahead + 1))
    assert stage.results.positions(K.RESULT) == results
    for committed in range(3, 8):
        stage.send(K.CREDIT, position=committed)
        results.append(results[-1] + 1)
        assert stage.results.positions(K.RESULT) == results


def test_the_prompt_is_not_held_back() -> None:
    stage, executor = make()
    stage.open(prompt=6, ahead=0)
    for start in (0, 2, 4):
        stage.send(K.INPUT, position=start, count=2, sample=start == 4, payload=bytes(8))
    assert executor.lengths == {"1": 6}


def test_an_old_credit_takes_nothing_back() -> None:
    stage, executor = make()
    stage.open(prompt=3, ahead=0)
    prompt(stage)
    stage.send(K.CREDIT, position=4)
    stage.send(K.CREDIT, position=3)
    for position in (3, 4):
        generated(stage, position)
    assert executor.lengths == {"1": 5}


def test_a_credit_after_the_end_is_ignored() -> None:
    stage, _ = make()
    stage.open()
    stage.send(K.CLOSE)
    stage.send(K.CREDIT, position=3)
    assert stage.path.refusals == {}


# -- the end of a session --


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_a_session_ends_at_max_tokens(max_tokens: int) -> None:
    stage, _ = make(0, 1)
    stage.open(prompt=3, max_tokens=max_tokens, ahead=100)
    prompt(stage)
    assert stage.results.positions(K.RESULT) == list(range(3, 3 + max_tokens))


@pytest.mark.parametrize(("stop", "last"), [((103,), 3), ((106, 105), 5), ((999,), 12)])
def test_a_session_ends_at_the_first_stop_id(stop: tuple[int, ...], last: int) -> None:
    stage, _ = make(0, 1)
    stage.open(prompt=3, max_tokens=10, stop=stop, ahead=100)
    prompt(stage)
    assert stage.results.positions(K.RESULT) == list(range(3, last + 1))


def test_the_last_of_two_stages_starts_the_next_step_unless_the_session_ended() -> None:
    stage, _ = make(index=1)
    stage.open(prompt=3, max_tokens=2)
    prompt(stage)
    (started,) = stage.first.frames
    assert (started.header.kind, started.header.position, started.header.count) == (K.INPUT, 3, 1)
    assert bytes(started.payload) == (103).to_bytes(4, "little")
    stage.send(K.BOUNDARY, position=3, count=1, sample=True, payload=bytes(4))
    assert len(stage.first.frames) == 1
    assert stage.results.positions(K.RESULT) == [3, 4]


def test_a_chunk_that_is_not_the_last_gives_no_result() -> None:
    stage, _ = make(index=1)
    stage.open(prompt=4)
    stage.send(K.BOUNDARY, position=0, count=2, sample=False, payload=bytes(8))
    assert stage.results.kinds() == [K.OPENED]
    assert not stage.first.frames


def test_a_result_holds_what_was_sampled() -> None:
    stage, _ = make(0, 1)
    stage.open(prompt=3, max_tokens=1)
    prompt(stage)
    frame = stage.results.frames[-1]
    assert msgspec.msgpack.decode(frame.payload, type=ResultBody) == ResultBody(103, f"{3:032x}", 0.5)
    assert ADDRESS.mismatch(frame.header) is None
    assert frame.header.session == 1


def test_opening_is_passed_on_and_confirmed_by_the_last_stage() -> None:
    first, executor = make(0)
    first.open(prompt=3, max_tokens=5, stop=(7,), ahead=1)
    (passed,) = first.following.frames
    assert passed.header.kind == K.OPEN
    assert msgspec.msgpack.decode(passed.payload, type=SessionTerms) == SessionTerms(3, 5, 99, (7,), 1)
    assert not first.results.frames
    assert executor.lengths == {"1": 0}
    last, _ = make(1)
    last.handle(encode(passed.header, passed.payload))
    assert last.results.kinds() == [K.OPENED]


def test_closing_frees_the_session_and_appends_a_report() -> None:
    stage, executor = make()
    stage.open()
    prompt(stage)
    earlier = SessionReport("stage-x", "nx", 1, 1, 0.0, 0, 0, ())
    stage.send(K.CLOSE, payload=msgspec.msgpack.encode((earlier,)))
    assert executor.lengths == {}
    passed = stage.following.frames[-1]
    assert passed.header.kind == K.CLOSE
    reports = msgspec.msgpack.decode(passed.payload, type=tuple[SessionReport, ...])
    assert reports[0] == earlier
    assert (reports[1].participant, reports[1].node_id) == ("stage-0", "n0")
    assert (reports[1].positions, reports[1].steps, reports[1].frames_sent) == (3, 1, 1)


@pytest.mark.parametrize("position", [2, 4])
def test_only_the_step_that_was_on_its_way_at_the_close_is_expected(position: int) -> None:
    stage, executor = make()
    stage.open()
    prompt(stage)
    stage.send(K.CLOSE)
    generated(stage, position)
    assert stage.path.refusals == {"SESSION_MISMATCH": 1}
    generated(stage, 3)
    assert stage.path.refusals == {"SESSION_MISMATCH": 1}
    assert stage.path.unexplained_bytes_received == 4
    generated(stage, 3)
    assert stage.path.refusals == {"SESSION_MISMATCH": 2}
    assert executor.steps == [("1", 0, 3)]


def test_closing_an_unknown_session_is_counted_and_still_passed_on() -> None:
    stage, _ = make()
    stage.send(K.CLOSE, session=5)
    assert stage.path.refusals == {"SESSION_MISMATCH": 1}
    assert stage.following.kinds() == [K.CLOSE]


# -- what goes wrong inside --


def fault_of(stage: Single) -> tuple[object, int, int]:
    frame = stage.results.frames[-1]
    assert frame.header.kind == K.FAULT
    assert ADDRESS.mismatch(frame.header) is None
    error = to_error(msgspec.msgpack.decode(frame.payload, type=Fault))
    return error, frame.header.session, frame.header.position


def test_an_error_of_the_executor_becomes_a_fault_and_the_stage_lives() -> None:
    def trouble(session: str, start: int) -> None:
        if session == "1":
            raise ArtifactError("DIGEST_MISMATCH", "block.1", "other bytes")

    stage, executor = make(trouble=trouble)
    stage.open()
    prompt(stage)
    error, session, position = fault_of(stage)
    assert isinstance(error, ArtifactError)
    assert (error.code, session, position) == ("DIGEST_MISMATCH", 1, 0)
    assert stage.path.step_started is None
    stage.send(K.OPEN, session=2, payload=msgspec.msgpack.encode(SessionTerms(3, 5, 99, (), 1)))
    stage.send(K.INPUT, session=2, position=0, count=3, sample=True, payload=bytes(12))
    assert executor.steps == [("2", 0, 3)]


def test_a_connection_that_broke_is_told_of_for_the_whole_route_until_the_coordinator_has_heard() -> None:
    """Mutation: tell of it with the next frame only, which never comes when the last one was lost."""
    stage, _ = make()
    stage.path.watch(100.0)
    assert not stage.results.frames
    stage.following.broken = "closed by the peer"
    stage.results.broken = "cut"
    stage.path.watch(101.0)
    assert not stage.results.frames
    stage.results.broken = stage.following.broken = ""
    stage.path.watch(101.1)
    assert not stage.results.frames, "it was not time to try again"
    stage.path.watch(110.0)
    error, session, _ = fault_of(stage)
    assert isinstance(error, WireError)
    assert (error.code, session) == ("PEER_NOT_RECEIVING", ROUTE_SESSION)
    stage.results.frames.clear()
    stage.path.watch(120.0)
    assert not stage.results.frames, "it was told once"
    stage.following.broken = "again"
    stage.path.close()
    stage.path.watch(130.0)
    assert not stage.results.frames


@pytest.mark.parametrize(
    ("index", "output"),
    [(0, StepOutput()), (1, StepOutput()), (1, StepOutput(token=1)), (1, StepOutput(token=1, logits_digest="x"))],
)
def test_an_executor_that_gives_too_little_is_a_fault(index: int, output: StepOutput) -> None:
    stage, executor = make(index)
    executor.output = output
    stage.open()
    prompt(stage)
    error, _, _ = fault_of(stage)
    assert isinstance(error, FabricError)
    assert f"stage-{index}" in str(error)
    assert stage.results.positions(K.RESULT) == []


def test_running_out_of_memory_is_not_caught() -> None:
    def trouble(session: str, start: int) -> None:
        raise MemoryError("no more")

    stage, _ = make(trouble=trouble)
    stage.open()
    with pytest.raises(MemoryError):
        prompt(stage)
    assert stage.path.step_started is None


# -- what is counted --


def test_a_step_under_way_is_visible() -> None:
    seen: list[float | None] = []
    stage, _ = make(trouble=lambda session, start: seen.append(stage.path.step_started))
    stage.open()
    assert stage.path.step_started is None
    prompt(stage)
    assert isinstance(seen[0], float)
    assert stage.path.step_started is None


def test_hop_times_are_kept_for_frames_that_say_when_they_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datapath, "MAX_HOP_SAMPLES", 2)
    stage, _ = make()
    stage.open(ahead=100)
    prompt(stage)
    for position in range(3, 7):
        stage.send(K.INPUT, position=position, count=1, sample=True, payload=bytes(4), sent_ns=1)
    stage.send(K.CLOSE)
    (report,) = msgspec.msgpack.decode(stage.following.frames[-1].payload, type=tuple[SessionReport, ...])
    assert len(report.hop_seconds) == 2
    assert all(seconds > 0 for seconds in report.hop_seconds)
    assert report.steps == 5


# -- whole routes --

PROMPT = tuple(range(10, 31))


def answer(cuts: list[int], terms: SessionTerms, seed: int = 0, chunk: int = 8) -> Ring:
    ring = Ring(cuts, seed=seed)
    ring.start(1, PROMPT, terms, chunk)
    ring.run()
    return ring


@pytest.mark.parametrize("cuts", [[3], [1, 4], [1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_every_cut_gives_the_tokens_of_one_stage_and_keeps_the_window(cuts: list[int], ahead: int) -> None:
    terms = SessionTerms(len(PROMPT), 12, 99, (), ahead)
    alone = answer([], terms)
    ring = answer(cuts, terms, seed=ahead)
    assert ring.tokens == alone.tokens
    assert len(set(ring.tokens[1])) > 6
    assert ring.positions[1] == list(range(21, 33))
    assert max(alone.max_ahead[1], ring.max_ahead[1]) <= ahead
    assert all(path.refusals == {} for path in ring.paths)
    assert all(path.unexplained_bytes_received == 0 for path in ring.paths)


@pytest.mark.parametrize("seed", range(5))
def test_sessions_that_run_together_do_not_mix_whatever_arrives_first(seed: int) -> None:
    def run(sessions: list[int]) -> Ring:
        ring = Ring([2, 4], seed=seed)
        for session in sessions:
            ring.start(
                session, PROMPT[session:], SessionTerms(len(PROMPT) - session, 5 + session, 99, (), session), 8
            )
        ring.run()
        return ring

    together = run([1, 2, 3])
    for session in (1, 2, 3):
        assert together.tokens[session] == run([session]).tokens[session]
        assert len(together.tokens[session]) == 5 + session
    assert together.reports.keys() == {1, 2, 3}


def test_reports_come_back_in_route_order_with_true_counts() -> None:
    ring = answer([2, 4], SessionTerms(len(PROMPT), 6, 99, (), 2))
    reports = ring.reports[1]
    assert [report.participant for report in reports] == ["stage-0", "stage-1", "stage-2"]
    assert [report.positions for report in reports] == [len(PROMPT) + 6 - 1] * 3
    assert [report.steps for report in reports] == [3 + 5] * 3
    assert [report.frames_sent for report in reports] == [8, 8, 6 + 5]
    for path, report in zip(ring.paths, reports, strict=True):
        assert (path.frames_sent, path.bytes_sent) == (report.frames_sent, report.bytes_sent)
    assert all(executor._sessions == {} for executor in ring.executors)


def test_the_bytes_that_are_counted_are_the_bytes_that_were_sent() -> None:
    stage, _ = make()
    stage.open(ahead=100)
    before = stage.following.num_bytes
    prompt(stage)
    generated(stage, 3)
    assert stage.path.bytes_sent == stage.following.num_bytes - before
    assert stage.path.frames_sent == 2
