"""The state machine of authority: what each event does, why it is refused, and that a refusal changes nothing."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    EpochState,
    RealizationState,
    RefusalCode,
    SessionState,
)
from inferswarm.fabric.transitions import apply
from tests.unit.fabric.authority_tables import ACCEPTED_RECOVERY, REFUSED_RECOVERY
from tests.unit.fabric.fabric_samples import (
    ACTIVE,
    EMPTY,
    MEMBERS,
    OTHER_PLAN,
    PLAN,
    PREPARING,
    READY,
    SERVING,
    activate,
    after,
    end,
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

R = RefusalCode
LEASED_UNTIL_5 = after([lease(until=5.0)], SERVING)
READY_UNTIL_5 = after([lease(until=5.0)], READY)
NODE_UNTIL_5 = after([lease(), join("n1", until=5.0)])
RETIRED = after([retire()], SERVING)
SECOND_EPOCH = after([reclaim(), start("r2"), ready("r2"), activate("r2"), request(3)], RETIRED)
"""Epoch 2 of the same plan serves session 3."""
LOST = after([lose()], SERVING)
ONE_COMMIT = after([result(3)], SERVING)

REFUSED = [
    ("an older term", SERVING, lease(term=0), 0, R.TERM_NOT_HIGHER),
    ("the same incarnation again", MEMBERS, join("n1", "a"), 0, R.NODE_IDENTITY_IN_USE),
    ("renewal by a stranger", MEMBERS, renew("n3"), 0, R.NODE_NOT_A_MEMBER),
    ("renewal by an old incarnation", MEMBERS, renew("n1", "b"), 0, R.NODE_NOT_A_MEMBER),
    ("renewal after the lease ran out", NODE_UNTIL_5, renew("n1"), 5.1, R.NODE_NOT_A_MEMBER),
    ("the departure of a stranger", MEMBERS, left("n3"), 0, R.NODE_NOT_A_MEMBER),
    ("a realization id in use", PREPARING, start("r1"), 0, R.REALIZATION_ID_REUSED),
    ("a realization id that died", LOST, start("r1"), 0, R.REALIZATION_ID_REUSED),
    ("a realization on a stranger", MEMBERS, start("r1", PLAN, (("stage-0", "n9"),)), 0, R.NODE_NOT_A_MEMBER),
    ("readiness of an unknown realization", MEMBERS, ready("r9"), 0, R.UNKNOWN_REALIZATION),
    ("readiness twice", READY, ready("r1"), 0, R.UNKNOWN_REALIZATION),
    ("readiness after death", LOST, ready("r1"), 0, R.UNKNOWN_REALIZATION),
    ("the end of an unknown realization", MEMBERS, end("r9"), 0, R.UNKNOWN_REALIZATION),
    ("the end of a dead realization", LOST, end("r1"), 0, R.UNKNOWN_REALIZATION),
    ("a loss in an unknown realization", MEMBERS, lose("r9"), 0, R.UNKNOWN_REALIZATION),
    ("a second loss in one realization", LOST, lose("r1", "stage-0"), 0, R.UNKNOWN_REALIZATION),
    ("activation of an unknown realization", MEMBERS, activate("r9"), 0, R.REALIZATION_NOT_READY),
    ("activation while preparing", PREPARING, activate(), 0, R.REALIZATION_NOT_READY),
    ("activation of a dead realization", LOST, activate("r1"), 0, R.REALIZATION_NOT_READY),
    ("activation of a retired realization", RETIRED, activate("r1"), 0, R.REALIZATION_NOT_READY),
    (
        "activation beside an active epoch",
        after([start("r2"), ready("r2")], ACTIVE),
        activate("r2"),
        0,
        R.SCOPE_ALREADY_OWNED,
    ),
    ("activation twice", ACTIVE, activate("r1"), 0, R.SCOPE_ALREADY_OWNED),
    ("activation under a lapsed lease", READY_UNTIL_5, activate(), 5.1, R.LEASE_LAPSED),
    ("activation without any lease", EMPTY, activate(), 0.1, R.LEASE_LAPSED),
    ("retirement of an unknown epoch", ACTIVE, retire(2), 0, R.UNKNOWN_EPOCH),
    ("retirement twice", RETIRED, retire(1), 0, R.UNKNOWN_EPOCH),
    ("retirement of a lost epoch", LOST, retire(1), 0, R.UNKNOWN_EPOCH),
    ("reclaiming an unknown epoch", ACTIVE, reclaim(9), 0, R.UNKNOWN_EPOCH),
    ("reclaiming an active epoch", ACTIVE, reclaim(1), 0, R.UNKNOWN_EPOCH),
    ("reclaiming twice", after([reclaim()], RETIRED), reclaim(1), 0, R.UNKNOWN_EPOCH),
    ("a session without an epoch", READY, request(), 0, R.NO_ACTIVE_AUTHORITY),
    ("a session after a loss", LOST, request(), 0, R.NO_ACTIVE_AUTHORITY),
    ("a session without a prompt", ACTIVE, request(0), 0, R.MALFORMED_POSITION),
    ("a session with a negative prompt", ACTIVE, request(-1), 0, R.MALFORMED_POSITION),
    ("a session under a lapsed lease", LEASED_UNTIL_5, request(), 5.1, R.LEASE_LAPSED),
    (
        "the end of an unknown session",
        SERVING,
        ev.SessionEnded(session=9, state=SessionState.COMPLETED, reason=""),
        0,
        R.SESSION_MISMATCH,
    ),
    ("a result without an epoch", READY, result(3), 0, R.NO_ACTIVE_AUTHORITY),
    ("a result after its epoch was retired", RETIRED, result(3), 0, R.NO_ACTIVE_AUTHORITY),
    ("a result after its epoch was lost", LOST, result(3), 0, R.NO_ACTIVE_AUTHORITY),
    ("a result under a lapsed lease", LEASED_UNTIL_5, result(3), 5.1, R.LEASE_LAPSED),
    ("a result of an earlier epoch", SECOND_EPOCH, result(3, session=3), 0, R.RETIRED_OR_SUPERSEDED_EPOCH),
    ("a result of an epoch to come", SERVING, result(3, epoch=2), 0, R.RETIRED_OR_SUPERSEDED_EPOCH),
    ("a result of another realization", SERVING, result(3, realization="r2"), 0, R.WRONG_REALIZATION),
    ("a result of another plan", SERVING, result(3, plan=OTHER_PLAN), 0, R.PLAN_DIGEST_MISMATCH),
    ("a result of an unknown session", SERVING, result(3, session=9), 0, R.SESSION_MISMATCH),
    (
        "a result of a session of an earlier epoch",
        SECOND_EPOCH,
        result(3, session=1, epoch=2, realization="r2"),
        0,
        R.SESSION_MISMATCH,
    ),
    ("a result inside the prompt", SERVING, result(2), 0, R.MALFORMED_POSITION),
    ("a result at a negative position", SERVING, result(-1), 0, R.MALFORMED_POSITION),
    ("a result that skips a position", SERVING, result(4), 0, R.NON_NEXT_COMMIT_POSITION),
    ("a result that was committed already", ONE_COMMIT, result(3), 0, R.NON_NEXT_COMMIT_POSITION),
]


ALL_REFUSED = [*REFUSED, *REFUSED_RECOVERY]


@pytest.mark.parametrize(("name", "state", "event", "now", "code"), ALL_REFUSED, ids=[row[0] for row in ALL_REFUSED])
def test_a_refused_event_has_its_code_and_changes_nothing(
    name: str, state: AuthorityState, event: ev.Event, now: float, code: RefusalCode
) -> None:
    transition = apply(state, event, now)
    assert transition.state == state
    (effect,) = transition.effects
    assert isinstance(effect, ev.Refused)
    assert effect.code is code
    assert effect.detail


def test_every_code_and_every_event_that_can_be_refused_is_in_a_table() -> None:
    assert {row[4] for row in ALL_REFUSED} == set(RefusalCode)
    assert {type(row[2]) for row in ALL_REFUSED} == set(get_args(ev.Event)) - {ev.ClockAdvanced}


EPOCH_1_LOST = ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason="stage-1: killed")
NODE_LOST = "Node n1 lost: unplugged"
REPLACED = "replaced by incarnation b"
LAPSED = "its lease ran out"
CLOSED_1 = ev.SessionClosed(session=1, state=SessionState.FAILED, reason="stage-1: killed", committed=1)
CLOSED_2 = ev.SessionClosed(session=2, state=SessionState.FAILED, reason="stage-1: killed", committed=0)

ACCEPTED: list[tuple[str, AuthorityState, ev.Event, float, tuple[ev.Effect, ...]]] = [
    ("a lease", EMPTY, lease(), 0, ()),
    ("a lease renewed in its term", MEMBERS, lease(term=1), 0, ()),
    ("a lease of a higher term", MEMBERS, lease(term=2), 0, ()),
    ("a Node joins", EMPTY, join("n1"), 0, ()),
    ("a Node renews", MEMBERS, renew("n1"), 0, ()),
    ("a Node renews in its last moment", NODE_UNTIL_5, renew("n1"), 5.0, ()),
    (
        "a Node comes back as another incarnation",
        PREPARING,
        join("n1", "b"),
        0,
        (
            ev.MemberLost(node_id="n1", reason=REPLACED),
            ev.RealizationDied(realization_id="r1", reason=f"Node n1 lost: {REPLACED}"),
        ),
    ),
    ("an idle Node leaves", MEMBERS, left("n1"), 0, (ev.MemberLost(node_id="n1", reason="unplugged"),)),
    (
        "a Node in use leaves",
        SERVING,
        left("n1"),
        0,
        (
            ev.MemberLost(node_id="n1", reason="unplugged"),
            ev.RealizationDied(realization_id="r1", reason=NODE_LOST),
            ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason=NODE_LOST),
            ev.SessionClosed(session=1, state=SessionState.FAILED, reason=NODE_LOST, committed=0),
            ev.SessionClosed(session=2, state=SessionState.FAILED, reason=NODE_LOST, committed=0),
        ),
    ),
    ("time passes and nothing lapses", SERVING, ev.ClockAdvanced(), 1.0, ()),
    ("a lease in its last moment", NODE_UNTIL_5, ev.ClockAdvanced(), 5.0, ()),
    ("a lease lapses", NODE_UNTIL_5, ev.ClockAdvanced(), 5.1, (ev.MemberLost(node_id="n1", reason=LAPSED),)),
    ("a realization starts", MEMBERS, start(), 0, ()),
    ("a realization starts beside an active epoch", SERVING, start("r2"), 0, ()),
    ("a realization is ready", PREPARING, ready(), 0, ()),
    (
        "a realization fails",
        PREPARING,
        end(),
        0,
        (ev.RealizationDied(realization_id="r1", reason="out of disk"),),
    ),
    (
        "a ready realization gets authority",
        READY,
        activate(),
        0,
        (ev.EpochActivated(epoch=1, realization_id="r1", plan_digest=PLAN),),
    ),
    (
        "the same plan again is another epoch",
        after([reclaim(), start("r2"), ready("r2")], RETIRED),
        activate("r2"),
        0,
        (ev.EpochActivated(epoch=2, realization_id="r2", plan_digest=PLAN),),
    ),
    (
        "an epoch is retired",
        ONE_COMMIT,
        retire(),
        0,
        (
            ev.EpochLost(epoch=1, state="RETIRED", reason="on request"),
            ev.SessionClosed(session=1, state=SessionState.CANCELLED, reason="on request", committed=1),
            ev.SessionClosed(session=2, state=SessionState.CANCELLED, reason="on request", committed=0),
        ),
    ),
    ("a retired epoch is reclaimed", RETIRED, reclaim(), 0, ()),
    ("a lost epoch is reclaimed", LOST, reclaim(), 0, ()),
    (
        "a participant is lost",
        ONE_COMMIT,
        lose(),
        0,
        (
            ev.RealizationDied(realization_id="r1", reason="stage-1: killed"),
            EPOCH_1_LOST,
            CLOSED_1,
            CLOSED_2,
        ),
    ),
    ("a session opens", SERVING, request(7), 0, (ev.SessionOpened(session=3, epoch=1, prompt_tokens=7),)),
    (
        "a session ends",
        ONE_COMMIT,
        ev.SessionEnded(session=1, state=SessionState.COMPLETED, reason="length"),
        0,
        (ev.SessionClosed(session=1, state=SessionState.COMPLETED, reason="length", committed=1),),
    ),
    ("the first result", SERVING, result(3), 0, (ev.Committed(session=1, position=3, epoch=1),)),
    ("the next result", ONE_COMMIT, result(4), 0, (ev.Committed(session=1, position=4, epoch=1),)),
    (
        "another session's result",
        ONE_COMMIT,
        result(5, session=2),
        0,
        (ev.Committed(session=2, position=5, epoch=1),),
    ),
    (
        "a result in the lease's last moment",
        LEASED_UNTIL_5,
        result(3),
        5.0,
        (ev.Committed(session=1, position=3, epoch=1),),
    ),
]


ALL_ACCEPTED = [*ACCEPTED, *ACCEPTED_RECOVERY]


@pytest.mark.parametrize(
    ("name", "state", "event", "now", "effects"), ALL_ACCEPTED, ids=[row[0] for row in ALL_ACCEPTED]
)
def test_an_accepted_event_has_exactly_these_effects(
    name: str, state: AuthorityState, event: ev.Event, now: float, effects: tuple[ev.Effect, ...]
) -> None:
    assert apply(state, event, now).effects == effects


def test_every_event_is_accepted_somewhere() -> None:
    assert {type(row[2]) for row in ALL_ACCEPTED} == set(get_args(ev.Event))


def test_a_lease_is_granted_with_its_term_and_end() -> None:
    state = apply(MEMBERS, lease(term=4, until=7.5), 0).state
    assert (state.term, state.lease_until) == (4, 7.5)


def test_renewing_never_shortens_a_members_lease() -> None:
    state = apply(after([join("n1", until=9.0)]), renew("n1", until=3.0), 1.0).state
    assert [member.lease_until for member in state.members] == [9.0]
    assert [member.lease_until for member in apply(state, renew("n1", until=12.0), 1.0).state.members] == [12.0]


def test_a_new_incarnation_replaces_the_old_member() -> None:
    state = apply(MEMBERS, join("n1", "b"), 0).state
    assert sorted((member.node_id, member.incarnation) for member in state.members) == [("n1", "b"), ("n2", "a")]


def test_losing_a_node_leaves_realizations_on_other_nodes_alone() -> None:
    state = after([start("r2", PLAN, (("stage-0", "n2"),))], MEMBERS)
    assert apply(state, left("n1"), 0).state.realization("r2").state is RealizationState.PREPARING


def test_losing_a_participant_ends_the_epoch_and_keeps_the_numbers() -> None:
    lost = apply(ONE_COMMIT, lose(), 0).state
    assert lost.active_epoch() is None
    assert lost.epoch(1).state is EpochState.NON_EXECUTABLE
    assert lost.realization("r1").state is RealizationState.DEAD
    assert lost.sessions == ()
    assert (lost.next_session, lost.next_epoch) == (3, 2)
    assert {member.node_id for member in lost.members} == {"n1", "n2"}


def test_the_failure_of_a_preparation_leaves_the_active_epoch_alone() -> None:
    preparing = after([start("r2"), ready("r2")], SERVING)
    failed = apply(preparing, end("r2"), 0).state
    assert failed.active_epoch() == SERVING.active_epoch()
    assert failed.sessions == SERVING.sessions


def test_retirement_kills_the_realization_for_good() -> None:
    assert RETIRED.realization("r1").state is RealizationState.DEAD
    assert RETIRED.epoch(1).state is EpochState.RETIRED
    assert after([reclaim()], RETIRED).epoch(1).state is EpochState.RECLAIMED


def test_a_commit_moves_only_its_own_session() -> None:
    state = apply(SERVING, result(3), 0).state
    assert [(session.number, session.next_position) for session in state.sessions] == [(1, 4), (2, 5)]
    assert msgspec.structs.replace(state, sessions=SERVING.sessions) == SERVING


def test_session_numbers_go_on_after_their_epoch() -> None:
    assert [session.number for session in SECOND_EPOCH.sessions] == [3]
    assert SECOND_EPOCH.active_epoch().number == 2


@pytest.mark.parametrize(
    ("name", "state", "event", "now", "effects"), ALL_ACCEPTED, ids=[row[0] for row in ALL_ACCEPTED]
)
def test_apply_is_a_function_of_its_arguments_and_leaves_them_alone(
    name: str, state: AuthorityState, event: ev.Event, now: float, effects: tuple[ev.Effect, ...]
) -> None:
    before = msgspec.json.encode(state)
    first, second = apply(state, event, now), apply(state, event, now)
    assert first == second
    assert msgspec.json.encode(state) == before
    with pytest.raises(AttributeError):
        first.state.term = 9  # type: ignore[misc]
