"""Ready-made states and events of losses and changes, for the tests of the authority machine."""

from __future__ import annotations

import msgspec

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import SessionState, numbered_realization_id
from inferswarm.fabric.recovery_records import (
    SafeBoundary,
    SessionBoundary,
    TransitionMode,
    TransitionOutcome,
    Trigger,
)
from tests.unit.fabric.fabric_samples import (
    MEMBERS,
    PARTICIPANTS,
    PLAN,
    activate,
    after,
    lease,
    lose,
    ready,
    result,
    start,
)

M, Outcome = TransitionMode, TransitionOutcome
R1, R2, R3 = (numbered_realization_id(attempt, "0a") for attempt in (1, 2, 3))


def change(trigger: Trigger = Trigger.REQUEST, safe: SafeBoundary = SafeBoundary.COMMITTED_POSITION) -> ev.Event:
    return ev.TransitionStarted(trigger=trigger, detail="a test", safe_boundary=safe, recovery_contract="replay")


def planned(mode: TransitionMode, plan: str = PLAN, transition: int = 1) -> ev.TransitionPlanned:
    return ev.TransitionPlanned(
        transition=transition, plan_digest=plan, decision_digest="decision", snapshot_digest="snapshot", mode=mode
    )


def attempt(
    realization: str = R2,
    adopts: ev.Adoption | msgspec.UnsetType = msgspec.UNSET,
    participants: tuple[tuple[str, str], ...] = PARTICIPANTS,
    transition: int = 1,
    plan: str = PLAN,
) -> ev.RealizationStarted:
    return ev.RealizationStarted(
        realization_id=realization,
        plan_digest=plan,
        participants=participants,
        transition=transition,
        adopts=adopts,
    )


def adoption(*participants: str, source: str = R1) -> ev.Adoption:
    return ev.Adoption(realization_id=source, participants=participants)


def switch(realization: str = R2, *boundaries: tuple[int, int], transition: int = 1) -> ev.EpochRequested:
    return ev.EpochRequested(
        realization_id=realization,
        transition=transition,
        boundaries=tuple(SessionBoundary(*item) for item in boundaries),
    )


def conclude(outcome: TransitionOutcome, transition: int = 1) -> ev.TransitionConcluded:
    return ev.TransitionConcluded(transition=transition, outcome=outcome, reason="so it was")


def resume(session: int = 1) -> ev.ResumptionRequested:
    return ev.ResumptionRequested(session=session)


def ended(
    session: int = 1, state: SessionState = SessionState.COMPLETED, *, stopped: bool = False
) -> ev.SessionEnded:
    return ev.SessionEnded(session=session, state=state, reason="over", stopped=stopped)


def from_first(position: int, session: int = 1) -> ev.ResultArrived:
    return result(position, session=session, realization=R1)


def from_second(position: int, session: int = 1) -> ev.ResultArrived:
    return result(position, session=session, epoch=2, realization=R2)


RESUMABLE = after(
    [
        start(R1),
        ready(R1),
        activate(R1),
        ev.SessionRequested(prompt_tokens=3, resumable=True, max_tokens=4),
        ev.SessionRequested(prompt_tokens=5),
        from_first(3),
    ],
    MEMBERS,
)
"""Epoch 1. Session 1 can be resumed and has committed position 3 of 3 to 6; session 2 cannot be resumed."""
CHANGING = after([change()], RESUMABLE)
OVERLAPPED = after([planned(M.MAKE_BEFORE_BREAK), attempt()], CHANGING)
OVERLAP_READY = after([ready(R2)], OVERLAPPED)
HANDED_OVER = after([switch(R2, (1, 6))], OVERLAP_READY)
"""Epoch 1 settles: it commits session 1 below position 6, epoch 2 from there on."""
SUSPENDED = after([lose(R1)], RESUMABLE)
"""Stage 1 was killed; stage 0 is still there."""
RECOVERING = after([change(Trigger.PARTICIPANT_LOST), planned(M.REBUILD_ONE_STAGE)], SUSPENDED)
REBUILDING = after([attempt(R2, adoption("stage-0"))], RECOVERING)
REBUILT = after([ready(R2), switch(R2)], REBUILDING)
"""Epoch 2 on an adopted stage and a new one; session 1 is still suspended."""
RESUMED = after([resume()], REBUILT)
RETIRED_FOR_ANOTHER = after(
    [planned(M.SAFE_INTERRUPTED_CUTOVER), ev.EpochRetired(epoch=1, reason="no room for both")], CHANGING
)
LEASED_UNTIL_5 = after([lease(until=5.0)], RESUMABLE)
