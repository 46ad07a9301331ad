from __future__ import annotations

import itertools

import pytest

from inferswarm.errors import MeasurementError
from inferswarm.evidence.applicability import MEASURED_CLASSES, Selection, assess, select
from inferswarm.evidence.types import Observation, make_context

CONTEXT = {"threads": "1", "backend": "torch"}


def record(**changes: object) -> Observation:
    fields = {
        "subject": "cpu-1",
        "metric": "unit-seconds",
        "unit": "s",
        "samples": (1.0, 2.0, 9.0),
        "context": make_context(threads=1, backend="torch", extra="x"),
        "protocol": "test/1",
        "taken_at_ns": "5000000000",
        "producer": "test",
    } | changes
    return Observation(**fields)  # type: ignore[arg-type]


def test_a_record_applies_where_every_required_key_is_equal() -> None:
    assert assess(record(), CONTEXT) == (True, ())
    assert assess(record(), {}) == (True, ())
    assert assess(record(), make_context(threads=1)) == (True, ())


@pytest.mark.parametrize(
    ("changes", "options", "reasons"),
    [
        ({"context": make_context(threads=2, backend="torch")}, {}, ("threads is '2', needed '1'",)),
        ({"context": make_context(threads=1)}, {}, ("does not state backend, needed 'torch'",)),
        ({"context": make_context(threads="1.0", backend="torch")}, {}, ("threads is '1.0', needed '1'",)),
        ({}, {"unit": "ms"}, ("unit is 's', needed 'ms'",)),
        ({"evidence_class": "nominal"}, {}, ("class is nominal, needed measured or runtime",)),
        ({"evidence_class": "estimate"}, {}, ("class is estimate, needed measured or runtime",)),
        ({}, {"max_age_seconds": 2, "now_ns": 8_000_000_000}, ("is 3 s old, needed 0 to 2 s",)),
        ({}, {"max_age_seconds": 2, "now_ns": 4_000_000_000}, ("is -1 s old, needed 0 to 2 s",)),
        (
            {"context": make_context(threads=2), "evidence_class": "nominal"},
            {"unit": "B"},
            (
                "class is nominal, needed measured or runtime",
                "unit is 's', needed 'B'",
                "does not state backend, needed 'torch'",
                "threads is '2', needed '1'",
            ),
        ),
    ],
)
def test_every_reason_against_a_record_is_given(
    changes: dict[str, object], options: dict[str, object], reasons: tuple[str, ...]
) -> None:
    assert assess(record(**changes), CONTEXT, **options) == (False, reasons)  # type: ignore[arg-type]


def test_a_record_that_is_just_old_enough_applies() -> None:
    assert assess(record(), CONTEXT, max_age_seconds=2, now_ns=7_000_000_000).applies
    assert not assess(record(), CONTEXT, max_age_seconds=60).applies  # the present is long after 1970


def test_a_nominal_value_answers_only_who_asks_for_one() -> None:
    nominal = record(evidence_class="nominal")
    assert "nominal" not in MEASURED_CLASSES
    assert not assess(nominal, CONTEXT).applies
    assert assess(nominal, CONTEXT, classes=("nominal",)).applies


def test_a_selection_holds_what_applies_and_why_the_rest_does_not() -> None:
    good = record()
    other_subject, other_metric = record(subject="cpu-2"), record(metric="message-seconds")
    threads = record(context=make_context(threads=2, backend="torch"))
    found = select([other_subject, threads, good, other_metric], "cpu-1", "unit-seconds", CONTEXT)
    assert found.applicable == (good,)
    assert {rejection.observation.id: rejection.reasons for rejection in found.rejected} == {
        other_subject.id: ("subject is 'cpu-2', needed 'cpu-1'",),
        threads.id: ("threads is '2', needed '1'",),
    }
    assert found.unknown_reason is None
    assert found.samples == (1.0, 2.0, 9.0)
    assert (found.median.value, found.median.detail) == (2.0, "3 samples of 1 records")


def test_order_changes_nothing() -> None:
    records = [record(taken_at_ns=str(time), samples=(float(time),)) for time in (1, 2)]
    records += [record(subject=name) for name in ("x", "y")]
    expected = select(records, "cpu-1", "unit-seconds", CONTEXT)
    assert [item.taken_at_ns for item in expected.applicable] == ["1", "2"]
    for order in itertools.permutations(records):
        assert select(order, "cpu-1", "unit-seconds", CONTEXT) == expected


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "no record of unit-seconds exists"),
        ([record(metric="other")], "no record of unit-seconds exists"),
        (
            [record(subject="cpu-2", evidence_class="nominal"), record(evidence_class="nominal")],
            "no record of unit-seconds applies: class is nominal, needed measured or runtime "
            "(and 1 more that apply no better)",
        ),
    ],
)
def test_nothing_applicable_is_an_unknown_with_a_reason_and_never_a_number(
    records: list[Observation], reason: str
) -> None:
    found = select(records, "cpu-1", "unit-seconds", CONTEXT)
    assert isinstance(found, Selection)
    assert found.unknown_reason == reason
    assert not found.median.known
    assert found.median.detail == reason
    with pytest.raises(MeasurementError, match="no record of unit-seconds"):
        _ = found.samples
