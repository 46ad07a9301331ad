"""Checks of integrity: every failure of one that began counts against it, whoever saw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferswarm.errors import CommitRefused, EngineError, FabricError, InferSwarmError, ReplayDiverged, StageLost
from inferswarm.evidence.events import EventKind, Scope
from inferswarm.evidence.health import health_of
from inferswarm.fabric import messages as m
from inferswarm.strategies.sampling import Sampling
from inferswarm.swarm import health_checks
from inferswarm.swarm.health_checks import PROMPT, WORKLOAD, Checked, check_implementation, check_known_answer
from inferswarm.swarm.health_watch import HealthWatch
from inferswarm.swarm.tiny_plans import Seat, tiny_plan
from tests.unit.evidence.evidence_samples import SECOND, make_event
from tests.unit.test_swarm_health import GRAPH, Bench

SEAT = Seat(GRAPH.nodes[0], GRAPH.compute_units[0])
NODE = Scope("node", SEAT.node.id)
TOKENS, DIGESTS = health_checks._answer_without_fabric(tiny_plan((SEAT,), "null", "fp32", WORKLOAD))
LOST = StageLost("birch", "stage-0", "it was killed")
LATE = EngineError("Coordinator", "did not answer within 10 s")


def status(*refusals: tuple[str, int]) -> m.SwarmStatus:
    return m.SwarmStatus(scope="s", term=1, pid=1, nodes=(), epoch=1, plan_digest=None, refusals=refusals)


def stages(*refusals: tuple[str, int]) -> m.StageReportList:
    report = m.StageReport(
        participant="stage-0",
        positions=0,
        steps=0,
        source_bytes=0,
        state_bytes_moved=0,
        frames_sent=0,
        bytes_sent=0,
        refusals=refusals,
        resident_bytes=0,
        resident_peak_bytes=0,
        anonymous_bytes=0,
    )
    return m.StageReportList(reports=(report,))


def generated(tokens: tuple[int, ...] = TOKENS) -> m.Generated:
    record = m.SessionRecord(
        session=1,
        epoch=1,
        state="ended",
        reason="",
        prompt_ids=PROMPT,
        tokens=tokens,
        logits_digests=DIGESTS,
        margins=(),
        commit_seconds=(),
        partition="{}",
        replay_of=0,
        max_tokens=len(TOKENS),
        sampling=Sampling(),
        stop=(),
        matched_stop=None,
        logprobs=None,
    )
    return m.Generated(record=record, text="", finish_reason="length", reports=())


SOUND: dict[str, Any] = {
    "Realize": m.Realized(epoch=1, realization="r", stages=(), pids=(), seconds=0.0),
    "Generate": generated(),
    "StageReports": stages(),
    "Status": status(),
}


class Swarm:
    """A Coordinator on paper, sound in everything but what a test says: answers by the kind of question."""

    def __init__(self, **answers: Any) -> None:
        self.answers = SOUND | answers
        self.asked: list[str] = []
        self.on_fault: object = None

    def ask(self, question: Any, on_event: object = None) -> Any:
        self.asked.append(type(question).__name__)
        answer = self.answers.get(self.asked[-1], m.Done())
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, InferSwarmError):
            raise answer
        return answer


def known_answer(swarm: Swarm) -> Checked:
    return check_known_answer(swarm, [SEAT], 1)  # type: ignore[arg-type]


def implementation(swarm: Swarm) -> Checked:
    return check_implementation(swarm, SEAT, "null", "fp32", 1)  # type: ignore[arg-type]


CHECKSUM = ("CHECKSUM_MISMATCH", 3)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"Status": [status(CHECKSUM), status(CHECKSUM)]},  # it was there before
        {"Status": [status(), status(("SESSION_MISMATCH", 1))]},  # a client that asked for what is not there
    ],
)
def test_a_sound_swarm_passes(answers: dict[str, Any]) -> None:
    found = known_answer(Swarm(**answers))
    assert found.passed, found.detail
    assert "24 tokens as known, 0 frames refused" in found.detail
    assert implementation(Swarm()).passed


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"Generate": generated((1, 2))}, "other than known"),
        ({"StageReports": stages(CHECKSUM)}, "3 frames refused (3 × CHECKSUM_MISMATCH)"),
        ({"StageReports": stages(("MALFORMED_FRAME", 1))}, "1 frames refused (1 × MALFORMED_FRAME)"),
        ({"Status": [status(CHECKSUM), status(("CHECKSUM_MISMATCH", 5))]}, "2 frames refused"),
        ({"Status": [status(), status(("MALFORMED_FRAME", 1))]}, "1 frames refused (1 × MALFORMED_FRAME)"),
        ({"Generate": LOST}, "StageLost: Node 'birch' lost stage-0"),
        ({"Generate": LATE}, "EngineError: Coordinator: did not answer"),
        ({"StageReports": LATE}, "EngineError"),
        ({"StageReports": m.Done()}, "expected stage reports, got Done"),
        ({"Status": [status(), LATE]}, "EngineError"),
    ],
)
def test_a_known_answer_that_comes_with_any_failure_is_none(answers: dict[str, Any], said: str) -> None:
    """Mutation: count what stages refused alone, or the codes of checksums alone."""
    swarm = Swarm(**answers)
    found = known_answer(swarm)
    assert not found.passed
    assert said in found.detail
    assert swarm.asked[-1] == "Retire"


@pytest.mark.parametrize(
    "error", [ReplayDiverged(3, "other logits"), LOST, LATE], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("question", ["Generate", "Replay"])
def test_an_implementation_that_fails_while_it_is_checked_did_not_pass(error: InferSwarmError, question: str) -> None:
    """Mutation: catch `ReplayDiverged` alone."""
    swarm = Swarm(**{question: error})
    found = implementation(swarm)
    assert not found.passed
    assert type(error).__name__ in found.detail
    assert swarm.asked[-1] == "Retire"


def test_a_check_that_cannot_begin_finds_nothing() -> None:
    refused = Swarm(Realize=CommitRefused("EPOCH_ACTIVE", "retire it first"))
    for check in (known_answer, implementation):
        with pytest.raises(CommitRefused, match="retire it first"):
            check(refused)


def shut(directory: Path, *kinds: EventKind) -> Bench:
    bench = Bench(directory)
    bench.keeper.note([make_event(kind, NODE, at_ns=bench.now + place) for place, kind in enumerate(kinds)])
    bench.now += SECOND
    return bench


def revalidate(bench: Bench, swarm: Swarm) -> None:
    bench.now += SECOND
    HealthWatch(bench.keeper, swarm, lambda: GRAPH).check(NODE, None)  # type: ignore[arg-type]


def test_a_quarantine_lasts_until_a_check_went_well(tmp_path: Path) -> None:
    bench = shut(tmp_path, "joined", "checksum-mismatch")
    revalidate(bench, Swarm(Generate=LOST))
    assert health_of(NODE, bench.keeper.events()).integrity.state == "quarantined"
    assert "lost stage-0" in bench.keeper.events()[-1].detail
    revalidate(bench, Swarm())
    assert health_of(NODE, bench.keeper.events()).integrity.state == "trusted"


def test_a_scope_that_is_back_and_fails_its_check_stays_shut_and_says_why(tmp_path: Path) -> None:
    bench = shut(tmp_path, "joined", "left", "returned")
    with pytest.raises(FabricError, match=r"is back and does not work: .*lost stage-0"):
        revalidate(bench, Swarm(Generate=LOST))
    assert health_of(NODE, bench.keeper.events()).availability.state == "returned"
    revalidate(bench, Swarm())
    assert health_of(NODE, bench.keeper.events()).availability.state == "available"
