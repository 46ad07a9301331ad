"""Epochs: authority given, handed over, taken away, and their resources returned."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    Epoch,
    EpochState,
    OpenSession,
    RealizationState,
    RefusalCode,
    SessionState,
    attempt_of,
)
from inferswarm.fabric.machine.changes import finished, old_epoch_retired, under_way, unknown_transition
from inferswarm.fabric.machine.realizations import forget_stages, set_realization
from inferswarm.fabric.machine.sessions import closed, leave_epoch, suspended, suspension
from inferswarm.fabric.machine.step import Transition, refuse, refused_without_lease
from inferswarm.fabric.recovery_records import (
    OVERLAPPING,
    SafeBoundary,
    SessionBoundary,
    TransitionOutcome,
    TransitionRecord,
)

_HAVE_STAGES = (EpochState.ACTIVE, EpochState.SETTLING)


def activate(state: AuthorityState, event: ev.EpochRequested, now: float) -> Transition:
    """Give authority to a ready realization; where it overlaps the epoch in force, take it from that one."""
    if (refused := refused_without_lease(state, now)) is not None:
        return refused
    record, active = state.transition, state.active_epoch()
    boundaries = () if event.boundaries is msgspec.UNSET else event.boundaries
    if event.transition is msgspec.UNSET:
        if record is not None:
            return refuse(state, RefusalCode.TRANSITION_UNDER_WAY, f"transition {record.number} is under way")
    else:
        record = under_way(state, event.transition)
        if record is None:
            return unknown_transition(state, event.transition)
        if record.realization_id != event.realization_id:
            detail = f"{event.realization_id} is no attempt of transition {record.number} that is alive"
            return refuse(state, RefusalCode.TRANSITION_OUT_OF_ORDER, detail)
    if active is not None and (record is None or record.mode is not OVERLAPPING):
        return refuse(state, RefusalCode.SCOPE_ALREADY_OWNED, f"epoch {active.number} owns {state.scope}")
    realization = state.realization(event.realization_id)
    if realization is None or realization.state is not RealizationState.READY:
        found = "unknown" if realization is None else realization.state.value
        return refuse(state, RefusalCode.REALIZATION_NOT_READY, f"{event.realization_id} is {found}")
    if active is not None and (settling := state.settling_epoch()) is not None:
        return refuse(state, RefusalCode.EPOCH_STILL_SETTLING, f"retire epoch {settling.number} first")
    if (fault := _unsafe(state, active, record, boundaries)) is not None:
        return refuse(state, RefusalCode.UNSAFE_BOUNDARY, fault)
    epoch = Epoch(
        number=state.next_epoch,
        realization_id=realization.id,
        plan_digest=realization.plan_digest,
        state=EpochState.ACTIVE,
    )
    effects: list[ev.Effect] = []
    activated = ev.EpochActivated(
        epoch=epoch.number, realization_id=realization.id, plan_digest=realization.plan_digest
    )
    if active is None:
        effects.append(activated)
    else:
        handed = _hand_over(state, active, epoch.number, boundaries)
        state = handed.state
        effects += [ev.EpochSettling(epoch=active.number, successor=epoch.number), activated, *handed.effects]
    state = set_realization(state, realization.id, RealizationState.ACTIVATED)
    state = replace(state, epochs=(*state.epochs, epoch), next_epoch=epoch.number + 1)
    if record is None:
        return Transition(state, tuple(effects))
    last = replace(record, new_epoch=epoch.number, boundaries=boundaries)
    closing = finished(state, last, TransitionOutcome.ACTIVATED, "", now)
    return Transition(closing.state, (*effects, *closing.effects))


def _unsafe(
    state: AuthorityState,
    active: Epoch | None,
    record: TransitionRecord | None,
    boundaries: tuple[SessionBoundary, ...],
) -> str | None:
    """Return why sessions may not move at these positions, or None."""
    if active is None:
        return "no epoch hands sessions over" if boundaries else None
    moving = [item for item in state.sessions if item.epoch == active.number and not item.suspended]
    if record is not None and record.safe_boundary is SafeBoundary.SESSION_END and moving:
        return f"session {moving[0].number} is open, and the strategy lets none move before its end"
    if len({item.session for item in boundaries}) != len(boundaries):
        return "a session has two boundaries"
    movable = {item.number: item for item in moving if item.resumable}
    for boundary in boundaries:
        session = movable.get(boundary.session)
        if session is None:
            return f"session {boundary.session} cannot move from epoch {active.number}"
        if boundary.position < session.next_position:
            return f"position {boundary.position} of session {session.number} is committed already"
    return None


def _hand_over(
    state: AuthorityState, old: Epoch, successor: int, boundaries: tuple[SessionBoundary, ...]
) -> Transition:
    effects: list[ev.Effect] = []
    positions = {item.session: item.position for item in boundaries}
    reason = f"epoch {old.number} was replaced by epoch {successor}"
    kept: list[OpenSession] = []
    for session in state.sessions:
        if session.suspended or session.epoch != old.number:
            kept.append(session)
        elif (position := positions.get(session.number)) is not None:
            waits = position > session.next_position
            kept.append(
                replace(
                    session,
                    epoch=successor,
                    settling_epoch=old.number if waits else None,
                    boundary=position if waits else None,
                )
            )
            effects.append(ev.SessionResumed(session=session.number, epoch=successor, position=position))
        elif session.resumable:
            kept.append(suspended(session))
            effects.append(suspension(session, reason))
        else:
            effects.append(closed(session, SessionState.CANCELLED, reason))
    epochs = tuple(
        replace(item, state=EpochState.SETTLING, reason=reason) if item is old else item for item in state.epochs
    )
    return Transition(replace(state, epochs=epochs, sessions=tuple(kept)), tuple(effects))


def retire(state: AuthorityState, event: ev.EpochRetired) -> Transition:
    """Take authority from an epoch on purpose."""
    epoch = state.epoch(event.epoch)
    if epoch is None or epoch.state not in _HAVE_STAGES:
        return refuse(state, RefusalCode.UNKNOWN_EPOCH, f"epoch {event.epoch} has no authority to lose")
    replaced = state.transition is not None and state.transition.old_epoch == epoch.number
    ended = leave_epoch(state, epoch, EpochState.RETIRED, event.reason, keep_resumable=replaced)
    dead = set_realization(ended.state, epoch.realization_id, RealizationState.DEAD, event.reason)
    recorded = old_epoch_retired(dead, epoch)
    return Transition(recorded.state, (*ended.effects, *recorded.effects))


def reclaim(state: AuthorityState, event: ev.EpochReclaimed) -> Transition:
    """The resources of an epoch without authority were returned. It is forgotten when its id can never be reused."""
    epoch = state.epoch(event.epoch)
    if epoch is None or epoch.state not in (EpochState.RETIRED, EpochState.NON_EXECUTABLE):
        return refuse(state, RefusalCode.UNKNOWN_EPOCH, f"epoch {event.epoch} is not waiting to be reclaimed")
    state = forget_stages(state, epoch.realization_id)
    if attempt_of(epoch.realization_id) is not None:
        return Transition(replace(state, epochs=tuple(item for item in state.epochs if item is not epoch)))
    changed = tuple(replace(item, state=EpochState.RECLAIMED) if item is epoch else item for item in state.epochs)
    return Transition(replace(state, epochs=changed))
