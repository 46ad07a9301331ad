"""Every interleaving of small instances of the authority machine with losses, changes of epochs and restarts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, RefusalCode, SessionState
from inferswarm.fabric.machine import concluding, epochs, members, realizations, sessions
from inferswarm.fabric.machine.step import Transition
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.recovery_records import TransitionMode, TransitionOutcome
from inferswarm.fabric.transitions import apply
from tests.unit.fabric.recovery_explorer import Apply, Instance, Restore, Steps, explore

MODES = TransitionMode
ENDS = TransitionOutcome
LOSSES_AND_CHANGES = Instance(
    modes=(MODES.MAKE_BEFORE_BREAK, MODES.REBUILD_ONE_STAGE),
    conclusions=(ENDS.ABORTED_PREPARATION, ENDS.FAILED_REALIZATION),
)
"""Two Nodes, one session of two tokens, one loss at any moment, one change of epochs."""
RESTARTS = Instance(tokens=1, losses=0, restarts=1, modes=(MODES.READOPTION,), conclusions=(ENDS.FAILED_REALIZATION,))
"""The Coordinator ends at any moment; stages are adopted by its successor."""


def test_no_interleaving_of_a_loss_and_a_change_breaks_a_rule() -> None:
    walk = explore(LOSSES_AND_CHANGES)
    print(walk)
    assert walk.num_states > 2_000
    assert walk.outcomes.keys() == {"ACTIVATED", "ABORTED_PREPARATION", "FAILED_COLD_REALIZATION"}
    assert walk.effects.keys() >= {"SessionSuspended", "SessionResumed", "EpochSettling", "SessionClosed"}
    assert walk.refusals.keys() >= {
        "RETIRED_OR_SUPERSEDED_EPOCH",
        "BEFORE_CUTOVER_BOUNDARY",
        "SESSION_SUSPENDED",
        "ADOPTION_REFUSED",
        "REALIZATION_ID_REUSED",
        "UNSAFE_BOUNDARY",
        "OUTCOME_CONTRADICTS_AUTHORITY",
    }


def test_no_interleaving_with_a_restart_breaks_a_rule() -> None:
    walk = explore(RESTARTS)
    print(walk)
    assert walk.num_states > 500
    assert walk.effects["SessionResumed"] > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        Instance(),
        Instance(
            losses=2,
            transitions=2,
            attempts=3,
            modes=LOSSES_AND_CHANGES.modes,
            conclusions=LOSSES_AND_CHANGES.conclusions,
        ),
        Instance(restarts=1, incarnations=("a", "b")),
        LOSSES_AND_CHANGES._replace(sessions=2, tokens=1, not_resumable=True),
    ],
    ids=["all modes", "two losses", "a restart and a Node that comes back", "two sessions"],
)
def test_no_interleaving_of_a_larger_instance_breaks_a_rule(size: Instance) -> None:
    print(explore(size))


# -- the walk finds what is wrong --


def forcing(code: RefusalCode) -> Apply:
    """Commit what is refused with a code."""

    def applied(state: AuthorityState, event: ev.Event, now: float) -> Transition:
        transition = apply(state, event, now)
        refused = transition.effects[0] if transition.effects else None
        if not isinstance(event, ev.ResultArrived) or not isinstance(refused, ev.Refused) or refused.code is not code:
            return transition
        session = state.session(event.session)
        if session is None:
            return transition
        moved = sessions.put_session(state, replace(session, next_position=event.position + 1))
        committed = ev.Committed(session=event.session, position=event.position, epoch=event.epoch)
        return Transition(moved, (committed,))

    return applied


def changing(kind: type[ev.Effect], change: Callable[[Any], ev.Effect | None]) -> Apply:
    """Say something else than what happened."""

    def applied(state: AuthorityState, event: ev.Event, now: float) -> Transition:
        transition = apply(state, event, now)
        said = (change(effect) if isinstance(effect, kind) else effect for effect in transition.effects)
        return transition._replace(effects=tuple(effect for effect in said if effect is not None))

    return applied


def altering(kind: type[ev.Event], alter: Callable[[AuthorityState, AuthorityState], AuthorityState]) -> Apply:
    """Leave something else behind than what was said."""

    def applied(state: AuthorityState, event: ev.Event, now: float) -> Transition:
        transition = apply(state, event, now)
        if not isinstance(event, kind) or any(isinstance(effect, ev.Refused) for effect in transition.effects):
            return transition
        return transition._replace(state=alter(state, transition.state))

    return applied


def completes_anything(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.SessionEnded) and event.state is SessionState.COMPLETED:
        event = replace(event, stopped=True)
    return apply(state, event, now)


def starts_a_second_change(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    if isinstance(event, ev.EpochRequested) and event.transition is msgspec.UNSET:
        hidden = apply(replace(state, transition=None), event, now)
        return hidden._replace(state=replace(hidden.state, transition=state.transition))
    return apply(state, event, now)


DEFECTS: dict[str, Apply] = {
    "commits of an epoch past its boundary": forcing(RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH),
    "commits of the successor below the boundary": forcing(RefusalCode.BEFORE_CUTOVER_BOUNDARY),
    "commits of a suspended session": forcing(RefusalCode.SESSION_SUSPENDED),
    "commits out of order": forcing(RefusalCode.NON_NEXT_COMMIT_POSITION),
    "commits past the end": forcing(RefusalCode.MALFORMED_POSITION),
    "resumes one position too far": changing(
        ev.SessionResumed, lambda effect: replace(effect, position=effect.position + 1)
    ),
    "resumes silently": changing(ev.SessionResumed, lambda effect: None),
    "suspends silently": changing(ev.SessionSuspended, lambda effect: None),
    "fails without a reason": changing(ev.SessionClosed, lambda effect: replace(effect, reason="")),
    "forgets what was committed": changing(ev.SessionClosed, lambda effect: replace(effect, committed=0)),
    "keeps the old epoch active": changing(ev.EpochSettling, lambda effect: None),
    "ends no record": changing(ev.TransitionRecorded, lambda effect: effect if effect.record.is_under_way else None),
    "completes anything": completes_anything,
    "activates beside the change": starts_a_second_change,
    "reuses realization ids": altering(ev.EpochReclaimed, lambda before, after: replace(after, next_attempt=1)),
    "reuses epoch numbers": altering(ev.EpochReclaimed, lambda before, after: replace(after, next_epoch=1)),
    "reuses transition numbers": altering(
        ev.TransitionConcluded, lambda before, after: replace(after, next_transition=before.next_transition - 1)
    ),
    "keeps a suspended session bound": altering(
        ev.ParticipantLost, lambda before, after: replace(after, sessions=before.sessions)
    ),
    "drops a suspended session": altering(ev.ParticipantLost, lambda before, after: replace(after, sessions=())),
    "keeps what was reclaimed": altering(
        ev.EpochReclaimed, lambda before, after: replace(after, realizations=before.realizations)
    ),
    "forgets an epoch that was not reclaimed": altering(
        ev.ParticipantLost, lambda before, after: replace(after, epochs=())
    ),
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda name: name.replace(" ", "_"))
def test_the_walk_finds_each_planted_defect(defect: str) -> None:
    with pytest.raises(AssertionError) as caught:
        explore(LOSSES_AND_CHANGES, Steps(DEFECTS[defect]))
    assert "larger than" not in str(caught.value)


RULES: list[tuple[str, ModuleType, str, Callable[..., Any]]] = [
    ("adopts anything", realizations, "adoption_fault", lambda *_: None),
    ("concludes anything", concluding, "contradiction", lambda *_: None),
    ("moves sessions anywhere", epochs, "_unsafe", lambda *_: None),
    ("forgets no realization", epochs, "forget_stages", lambda state, _: state),
    ("takes stages of a lost Node for alive", members, "mark_node_gone", lambda state, *_, **__: state),
    ("takes a lost stage for alive", realizations, "mark_gone", lambda state, *_: state),
    ("does not note that an attempt died", realizations, "attempt_died", lambda state, *_: Transition(state)),
    ("leaves waiting sessions after a failure", concluding, "fail_suspended", lambda state, _: Transition(state)),
]


@pytest.mark.parametrize(("name", "module", "function", "defect"), RULES, ids=[row[0] for row in RULES])
def test_the_walk_notices_when_a_rule_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType, function: str, defect: Callable[..., Any]
) -> None:
    monkeypatch.setattr(module, function, defect)
    with pytest.raises(AssertionError) as caught:
        explore(LOSSES_AND_CHANGES)
    assert "larger than" not in str(caught.value)


def keeps_serving(kept: AuthorityState, committed: tuple[tuple[int, int], ...], reason: str) -> Transition:
    return Transition(replace(kept, members=()))


def forgets_commits(kept: AuthorityState, committed: tuple[tuple[int, int], ...], reason: str) -> Transition:
    return restored(kept, tuple((item.number, item.next_position) for item in kept.sessions), reason)


def drops_sessions(kept: AuthorityState, committed: tuple[tuple[int, int], ...], reason: str) -> Transition:
    return restored(replace(kept, sessions=()), committed, reason)


def keeps_the_lease(kept: AuthorityState, committed: tuple[tuple[int, int], ...], reason: str) -> Transition:
    transition = restored(kept, committed, reason)
    return transition._replace(state=replace(transition.state, lease_until=kept.lease_until))


def forgets_where_stages_were(
    kept: AuthorityState, committed: tuple[tuple[int, int], ...], reason: str
) -> Transition:
    transition = restored(kept, committed, reason)
    revived = tuple(replace(item, gone=()) for item in transition.state.realizations)
    return transition._replace(state=replace(transition.state, realizations=revived))


@pytest.mark.parametrize("defect", [keeps_serving, forgets_commits, drops_sessions, keeps_the_lease])
def test_the_walk_finds_each_planted_defect_of_a_restart(defect: Restore) -> None:
    with pytest.raises(AssertionError) as caught:
        explore(RESTARTS, Steps(restored=defect))
    assert "larger than" not in str(caught.value)


def test_the_walk_finds_stages_that_a_restart_brings_back_to_life() -> None:
    size = RESTARTS._replace(losses=1, modes=(MODES.REBUILD_ONE_STAGE,))
    with pytest.raises(AssertionError, match="was adopted"):
        explore(size, Steps(restored=forgets_where_stages_were))
