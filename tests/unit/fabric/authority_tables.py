"""What each event of losses and changes does, and why it is refused: tables for the tests of the machine."""

from __future__ import annotations

from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, RefusalCode, SessionState
from inferswarm.fabric.recovery_records import (
    PhaseTime,
    ReplayRange,
    ReplaySource,
    SafeBoundary,
    SessionBoundary,
    TransitionRecord,
    Trigger,
)
from tests.unit.fabric.fabric_samples import (
    MEMBERS,
    OTHER_PLAN,
    PLAN,
    activate,
    after,
    end,
    join,
    left,
    lose,
    ready,
    reclaim,
    request,
    retire,
    start,
)
from tests.unit.fabric.recovery_samples import (
    CHANGING,
    HANDED_OVER,
    LEASED_UNTIL_5,
    OVERLAP_READY,
    OVERLAPPED,
    R1,
    R2,
    R3,
    REBUILDING,
    REBUILT,
    RECOVERING,
    RESUMABLE,
    RESUMED,
    SUSPENDED,
    M,
    Outcome,
    adoption,
    attempt,
    change,
    conclude,
    ended,
    from_first,
    from_second,
    planned,
    resume,
    switch,
)

R = RefusalCode
FORGOTTEN = after([conclude(Outcome.FAILED_UNRECOVERABLE_STATE), reclaim(1)], RECOVERING)
"""Nothing of epoch 1 and its realization is remembered."""
SWAPPED = (("stage-0", "n2"), ("stage-1", "n1"))
NODE_BACK = after([left("n1"), join("n1", "b")], RECOVERING)
TO_THE_END = after(
    [change(safe=SafeBoundary.SESSION_END), planned(M.MAKE_BEFORE_BREAK), attempt(), ready(R2)], RESUMABLE
)
SECOND_CHANGE = after(
    [change(), planned(M.MAKE_BEFORE_BREAK, transition=2), attempt(R3, transition=2), ready(R3)], HANDED_OVER
)
ATTEMPT_DIED = after([end(R2)], OVERLAPPED)
READY_ALONE = after([start(R1), ready(R1)], MEMBERS)

REFUSED_RECOVERY: list[tuple[str, AuthorityState, ev.Event, float, RefusalCode]] = [
    ("a change under a lapsed lease", LEASED_UNTIL_5, change(), 5.1, R.LEASE_LAPSED),
    ("a second change at once", CHANGING, change(), 0, R.TRANSITION_UNDER_WAY),
    ("a plan for an unknown change", CHANGING, planned(M.REPLAY, transition=2), 0, R.UNKNOWN_TRANSITION),
    ("a plan while an attempt lives", OVERLAPPED, planned(M.MAKE_BEFORE_BREAK), 0, R.TRANSITION_OUT_OF_ORDER),
    ("an overlap with nothing", RECOVERING, planned(M.MAKE_BEFORE_BREAK), 0, R.TRANSITION_OUT_OF_ORDER),
    ("a recovery while an epoch serves", CHANGING, planned(M.REPLAY), 0, R.TRANSITION_OUT_OF_ORDER),
    ("an attempt of an unknown change", RECOVERING, attempt(transition=2), 0, R.UNKNOWN_TRANSITION),
    ("an attempt beside the change", CHANGING, start(R2), 0, R.TRANSITION_UNDER_WAY),
    ("an attempt before there is a plan", CHANGING, attempt(), 0, R.TRANSITION_OUT_OF_ORDER),
    ("an attempt of another plan", RECOVERING, attempt(plan=OTHER_PLAN), 0, R.TRANSITION_OUT_OF_ORDER),
    ("a second attempt at once", OVERLAPPED, attempt(R3), 0, R.TRANSITION_OUT_OF_ORDER),
    ("an id whose number is behind", FORGOTTEN, start(R1), 0, R.REALIZATION_ID_REUSED),
    ("a used number with another nonce", FORGOTTEN, start("realization-1-ffff"), 0, R.REALIZATION_ID_REUSED),
    ("adoption of the lost stage", RECOVERING, attempt(R2, adoption("stage-1")), 0, R.ADOPTION_REFUSED),
    ("adoption of no participant", RECOVERING, attempt(R2, adoption("stage-7")), 0, R.ADOPTION_REFUSED),
    ("adoption to another Node", RECOVERING, attempt(R2, adoption("stage-0"), SWAPPED), 0, R.ADOPTION_REFUSED),
    (
        "adoption from an epoch in force",
        after([planned(M.MAKE_BEFORE_BREAK)], CHANGING),
        attempt(R2, adoption("stage-0")),
        0,
        R.ADOPTION_REFUSED,
    ),
    (
        "adoption from a Node that was lost and came back as it was",
        after([left("n1"), join("n1", "a")], RECOVERING),
        attempt(R2, adoption("stage-0")),
        0,
        R.ADOPTION_REFUSED,
    ),
    ("adoption after the Node came back", NODE_BACK, attempt(R2, adoption("stage-0")), 0, R.ADOPTION_REFUSED),
    (
        "adoption of what was lost since",
        after([lose(R1, "stage-0")], RECOVERING),
        attempt(R2, adoption("stage-0")),
        0,
        R.ADOPTION_REFUSED,
    ),
    (
        "adoption of what was adopted",
        after([end(R2)], REBUILDING),
        attempt(R3, adoption("stage-0")),
        0,
        R.ADOPTION_REFUSED,
    ),
    (
        "adoption of what was reclaimed",
        after([reclaim(1)], RECOVERING),
        attempt(R2, adoption("stage-0")),
        0,
        R.ADOPTION_REFUSED,
    ),
    ("activation beside the change", OVERLAP_READY, activate(R2), 0, R.TRANSITION_UNDER_WAY),
    ("activation for an unknown change", READY_ALONE, switch(R1), 0, R.UNKNOWN_TRANSITION),
    ("activation of a dead attempt", ATTEMPT_DIED, switch(R2), 0, R.TRANSITION_OUT_OF_ORDER),
    ("activation of an attempt too early", OVERLAPPED, switch(R2), 0, R.REALIZATION_NOT_READY),
    (
        "activation while the old epoch should have been retired",
        after([planned(M.SAFE_INTERRUPTED_CUTOVER), attempt(), ready(R2)], CHANGING),
        switch(R2),
        0,
        R.SCOPE_ALREADY_OWNED,
    ),
    ("a switch while another epoch settles", SECOND_CHANGE, switch(R3, transition=2), 0, R.EPOCH_STILL_SETTLING),
    ("a boundary behind the commits", OVERLAP_READY, switch(R2, (1, 3)), 0, R.UNSAFE_BOUNDARY),
    ("two boundaries of one session", OVERLAP_READY, switch(R2, (1, 4), (1, 5)), 0, R.UNSAFE_BOUNDARY),
    ("a boundary of what cannot move", OVERLAP_READY, switch(R2, (2, 5)), 0, R.UNSAFE_BOUNDARY),
    ("a boundary of no session", OVERLAP_READY, switch(R2, (9, 5)), 0, R.UNSAFE_BOUNDARY),
    ("a boundary without a handover", after([ready(R2)], REBUILDING), switch(R2, (1, 4)), 0, R.UNSAFE_BOUNDARY),
    ("a switch inside a session that may not move", TO_THE_END, switch(R2), 0, R.UNSAFE_BOUNDARY),
    (
        "keeping an epoch that is lost",
        RECOVERING,
        conclude(Outcome.RETAINED_BY_POLICY),
        0,
        R.OUTCOME_CONTRADICTS_AUTHORITY,
    ),
    (
        "failing while an epoch serves",
        OVERLAPPED,
        conclude(Outcome.FAILED_REALIZATION),
        0,
        R.OUTCOME_CONTRADICTS_AUTHORITY,
    ),
    (
        "an abort of no preparation",
        CHANGING,
        conclude(Outcome.ABORTED_PREPARATION),
        0,
        R.OUTCOME_CONTRADICTS_AUTHORITY,
    ),
    (
        "an abort that keeps nothing",
        after([end(R2)], REBUILDING),
        conclude(Outcome.ABORTED_PREPARATION),
        0,
        R.OUTCOME_CONTRADICTS_AUTHORITY,
    ),
    (
        "keeping while preparing",
        OVERLAPPED,
        conclude(Outcome.RETAINED_CURRENT_EPOCH),
        0,
        R.OUTCOME_CONTRADICTS_AUTHORITY,
    ),
    ("the end of an unknown change", RESUMABLE, conclude(Outcome.ABORTED_PLANNING), 0, R.UNKNOWN_TRANSITION),
    ("giving up while something is tried", RECOVERING, ev.RecoveryGivenUp(reason="x"), 0, R.TRANSITION_UNDER_WAY),
    ("resuming what is not open", REBUILT, resume(2), 0, R.SESSION_MISMATCH),
    ("resuming what is bound", RESUMED, resume(), 0, R.SESSION_NOT_SUSPENDED),
    ("resuming on nothing", RECOVERING, resume(), 0, R.NO_ACTIVE_AUTHORITY),
    ("resuming under a lapsed lease", LEASED_UNTIL_5, resume(), 5.1, R.LEASE_LAPSED),
    ("a result of a suspended session", REBUILT, from_second(4), 0, R.SESSION_SUSPENDED),
    ("a late result after the rebuilding", RESUMED, from_first(4), 0, R.RETIRED_OR_SUPERSEDED_EPOCH),
    (
        "the old epoch at the boundary",
        after([from_first(4), from_first(5)], HANDED_OVER),
        from_first(6),
        0,
        R.RETIRED_OR_SUPERSEDED_EPOCH,
    ),
    ("the new epoch below the boundary", HANDED_OVER, from_second(4), 0, R.BEFORE_CUTOVER_BOUNDARY),
    (
        "a result past the longest answer",
        after([from_first(4), from_first(5), from_first(6)], RESUMABLE),
        from_first(7),
        0,
        R.MALFORMED_POSITION,
    ),
    ("completing an incomplete answer", RESUMABLE, ended(1), 0, R.ANSWER_INCOMPLETE),
    (
        "stopping before the first token",
        after([ev.SessionRequested(prompt_tokens=1, max_tokens=2)], RESUMABLE),
        ended(3, stopped=True),
        0,
        R.ANSWER_INCOMPLETE,
    ),
    (
        "an answer of no tokens",
        RESUMABLE,
        ev.SessionRequested(prompt_tokens=1, max_tokens=0),
        0,
        R.MALFORMED_POSITION,
    ),
    (
        "reclaiming an attempt that lives",
        OVERLAPPED,
        ev.RealizationReclaimed(realization_id=R2),
        0,
        R.UNKNOWN_REALIZATION,
    ),
    (
        "reclaiming an attempt that has an epoch",
        SUSPENDED,
        ev.RealizationReclaimed(realization_id=R1),
        0,
        R.UNKNOWN_REALIZATION,
    ),
    ("a further loss when nothing can be adopted", FORGOTTEN, lose(R1, "stage-0"), 0, R.UNKNOWN_REALIZATION),
]

KILLED = "stage-1: killed"
REPLACED = "epoch 1 was replaced by epoch 2"
STARTED = TransitionRecord(
    number=1,
    term=1,
    trigger=Trigger.REQUEST,
    detail="a test",
    recovery_contract="replay",
    old_epoch=1,
    old_plan_digest=PLAN,
    authority_before="ACTIVE",
    phases=(PhaseTime("started", 0.0),),
)
PLANNED = replace(
    STARTED,
    plan_digest=PLAN,
    decision_digest="decision",
    snapshot_digest="snapshot",
    mode=M.MAKE_BEFORE_BREAK,
    phases=(*STARTED.phases, PhaseTime("planned", 0.0)),
)
ATTEMPTED = replace(PLANNED, realization_id=R2)
AT_4_AND_5 = (SessionBoundary(1, 4), SessionBoundary(2, 5))

ACCEPTED_RECOVERY: list[tuple[str, AuthorityState, ev.Event, float, tuple[ev.Effect, ...]]] = [
    (
        "a loss suspends what can be resumed and fails the rest",
        RESUMABLE,
        lose(R1),
        0,
        (
            ev.RealizationDied(realization_id=R1, reason=KILLED),
            ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason=KILLED),
            ev.SessionSuspended(session=1, epoch=1, reason=KILLED, committed=1),
            ev.SessionClosed(session=2, state=SessionState.FAILED, reason=KILLED, committed=0),
        ),
    ),
    (
        "a retirement on request ends every session",
        RESUMABLE,
        retire(),
        0,
        (
            ev.EpochLost(epoch=1, state="RETIRED", reason="on request"),
            ev.SessionClosed(session=1, state=SessionState.CANCELLED, reason="on request", committed=1),
            ev.SessionClosed(session=2, state=SessionState.CANCELLED, reason="on request", committed=0),
        ),
    ),
    (
        "a retirement for another epoch suspends what can be resumed",
        CHANGING,
        retire(),
        0,
        (
            ev.EpochLost(epoch=1, state="RETIRED", reason="on request"),
            ev.SessionSuspended(session=1, epoch=1, reason="on request", committed=1),
            ev.SessionClosed(session=2, state=SessionState.CANCELLED, reason="on request", committed=0),
        ),
    ),
    ("a further loss among what may be adopted", RECOVERING, lose(R1, "stage-0"), 0, ()),
    ("a session is resumed where it was", REBUILT, resume(), 0, (ev.SessionResumed(session=1, epoch=2, position=4),)),
    (
        "the next result after the rebuilding",
        RESUMED,
        from_second(4),
        0,
        (ev.Committed(session=1, position=4, epoch=2),),
    ),
    (
        "the old epoch below the boundary",
        HANDED_OVER,
        from_first(4),
        0,
        (ev.Committed(session=1, position=4, epoch=1),),
    ),
    (
        "the new epoch at the boundary",
        after([from_first(4), from_first(5)], HANDED_OVER),
        from_second(6),
        0,
        (ev.Committed(session=1, position=6, epoch=2),),
    ),
    (
        "retiring what settles draws the boundary back",
        after([from_first(4)], HANDED_OVER),
        retire(),
        0,
        (
            ev.EpochLost(epoch=1, state="RETIRED", reason="on request"),
            ev.SessionResumed(session=1, epoch=2, position=5),
        ),
    ),
    (
        "losing what settles draws the boundary back",
        HANDED_OVER,
        lose(R1),
        0,
        (
            ev.RealizationDied(realization_id=R1, reason=KILLED),
            ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason=KILLED),
            ev.SessionResumed(session=1, epoch=2, position=4),
        ),
    ),
    (
        "losing the successor suspends, though the old epoch could go on",
        HANDED_OVER,
        lose(R2),
        0,
        (
            ev.RealizationDied(realization_id=R2, reason=KILLED),
            ev.EpochLost(epoch=2, state="NON_EXECUTABLE", reason=KILLED),
            ev.SessionSuspended(session=1, epoch=2, reason=KILLED, committed=1),
        ),
    ),
    ("a change begins", RESUMABLE, change(), 0.0, (ev.TransitionRecorded(record=STARTED),)),
    ("a plan", CHANGING, planned(M.MAKE_BEFORE_BREAK), 0.0, (ev.TransitionRecorded(record=PLANNED),)),
    (
        "an attempt",
        after([planned(M.MAKE_BEFORE_BREAK)], CHANGING),
        attempt(),
        0.0,
        (ev.TransitionRecorded(record=ATTEMPTED),),
    ),
    (
        "a change is declined",
        CHANGING,
        conclude(Outcome.RETAINED_BY_POLICY),
        2.0,
        (
            ev.TransitionRecorded(
                record=replace(
                    STARTED,
                    outcome=Outcome.RETAINED_BY_POLICY,
                    reason="so it was",
                    authority_after="ACTIVE",
                    committed=AT_4_AND_5,
                    phases=(*STARTED.phases, PhaseTime("retained_by_policy", 2.0)),
                )
            ),
        ),
    ),
    (
        "the epoch is lost that a change should have overlapped",
        OVERLAPPED,
        lose(R1),
        0.0,
        (
            ev.RealizationDied(realization_id=R1, reason=KILLED),
            ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason=KILLED),
            ev.SessionSuspended(session=1, epoch=1, reason=KILLED, committed=1),
            ev.SessionClosed(session=2, state=SessionState.FAILED, reason=KILLED, committed=0),
            ev.TransitionRecorded(record=replace(ATTEMPTED, mode=M.REPLAY)),
        ),
    ),
    (
        "authority is handed over",
        OVERLAP_READY,
        switch(R2, (1, 6)),
        3.0,
        (
            ev.EpochSettling(epoch=1, successor=2),
            ev.EpochActivated(epoch=2, realization_id=R2, plan_digest=PLAN),
            ev.SessionResumed(session=1, epoch=2, position=6),
            ev.SessionClosed(session=2, state=SessionState.CANCELLED, reason=REPLACED, committed=0),
            ev.TransitionRecorded(
                record=replace(
                    ATTEMPTED,
                    outcome=Outcome.ACTIVATED,
                    new_epoch=2,
                    authority_after="ACTIVE",
                    committed=AT_4_AND_5[:1],
                    boundaries=(SessionBoundary(1, 6),),
                    replays=(ReplayRange(1, ReplaySource.LEDGER, 0, 6),),
                    phases=(*ATTEMPTED.phases, PhaseTime("activated", 3.0)),
                )
            ),
        ),
    ),
    (
        "sessions that were not prepared wait",
        OVERLAP_READY,
        switch(R2),
        3.0,
        (
            ev.EpochSettling(epoch=1, successor=2),
            ev.EpochActivated(epoch=2, realization_id=R2, plan_digest=PLAN),
            ev.SessionSuspended(session=1, epoch=1, reason=REPLACED, committed=1),
            ev.SessionClosed(session=2, state=SessionState.CANCELLED, reason=REPLACED, committed=0),
            ev.TransitionRecorded(
                record=replace(
                    ATTEMPTED,
                    outcome=Outcome.ACTIVATED,
                    new_epoch=2,
                    authority_after="ACTIVE",
                    committed=AT_4_AND_5[:1],
                    replays=(ReplayRange(1, ReplaySource.LEDGER, 0, 4),),
                    phases=(*ATTEMPTED.phases, PhaseTime("activated", 3.0)),
                )
            ),
        ),
    ),
    ("an attempt without an epoch is reclaimed", ATTEMPT_DIED, ev.RealizationReclaimed(realization_id=R2), 0, ()),
    (
        "recovery is given up",
        SUSPENDED,
        ev.RecoveryGivenUp(reason="no Node came back"),
        0,
        (ev.SessionClosed(session=1, state=SessionState.FAILED, reason="no Node came back", committed=1),),
    ),
    (
        "an answer stops early",
        RESUMABLE,
        ended(1, stopped=True),
        0,
        (ev.SessionClosed(session=1, state=SessionState.COMPLETED, reason="over", committed=1),),
    ),
    (
        "the client of a suspended session leaves",
        SUSPENDED,
        ended(1, SessionState.CANCELLED),
        0,
        (ev.SessionClosed(session=1, state=SessionState.CANCELLED, reason="over", committed=1),),
    ),
    (
        "a request while a change is prepared",
        OVERLAPPED,
        request(7),
        0,
        (ev.SessionOpened(session=3, epoch=1, prompt_tokens=7),),
    ),
    (
        "a result while a change is prepared",
        OVERLAP_READY,
        from_first(4),
        0,
        (ev.Committed(session=1, position=4, epoch=1),),
    ),
]
