"""Every interleaving of small instances of the authority machine, and random schedules of larger ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, EpochState, Member, RealizationState, SessionState
from inferswarm.fabric.transitions import Transition, apply
from tests.unit.fabric.authority_explorer import Apply, History, Point, explore, follow
from tests.unit.fabric.fabric_samples import (
    OTHER_PLAN,
    PLAN,
    SCOPE,
    activate,
    join,
    lease,
    left,
    lose,
    ready,
    reclaim,
    renew,
    request,
    result,
    retire,
    start,
)

COMPLETED = SessionState.COMPLETED


def loss_and_late_results(point: Point) -> Sequence[ev.Event]:
    """Two Nodes, two realizations of one plan, two sessions; results of every epoch at any time."""
    events: list[ev.Event] = [lease(), join("n1"), join("n2"), left("n1"), retire(1), retire(2), reclaim(1)]
    for realization in ("r1", "r2"):
        events += [start(realization), ready(realization), activate(realization), lose(realization)]
    if point.state.next_session <= 2:
        events.append(request(1))
    for session in (1, 2):
        events.append(ev.SessionEnded(session=session, state=COMPLETED, reason=""))
        for epoch, realization in ((1, "r1"), (1, "r2"), (2, "r1"), (2, "r2")):
            positions = (0, 1, 2) if epoch == 1 else (1, 2)
            events += [result(at, session=session, epoch=epoch, realization=realization) for at in positions]
        events.append(result(1, session=session, plan=OTHER_PLAN))
    return events


ONE = (("stage-0", "n1"),)


def leases_and_incarnations(point: Point) -> Sequence[ev.Event]:
    """One Node in two incarnations, leases of one unit of time, two terms, two realizations, one session."""
    soon = point.now + 1.0
    events: list[ev.Event] = [ev.ClockAdvanced(), lease(1, soon), lease(2, soon)]
    for incarnation in ("a", "b"):
        events += [join("n1", incarnation, soon), renew("n1", incarnation, soon)]
    for realization in ("r1", "r2"):
        events += [start(realization, PLAN, ONE), ready(realization), activate(realization)]
    if point.state.next_session <= 1:
        events.append(request(1))
    events += [result(1), result(2), result(1, epoch=2, realization="r2")]
    return events


def test_no_interleaving_of_losses_and_late_results_breaks_a_rule() -> None:
    walk = explore(loss_and_late_results)
    assert walk.num_states > 2_000
    assert walk.commits > 500
    assert {"RETIRED_OR_SUPERSEDED_EPOCH", "WRONG_REALIZATION", "PLAN_DIGEST_MISMATCH"} <= walk.refusals
    assert {"NON_NEXT_COMMIT_POSITION", "SESSION_MISMATCH", "NO_ACTIVE_AUTHORITY"} <= walk.refusals


def test_no_interleaving_of_leases_and_incarnations_breaks_a_rule() -> None:
    walk = explore(leases_and_incarnations, until=2.0)
    assert walk.num_states > 2_000
    assert walk.commits > 100
    assert {"LEASE_LAPSED", "TERM_NOT_HIGHER", "NODE_NOT_A_MEMBER"} <= walk.refusals


def commits_under_a_lapsed_lease(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    return apply(state, event, 0.0 if isinstance(event, ev.ResultArrived) else now)


def commits_results_of_any_epoch(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    active = state.active_epoch()
    if isinstance(event, ev.ResultArrived) and active is not None:
        event = msgspec.structs.replace(event, epoch=active.number, realization_id=active.realization_id)
    return apply(state, event, now)


def commits_results_of_any_realization(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    active = state.active_epoch()
    if isinstance(event, ev.ResultArrived) and active is not None:
        event = msgspec.structs.replace(event, realization_id=active.realization_id)
    return apply(state, event, now)


def commits_results_of_any_plan(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.ResultArrived):
        event = msgspec.structs.replace(event, plan_digest=PLAN)
    return apply(state, event, now)


def commits_positions_twice(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    transition = apply(state, event, now)
    if any(isinstance(effect, ev.Committed) for effect in transition.effects):
        return transition._replace(state=state)
    return transition


def commits_nothing(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.ResultArrived):
        return Transition(state, apply(state, event, now + 1e9).effects)
    return apply(state, event, now)


def activates_beside_an_active_epoch(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if not isinstance(event, ev.EpochRequested):
        return apply(state, event, now)
    hidden = apply(msgspec.structs.replace(state, epochs=()), event, now)
    epochs = (*state.epochs, *hidden.state.epochs)
    return hidden._replace(state=msgspec.structs.replace(hidden.state, epochs=epochs))


def revives_dead_realizations(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.RealizationReadied) and state.realization(event.realization_id) is not None:
        changed = tuple(
            msgspec.structs.replace(item, state=RealizationState.READY) if item.id == event.realization_id else item
            for item in state.realizations
        )
        return Transition(msgspec.structs.replace(state, realizations=changed))
    return apply(state, event, now)


def reuses_session_numbers(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    transition = apply(state, event, now)
    if isinstance(event, ev.SessionEnded):
        return transition._replace(state=msgspec.structs.replace(transition.state, next_session=1))
    return transition


def reuses_epoch_numbers(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    transition = apply(state, event, now)
    if isinstance(event, ev.EpochReclaimed):
        return transition._replace(state=msgspec.structs.replace(transition.state, next_epoch=1))
    return transition


def keeps_the_epoch_of_a_lost_node(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    transition = apply(state, event, now)
    if isinstance(event, ev.NodeLeft):
        return transition._replace(state=msgspec.structs.replace(transition.state, epochs=state.epochs))
    return transition


def keeps_two_incarnations(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.NodeJoined):
        member = Member(node_id=event.node_id, incarnation=event.incarnation, lease_until=event.lease_until)
        return Transition(msgspec.structs.replace(state, members=(*state.members, member)))
    return apply(state, event, now)


def changes_something_while_refusing(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    transition = apply(state, event, now)
    if any(isinstance(effect, ev.Refused) for effect in transition.effects):
        return transition._replace(state=msgspec.structs.replace(state, lease_until=now + 1.0))
    return transition


def lets_the_term_go_back(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.LeaseGranted):
        return Transition(msgspec.structs.replace(state, term=event.term, lease_until=event.lease_until))
    return apply(state, event, now)


DEFECTS: list[Apply] = [
    commits_under_a_lapsed_lease,
    commits_results_of_any_epoch,
    commits_results_of_any_realization,
    commits_results_of_any_plan,
    commits_positions_twice,
    commits_nothing,
    activates_beside_an_active_epoch,
    revives_dead_realizations,
    reuses_session_numbers,
    reuses_epoch_numbers,
    keeps_the_epoch_of_a_lost_node,
    keeps_two_incarnations,
    changes_something_while_refusing,
    lets_the_term_go_back,
]


OF_LOSSES = (
    commits_results_of_any_plan,
    reuses_session_numbers,
    reuses_epoch_numbers,
    keeps_the_epoch_of_a_lost_node,
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_the_walk_finds_each_planted_defect(defect: Apply) -> None:
    def walk() -> None:
        if defect in OF_LOSSES:
            explore(loss_and_late_results, applied=defect)
        else:
            explore(leases_and_incarnations, until=2.0, applied=defect)

    with pytest.raises(AssertionError) as caught:
        walk()
    assert "larger than" not in str(caught.value)


NODES = ("n1", "n2", "n3")
REALIZATIONS = ("r1", "r2", "r3", "r4")


def schedule_event(point: Point, kind: int, first: int, second: int) -> ev.Event:
    """Turn three numbers into an event that is often, but not always, the sensible one in this state."""
    state, now = point.state, point.now
    node, incarnation = NODES[first % 3], "abc"[second % 3]
    realization = REALIZATIONS[first % 4]
    participants = tuple((f"stage-{index}", NODES[(second + index) % 3]) for index in range(1 + second % 3))
    latest = state.next_epoch - 1
    known = state.epoch(max(1, latest - second % 2))
    sessions = state.sessions or (None,)
    session = sessions[first % len(sessions)]
    if kind >= 12 and known is not None:
        return ev.ResultArrived(
            epoch=known.number,
            realization_id=known.realization_id,
            plan_digest=known.plan_digest,
            session=session.number if session is not None else 1 + first,
            position=(session.next_position if session is not None else 1) + (second - 1 if second < 3 else 0),
        )
    events: list[ev.Event] = [
        lease(1 + first % 3, now + second),
        join(node, incarnation, now + second),
        renew(node, incarnation, now + second),
        left(node),
        ev.ClockAdvanced(),
        start(realization, PLAN if second % 2 else OTHER_PLAN, participants),
        ready(realization),
        activate(realization),
        lose(realization),
        retire(latest - first % 2),
        reclaim(latest - first % 2),
        ev.SessionEnded(session=1 + first, state=COMPLETED, reason="") if second == 0 else request(second),
    ]
    return events[kind % len(events)]


PREFIX = [lease(1, 3.0), join("n1", "a", 6.0), join("n2", "a", 6.0), start("r1", PLAN), ready("r1"), activate("r1")]
NUMBERS = st.tuples(st.integers(0, 17), st.integers(0, 5), st.integers(0, 5), st.sampled_from((0.0, 0.0, 0.5, 2.0)))


@settings(max_examples=400, deadline=None)
@given(prefix=st.integers(0, len(PREFIX)), numbers=st.lists(NUMBERS, min_size=5, max_size=60))
def test_no_random_schedule_breaks_a_rule(prefix: int, numbers: list[tuple[int, int, int, float]]) -> None:
    point = Point(AuthorityState(scope=SCOPE), 0.0, History())
    for event in PREFIX[:prefix]:
        point = follow(point, event, apply(point.state, event, point.now))
    for kind, first, second, pause in numbers:
        point = point._replace(now=point.now + pause)
        event = schedule_event(point, kind, first, second)
        before = msgspec.json.encode(point.state)
        transition = apply(point.state, event, point.now)
        assert apply(point.state, event, point.now) == transition
        assert msgspec.json.encode(point.state) == before
        point = follow(point, event, transition)


def test_the_random_schedules_reach_commits_and_losses() -> None:
    point = Point(AuthorityState(scope=SCOPE), 0.0, History())
    for event in PREFIX:
        point = follow(point, event, apply(point.state, event, point.now))
    for numbers in [(11, 0, 3), (15, 0, 3), (15, 0, 3), (15, 0, 4), (8, 0, 0)]:
        event = schedule_event(point, *numbers)
        point = follow(point, event, apply(point.state, event, point.now))
    assert point.history.commits == ((1, 3, 3),)
    assert point.state.epochs[0].state is EpochState.NON_EXECUTABLE
