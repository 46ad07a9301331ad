"""Walks every reachable state of small instances of the authority machine with losses, changes and restarts."""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    EpochState,
    RealizationState,
    SessionState,
    numbered_realization_id,
)
from inferswarm.fabric.machine.step import Transition
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.recovery_records import SessionBoundary, TransitionMode, TransitionOutcome, Trigger
from inferswarm.fabric.transitions import apply
from tests.unit.fabric import fabric_samples
from tests.unit.fabric.fabric_samples import OTHER_PLAN, PARTICIPANTS, PLAN, SCOPE, join, lease, left
from tests.unit.fabric.recovery_observer import Seen, check, may_commit, watch

Apply = Callable[[AuthorityState, ev.Event, float], Transition]
Restore = Callable[[AuthorityState, tuple[tuple[int, int], ...], str], Transition]
CONCLUSIONS = tuple(
    item for item in TransitionOutcome if item not in (TransitionOutcome.PREPARING, TransitionOutcome.ACTIVATED)
)


class Instance(NamedTuple):
    """How large a walk is: what it may do, and how often. One prompt token a session, two stages on two Nodes."""

    tokens: int = 2
    sessions: int = 1
    attempts: int = 2
    """Realizations, the first one included."""
    transitions: int = 1
    losses: int = 1
    restarts: int = 0
    modes: tuple[TransitionMode, ...] = tuple(TransitionMode)
    conclusions: tuple[TransitionOutcome, ...] = CONCLUSIONS
    not_resumable: bool = False
    incarnations: tuple[str, ...] = ("a",)


class Place(NamedTuple):
    """A state, and what was seen on the way to it."""

    state: AuthorityState
    seen: Seen


class Steps(NamedTuple):
    """The machine under test: whole, or with a defect planted."""

    apply: Apply = apply
    restored: Restore = restored


@functools.cache
def name(attempt: int) -> str:
    return numbered_realization_id(attempt, "0")


result = functools.cache(fabric_samples.result)
planned = functools.cache(
    lambda number, mode: ev.TransitionPlanned(
        transition=number, plan_digest=PLAN, decision_digest="d", snapshot_digest="s", mode=mode
    )
)
concluded = functools.cache(
    lambda number, outcome: ev.TransitionConcluded(transition=number, outcome=outcome, reason="so it was")
)


def step(place: Place, event: ev.Event, steps: Steps) -> tuple[Place, Transition]:
    """Take one step, check it, and return where it leads."""
    transition = steps.apply(place.state, event, 0.0)
    refused = any(isinstance(effect, ev.Refused) for effect in transition.effects)
    if isinstance(event, ev.ResultArrived):
        assert may_commit(place.seen, event, place.state.lease_until >= 0.0) is not refused, (event, transition)
    if refused:
        assert len(transition.effects) == 1, "a refusal has another effect beside it"
        assert transition.state == place.state, "a refused event changed the state"
        return place, transition
    state = transition.state
    before = place.state
    assert state.term >= before.term, "the term went back"
    assert state.next_session >= before.next_session
    assert state.next_epoch >= before.next_epoch
    assert state.next_transition >= before.next_transition
    assert state.next_attempt >= before.next_attempt
    after = Place(plain(state), watch(place.seen, event, transition.effects))
    check(*after)
    return after, transition


def restart(place: Place, steps: Steps) -> Place:
    """A new Coordinator begins with the oldest state that the ledger may have, and the commits."""
    open_sessions = place.state.sessions
    kept = replace(
        place.state, sessions=tuple(replace(item, next_position=item.prompt_tokens) for item in open_sessions)
    )
    committed = tuple((item.number, item.next_position) for item in open_sessions)
    transition = steps.restored(kept, committed, "its Coordinator ended")
    assert transition.state.active_epoch() is None, "an epoch outlived the Coordinator's authority"
    assert transition.state.term == place.state.term
    seen = watch(place.seen, None, transition.effects)
    seen = seen._replace(members=frozenset(), restarts=seen.restarts + 1, losses=place.seen.losses)
    after = Place(plain(transition.state), seen)
    check(*after)
    assert after.state.lease_until < 0.0, "the old lease outlived its Coordinator"
    return after


def plain(state: AuthorityState) -> AuthorityState:
    """Forget texts for people, so that states that differ in nothing else are one state."""
    record = state.transition
    if record is not None:
        attempts = tuple(replace(item, reason="") for item in record.attempts[-1:])
        record = replace(record, phases=(), reason="", detail="", term=0, attempts=attempts, authority_before="")
    realizations = tuple(replace(item, reason="") if item.reason else item for item in state.realizations)
    epochs = tuple(replace(item, reason="") if item.reason else item for item in state.epochs)
    return replace(state, transition=record, realizations=realizations, epochs=epochs)


def menu(place: Place, size: Instance) -> Iterator[ev.Event]:
    """Every event worth trying here, sensible or not."""
    state, seen = place.state, place.seen
    if state.lease_until < 0.0:
        yield lease(state.term + 1)
        return  # nothing is asked of a Coordinator before it holds the lease
    yield from _results(state, seen)
    yield from _session_events(state, size)
    yield from _losses(state, seen, size)
    yield from _changes(state, size)
    for realization in state.realizations:
        if realization.state is RealizationState.PREPARING:
            yield ev.RealizationReadied(realization_id=realization.id)
        yield ev.RealizationReclaimed(realization_id=realization.id)
    for epoch in state.epochs:
        yield ev.EpochRetired(epoch=epoch.number, reason="on request")
        yield ev.EpochReclaimed(epoch=epoch.number)
    for incarnation in size.incarnations:
        for node in ("n1", "n2"):
            if state.member(node) is None:
                yield join(node, incarnation)


def _results(state: AuthorityState, seen: Seen) -> Iterator[ev.Event]:
    for number, session in enumerate(seen.sessions, 1):
        for epoch, (realization, plan, _) in enumerate(seen.epochs, 1):
            for position in (session.next - 1, session.next, session.next + 1):
                yield result(position, session=number, epoch=epoch, realization=realization, plan=plan)
            if epoch == len(seen.epochs):
                for wrong in ((name(1), plan), (name(9), plan), (realization, OTHER_PLAN)):
                    yield result(session.next, session=number, epoch=epoch, realization=wrong[0], plan=wrong[1])


def _session_events(state: AuthorityState, size: Instance) -> Iterator[ev.Event]:
    if state.next_session <= size.sessions:
        yield ev.SessionRequested(prompt_tokens=1, resumable=True, max_tokens=size.tokens)
        if size.not_resumable:
            yield ev.SessionRequested(prompt_tokens=1, max_tokens=size.tokens)
    for session in state.sessions:
        yield ev.ResumptionRequested(session=session.number)
        yield ev.SessionEnded(session=session.number, state=SessionState.COMPLETED, reason="length")
        yield ev.SessionEnded(session=session.number, state=SessionState.CANCELLED, reason="its client left")


def _losses(state: AuthorityState, seen: Seen, size: Instance) -> Iterator[ev.Event]:
    if seen.losses >= size.losses:
        return
    yield left("n2")
    for realization in state.realizations:
        yield ev.ParticipantLost(realization_id=realization.id, participant="stage-1", reason="killed")
        if realization.state is RealizationState.PREPARING:
            yield ev.RealizationEnded(realization_id=realization.id, reason="no memory")


def _changes(state: AuthorityState, size: Instance) -> Iterator[ev.Event]:
    record = state.transition
    yield ev.RecoveryGivenUp(reason="nothing is left")
    if record is None:
        if state.next_transition <= size.transitions:
            yield ev.TransitionStarted(trigger=Trigger.REQUEST, detail="")
        for item in state.realizations:
            if item.state is RealizationState.READY:
                yield ev.EpochRequested(realization_id=item.id)
        if state.next_attempt <= size.attempts and not state.realizations:
            yield ev.RealizationStarted(
                realization_id=name(state.next_attempt), plan_digest=PLAN, participants=PARTICIPANTS
            )
        return
    number = record.number
    for mode in size.modes:
        if record.realization_id is None:
            yield planned(number, mode)
    for outcome in size.conclusions:
        yield concluded(number, outcome)
    if record.realization_id is None and state.next_attempt <= size.attempts:
        yield from _attempts(state, number)
    for realization in state.realizations:
        if realization.state is not RealizationState.READY:
            continue
        yield ev.EpochRequested(realization_id=realization.id)
        for ahead in (None, -1, 0, 1):
            boundaries = (
                ()
                if ahead is None
                else tuple(SessionBoundary(item.number, item.next_position + ahead) for item in state.sessions)
            )
            yield ev.EpochRequested(realization_id=realization.id, transition=number, boundaries=boundaries)


def _attempts(state: AuthorityState, transition: int) -> Iterator[ev.Event]:
    fresh = ev.RealizationStarted(
        realization_id=name(state.next_attempt), plan_digest=PLAN, participants=PARTICIPANTS, transition=transition
    )
    yield fresh
    yield replace(fresh, realization_id=name(1))
    yield replace(fresh, transition=msgspec.UNSET)
    for item in state.realizations:
        for adopted in (("stage-0",), ("stage-1",), ("stage-0", "stage-1")):
            yield replace(fresh, adopts=ev.Adoption(realization_id=item.id, participants=adopted))


def wind_down(state: AuthorityState, steps: Steps) -> None:
    """Assert that whatever is there can be ended and returned, and that nothing stays."""
    events: list[ev.Event] = []
    if (record := state.transition) is not None:
        serves = state.active_epoch() is not None
        tried = record.realization_id is not None or bool(record.attempts)
        failed = TransitionOutcome.FAILED_REALIZATION if tried else TransitionOutcome.FAILED_UNRECOVERABLE_STATE
        kept = TransitionOutcome.ABORTED_PREPARATION if tried else TransitionOutcome.RETAINED_CURRENT_EPOCH
        outcome = kept if serves else failed
        events.append(ev.TransitionConcluded(transition=record.number, outcome=outcome, reason="over"))
    living = (EpochState.ACTIVE, EpochState.SETTLING)
    events += [ev.EpochRetired(epoch=item.number, reason="over") for item in state.epochs if item.state in living]
    state = _demand_all(state, events, steps)
    state = _demand_all(state, [ev.RecoveryGivenUp(reason="over")], steps)
    with_epoch = {item.realization_id for item in state.epochs}
    events = [ev.EpochReclaimed(epoch=item.number) for item in state.epochs]
    for item in state.realizations:
        if item.id not in with_epoch:
            if item.state is not RealizationState.DEAD:
                events.append(ev.RealizationEnded(realization_id=item.id, reason="over"))
            events.append(ev.RealizationReclaimed(realization_id=item.id))
    state = _demand_all(state, events, steps)
    left_over = (state.sessions, state.epochs, state.realizations, state.transition)
    assert left_over == ((), (), (), None), f"something stays for ever: {left_over}"


def _demand_all(state: AuthorityState, events: list[ev.Event], steps: Steps) -> AuthorityState:
    for event in events:
        transition = steps.apply(state, event, 0.0)
        refused = [effect for effect in transition.effects if isinstance(effect, ev.Refused)]
        assert not refused, f"what has to be possible is refused: {event} {refused}"
        state = transition.state
    return state


def finish(state: AuthorityState, steps: Steps) -> None:
    """Assert that with two Nodes and one good attempt, every session that is open can be completed."""
    events: list[ev.Event] = [lease(state.term + 1)] if state.lease_until < 0.0 else []
    events += [join(node, "a") for node in ("n1", "n2") if state.member(node) is None]
    state = _demand_all(state, events, steps)
    if state.active_epoch() is None:
        if state.transition is None:
            events = [ev.TransitionStarted(trigger=Trigger.REQUEST, detail="")]
            state = _demand_all(state, events, steps)
        assert state.transition is not None
        number = state.transition.number
        events = [
            ev.RealizationEnded(realization_id=item.id, reason="anew")
            for item in state.realizations
            if item.state in (RealizationState.PREPARING, RealizationState.READY)
        ]
        fresh = name(state.next_attempt)
        events += [
            planned(number, TransitionMode.REPLAY),
            ev.RealizationStarted(
                realization_id=fresh, plan_digest=PLAN, participants=PARTICIPANTS, transition=number
            ),
            ev.RealizationReadied(realization_id=fresh),
            ev.EpochRequested(realization_id=fresh, transition=number),
        ]
        state = _demand_all(state, events, steps)
    for session in state.sessions:
        if session.suspended:
            state = _demand_all(state, [ev.ResumptionRequested(session=session.number)], steps)
    while state.sessions:
        session = state.sessions[0]
        if session.max_tokens is not None and session.next_position == session.prompt_tokens + session.max_tokens:
            ended = ev.SessionEnded(session=session.number, state=SessionState.COMPLETED, reason="length")
            state = _demand_all(state, [ended], steps)
            continue
        epoch = state.epoch(session.committing_epoch() or 0)
        assert epoch is not None, "nothing may commit an open session"
        at = session.next_position
        event = result(
            at, session=session.number, epoch=epoch.number, realization=epoch.realization_id, plan=epoch.plan_digest
        )
        state = _demand_all(state, [event], steps)


class Walk(NamedTuple):
    """What an exhaustive walk saw."""

    num_states: int
    num_steps: int
    seconds: float
    effects: Counter[str]
    refusals: Counter[str]
    outcomes: Counter[str]

    def __str__(self) -> str:
        return f"{self.num_states:,} states, {self.num_steps:,} steps, {self.seconds:.1f} s"


SERVING_EVENTS: tuple[ev.Event, ...] = (
    lease(1),
    join("n1", "a"),
    join("n2", "a"),
    ev.RealizationStarted(realization_id=name(1), plan_digest=PLAN, participants=PARTICIPANTS),
    ev.RealizationReadied(realization_id=name(1)),
    ev.EpochRequested(realization_id=name(1)),
)


def serving(steps: Steps) -> Place:
    """Return the place where every walk begins: two Nodes, epoch 1."""
    place = Place(AuthorityState(scope=SCOPE), Seen())
    for event in SERVING_EVENTS:
        place, _ = step(place, event, steps)
    return place


def explore(size: Instance, steps: Steps | None = None, max_states: int = 2_000_000) -> Walk:
    """Visit every state that an instance can reach, each checked, wound down and finished from.

    Raises AssertionError at the first thing that breaks a rule.
    """
    steps = steps or Steps()
    started = time.perf_counter()
    origin = serving(steps)
    seen_places = {origin}
    ended: set[AuthorityState] = set()
    queue = deque([origin])
    num_steps = 0
    effects: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    while queue:
        place = queue.popleft()
        if place.state not in ended:
            ended.add(place.state)
            wind_down(place.state, steps)
            finish(place.state, steps)
        reached: list[Place] = []
        for event in menu(place, size):
            after, transition = step(place, event, steps)
            reached.append(after)
            num_steps += 1
            for effect in transition.effects:
                effects[type(effect).__name__] += 1
                if isinstance(effect, ev.Refused):
                    refusals[effect.code.value] += 1
                if isinstance(effect, ev.TransitionRecorded) and not effect.record.is_under_way:
                    outcomes[effect.record.outcome.value] += 1
        if place.seen.restarts < size.restarts:
            reached.append(restart(place, steps))
        for item in reached:
            if item not in seen_places:
                seen_places.add(item)
                queue.append(item)
        assert len(seen_places) <= max_states, "the instance is larger than it was meant to be"
    return Walk(len(seen_places), num_steps, time.perf_counter() - started, effects, refusals, outcomes)
