from __future__ import annotations

import msgspec
import pytest

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import DocumentError, EvidenceError, SpecError
from inferswarm.evidence.baselines import Baseline, accept_baseline, baseline_in_force, compare_with_baseline
from inferswarm.evidence.drift import record_run
from inferswarm.evidence.types import Observation
from tests.unit.evidence.evidence_samples import NOW, SECOND, make_baseline, make_record, noisy

RAMP = tuple(1e-3 * (1 + index / 12) for index in range(24))


def second_version(previous: Baseline, center: float = 2e-3) -> Baseline:
    record = make_record(samples=noisy(center), at_ns=NOW + SECOND)
    return accept_baseline(
        [record],
        accepted_by="operator",
        accepted_at_ns=str(NOW + 2 * SECOND),
        reason="a slower card was put in on purpose",
        previous=previous,
    )


def test_a_baseline_says_who_accepted_which_samples_when_and_why() -> None:
    baseline = make_baseline()
    assert (baseline.version, baseline.replaces, baseline.better) == (1, None, "lower")
    assert (baseline.accepted_by, baseline.accepted_at_ns, baseline.reason) == (
        "operator",
        str(NOW),
        "after installation",
    )
    assert len(baseline.observation_ids) == len(baseline.runs) == 3
    assert baseline.samples_digest == digest(baseline.runs)
    assert baseline.median == pytest.approx(1e-3, rel=0.01)
    assert baseline.repeat_noise < 0.02
    assert read_document(Baseline, write_document(baseline), "test") == baseline


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": ((1e-3,) * 24,) * 3},
        {"samples_digest": "sha256:" + "0" * 64},
        {"accepted_by": " "},
        {"reason": ""},
        {"context": ()},
        {"runs": ()},
        {"observation_ids": ()},
        {"version": 2},
        {"replaces": "sha256:" + "0" * 64},
    ],
)
def test_a_baseline_that_contradicts_itself_is_refused_when_made_and_when_read(changes: dict[str, object]) -> None:
    baseline = make_baseline()
    with pytest.raises(ValueError, match=r"digest names|who accepted|samples for each|the first replaces none"):
        msgspec.structs.replace(baseline, **changes)
    fields = msgspec.to_builtins(baseline) | msgspec.to_builtins(changes)
    with pytest.raises(DocumentError):
        read_document(Baseline, msgspec.json.encode(fields), "test")


def test_a_version_of_zero_is_refused() -> None:
    fields = msgspec.to_builtins(make_baseline()) | {"version": 0}
    with pytest.raises(DocumentError, match="version"):
        read_document(Baseline, msgspec.json.encode(fields), "test")


@pytest.mark.parametrize(
    ("records", "fields", "problem"),
    [
        ([], {}, "records to accept"),
        ([make_record(), make_record("gpu-1")], {}, "records of one question"),
        ([make_record(), make_record(context={"threads": "8"})], {}, "records of one question"),
        ([make_record(), make_record(protocol="cost-classes/3")], {}, "records of one question"),
        ([make_record(), make_record(unit="ms")], {}, "records of one question"),
        ([make_record(), make_record()], {}, "each record once"),
        ([make_record(evidence_class="nominal")], {}, "class of a record to accept"),
        ([make_record(evidence_class="estimate")], {}, "class of a record to accept"),
        ([make_record(samples=noisy(1e-3, 7))], {}, "samples to accept"),
        ([make_record(samples=RAMP)], {}, "samples without drift"),
        ([make_record(metric="unheard-of")], {}, "metric to accept"),
        ([make_record(at_ns=NOW + 1)], {}, "time of acceptance"),
        ([make_record(context={"threads": "8"})], {"previous": make_baseline()}, "baseline to replace"),
    ],
)
def test_what_cannot_be_a_reference_is_not_accepted(
    records: list[Observation], fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(SpecError, match=problem):
        accept_baseline(
            records,
            accepted_by="operator",
            accepted_at_ns=str(NOW),
            reason="test",
            **fields,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("fields", [{"accepted_by": ""}, {"reason": " "}])
def test_nobody_accepts_nothing_for_no_reason(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="who accepted it and why"):
        make_baseline(**fields)


def test_the_newest_accepted_version_is_in_force() -> None:
    first = make_baseline()
    second = second_version(first)
    assert (second.version, second.replaces) == (2, first.id)
    for order in ([first, second], [second, first], [second, first, second]):
        assert baseline_in_force(order, make_record()) == second
    assert baseline_in_force([first], make_record()) == first


def test_a_baseline_holds_for_its_own_question_only() -> None:
    baselines = [make_baseline()]
    assert baseline_in_force(baselines, make_record("gpu-1")) is None
    assert baseline_in_force(baselines, make_record(context={"threads": "8"})) is None
    noted = record_run(make_record(), num_warm_up=1, interleaving="turns")
    assert baseline_in_force(baselines, noted) == baselines[0]


def test_versions_that_do_not_follow_each_other_are_refused() -> None:
    first = make_baseline()
    second, rival = second_version(first), second_version(first, 3e-3)
    with pytest.raises(EvidenceError, match="do not follow each other"):
        baseline_in_force([second], make_record())
    with pytest.raises(EvidenceError, match="do not follow each other"):
        baseline_in_force([first, second, rival], make_record())


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.0, "none"), (1.5, "degraded"), (0.7, "improved"), (1.1, "insufficient")]
)
def test_records_are_compared_with_what_was_accepted(factor: float, outcome: str) -> None:
    baseline = make_baseline()
    before = baseline.id
    assert compare_with_baseline(baseline, [make_record(samples=noisy(factor * 1e-3))]).outcome == outcome
    assert baseline.id == before


def test_how_a_run_went_does_not_keep_it_from_being_compared() -> None:
    noted = record_run(make_record(samples=noisy(1.5e-3)), num_warm_up=2, interleaving="turns")
    assert compare_with_baseline(make_baseline(), [noted]).outcome == "degraded"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (make_record(context={"threads": "8"}), "threads is '8', needed '4'"),
        (make_record(context={"threads": ""}), "threads is None, needed '4'"),
        (make_record(context={"more": "x"}), "more is 'x', needed None"),
        (make_record(metric="step-overhead-seconds"), "metric is 'step-overhead-seconds'"),
        (make_record(protocol="cost-classes/3"), "protocol is 'cost-classes/3'"),
        (make_record(unit="ms"), "unit is 'ms'"),
        (make_record(evidence_class="nominal"), "class is nominal"),
    ],
)
def test_other_conditions_say_nothing_about_degradation(record: Observation, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        compare_with_baseline(make_baseline(), [record])
    with pytest.raises(SpecError, match="records to compare"):
        compare_with_baseline(make_baseline(), [])
