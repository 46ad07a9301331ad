from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.documents import read_document, write_document
from inferswarm.errors import DocumentError
from inferswarm.evidence.events import (
    AXES,
    EFFECTS,
    EVENT_KINDS,
    NARROW_TO_WIDE,
    EventKind,
    HealthEvent,
    Scope,
)
from inferswarm.evidence.health import STATES, AxisState, Exclusion, Health, exclusions, health_of
from inferswarm.evidence.quarantine import quarantines_of
from tests.unit.evidence.evidence_samples import NOW, SECOND, make_event

CPU = Scope("compute-unit", "cpu-1")
NODE = Scope("node", "node-1")
PATH, OTHER_PATH = Scope("path", "node-1->node-2"), Scope("path", "node-2->node-3")
PARTICIPANT = Scope("participant", "stage-1")
FAILURES: tuple[EventKind, ...] = (
    "checksum-mismatch",
    "digest-mismatch",
    "result-mismatch",
    "state-corrupted",
    "integrity-revalidation-failed",
)
PASSED: EventKind = "integrity-revalidation-passed"


def effects(events: list[HealthEvent]) -> list[str]:
    return [entry.effect for entry in quarantines_of(events).audit]


# -- events --


def test_every_kind_of_event_has_one_effect_on_a_state_that_its_axis_has() -> None:
    assert set(EFFECTS) == set(EVENT_KINDS)
    assert set(STATES) == set(AXES)
    for kind, effect in EFFECTS.items():
        assert effect.state in STATES[effect.axis], kind


def test_an_event_concerns_the_narrowest_of_what_it_implicates() -> None:
    assert make_event("checksum-mismatch", NODE, PATH, PARTICIPANT).concerns == (PATH,)
    assert make_event("result-mismatch", NODE, CPU, PARTICIPANT).concerns == (PARTICIPANT,)
    assert make_event("result-mismatch", NODE).concerns == (NODE,)
    pair = Scope("artifact-at-source", "sha256:1@peer-2")
    assert make_event("digest-mismatch", Scope("source", "peer-2"), pair).concerns == (pair,)


def test_scopes_that_the_evidence_cannot_tell_apart_are_all_concerned() -> None:
    assert make_event("checksum-mismatch", NODE, PATH, OTHER_PATH).concerns == (PATH, OTHER_PATH)


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        ("slowed", {"implicated": ()}, "at least one scope"),
        ("slowed", {"implicated": (PATH, NODE)}, "sorted, each once"),
        ("slowed", {"implicated": (CPU, CPU)}, "sorted, each once"),
        ("slowed", {"detail": " "}, "what was seen"),
        ("checksum-mismatch", {"evidence_ids": ()}, "needs the ids"),
        (PASSED, {"evidence_ids": ()}, "needs the ids"),
        ("availability-revalidated", {"evidence_ids": ()}, "needs the ids"),
    ],
)
def test_an_event_that_says_too_little_is_refused(kind: EventKind, fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        msgspec.structs.replace(make_event(kind), **fields)


def test_events_and_scopes_are_strict_documents() -> None:
    event = make_event("checksum-mismatch", PATH)
    assert read_document(HealthEvent, write_document(event), "test") == event
    for change in ({"kind": "looks-bad"}, {"implicated": [{"kind": "rack", "id": "1"}]}, {"axis": "integrity"}):
        fields = msgspec.to_builtins(event) | change
        with pytest.raises(DocumentError):
            read_document(HealthEvent, msgspec.json.encode(fields), "test")
    with pytest.raises(ValueError, match="needs an id"):
        Scope("node", "")


# -- health --


def test_what_nothing_was_seen_of_is_unknown_on_every_axis() -> None:
    health = health_of(CPU, [])
    assert [(health.on(axis).state, health.on(axis).since_ns) for axis in AXES] == [("unknown", None)] * 5
    assert exclusions(health) == ()


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_an_event_moves_its_own_axis_and_leaves_the_others_as_they_were(kind: EventKind) -> None:
    history = [
        make_event("joined", at_ns=NOW),
        make_event("compatible", at_ns=NOW),
        make_event("integrity-checked", at_ns=NOW),
        make_event("qualified", at_ns=NOW),
        make_event("performed-as-expected", at_ns=NOW),
    ]
    before = health_of(CPU, history)
    after = health_of(CPU, [*history, make_event(kind, at_ns=NOW + SECOND, evidence=("record-2",))])
    assert {axis for axis in AXES if before.on(axis) != after.on(axis)} == {EFFECTS[kind].axis}
    assert after.on(EFFECTS[kind].axis).state == EFFECTS[kind].state
    assert after.on(EFFECTS[kind].axis).since_ns == str(NOW + SECOND)


def test_events_about_others_change_nothing() -> None:
    events = [make_event("checksum-mismatch", PATH, NODE), make_event("left", Scope("compute-unit", "cpu-2"))]
    assert health_of(CPU, events) == health_of(CPU, [])
    assert health_of(NODE, events) == health_of(NODE, [])


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (["joined"], "available"),
        (["joined", "left"], "unavailable"),
        (["joined", "heartbeat-missed", "returned"], "returned"),
        (["joined", "unreachable", "joined"], "returned"),
        (["joined", "left", "returned", "joined"], "returned"),
        (["joined", "left", "returned", "availability-revalidated"], "available"),
        (["joined", "left", "availability-revalidated"], "unavailable"),
        (["joined", "left", "returned", "availability-revalidated", "left", "returned"], "returned"),
    ],
)
def test_what_was_away_takes_part_after_a_check_and_not_before(kinds: list[EventKind], state: str) -> None:
    health = health_of(CPU, [make_event(kind, at_ns=NOW + index) for index, kind in enumerate(kinds)])
    assert health.availability.state == state
    assert [item.axis for item in exclusions(health)] == ([] if state == "available" else ["availability"])


def test_each_axis_excludes_by_itself_and_performance_never() -> None:
    kinds: list[EventKind] = ["left", "incompatible", "result-mismatch", "qualification-invalid", "slowed"]
    found = exclusions(health_of(CPU, [make_event(kind) for kind in kinds]))
    assert [item.axis for item in found] == ["availability", "compatibility", "integrity", "qualification"]
    assert found[0] == Exclusion("availability", "compute-unit cpu-1 is unavailable: saw left")
    harmless: list[EventKind] = ["slowed", "throttled", "overheated", "link-narrowed"]
    harmless += ["qualification-missing", "qualification-stale"]
    for kind in harmless:
        assert exclusions(health_of(CPU, [make_event(kind)])) == (), kind


def test_health_is_a_strict_document_without_a_score() -> None:
    health = health_of(CPU, [make_event("slowed"), make_event("result-mismatch")])
    assert read_document(Health, write_document(health), "test") == health
    assert set(msgspec.to_builtins(health)) == {"document", "scope", *AXES}
    with pytest.raises(ValueError, match="needed one of unknown, trusted, quarantined"):
        AxisState(axis="integrity", state="degraded")
    with pytest.raises(ValueError, match="needs a reason"):
        AxisState(axis="integrity", detail="")
    with pytest.raises(ValueError, match="performance holds a state of integrity"):
        Health(scope=CPU, performance=AxisState(axis="integrity"))


# -- quarantine --


@pytest.mark.parametrize("kind", FAILURES)
def test_a_finding_against_integrity_shuts_the_narrowest_scope(kind: EventKind) -> None:
    state = quarantines_of([make_event(kind, PATH, NODE, evidence=("frame-9",), detail="frame 9: wrong checksum")])
    (shut,) = state.active
    assert (shut.scope, shut.since_ns, shut.evidence_ids) == (PATH, str(NOW), ("frame-9",))
    assert shut.detail == "frame 9: wrong checksum"
    assert state.of(NODE, PATH) == (shut,)
    assert state.of(NODE, OTHER_PATH) == ()
    assert [entry.effect for entry in state.audit] == ["opened"]


def test_a_second_finding_extends_the_record_of_the_first() -> None:
    first = make_event("checksum-mismatch", PATH, evidence=("a",))
    second = make_event("digest-mismatch", PATH, at_ns=NOW + SECOND, evidence=("b", "a"))
    (shut,) = quarantines_of([first, second]).active
    assert (shut.since_ns, shut.last_finding_ns) == (str(NOW), str(NOW + SECOND))
    assert shut.event_ids == (first.id, second.id)
    assert shut.evidence_ids == ("a", "b")
    assert effects([first, second]) == ["opened", "extended"]


def test_a_revalidation_that_passes_opens_exactly_its_scope() -> None:
    events = [
        make_event("checksum-mismatch", PATH),
        make_event("checksum-mismatch", OTHER_PATH),
        make_event(PASSED, PATH, at_ns=NOW + SECOND, evidence=("retest",)),
    ]
    state = quarantines_of(events)
    assert [item.scope for item in state.active] == [OTHER_PATH]
    assert effects(events) == ["opened", "opened", "cleared"]


@pytest.mark.parametrize(
    ("attempt", "effect"),
    [
        (make_event("integrity-checked", PATH, at_ns=NOW + SECOND, evidence=("retest",)), "refused"),
        (make_event(PASSED, PATH, at_ns=NOW, evidence=("retest",)), "refused"),
        (make_event(PASSED, PATH, at_ns=NOW - SECOND, evidence=("retest",)), "refused"),
        (make_event(PASSED, PATH, at_ns=NOW + SECOND, evidence=("record-1", "retest")), "refused"),
        (make_event(PASSED, OTHER_PATH, at_ns=NOW + SECOND, evidence=("retest",)), "no-effect"),
        (make_event(PASSED, NODE, at_ns=NOW + SECOND, evidence=("retest",)), "no-effect"),
        (make_event("availability-revalidated", PATH, at_ns=NOW + SECOND), "no-effect"),
        (make_event("sped-up", PATH, at_ns=NOW + SECOND), "no-effect"),
        (make_event("returned", PATH, at_ns=NOW + SECOND), "no-effect"),
        (make_event("integrity-revalidation-failed", PATH, at_ns=NOW + SECOND, evidence=("retest",)), "extended"),
    ],
)
def test_nothing_else_opens_what_is_shut(attempt: HealthEvent, effect: str) -> None:
    events = [make_event("checksum-mismatch", PATH), attempt]
    assert PATH in [item.scope for item in quarantines_of(events).active]
    assert effects(events)[-1] == effect


def test_a_finding_that_comes_after_the_revalidation_shuts_again() -> None:
    events = [
        make_event("checksum-mismatch", PATH),
        make_event(PASSED, PATH, at_ns=NOW + SECOND, evidence=("retest",)),
        make_event("checksum-mismatch", PATH, at_ns=NOW + 2 * SECOND, evidence=("frame-10",)),
    ]
    (shut,) = quarantines_of(events).active
    assert shut.since_ns == str(NOW + 2 * SECOND)
    assert effects(events) == ["opened", "cleared", "opened"]


def test_health_shows_the_quarantine_of_its_scope_on_the_integrity_axis() -> None:
    events = [make_event("state-corrupted", detail="page 3")]
    assert health_of(CPU, events).integrity == AxisState(
        axis="integrity", state="quarantined", since_ns=str(NOW), evidence_ids=("record-1",), detail="page 3"
    )
    events.append(make_event("integrity-checked", at_ns=NOW + SECOND, evidence=("r",)))
    assert health_of(CPU, events).integrity.state == "quarantined"
    events.append(make_event(PASSED, at_ns=NOW + 2 * SECOND, evidence=("s",)))
    assert health_of(CPU, events).integrity.state == "trusted"


SCOPES = [CPU, NODE, PATH, OTHER_PATH, PARTICIPANT, *(Scope(kind, "x") for kind in NARROW_TO_WIDE)]
EVENTS = st.lists(
    st.builds(
        make_event,
        st.sampled_from(EVENT_KINDS),
        st.sampled_from(SCOPES),
        st.sampled_from(SCOPES),
        at_ns=st.integers(NOW, NOW + 5),
        evidence=st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=2, unique=True).map(tuple),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(events=EVENTS)
def test_what_is_shut_was_found_against_and_every_event_is_in_the_audit(events: list[HealthEvent]) -> None:
    state = quarantines_of(events)
    findings = {scope for event in events if event.kind in FAILURES for scope in event.concerns}
    assert {item.scope for item in state.active} <= findings
    assert [(entry.index, entry.scope) for entry in state.audit] == [
        (index, scope) for index, event in enumerate(events) for scope in event.concerns
    ]
    opened = {item.scope: 0 for item in state.active}
    for entry in state.audit:
        if entry.effect in ("opened", "cleared"):
            opened[entry.scope] = opened.get(entry.scope, 0) + (1 if entry.effect == "opened" else -1)
    assert {scope for scope, count in opened.items() if count} == {item.scope for item in state.active}
    for item in state.active:
        assert health_of(item.scope, events).integrity.state == "quarantined"


@settings(max_examples=100, deadline=None)
@given(events=EVENTS)
def test_the_past_is_not_changed_by_what_follows(events: list[HealthEvent]) -> None:
    whole = quarantines_of(events).audit
    half = quarantines_of(events[: len(events) // 2]).audit
    assert whole[: len(half)] == half
