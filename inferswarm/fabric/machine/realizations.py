"""Attempts to turn a plan into running stages: their start, their death, and what of them may be adopted."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    EpochState,
    Realization,
    RealizationState,
    RefusalCode,
    attempt_of,
)
from inferswarm.fabric.machine.changes import attempt_died, attempt_started, refused_attempt
from inferswarm.fabric.machine.sessions import leave_epoch
from inferswarm.fabric.machine.step import Transition, refuse


def start_realization(state: AuthorityState, event: ev.RealizationStarted) -> Transition:
    """An attempt begins; it has no authority. Stages that it adopts are gone from where they were."""
    attempt = attempt_of(event.realization_id)
    if state.realization(event.realization_id) is not None or (attempt or state.next_attempt) < state.next_attempt:
        return refuse(state, RefusalCode.REALIZATION_ID_REUSED, event.realization_id)
    for participant, node_id in event.participants:
        if state.member(node_id) is None:
            return refuse(state, RefusalCode.NODE_NOT_A_MEMBER, f"{participant} on {node_id}")
    if (refused := refused_attempt(state, event)) is not None:
        return refused
    if event.adopts is not msgspec.UNSET:
        if (reason := adoption_fault(state, event, event.adopts)) is not None:
            return refuse(state, RefusalCode.ADOPTION_REFUSED, reason)
        state = mark_gone(state, event.adopts.realization_id, event.adopts.participants)
    nodes = {node_id for _, node_id in event.participants}
    realization = Realization(
        id=event.realization_id,
        plan_digest=event.plan_digest,
        participants=event.participants,
        state=RealizationState.PREPARING,
        incarnations=tuple((item.node_id, item.incarnation) for item in state.members if item.node_id in nodes),
        transition=None if event.transition is msgspec.UNSET else event.transition,
    )
    started = replace(
        state,
        realizations=(*state.realizations, realization),
        next_attempt=state.next_attempt if attempt is None else attempt + 1,
    )
    return attempt_started(started, realization)


def adoption_fault(state: AuthorityState, event: ev.RealizationStarted, adopts: ev.Adoption) -> str | None:
    """Return why stages cannot be adopted, or None: their realization must be dead, and they must still be there."""
    source = state.realization(adopts.realization_id)
    if source is None or source.state is not RealizationState.DEAD:
        found = "unknown or reclaimed" if source is None else source.state.value
        return f"{adopts.realization_id} is {found}; only what is dead leaves stages behind"
    places = dict(event.participants)
    for participant in adopts.participants:
        if participant not in source.survivors():
            return f"{participant} of {source.id} is not known to have survived"
        if places.get(participant) != dict(source.participants)[participant]:
            return f"{participant} of {source.id} is not on the Node that the new plan puts it on"
    incarnations = dict(source.incarnations)
    for node_id in {places[participant] for participant in adopts.participants}:
        member = state.member(node_id)
        if member is None or incarnations.get(node_id) != member.incarnation:
            return f"the stages of {source.id} belong to another incarnation of {node_id}"
    return None


def ready_realization(state: AuthorityState, event: ev.RealizationReadied) -> Transition:
    """Every participant of an attempt reported what it holds, and answered."""
    realization = state.realization(event.realization_id)
    if realization is None or realization.state is not RealizationState.PREPARING:
        found = "unknown" if realization is None else realization.state.value
        return refuse(state, RefusalCode.UNKNOWN_REALIZATION, f"{event.realization_id} is {found}")
    return Transition(set_realization(state, event.realization_id, RealizationState.READY))


def end_realization(state: AuthorityState, realization_id: str, reason: str) -> Transition:
    """A realization dies, and with it the authority that it had."""
    realization = state.realization(realization_id)
    if realization is None or realization.state is RealizationState.DEAD:
        found = "unknown" if realization is None else "dead already"
        return refuse(state, RefusalCode.UNKNOWN_REALIZATION, f"{realization_id} is {found}")
    state = set_realization(state, realization_id, RealizationState.DEAD, reason)
    effects: list[ev.Effect] = [ev.RealizationDied(realization_id=realization_id, reason=reason)]
    for epoch in state.epochs:
        has_stages = epoch.state in (EpochState.ACTIVE, EpochState.SETTLING)
        if epoch.realization_id == realization_id and has_stages:
            lost = leave_epoch(state, epoch, EpochState.NON_EXECUTABLE, reason)
            state = lost.state
            effects.extend(lost.effects)
    recorded = attempt_died(state, realization, reason)
    return Transition(recorded.state, (*effects, *recorded.effects))


def lose_participant(state: AuthorityState, event: ev.ParticipantLost) -> Transition:
    """A stage ended or fell silent. While something may be adopted, a further loss in a dead realization counts."""
    realization = state.realization(event.realization_id)
    recovering = state.transition is not None or any(session.suspended for session in state.sessions)
    if (
        realization is not None
        and realization.state is RealizationState.DEAD
        and recovering
        and event.participant in realization.survivors()
    ):
        return Transition(mark_gone(state, event.realization_id, (event.participant,)))
    if realization is not None and realization.state is not RealizationState.DEAD:
        state = mark_gone(state, event.realization_id, (event.participant,))
    return end_realization(state, event.realization_id, f"{event.participant}: {event.reason}")


def reclaim_realization(state: AuthorityState, event: ev.RealizationReclaimed) -> Transition:
    """The stages of an attempt that never had an epoch are gone."""
    realization = state.realization(event.realization_id)
    had_epoch = any(epoch.realization_id == event.realization_id for epoch in state.epochs)
    if realization is None or realization.state is not RealizationState.DEAD or had_epoch:
        return refuse(
            state,
            RefusalCode.UNKNOWN_REALIZATION,
            f"{event.realization_id} is not waiting to be reclaimed without an epoch",
        )
    return Transition(forget_stages(state, event.realization_id))


def forget_stages(state: AuthorityState, realization_id: str) -> AuthorityState:
    """Nothing is left of a realization. Its id stays only when it has no number that tells that it was used."""
    if attempt_of(realization_id) is None:
        realization = state.realization(realization_id)
        return state if realization is None else mark_gone(state, realization_id, realization.survivors())
    kept = tuple(item for item in state.realizations if item.id != realization_id)
    return replace(state, realizations=kept)


def set_realization(
    state: AuthorityState, realization_id: str, to: RealizationState, reason: str = ""
) -> AuthorityState:
    """Return the state with one realization in another of its states."""
    changed = tuple(
        replace(item, state=to, reason=reason) if item.id == realization_id else item for item in state.realizations
    )
    return replace(state, realizations=changed)


def mark_gone(state: AuthorityState, realization_id: str, participants: tuple[str, ...]) -> AuthorityState:
    """Note that stages are no longer a realization's. Names that are no participants change nothing."""
    changed = tuple(
        replace(item, gone=tuple(name for name, _ in item.participants if name in {*item.gone, *participants}))
        if item.id == realization_id
        else item
        for item in state.realizations
    )
    return replace(state, realizations=changed)


def mark_node_gone(state: AuthorityState, node_id: str, unless: str | None = None) -> AuthorityState:
    """Note that all stages on a Node have ended, except those of its incarnation `unless`."""
    for realization in state.realizations:
        if unless is None or dict(realization.incarnations).get(node_id) != unless:
            on_node = tuple(name for name, node in realization.participants if node == node_id)
            state = mark_gone(state, realization.id, on_node) if on_node else state
    return state
