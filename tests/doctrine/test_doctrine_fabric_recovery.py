"""Rules about changes of epochs: where a switch may be, in what order, and what a failed preparation leaves."""

from __future__ import annotations

import pytest

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, EpochState, RefusalCode, SessionState
from inferswarm.fabric.recovery_records import SafeBoundary, TransitionMode
from inferswarm.fabric.simulation import Choices, SimulatedSwarm
from inferswarm.fabric.transitions import apply
from tests.unit.fabric.fabric_samples import after, end, lose, ready, reclaim, retire
from tests.unit.fabric.recovery_samples import (
    HANDED_OVER,
    OVERLAP_READY,
    OVERLAPPED,
    R1,
    R2,
    RESUMABLE,
    M,
    Outcome,
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


@pytest.mark.rule(18)
def test_an_outdated_copy_saves_no_session_whose_state_is_lost() -> None:
    """Stages that were prepared to take over hold a copy of an earlier position; when the state itself is lost, the
    session fails at once, and nothing of the copy is ever committed. One whose inputs are kept is rebuilt instead.

    Mutation: let `machine.sessions.leave_epoch` keep a session that is not resumable while a realization is ready,
    or let `resume_session` and `commit` take a session that is not open.
    """
    state = after([from_first(5, session=2), from_first(4)], OVERLAP_READY)
    lost = apply(state, lose(R1), 0.0)
    assert (
        ev.SessionClosed(session=2, state=SessionState.FAILED, reason="stage-1: killed", committed=1) in lost.effects
    )
    assert [session.number for session in lost.state.sessions] == [1]
    (refused,) = apply(lost.state, switch(R2, (2, 5)), 0.0).effects
    assert isinstance(refused, ev.Refused)
    assert refused.code is RefusalCode.UNSAFE_BOUNDARY
    taken_over = after([switch(R2)], lost.state)
    for event in (resume(2), from_second(5, session=2), from_second(6, session=2)):
        (refused,) = apply(taken_over, event, 0.0).effects
        assert isinstance(refused, ev.Refused)
        assert refused.code is RefusalCode.SESSION_MISMATCH
    assert apply(taken_over, resume(1), 0.0).effects == (ev.SessionResumed(session=1, epoch=2, position=5),)


@pytest.mark.rule(48)
def test_a_switch_waits_for_the_next_safe_point() -> None:
    """Where a strategy lets no session move before its end, a switch is refused until the last one has ended; and
    nowhere may it be behind what is committed.

    Mutation: return None from `machine.epochs._unsafe`, or drop either of its comparisons.
    """
    state = after(
        [change(safe=SafeBoundary.SESSION_END), planned(M.MAKE_BEFORE_BREAK), attempt(), ready(R2)], RESUMABLE
    )
    for event in (ended(1, stopped=True), ended(2)):
        (refused,) = apply(state, switch(R2), 0.0).effects
        assert isinstance(refused, ev.Refused)
        assert refused.code is RefusalCode.UNSAFE_BOUNDARY
        state = after([event], state)
    assert ev.EpochActivated in {type(effect) for effect in apply(state, switch(R2), 0.0).effects}

    for position in range(4):
        (refused,) = apply(OVERLAP_READY, switch(R2, (1, position)), 0.0).effects
        assert isinstance(refused, ev.Refused)
        assert refused.code is RefusalCode.UNSAFE_BOUNDARY
    assert apply(OVERLAP_READY, switch(R2, (1, 4)), 0.0).state.active_epoch() != RESUMABLE.active_epoch()


@pytest.mark.rule(50)
def test_a_cutover_has_one_order() -> None:
    """Settle, switch in one step, retire, refuse what is late, reclaim: the trace of effects, and no other order.

    Mutation: let `machine.epochs.activate` hand over before the new realization is ready, retire in the same step,
    or let `reclaim` take an epoch that settles.
    """
    early = apply(OVERLAPPED, switch(R2, (1, 6)), 0.0)  # not validated: its stages have not answered
    assert [type(effect) for effect in early.effects] == [ev.Refused]
    state, trace = OVERLAP_READY, []
    for event in (switch(R2, (1, 6)), from_first(4), from_second(5), from_first(5), from_first(6), from_second(6)):
        transition = apply(state, event, 0.0)
        state = transition.state
        trace += [type(effect).__name__ for effect in transition.effects]
    assert trace == [
        "EpochSettling", "EpochActivated", "SessionResumed", "SessionClosed", "TransitionRecorded",
        "Committed", "Refused", "Committed", "Refused", "Committed",
    ]  # fmt: skip
    assert isinstance(apply(state, reclaim(1), 0.0).effects[0], ev.Refused)
    retired = after([retire(1)], state)
    assert retired.epoch(1).state is EpochState.RETIRED
    late = apply(retired, from_first(7), 0.0).effects[0]
    assert isinstance(late, ev.Refused)
    assert late.code is RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH
    reclaimed = after([reclaim(1)], retired)
    assert (reclaimed.epoch(1), len(reclaimed.realizations)) == (None, 1)
    assert HANDED_OVER.active_epoch().number == 2


@pytest.mark.rule(51)
@pytest.mark.parametrize(
    ("fits", "mode"),
    [(True, TransitionMode.MAKE_BEFORE_BREAK), (False, TransitionMode.SAFE_INTERRUPTED_CUTOVER)],
    ids=["both fit", "both do not fit"],
)
def test_overlap_is_preferred_and_not_required(fits: bool, mode: TransitionMode) -> None:
    """A drained Node's sessions go on either way; the record says which way, and only the one is interrupted.

    Mutation: plan every change as overlapping in `simulation/changes.py`, or drop the suspension of sessions from
    `machine.epochs.retire`.
    """
    swarm = SimulatedSwarm(choices=Choices(overlap_fits=fits))
    swarm.submit(3, 90)
    swarm.run(2.5)
    swarm.drain("n3")
    swarm.run(5.0)
    (record,) = (item for item in swarm.ledger.records if item.old_epoch == 1 and item.new_epoch == 2)
    assert record.mode is mode
    assert [item.position > 0 for item in record.boundaries] == ([True] if fits else [])
    swarm.finish()
    log = swarm.ledger.sessions[1]
    assert (log.state, len(log.tokens)) == (SessionState.COMPLETED, 90)
    assert {epoch for _, epoch in log.tokens} == {1, 2}


@pytest.mark.rule(58)
@pytest.mark.parametrize(
    "failing", [end(R2), conclude(Outcome.ABORTED_PREPARATION)], ids=["it dies", "it is given up"]
)
@pytest.mark.parametrize("state", [OVERLAPPED, OVERLAP_READY], ids=["preparing", "ready"])
def test_a_failed_preparation_leaves_the_epoch_in_force_untouched(state: AuthorityState, failing: ev.Event) -> None:
    """Whenever an attempt fails, epoch and sessions are what they were, and the next result is committed.

    Mutation: let `machine.concluding.conclude_transition` or `attempt_died` retire the old epoch.
    """
    failed = after([failing], state)
    assert failed.active_epoch() == RESUMABLE.active_epoch()
    assert failed.sessions == RESUMABLE.sessions
    assert failed.realization("realization-1-0a") == RESUMABLE.realization("realization-1-0a")
    assert apply(failed, from_first(4), 0.0).effects == (ev.Committed(session=1, position=4, epoch=1),)
    again = apply(failed, switch(R2), 0.0).effects[0]
    assert isinstance(again, ev.Refused)
