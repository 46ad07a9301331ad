"""Rules about what was accepted, what alerts say, and health: baselines, five axes, quarantine and its end."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.documents import read_document
from inferswarm.errors import DocumentError, EvidenceError, SpecError
from inferswarm.evidence.alerts import Alert, open_alerts, review
from inferswarm.evidence.applicability import select
from inferswarm.evidence.baselines import accept_baseline, baseline_in_force, compare_with_baseline
from inferswarm.evidence.comparison import compare
from inferswarm.evidence.events import AXES, EFFECTS, EVENT_KINDS, EventKind, HealthEvent, Scope
from inferswarm.evidence.health import exclusions, health_of
from inferswarm.evidence.journal import Journal
from inferswarm.evidence.quarantine import quarantines_of
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import EvidenceClass, Observation
from tests.unit.evidence.evidence_samples import (
    DAY,
    NOW,
    SECOND,
    make_baseline,
    make_event,
    make_record,
    noisy,
)

# -- baselines and alerts --


def creeping_records(num_steps: int = 20) -> list[Observation]:
    """Return records that each are 3 % slower than the one before."""
    return [
        make_record(samples=noisy(1e-3 * 1.03**step, seed=step), at_ns=NOW + step * SECOND)
        for step in range(1, num_steps + 1)
    ]


@pytest.mark.rule(30)
def test_an_accepted_baseline_does_not_creep_with_what_is_observed(tmp_path: Path) -> None:
    """Records creep away step by step: the estimate follows them, the baseline stays, and the distance shows.

    No step is a degradation against the step before it, so a baseline that followed would never be left.

    Mutation: compare with the samples of the observations themselves instead of `baseline.runs`.
    """
    baseline, records = make_baseline(), creeping_records()
    journal, store = Journal(tmp_path / "journal"), ObservationStore(tmp_path / "store")
    journal.append([baseline])
    outcomes = []
    for record_ in records:
        store.append([record_])
        outcomes.append(compare_with_baseline(baseline, [record_]).outcome)
    estimate = select(store.query(newest=1), "cpu-1", "unit-seconds", {}).median.value
    assert estimate is not None
    assert estimate > 1.7 * baseline.median
    assert journal.baseline(records[-1]) == baseline
    assert baseline.median == make_baseline().median
    assert outcomes[0] == "none"
    assert set(outcomes[5:]) == {"degraded"}
    steps = [
        compare([before.samples], [after.samples], "lower").outcome for before, after in itertools.pairwise(records)
    ]
    assert set(steps) == {"none"}


@pytest.mark.rule(30)
def test_another_baseline_needs_another_acceptance() -> None:
    """The next version is a document of its own that names its acceptor, its records and what it replaces.

    Mutation: drop the check of versions in `baseline_in_force`, or the check of `samples_digest`.
    """
    first = make_baseline()
    slower = make_record(samples=noisy(2e-3))
    fields = {"accepted_by": "operator", "accepted_at_ns": str(NOW), "reason": "the card was exchanged"}
    second = accept_baseline([slower], previous=first, **fields)  # type: ignore[arg-type]
    assert (second.version, second.replaces, second.observation_ids) == (2, first.id, (slower.id,))
    assert baseline_in_force([second, first], slower) == second
    with pytest.raises(EvidenceError, match="do not follow each other"):
        baseline_in_force([first, msgspec.structs.replace(second, version=3)], slower)
    with pytest.raises(ValueError, match="its digest names"):
        msgspec.structs.replace(first, runs=second.runs * 3)


@pytest.mark.rule(26)
@pytest.mark.parametrize("evidence_class", ["nominal", "discovered", "estimate", "baseline"])
def test_a_baseline_is_made_of_and_compared_with_measured_records_only(evidence_class: EvidenceClass) -> None:
    """Values of other classes are neither accepted as a reference nor seen as a degradation.

    Mutation: drop the check of the class in `accept_baseline` and in `baselines._difference`.
    """
    other = make_record(samples=noisy(2e-3), evidence_class=evidence_class)
    with pytest.raises(SpecError, match="class of a record to accept"):
        accept_baseline([other], accepted_by="operator", accepted_at_ns=str(NOW), reason="test")
    with pytest.raises(SpecError, match=f"class is {evidence_class}"):
        compare_with_baseline(make_baseline(), [other])


@functools.cache
def make_alert() -> Alert:
    slow = [make_record(samples=noisy(1.5e-3, seed=seed), at_ns=NOW + seed * SECOND) for seed in (1, 2)]
    alert = review(make_baseline(), slow, None, now_ns=NOW + 10 * SECOND).alert
    assert alert is not None
    return alert


ALERT_FIELDS = (
    "fact",
    "subject",
    "metric",
    "scope",
    "baseline_id",
    "baseline_version",
    "observation_ids",
    "comparison",
    "freshness_seconds",
    "response",
    "impact",
    "revalidation",
    "raised_at_ns",
)


@pytest.mark.rule(36)
@pytest.mark.parametrize("field", ALERT_FIELDS)
def test_an_alert_without_one_of_its_statements_is_none(field: str) -> None:
    """Fact, scope, baseline, freshness, response, impact and revalidation are all required, and there is no cause.

    Mutation: give the field a default, or allow unknown fields.
    """
    whole = msgspec.to_builtins(make_alert())
    assert set(whole) == {"document", *ALERT_FIELDS}
    assert read_document(Alert, msgspec.json.encode(whole), "test") == make_alert()
    with pytest.raises(DocumentError, match=field):
        read_document(Alert, msgspec.json.encode({key: whole[key] for key in whole if key != field}), "test")
    for invented in ("cause", "reason", "root_cause"):
        with pytest.raises(DocumentError, match=invented):
            read_document(Alert, msgspec.json.encode(whole | {invented: "dust"}), "test")


@pytest.mark.rule(36)
def test_an_alert_ends_by_the_revalidation_that_it_names() -> None:
    """Neither time nor one good record ends it; records within the baseline, taken after it, do.

    Mutation: take records from before the alert into account in `alerts._is_news`.
    """
    alert, baseline = make_alert(), make_baseline()
    assert "records in a row within the baseline" in alert.revalidation
    good = [make_record(samples=noisy(1e-3, seed=seed), at_ns=NOW + (seed + 20) * SECOND) for seed in (1, 2)]
    early = [msgspec.structs.replace(item, taken_at_ns=str(NOW + seed)) for seed, item in enumerate(good)]
    for records in ([], good[:1], early):
        assert review(baseline, records, alert, now_ns=NOW + 60 * SECOND)[1:] == (None, None)
    cleared = review(baseline, good, alert, now_ns=NOW + 60 * SECOND).cleared
    assert cleared is not None
    assert open_alerts([alert, cleared]) == ()


# -- health and quarantine --

CARD, PATH, OTHER_PATH = Scope("compute-unit", "cpu-1"), Scope("path", "a->b"), Scope("path", "b->c")
NODE = Scope("node", "a")
ALL_FIVE: tuple[EventKind, ...] = ("joined", "compatible", "integrity-checked", "qualified", "performed-as-expected")


@pytest.mark.rule(31)
@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_each_axis_of_trust_moves_alone(kind: EventKind) -> None:
    """Five axes are read and set one by one, each event moves its own, and there is no sixth that sums them up.

    Mutation: in `health_of`, let an event of performance set integrity too.
    """
    assert AXES == ("availability", "compatibility", "integrity", "qualification", "performance")
    assert set(msgspec.to_builtins(health_of(CARD, []))) == {"document", "scope", *AXES}
    before = [make_event(item) for item in ALL_FIVE]
    after = [*before, make_event(kind, at_ns=NOW + SECOND, evidence=("later",))]
    old, new = health_of(CARD, before), health_of(CARD, after)
    assert [axis for axis in AXES if old.on(axis) != new.on(axis)] == [EFFECTS[kind].axis]


@pytest.mark.rule(33)
def test_what_was_away_is_checked_again_and_was_never_suspect() -> None:
    """Leaving and coming back demands a revalidation; no quarantine is set on the way, and one that was stays.

    Mutation: let `returned` be evidence of `available` in `EFFECTS`, or let it end a quarantine.
    """
    kinds: list[EventKind] = ["joined", "integrity-checked", "heartbeat-missed", "left", "returned"]
    events = [make_event(kind, at_ns=NOW + index) for index, kind in enumerate(kinds)]
    away, back = health_of(CARD, events[:-1]), health_of(CARD, events)
    assert (away.availability.state, back.availability.state) == ("unavailable", "returned")
    assert [item.axis for item in exclusions(back)] == ["availability"]
    assert away.integrity == back.integrity == health_of(CARD, events[:2]).integrity
    assert quarantines_of(events).active == ()
    checked = [*events, make_event("availability-revalidated", at_ns=NOW + 9)]
    assert exclusions(health_of(CARD, checked)) == ()
    corrupt = make_event("result-mismatch", evidence=("wrong",))
    assert [item.scope for item in quarantines_of([corrupt, *checked]).active] == [CARD]


@pytest.mark.rule(34)
def test_a_corrupt_frame_shuts_its_path_until_a_check_of_it_passes() -> None:
    """Only the path is shut, not its Node or another path; time and speed do nothing; its own revalidation opens it.

    Mutation: let `HealthEvent.concerns` return all that is implicated, or clear on any event that says `trusted`.
    """
    corrupt = make_event("checksum-mismatch", PATH, NODE, evidence=("frame-9",))
    century = NOW + 100 * 366 * DAY
    later: list[EventKind] = ["sped-up", "performed-as-expected", "joined", "integrity-checked", "qualified"]
    events = [corrupt, *(make_event(kind, PATH, at_ns=century + SECOND, evidence=("x",)) for kind in later)]
    assert [item.scope for item in quarantines_of(events).active] == [PATH]
    assert [item.axis for item in exclusions(health_of(PATH, events))] == ["integrity"]
    for scope in (NODE, OTHER_PATH):
        assert exclusions(health_of(scope, events)) == ()
    passed: EventKind = "integrity-revalidation-passed"
    for other in (
        make_event(passed, OTHER_PATH, at_ns=century, evidence=("retest",)),
        make_event(passed, NODE, at_ns=century, evidence=("retest",)),
        make_event(passed, PATH, at_ns=NOW, evidence=("retest",)),
        make_event(passed, PATH, at_ns=century, evidence=("frame-9",)),
    ):
        assert [item.scope for item in quarantines_of([*events, other]).active] == [PATH]
    cleared = quarantines_of([*events, make_event(passed, PATH, at_ns=century, evidence=("retest",))])
    assert cleared.active == ()
    assert (cleared.audit[0].effect, cleared.audit[-1].effect) == ("opened", "cleared")


@pytest.mark.rule(35)
@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(
        st.builds(
            make_event,
            st.sampled_from(
                [
                    kind
                    for kind in EVENT_KINDS
                    if kind not in ("checksum-mismatch", "digest-mismatch", "result-mismatch", "state-corrupted")
                    and kind != "integrity-revalidation-failed"
                ]
            ),
            st.sampled_from([CARD, PATH, OTHER_PATH, NODE]),
            at_ns=st.integers(NOW, NOW + 1000),
        ),
        max_size=20,
    )
)
def test_no_event_without_a_finding_against_integrity_quarantines(events: list[HealthEvent]) -> None:
    """Missed heartbeats, heat, throttling, narrow links, departures, missing qualification: none shuts anything.

    Mutation: let any of those be evidence of `quarantined` in `EFFECTS`.
    """
    state = quarantines_of(events)
    assert state.active == ()
    assert {entry.effect for entry in state.audit} <= {"no-effect"}
    for scope in (CARD, PATH, OTHER_PATH, NODE):
        assert health_of(scope, events).integrity.state in ("unknown", "trusted")
