"""Adoption, restarts, what is remembered and what is forgotten: the authority machine around a loss."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from inferswarm.documents import digest, read_document, write_document
from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    EpochState,
    RealizationState,
    SessionState,
    attempt_of,
    numbered_realization_id,
)
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.recovery_records import TransitionMode, TransitionOutcome, TransitionRecord
from inferswarm.fabric.transitions import apply
from inferswarm.planner.change import ChangeVerdict
from tests.unit.fabric.fabric_samples import after, end, join, lease, lose, ready, reclaim, retire
from tests.unit.fabric.recovery_samples import (
    CHANGING,
    HANDED_OVER,
    OVERLAPPED,
    R1,
    R2,
    R3,
    REBUILDING,
    REBUILT,
    RECOVERING,
    RESUMABLE,
    SUSPENDED,
    M,
    Outcome,
    adoption,
    attempt,
    change,
    from_second,
    planned,
    resume,
    switch,
)


def record_of(state: AuthorityState, event: ev.Event) -> TransitionRecord:
    recorded = [effect for effect in apply(state, event, 0.0).effects if isinstance(effect, ev.TransitionRecorded)]
    return recorded[-1].record


@pytest.mark.parametrize(
    ("text", "attempt_number"),
    [
        ("realization-1-0a", 1),
        ("realization-12-ffff", 12),
        ("realization-012-ff", None),
        ("realization-0-ff", None),
        ("realization-ab12", None),
        ("realization-1-xyz", None),
        ("realization-1-0a-", None),
        ("r1", None),
    ],
)
def test_an_id_has_a_number_or_none(text: str, attempt_number: int | None) -> None:
    assert attempt_of(text) == attempt_number


@pytest.mark.parametrize(("number", "nonce"), [(0, "aa"), (-1, "aa"), (1, ""), (1, "g"), (10**17, "aa")])
def test_what_makes_no_id_is_refused(number: int, nonce: str) -> None:
    with pytest.raises(ValueError, match="make no realization id"):
        numbered_realization_id(number, nonce)


def test_an_adopted_stage_belongs_to_one_realization() -> None:
    assert SUSPENDED.realization(R1).survivors() == ("stage-0",)
    assert REBUILDING.realization(R1).survivors() == ()
    assert REBUILDING.realization(R2).survivors() == ("stage-0", "stage-1")
    again = after([end(R2), planned(M.READOPTION), attempt(R3, adoption("stage-0", source=R2))], REBUILDING)
    assert again.realization(R2).survivors() == ("stage-1",)


def test_an_attempt_that_died_is_in_the_record_and_the_next_plan_is_tried_in_the_same_change() -> None:
    state = after([end(R2, "no memory"), planned(M.REPLAY), attempt(R3), ready(R3)], REBUILDING)
    record = record_of(state, switch(R3))
    assert [(item.realization_id, item.mode, item.reason) for item in record.attempts] == [
        (R2, TransitionMode.REBUILD_ONE_STAGE, "no memory")
    ]
    assert (record.outcome, record.new_epoch, record.mode) == (TransitionOutcome.ACTIVATED, 2, TransitionMode.REPLAY)
    assert [(item.session, item.first, item.end) for item in record.replays] == [(1, 0, 4)]


def test_an_epoch_that_is_retired_too_early_makes_the_change_a_cold_one() -> None:
    state = after([retire(1)], OVERLAPPED)
    assert state.transition.mode is TransitionMode.SAFE_INTERRUPTED_CUTOVER
    assert [session.suspended for session in state.sessions] == [True]


def test_a_verdict_is_kept_with_the_change_that_it_declined() -> None:
    verdict = ChangeVerdict(
        go=False,
        reasons=("flapping",),
        benefit_seconds=1.0,
        preparation_seconds=2.0,
        break_even_requests=None,
        penalty=3.5,
    )
    declined = ev.TransitionConcluded(
        transition=1, outcome=Outcome.RETAINED_BY_POLICY, reason="flapping", verdict=verdict
    )
    record = record_of(CHANGING, declined)
    assert record.verdict == verdict
    assert read_document(TransitionRecord, write_document(record), "record") == record


def test_documents_without_the_new_fields_keep_their_digests() -> None:
    assert digest(ev.SessionRequested(prompt_tokens=3)) == digest({"type": "SessionRequested", "prompt_tokens": 3})
    assert digest(ev.EpochRequested(realization_id="r")) == digest({"type": "EpochRequested", "realization_id": "r"})


@pytest.mark.parametrize(
    "make",
    [
        lambda: ev.SessionEnded(session=1, state=SessionState.FAILED, reason=""),
        lambda: ev.RecoveryGivenUp(reason=""),
        lambda: ev.TransitionConcluded(transition=1, outcome=TransitionOutcome.RETAINED_BY_POLICY, reason=""),
        lambda: ev.TransitionConcluded(transition=1, outcome=TransitionOutcome.ACTIVATED, reason="x"),
        lambda: ev.TransitionConcluded(transition=1, outcome=TransitionOutcome.PREPARING, reason="x"),
    ],
)
def test_an_end_without_a_reason_cannot_be_said(make: object) -> None:
    with pytest.raises(ValueError, match=r"without a reason|is not concluded as"):
        make()


def test_a_scope_that_changes_for_ever_remembers_no_more_than_its_present() -> None:
    state = RESUMABLE
    sizes = set()
    for number in range(1, 60):
        old, fresh = number, numbered_realization_id(number + 1, "0a")
        request = ev.SessionRequested(prompt_tokens=1, resumable=True)
        state = after(
            [
                lose(numbered_realization_id(number, "0a"), "stage-1"),
                change(),
                planned(M.REPLAY, transition=number),
                attempt(fresh, transition=number),
                ready(fresh),
                switch(fresh, transition=number),
                reclaim(old),
                request,
                ev.SessionEnded(session=number + 2, state=SessionState.COMPLETED, reason="length"),
            ],
            state,
        )
        sizes.add((len(state.realizations), len(state.epochs), len(state.sessions)))
    assert sizes == {(1, 1, 1)}
    assert len(msgspec.json.encode(state)) < 2_000


# -- restarts --


def test_a_new_coordinator_begins_with_nothing_that_serves_and_everything_that_was_committed() -> None:
    begun = restored(RESUMABLE, ((1, 6), (2, 5)), "its Coordinator ended")
    state = begun.state
    assert (state.members, state.active_epoch(), state.term) == ((), None, 1)
    assert state.epoch(1).state is EpochState.NON_EXECUTABLE
    assert state.realization(R1).state is RealizationState.DEAD
    assert [(item.number, item.next_position, item.suspended) for item in state.sessions] == [(1, 6, True)]
    assert begun.effects == (
        ev.RealizationDied(realization_id=R1, reason="its Coordinator ended"),
        ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason="its Coordinator ended"),
        ev.SessionSuspended(session=1, epoch=1, reason="its Coordinator ended", committed=3),
        ev.SessionClosed(session=2, state=SessionState.FAILED, reason="its Coordinator ended", committed=0),
    )


def test_a_session_that_the_ledger_does_not_have_fails_with_that_reason() -> None:
    begun = restored(RESUMABLE, ((2, 5),), "ended")
    assert begun.effects[0] == ev.SessionClosed(
        session=1, state=SessionState.FAILED, reason="ended; nothing of it was kept", committed=1
    )


def test_a_ledger_that_lost_commits_is_not_believed() -> None:
    with pytest.raises(ValueError, match="session 1 has committed up to 4; its commits end at 3"):
        restored(RESUMABLE, ((1, 3), (2, 5)), "ended")


def test_a_boundary_that_the_commits_have_passed_does_not_come_back() -> None:
    """The kept state is older than the commits: a session may have moved to the new epoch since."""
    begun = restored(HANDED_OVER, ((1, 7),), "ended")
    assert not [effect for effect in begun.effects if isinstance(effect, ev.SessionResumed)]
    (session,) = begun.state.sessions
    assert (session.next_position, session.settling_epoch, session.boundary) == (7, None, None)
    assert {epoch.state for epoch in begun.state.epochs} == {EpochState.NON_EXECUTABLE}


@pytest.mark.parametrize(("incarnation", "adopted"), [("a", True), ("b", False)])
def test_stages_are_adopted_from_the_incarnation_that_they_belong_to(incarnation: str, adopted: bool) -> None:
    begun = restored(RESUMABLE, ((1, 4), (2, 5)), "ended").state
    events = [lease(2), join("n1", incarnation), join("n2", "a"), change(), planned(M.READOPTION)]
    state = after(events, begun)
    transition = apply(state, attempt(R2, adoption("stage-0", "stage-1")), 0.0)
    assert (not isinstance(transition.effects[0], ev.Refused)) is adopted
    if adopted:
        resumed = after([ready(R2), switch(R2), resume(), from_second(4)], transition.state)
        assert [session.next_position for session in resumed.sessions] == [5]


def test_a_change_that_was_under_way_goes_on_after_a_restart() -> None:
    begun = restored(OVERLAPPED, ((1, 4), (2, 5)), "ended").state
    assert begun.transition.number == 1
    assert (begun.transition.realization_id, len(begun.transition.attempts)) == (None, 1)
    state = after([lease(2), join("n1"), join("n2"), planned(M.REPLAY), attempt(R3), ready(R3), switch(R3)], begun)
    assert state.active_epoch().number == 2
    assert state.transition is None


def test_a_restored_state_is_a_document_that_reads_as_it_was_written() -> None:
    for state in (RESUMABLE, OVERLAPPED, HANDED_OVER, RECOVERING, REBUILT):
        assert read_document(AuthorityState, write_document(state), "state") == state


def test_the_old_coordinators_lease_is_not_the_new_ones() -> None:
    begun = restored(replace(RESUMABLE, lease_until=1e9), ((1, 4), (2, 5)), "ended").state
    refused = apply(begun, change(), 0.0).effects[0]
    assert isinstance(refused, ev.Refused)
    assert refused.code.value == "LEASE_LAPSED"
    assert isinstance(apply(begun, lease(0), 0.0).effects[0], ev.Refused)
