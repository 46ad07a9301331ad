"""Leases: the Coordinator's own, and those of the Nodes."""

from __future__ import annotations

from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, Member, RealizationState, RefusalCode
from inferswarm.fabric.machine.realizations import end_realization, mark_node_gone
from inferswarm.fabric.machine.step import Transition, refuse


def grant_lease(state: AuthorityState, event: ev.LeaseGranted) -> Transition:
    """The scope is this Coordinator's until the lease ends."""
    if event.term < state.term:
        return refuse(state, RefusalCode.TERM_NOT_HIGHER, f"term {event.term} after term {state.term}")
    return Transition(replace(state, term=event.term, lease_until=event.lease_until))


def join(state: AuthorityState, event: ev.NodeJoined) -> Transition:
    """A Node becomes a member. Stages that belong to another of its incarnations are gone."""
    member = Member(node_id=event.node_id, incarnation=event.incarnation, lease_until=event.lease_until)
    earlier = state.member(event.node_id)
    if earlier is None:
        state = mark_node_gone(state, event.node_id, unless=event.incarnation)
        return Transition(replace(state, members=(*state.members, member)))
    if earlier.incarnation == event.incarnation:
        return refuse(state, RefusalCode.NODE_IDENTITY_IN_USE, f"{event.node_id} is a member already")
    lost = lose_member(state, event.node_id, f"replaced by incarnation {event.incarnation}")
    return Transition(replace(lost.state, members=(*lost.state.members, member)), lost.effects)


def renew(state: AuthorityState, event: ev.NodeRenewed, now: float) -> Transition:
    """A member's lease goes on, never shorter than it was."""
    member = state.member(event.node_id)
    if member is None or member.incarnation != event.incarnation or member.lease_until < now:
        return refuse(state, RefusalCode.NODE_NOT_A_MEMBER, f"{event.node_id} holds no running lease")
    renewed = tuple(
        replace(item, lease_until=max(item.lease_until, event.lease_until)) if item is member else item
        for item in state.members
    )
    return Transition(replace(state, members=renewed))


def lose_member(state: AuthorityState, node_id: str, reason: str) -> Transition:
    """A Node is no member any more; whatever has a stage on it dies."""
    if state.member(node_id) is None:
        return refuse(state, RefusalCode.NODE_NOT_A_MEMBER, f"{node_id} is no member")
    state = replace(state, members=tuple(item for item in state.members if item.node_id != node_id))
    state = mark_node_gone(state, node_id)
    effects: list[ev.Effect] = [ev.MemberLost(node_id=node_id, reason=reason)]
    for realization in state.realizations:
        uses_node = any(node == node_id for _, node in realization.participants)
        if uses_node and realization.state is not RealizationState.DEAD:
            ended = end_realization(state, realization.id, f"Node {node_id} lost: {reason}")
            state = ended.state
            effects.extend(ended.effects)
    return Transition(state, tuple(effects))


def expire(state: AuthorityState, now: float) -> Transition:
    """Members whose lease ran out are lost."""
    effects: list[ev.Effect] = []
    for member in state.members:
        if member.lease_until < now:
            lost = lose_member(state, member.node_id, "its lease ran out")
            state = lost.state
            effects.extend(lost.effects)
    return Transition(state, tuple(effects))
