"""Walks every reachable state of a small instance of the authority machine and checks each step against the rules.

The rules are written here a second time, independently of `transitions`: what may be committed, activated and opened
is stated as a predicate over the state before and the whole history, and must be true exactly when it happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, EpochState, RealizationState
from inferswarm.fabric.transitions import Transition, apply
from tests.unit.fabric.fabric_samples import SCOPE

Apply = Callable[[AuthorityState, ev.Event, float], Transition]


class History(NamedTuple):
    """What happened on the way to a state, as far as the state itself may have forgotten it."""

    commits: tuple[tuple[int, int, int], ...] = ()
    """(session, prompt tokens, committed tokens) of every session ever opened, in order."""
    activations: tuple[str, ...] = ()
    """The realizations of epochs 1, 2, … in order."""
    dead: frozenset[str] = frozenset()


class Point(NamedTuple):
    """A place in the search: the machine's state, the time, and the history."""

    state: AuthorityState
    now: float
    history: History


def may_commit(point: Point, event: ev.ResultArrived) -> bool:
    """Whether a result is the next commit of the authority in force, from first principles."""
    state, history = point.state, point.history
    active = [epoch for epoch in state.epochs if epoch.state is EpochState.ACTIVE]
    opened = {session: prompt + done for session, prompt, done in history.commits}
    is_open = any(item.number == event.session and item.epoch == event.epoch for item in state.sessions)
    return (
        point.now <= state.lease_until
        and len(active) == 1
        and active[0].number == event.epoch
        and history.activations[event.epoch - 1] == event.realization_id
        and event.realization_id not in history.dead
        and active[0].plan_digest == event.plan_digest
        and is_open
        and opened.get(event.session) == event.position
    )


def may_activate(point: Point, event: ev.EpochRequested) -> bool:
    """Whether a realization may be given authority."""
    state = point.state
    realization = state.realization(event.realization_id)
    return (
        point.now <= state.lease_until
        and all(epoch.state is not EpochState.ACTIVE for epoch in state.epochs)
        and realization is not None
        and realization.state is RealizationState.READY
        and event.realization_id not in point.history.dead
        and event.realization_id not in point.history.activations
    )


def may_open(point: Point, event: ev.SessionRequested) -> bool:
    """Whether a session may be opened."""
    active = any(epoch.state is EpochState.ACTIVE for epoch in point.state.epochs)
    return active and point.now <= point.state.lease_until and event.prompt_tokens >= 1


def check_state(point: Point) -> None:
    """Assert what must be true of every reachable state."""
    state, history = point.state, point.history
    active = [epoch for epoch in state.epochs if epoch.state is EpochState.ACTIVE]
    assert len(active) <= 1, "two epochs are active"
    for epoch in active:
        realization = state.realization(epoch.realization_id)
        assert realization is not None, "an active epoch without a realization"
        assert realization.state is RealizationState.ACTIVATED, "an active epoch on a dead realization"
        members = {member.node_id for member in state.members}
        assert {node for _, node in realization.participants} <= members, "an active epoch on a lost Node"
    assert [epoch.number for epoch in state.epochs] == list(range(1, len(history.activations) + 1))
    assert tuple(epoch.realization_id for epoch in state.epochs) == history.activations
    assert len(set(history.activations)) == len(history.activations), "a realization was activated twice"
    dead = {item.id for item in state.realizations if item.state is RealizationState.DEAD}
    assert history.dead <= dead, "a dead realization came back to life"
    assert state.next_epoch == len(history.activations) + 1
    assert state.next_session == len(history.commits) + 1
    for session in state.sessions:
        assert active, "a session is open without an active epoch"
        assert session.epoch == active[0].number
        number, prompt, done = history.commits[session.number - 1]
        assert (session.number, session.prompt_tokens, session.next_position) == (number, prompt, prompt + done)
    assert len({member.node_id for member in state.members}) == len(state.members), "a Node is a member twice"


def follow(point: Point, event: ev.Event, transition: Transition) -> Point:
    """Check one step and return where it leads."""
    state, effects = transition.state, transition.effects
    refused = any(isinstance(effect, ev.Refused) for effect in effects)
    if refused:
        assert len(effects) == 1, "a refusal has another effect beside it"
        assert state == point.state, "a refused event changed the state"
    match event:
        case ev.ResultArrived():
            assert may_commit(point, event) is not refused, (point, event, effects)
        case ev.EpochRequested():
            assert may_activate(point, event) is not refused, (point, event, effects)
        case ev.SessionRequested():
            assert may_open(point, event) is not refused, (point, event, effects)
        case ev.LeaseGranted():
            assert state.term >= point.state.term, "the term went back"
        case ev.RealizationStarted() if not refused:
            assert point.state.realization(event.realization_id) is None, "a realization id was used twice"
        case ev.NodeJoined() if not refused:
            assert (event.node_id, event.incarnation) in {(item.node_id, item.incarnation) for item in state.members}
        case _:
            pass
    if refused:
        return point
    assert state.next_session >= point.state.next_session
    assert state.next_epoch >= point.state.next_epoch
    after = Point(_without_reasons(state), point.now, _remember(point.history, event, effects))
    check_state(after)
    return after


def _without_reasons(state: AuthorityState) -> AuthorityState:
    """Forget texts for people, and what only adoption looks at: states that differ in nothing else are one state."""
    return replace(
        state,
        realizations=tuple(replace(item, reason="", gone=(), incarnations=()) for item in state.realizations),
        epochs=tuple(replace(item, reason="") for item in state.epochs),
    )


def _remember(history: History, event: ev.Event, effects: Sequence[ev.Effect]) -> History:
    commits = list(history.commits)
    for effect in effects:
        match effect:
            case ev.SessionOpened():
                assert isinstance(event, ev.SessionRequested)
                assert effect.session == len(commits) + 1, "a session number was skipped or used twice"
                assert effect.prompt_tokens == event.prompt_tokens
                commits.append((effect.session, effect.prompt_tokens, 0))
            case ev.Committed():
                assert isinstance(event, ev.ResultArrived), "a commit without a result"
                number, prompt, done = commits[effect.session - 1]
                assert effect.position == prompt + done, "commits are not consecutive"
                commits[effect.session - 1] = (number, prompt, done + 1)
            case ev.EpochActivated():
                assert effect.epoch == len(history.activations) + 1, "an epoch number was skipped or used twice"
                assert effect.realization_id not in history.dead, "a dead realization was activated"
                history = history._replace(activations=(*history.activations, effect.realization_id))
            case ev.RealizationDied():
                assert effect.realization_id not in history.dead, "a realization died twice"
                history = history._replace(dead=history.dead | {effect.realization_id})
            case ev.SessionClosed():
                assert effect.committed == commits[effect.session - 1][2], "a session forgot commits"
            case ev.EpochLost() if effect.state == EpochState.RETIRED.value:
                history = history._replace(dead=history.dead | {history.activations[effect.epoch - 1]})
            case _:
                pass
    return history._replace(commits=tuple(commits))


class Walk(NamedTuple):
    """What an exhaustive walk saw."""

    num_states: int
    num_steps: int
    commits: int
    refusals: frozenset[str]


def explore(
    events: Callable[[Point], Sequence[ev.Event]],
    *,
    until: float = 0.0,
    applied: Apply = apply,
    max_states: int = 200_000,
) -> Walk:
    """Visit every state that is reachable by `events`, with time going on in steps of one up to `until`.

    Raises AssertionError at the first step that breaks a rule.
    """
    origin = Point(AuthorityState(scope=SCOPE), 0.0, History())
    seen = {origin}
    queue = deque([origin])
    steps = commits = 0
    refusals: set[str] = set()
    while queue:
        point = queue.popleft()
        reached = [] if point.now >= until else [point._replace(now=point.now + 1.0)]
        for event in events(point):
            transition = applied(point.state, event, point.now)
            steps += 1
            reached.append(follow(point, event, transition))
            for effect in transition.effects:
                commits += isinstance(effect, ev.Committed)
                if isinstance(effect, ev.Refused):
                    refusals.add(effect.code.value)
        for item in reached:
            if item not in seen:
                seen.add(item)
                queue.append(item)
        assert len(seen) <= max_states, "the instance is larger than it was meant to be"
    return Walk(len(seen), steps, commits, frozenset(refusals))
