"""Changes of epochs: one at a time, each with a record, each ended in one of the ways that its record can say."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, Epoch, Realization, RefusalCode
from inferswarm.fabric.machine.step import Transition, refuse, refused_without_lease
from inferswarm.fabric.recovery_records import (
    OVERLAPPING,
    RECOVERIES,
    Attempt,
    PhaseTime,
    ReplayRange,
    SessionBoundary,
    TransitionMode,
    TransitionOutcome,
    TransitionRecord,
    replay_source,
)


def start_transition(state: AuthorityState, event: ev.TransitionStarted, now: float) -> Transition:
    """Open the record of a change."""
    if (refused := refused_without_lease(state, now)) is not None:
        return refused
    if state.transition is not None:
        return refuse(state, RefusalCode.TRANSITION_UNDER_WAY, f"transition {state.transition.number} is under way")
    old = state.active_epoch() or max(state.epochs, key=lambda epoch: epoch.number, default=None)
    record = TransitionRecord(
        number=state.next_transition,
        term=state.term,
        trigger=event.trigger,
        detail=event.detail,
        safe_boundary=event.safe_boundary,
        recovery_contract=event.recovery_contract,
        old_epoch=None if old is None else old.number,
        old_plan_digest=None if old is None else old.plan_digest,
        authority_before="" if old is None else old.state.value,
        phases=(PhaseTime("started", now),),
    )
    return put_record(replace(state, next_transition=record.number + 1), record)


def plan_transition(state: AuthorityState, event: ev.TransitionPlanned, now: float) -> Transition:
    """Note which plan is tried next, and how."""
    record = under_way(state, event.transition)
    if record is None:
        return unknown_transition(state, event.transition)
    active = state.active_epoch()
    fault = None
    if record.realization_id is not None:
        fault = f"{record.realization_id} is still alive"
    elif event.mode is OVERLAPPING and active is None:
        fault = "nothing serves that a new epoch could overlap with"
    elif event.mode in RECOVERIES and active is not None:
        fault = f"epoch {active.number} serves; {event.mode.value} is for a lost one"
    if fault is not None:
        return refuse(state, RefusalCode.TRANSITION_OUT_OF_ORDER, fault)
    planned = replace(
        record,
        plan_digest=event.plan_digest,
        decision_digest=event.decision_digest,
        snapshot_digest=event.snapshot_digest,
        mode=event.mode,
        evidence_used=event.evidence_used,
        evidence_rejected=event.evidence_rejected,
        verdict=event.verdict,
        phases=(*record.phases, PhaseTime("planned", now)),
    )
    return put_record(state, planned)


def refused_attempt(state: AuthorityState, event: ev.RealizationStarted) -> Transition | None:
    """Return why a realization may not be an attempt of the change that it names, or None."""
    if event.transition is msgspec.UNSET:
        if state.transition is None:
            return None
        return refuse(state, RefusalCode.TRANSITION_UNDER_WAY, f"transition {state.transition.number} is under way")
    record = under_way(state, event.transition)
    if record is None:
        return unknown_transition(state, event.transition)
    if record.realization_id is not None:
        return refuse(state, RefusalCode.TRANSITION_OUT_OF_ORDER, f"{record.realization_id} is still alive")
    if record.plan_digest != event.plan_digest:
        detail = f"plan {event.plan_digest}; planned was {record.plan_digest}"
        return refuse(state, RefusalCode.TRANSITION_OUT_OF_ORDER, detail)
    return None


def attempt_started(state: AuthorityState, realization: Realization) -> Transition:
    """Note an attempt in the record of its change, if it belongs to one."""
    if realization.transition is None or state.transition is None:
        return Transition(state)
    return put_record(state, replace(state.transition, realization_id=realization.id))


def attempt_died(state: AuthorityState, realization: Realization, reason: str) -> Transition:
    """Note in the record that an attempt died, or that the epoch did which the change should have overlapped."""
    record = state.transition
    if record is None:
        return Transition(state)
    changed = record
    if record.realization_id == realization.id and record.mode is not None:
        attempt = Attempt(
            realization_id=realization.id, plan_digest=realization.plan_digest, mode=record.mode, reason=reason
        )
        changed = replace(record, realization_id=None, attempts=(*record.attempts, attempt))
    if record.mode is OVERLAPPING and state.active_epoch() is None:
        changed = replace(changed, mode=TransitionMode.REPLAY)  # there is nothing left to overlap with
    return Transition(state) if changed is record else put_record(state, changed)


def old_epoch_retired(state: AuthorityState, epoch: Epoch) -> Transition:
    """Note that the old epoch was retired before the new one had authority: the change is interrupted."""
    record = state.transition
    if record is None or record.mode is not OVERLAPPING or record.old_epoch != epoch.number:
        return Transition(state)
    return put_record(state, replace(record, mode=TransitionMode.SAFE_INTERRUPTED_CUTOVER))


def finished(
    state: AuthorityState, record: TransitionRecord, outcome: TransitionOutcome, reason: str, now: float
) -> Transition:
    """Close a record with what is committed now, and forget it: the ledger has it."""
    last = state.active_epoch() or state.epoch(record.old_epoch or 0)
    replays: tuple[ReplayRange, ...] = ()
    if outcome is TransitionOutcome.ACTIVATED and record.mode is not None:
        source = replay_source(record.mode)
        moved = {item.session: item.position for item in record.boundaries}
        ends = {item.number: moved.get(item.number, item.next_position) for item in state.sessions}
        survives = record.mode is TransitionMode.READOPTION
        replays = tuple(ReplayRange(number, source, end if survives else 0, end) for number, end in ends.items())
    record = replace(
        record,
        outcome=outcome,
        reason=reason,
        authority_after="" if last is None else last.state.value,
        committed=tuple(SessionBoundary(item.number, item.next_position) for item in state.sessions),
        replays=replays,
        phases=(*record.phases, PhaseTime(outcome.value.lower(), now)),
    )
    return Transition(replace(state, transition=None), (ev.TransitionRecorded(record=record),))


def put_record(state: AuthorityState, record: TransitionRecord) -> Transition:
    """Return the state with another version of the record that is under way, and say so."""
    return Transition(replace(state, transition=record), (ev.TransitionRecorded(record=record),))


def under_way(state: AuthorityState, number: int) -> TransitionRecord | None:
    """Return the record that is under way if it has that number."""
    record = state.transition
    return record if record is not None and record.number == number else None


def unknown_transition(state: AuthorityState, number: int) -> Transition:
    """Refuse what names a change that is not under way."""
    return refuse(state, RefusalCode.UNKNOWN_TRANSITION, f"transition {number} is not under way")
