from __future__ import annotations

import random

import msgspec
import pytest

from inferswarm.documents import read_document, write_document
from inferswarm.errors import DocumentError, EvidenceError
from inferswarm.evidence.alerts import (
    Alert,
    AlertCleared,
    AlertRule,
    Review,
    open_alerts,
    performance_event,
    review,
)
from inferswarm.evidence.baselines import accept_baseline, compare_with_baseline
from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import health_of
from inferswarm.evidence.types import Observation
from tests.unit.evidence.evidence_samples import DAY, NOW, SECOND, make_baseline, make_record, noisy

BASELINE = make_baseline()


def record(factor: float, after_seconds: int, seed: int = 7) -> Observation:
    return make_record(samples=noisy(factor * 1e-3, seed=seed), at_ns=NOW + after_seconds * SECOND)


def look(records: list[Observation], alert: Alert | None = None, *, after_seconds: int = 1000) -> Review:
    return review(BASELINE, records, alert, now_ns=NOW + after_seconds * SECOND)


def raised() -> Alert:
    alert = look([record(1.5, 10), record(1.5, 20, 8)], after_seconds=30).alert
    assert alert is not None
    return alert


def test_degraded_records_in_a_row_raise_an_alert_that_says_all_of_it() -> None:
    records = [record(1.5, 10), record(1.6, 20)]
    found = look(records, after_seconds=80)
    assert [item.outcome for item in found.comparisons] == ["degraded", "degraded"]
    assert found.cleared is None
    alert = found.alert
    assert alert is not None
    assert "times the reference's" in alert.fact
    assert (alert.subject, alert.metric, alert.scope) == ("cpu-1", "unit-seconds", BASELINE.context)
    assert (alert.baseline_id, alert.baseline_version) == (BASELINE.id, 1)
    assert alert.observation_ids == tuple(item.id for item in records)
    assert alert.freshness_seconds == 60.0
    assert "nothing was excluded" in alert.response
    assert "this Compute Unit" in alert.revalidation
    assert alert.raised_at_ns == str(NOW + 80 * SECOND)
    assert read_document(Alert, write_document(alert), "test") == alert


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "nothing was measured"),
        ([record(1.5, 10)], "one record is no row"),
        ([record(1.5, 10), record(1.0, 20)], "the newest is well"),
        ([record(1.0, 10), record(1.5, 20)], "one bad record"),
        ([record(1.5, 10), record(1.5, 20), record(1.0, 30)], "the newest is well again"),
        ([record(1.1, 10), record(1.1, 20)], "the samples do not tell"),
        ([record(0.5, 10), record(0.5, 20)], "better is not worse"),
        ([record(1.5, 10), record(1.5, 2000)], "the second is from the future"),
    ],
)
def test_nothing_less_raises_an_alert(records: list[Observation], why: str) -> None:
    assert look(records)[1:] == (None, None), why


def test_one_long_bad_record_does_not_outweigh_a_good_one() -> None:
    short_and_well = make_record(samples=noisy(1e-3, 8), at_ns=NOW + 10 * SECOND)
    long_and_slow = make_record(samples=noisy(1.5e-3, 60), at_ns=NOW + 20 * SECOND)
    pooled = compare_with_baseline(BASELINE, [short_and_well, long_and_slow])
    assert pooled.outcome == "degraded"
    assert look([short_and_well, long_and_slow])[1:] == (None, None)


def test_records_that_are_no_news_raise_nothing() -> None:
    records = [record(1.5, 10), record(1.5, 20)]
    late = review(BASELINE, records, None, now_ns=NOW + 2 * DAY)
    assert late == ((), None, None)


@pytest.mark.parametrize("outlier", [1.0, 100.0])
def test_a_single_outlier_raises_nothing(outlier: float) -> None:
    records = []
    for index in range(4):
        samples = [*noisy(1e-3, seed=index)]
        samples[index * 5] = outlier
        records.append(make_record(samples=tuple(samples), at_ns=NOW + (index + 1) * SECOND))
    assert look(records).alert is None


def test_an_open_alert_is_raised_once() -> None:
    alert = raised()
    assert look([record(1.5, 40), record(1.5, 50)], alert)[1:] == (None, None)


def test_a_revalidation_that_passes_clears_the_alert() -> None:
    alert = raised()
    records = [record(1.5, 10), record(1.5, 20), record(1.0, 40), record(1.02, 50)]
    found = look(records, alert, after_seconds=60)
    assert found.alert is None
    assert found.cleared is not None
    assert found.cleared.alert_id == alert.id
    assert found.cleared.baseline_id == BASELINE.id
    assert found.cleared.observation_ids == tuple(item.id for item in records[2:])
    assert read_document(AlertCleared, write_document(found.cleared), "test") == found.cleared


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "nothing was measured"),
        ([record(1.0, 25), record(1.0, 28)], "both are from before the alert"),
        ([record(1.0, 40)], "one record is no row"),
        ([record(1.0, 40), record(1.5, 50)], "the newest is still slow"),
        ([record(1.5, 40), record(1.0, 50)], "one of the two is still slow"),
        ([record(1.0, 40), record(1.1, 50)], "the samples do not tell"),
    ],
)
def test_nothing_less_clears_an_alert(records: list[Observation], why: str) -> None:
    assert look(records, raised())[1:] == (None, None), why


def test_time_clears_no_alert() -> None:
    alert = raised()
    assert review(BASELINE, [], alert, now_ns=NOW + 1000 * DAY)[1:] == (None, None)


def test_the_order_of_records_changes_nothing() -> None:
    records = [record(1.0, 5), record(1.5, 10), record(1.6, 20)]
    expected = look(records)
    assert expected.alert is not None
    for seed in range(4):
        random.Random(seed).shuffle(records)
        assert look(records) == expected


def test_an_alert_about_something_else_cannot_be_cleared_here() -> None:
    other = accept_baseline(
        [make_record("gpu-1", samples=noisy(1e-3), at_ns=NOW)],
        accepted_by="operator",
        accepted_at_ns=str(NOW),
        reason="test",
    )
    with pytest.raises(EvidenceError, match="is not about"):
        review(other, [], raised(), now_ns=NOW)


def test_open_alerts_are_those_that_nothing_cleared() -> None:
    first = raised()
    second = look([record(1.7, 10), record(1.7, 20)]).alert
    assert second is not None
    cleared = look([record(1.0, 40), record(1.0, 50)], first).cleared
    assert cleared is not None
    assert open_alerts([first, second]) == (first, second)
    assert open_alerts([first, second, cleared]) == (second,)
    with pytest.raises(EvidenceError, match="was not open"):
        open_alerts([cleared])


@pytest.mark.parametrize(("factor", "state"), [(1.0, "as-expected"), (0.5, "improved")])
def test_an_alert_and_its_end_are_about_performance_alone(factor: float, state: str) -> None:
    scope, alert = Scope("compute-unit", "cpu-1"), raised()
    cleared = look([record(factor, 40), record(factor, 50)], alert).cleared
    assert cleared is not None
    slow, well = performance_event(alert, scope), performance_event(cleared, scope)
    assert (slow.axis, well.axis) == ("performance", "performance")
    assert slow.evidence_ids == alert.observation_ids
    assert health_of(scope, [slow]).performance.state == "degraded"
    assert health_of(scope, [slow, well]).performance.state == state
    assert health_of(scope, [slow, well]).integrity.state == "unknown"


@pytest.mark.parametrize("field", ["fact", "subject", "metric", "response", "impact", "revalidation"])
def test_an_alert_states_every_part(field: str) -> None:
    with pytest.raises(ValueError, match=f"states its {field}"):
        msgspec.structs.replace(raised(), **{field: " "})


@pytest.mark.parametrize(
    "changes",
    [{"scope": ()}, {"observation_ids": ()}, {"freshness_seconds": -1.0}],
)
def test_an_alert_has_scope_observations_and_freshness(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="an alert has a scope"):
        msgspec.structs.replace(raised(), **changes)


def test_alert_and_end_are_bound_to_what_the_comparison_found() -> None:
    alert = raised()
    none = look([record(1.0, 40), record(1.0, 50)], alert).cleared
    assert none is not None
    with pytest.raises(ValueError, match="about a degradation"):
        msgspec.structs.replace(alert, comparison=none.comparison)
    with pytest.raises(ValueError, match="within the baseline"):
        msgspec.structs.replace(none, comparison=alert.comparison)
    fields = msgspec.to_builtins(alert) | {"cause": "dust"}
    with pytest.raises(DocumentError, match="cause"):
        read_document(Alert, msgspec.json.encode(fields), "test")


@pytest.mark.parametrize("fields", [{"num_confirmations": 1}, {"max_freshness_seconds": 0.0}])
def test_a_rule_that_one_record_could_satisfy_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least 2 records"):
        AlertRule(**fields)  # type: ignore[arg-type]
