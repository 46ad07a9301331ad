"""`apply(state, event, now)`: the only function that changes authority. Pure and total.

Every event either changes the state as its docstring says, or is refused with one code and changes nothing. The
Coordinator's own lease is looked at by every event that needs it: a lapsed Coordinator commits nothing. A member's
lease lapses with `ClockAdvanced`, which the Coordinator applies several times in a lease.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    Epoch,
    EpochState,
    Member,
    OpenSession,
    Realization,
    RealizationState,
    RefusalCode,
    SessionState,
)


class Transition(NamedTuple):
    """The state after an event, and what follows from it, in order."""

    state: AuthorityState
    effects: tuple[ev.Effect, ...] = ()


def apply(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    """Return what `event` at time `now` makes of `state`."""
    match event:
        case ev.LeaseGranted():
            return _grant_lease(state, event)
        case ev.NodeJoined():
            return _join(state, event)
        case ev.NodeRenewed():
            return _renew(state, event, now)
        case ev.NodeLeft():
            return _lose_member(state, event.node_id, event.reason)
        case ev.ClockAdvanced():
            return _expire(state, now)
        case ev.RealizationStarted():
            return _start_realization(state, event)
        case ev.RealizationReadied():
            return _ready_realization(state, event)
        case ev.RealizationEnded():
            return _end_realization(state, event.realization_id, event.reason)
        case ev.EpochRequested():
            return _activate(state, event, now)
        case ev.EpochRetired():
            return _retire(state, event)
        case ev.EpochReclaimed():
            return _reclaim(state, event)
        case ev.ParticipantLost():
            return _end_realization(state, event.realization_id, f"{event.participant}: {event.reason}")
        case ev.SessionRequested():
            return _open_session(state, event, now)
        case ev.SessionEnded():
            return _end_session(state, event)
        case ev.ResultArrived():
            return _commit(state, event, now)
        case _:
            assert_never(event)


def _refuse(state: AuthorityState, code: RefusalCode, detail: str) -> Transition:
    return Transition(state, (ev.Refused(code=code, detail=detail),))


def _grant_lease(state: AuthorityState, event: ev.LeaseGranted) -> Transition:
    if event.term < state.term:
        return _refuse(state, RefusalCode.TERM_NOT_HIGHER, f"term {event.term} after term {state.term}")
    return Transition(replace(state, term=event.term, lease_until=event.lease_until))


def _join(state: AuthorityState, event: ev.NodeJoined) -> Transition:
    member = Member(node_id=event.node_id, incarnation=event.incarnation, lease_until=event.lease_until)
    earlier = state.member(event.node_id)
    if earlier is None:
        return Transition(replace(state, members=(*state.members, member)))
    if earlier.incarnation == event.incarnation:
        return _refuse(state, RefusalCode.NODE_IDENTITY_IN_USE, f"{event.node_id} is a member already")
    lost = _lose_member(state, event.node_id, f"replaced by incarnation {event.incarnation}")
    return Transition(replace(lost.state, members=(*lost.state.members, member)), lost.effects)


def _renew(state: AuthorityState, event: ev.NodeRenewed, now: float) -> Transition:
    member = state.member(event.node_id)
    if member is None or member.incarnation != event.incarnation or member.lease_until < now:
        return _refuse(state, RefusalCode.NODE_NOT_A_MEMBER, f"{event.node_id} holds no running lease")
    renewed = tuple(
        replace(item, lease_until=max(item.lease_until, event.lease_until)) if item is member else item
        for item in state.members
    )
    return Transition(replace(state, members=renewed))


def _lose_member(state: AuthorityState, node_id: str, reason: str) -> Transition:
    if state.member(node_id) is None:
        return _refuse(state, RefusalCode.NODE_NOT_A_MEMBER, f"{node_id} is no member")
    state = replace(state, members=tuple(item for item in state.members if item.node_id != node_id))
    effects: list[ev.Effect] = [ev.MemberLost(node_id=node_id, reason=reason)]
    for realization in state.realizations:
        uses_node = any(node == node_id for _, node in realization.participants)
        if uses_node and realization.state is not RealizationState.DEAD:
            ended = _end_realization(state, realization.id, f"Node {node_id} lost: {reason}")
            state = ended.state
            effects.extend(ended.effects)
    return Transition(state, tuple(effects))


def _expire(state: AuthorityState, now: float) -> Transition:
    effects: list[ev.Effect] = []
    for member in state.members:
        if member.lease_until < now:
            lost = _lose_member(state, member.node_id, "its lease ran out")
            state = lost.state
            effects.extend(lost.effects)
    return Transition(state, tuple(effects))


def _start_realization(state: AuthorityState, event: ev.RealizationStarted) -> Transition:
    if state.realization(event.realization_id) is not None:
        return _refuse(state, RefusalCode.REALIZATION_ID_REUSED, event.realization_id)
    for participant, node_id in event.participants:
        if state.member(node_id) is None:
            return _refuse(state, RefusalCode.NODE_NOT_A_MEMBER, f"{participant} on {node_id}")
    realization = Realization(
        id=event.realization_id,
        plan_digest=event.plan_digest,
        participants=event.participants,
        state=RealizationState.PREPARING,
    )
    return Transition(replace(state, realizations=(*state.realizations, realization)))


def _set_realization(
    state: AuthorityState, realization_id: str, to: RealizationState, reason: str = ""
) -> AuthorityState:
    changed = tuple(
        replace(item, state=to, reason=reason) if item.id == realization_id else item for item in state.realizations
    )
    return replace(state, realizations=changed)


def _ready_realization(state: AuthorityState, event: ev.RealizationReadied) -> Transition:
    realization = state.realization(event.realization_id)
    if realization is None or realization.state is not RealizationState.PREPARING:
        found = "unknown" if realization is None else realization.state.value
        return _refuse(state, RefusalCode.UNKNOWN_REALIZATION, f"{event.realization_id} is {found}")
    return Transition(_set_realization(state, event.realization_id, RealizationState.READY))


def _end_realization(state: AuthorityState, realization_id: str, reason: str) -> Transition:
    realization = state.realization(realization_id)
    if realization is None or realization.state is RealizationState.DEAD:
        found = "unknown" if realization is None else "dead already"
        return _refuse(state, RefusalCode.UNKNOWN_REALIZATION, f"{realization_id} is {found}")
    state = _set_realization(state, realization_id, RealizationState.DEAD, reason)
    effects: list[ev.Effect] = [ev.RealizationDied(realization_id=realization_id, reason=reason)]
    for epoch in state.epochs:
        has_stages = epoch.state in (EpochState.ACTIVE, EpochState.SETTLING)
        if epoch.realization_id == realization_id and has_stages:
            lost = _end_epoch(state, epoch, EpochState.NON_EXECUTABLE, reason)
            state = lost.state
            effects.extend(lost.effects)
    return Transition(state, tuple(effects))


def _end_epoch(state: AuthorityState, epoch: Epoch, to: EpochState, reason: str) -> Transition:
    ended_as = SessionState.FAILED if to is EpochState.NON_EXECUTABLE else SessionState.CANCELLED
    effects: list[ev.Effect] = [ev.EpochLost(epoch=epoch.number, state=to.value, reason=reason)]
    effects += [_closed(session, ended_as, reason) for session in state.sessions if session.epoch == epoch.number]
    changed = tuple(replace(item, state=to, reason=reason) if item is epoch else item for item in state.epochs)
    kept = tuple(session for session in state.sessions if session.epoch != epoch.number)
    return Transition(replace(state, epochs=changed, sessions=kept), tuple(effects))


def _closed(session: OpenSession, to: SessionState, reason: str) -> ev.SessionClosed:
    committed = session.next_position - session.prompt_tokens
    return ev.SessionClosed(session=session.number, state=to, reason=reason, committed=committed)


def _activate(state: AuthorityState, event: ev.EpochRequested, now: float) -> Transition:
    if state.lease_until < now:
        return _refuse(state, RefusalCode.LEASE_LAPSED, f"the lease of term {state.term} ran out")
    if (active := state.active_epoch()) is not None:
        return _refuse(state, RefusalCode.SCOPE_ALREADY_OWNED, f"epoch {active.number} owns {state.scope}")
    realization = state.realization(event.realization_id)
    if realization is None or realization.state is not RealizationState.READY:
        found = "unknown" if realization is None else realization.state.value
        return _refuse(state, RefusalCode.REALIZATION_NOT_READY, f"{event.realization_id} is {found}")
    epoch = Epoch(
        number=state.next_epoch,
        realization_id=realization.id,
        plan_digest=realization.plan_digest,
        state=EpochState.ACTIVE,
    )
    state = _set_realization(state, realization.id, RealizationState.ACTIVATED)
    activated = ev.EpochActivated(
        epoch=epoch.number, realization_id=realization.id, plan_digest=realization.plan_digest
    )
    return Transition(replace(state, epochs=(*state.epochs, epoch), next_epoch=epoch.number + 1), (activated,))


def _retire(state: AuthorityState, event: ev.EpochRetired) -> Transition:
    epoch = state.epoch(event.epoch)
    if epoch is None or epoch.state not in (EpochState.ACTIVE, EpochState.SETTLING):
        return _refuse(state, RefusalCode.UNKNOWN_EPOCH, f"epoch {event.epoch} has no authority to lose")
    ended = _end_epoch(state, epoch, EpochState.RETIRED, event.reason)
    dead = _set_realization(ended.state, epoch.realization_id, RealizationState.DEAD, event.reason)
    return Transition(dead, ended.effects)


def _reclaim(state: AuthorityState, event: ev.EpochReclaimed) -> Transition:
    epoch = state.epoch(event.epoch)
    if epoch is None or epoch.state not in (EpochState.RETIRED, EpochState.NON_EXECUTABLE):
        return _refuse(state, RefusalCode.UNKNOWN_EPOCH, f"epoch {event.epoch} is not waiting to be reclaimed")
    changed = tuple(replace(item, state=EpochState.RECLAIMED) if item is epoch else item for item in state.epochs)
    return Transition(replace(state, epochs=changed))


def _open_session(state: AuthorityState, event: ev.SessionRequested, now: float) -> Transition:
    if state.lease_until < now:
        return _refuse(state, RefusalCode.LEASE_LAPSED, f"the lease of term {state.term} ran out")
    active = state.active_epoch()
    if active is None:
        return _refuse(state, RefusalCode.NO_ACTIVE_AUTHORITY, f"no epoch is active for {state.scope}")
    if event.prompt_tokens < 1:
        return _refuse(state, RefusalCode.MALFORMED_POSITION, "a session needs at least one prompt token")
    session = OpenSession(
        number=state.next_session,
        epoch=active.number,
        prompt_tokens=event.prompt_tokens,
        next_position=event.prompt_tokens,
    )
    opened = ev.SessionOpened(session=session.number, epoch=active.number, prompt_tokens=event.prompt_tokens)
    state = replace(state, sessions=(*state.sessions, session), next_session=state.next_session + 1)
    return Transition(state, (opened,))


def _end_session(state: AuthorityState, event: ev.SessionEnded) -> Transition:
    session = state.session(event.session)
    if session is None:
        return _refuse(state, RefusalCode.SESSION_MISMATCH, f"session {event.session} is not open")
    kept = tuple(item for item in state.sessions if item is not session)
    return Transition(replace(state, sessions=kept), (_closed(session, event.state, event.reason),))


def _commit(state: AuthorityState, event: ev.ResultArrived, now: float) -> Transition:
    if state.lease_until < now:
        return _refuse(state, RefusalCode.LEASE_LAPSED, f"the lease of term {state.term} ran out")
    active = state.active_epoch()
    if active is None:
        return _refuse(state, RefusalCode.NO_ACTIVE_AUTHORITY, f"result of epoch {event.epoch}")
    if event.epoch != active.number:
        return _refuse(
            state,
            RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH,
            f"result of epoch {event.epoch}; epoch {active.number} has authority",
        )
    if event.realization_id != active.realization_id:
        return _refuse(state, RefusalCode.WRONG_REALIZATION, event.realization_id)
    if event.plan_digest != active.plan_digest:
        return _refuse(state, RefusalCode.PLAN_DIGEST_MISMATCH, event.plan_digest)
    session = state.session(event.session)
    if session is None or session.epoch != active.number:
        return _refuse(state, RefusalCode.SESSION_MISMATCH, f"session {event.session} is not open on this epoch")
    if event.position < session.prompt_tokens:
        return _refuse(state, RefusalCode.MALFORMED_POSITION, f"position {event.position} is inside the prompt")
    if event.position != session.next_position:
        return _refuse(
            state,
            RefusalCode.NON_NEXT_COMMIT_POSITION,
            f"position {event.position}; the next is {session.next_position}",
        )
    changed = tuple(
        replace(item, next_position=item.next_position + 1) if item is session else item for item in state.sessions
    )
    committed = ev.Committed(session=session.number, position=event.position, epoch=active.number)
    return Transition(replace(state, sessions=changed), (committed,))
