"""Watches a machine from outside, by its events and effects alone, and says what it may do next.

Nothing here reads the rules of `fabric/machine`: what may be committed, which stages are alive and who has authority
are kept a second time, in other terms, and compared with the machine's state after every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, EpochState, RealizationState, SessionState

ACTIVE, SETTLING = EpochState.ACTIVE.value, EpochState.SETTLING.value


class Watched(NamedTuple):
    """One session, as its client and the ledger see it."""

    prompt: int
    limit: int | None
    resumable: bool
    done: int = 0
    status: str = "OPEN"
    """OPEN, SUSPENDED, or the state that it ended in."""
    epoch: int = 0
    drains: int | None = None
    """The epoch that commits below `boundary`."""
    boundary: int | None = None

    @property
    def next(self) -> int:
        return self.prompt + self.done


class StageLife(NamedTuple):
    """One process that holds state: where it runs, and whose it is now."""

    realization: str
    participant: str
    node: str
    incarnation: str


class Seen(NamedTuple):
    """Everything that was seen so far."""

    epochs: tuple[tuple[str, str, str], ...] = ()
    """Realization, plan and state of epochs 1, 2, …"""
    sessions: tuple[Watched, ...] = ()
    realizations: frozenset[str] = frozenset()
    """Every id that was ever used."""
    dead: frozenset[str] = frozenset()
    stages: frozenset[StageLife] = frozenset()
    """Those that nobody has reported as ended."""
    members: frozenset[tuple[str, str]] = frozenset()
    under_way: int | None = None
    transitions: int = 0
    losses: int = 0
    restarts: int = 0


def may_commit(seen: Seen, event: ev.ResultArrived, leased: bool) -> bool:
    """Whether a result is the next commit of the authority in force, from first principles."""
    if not leased or not 1 <= event.session <= len(seen.sessions) or not 1 <= event.epoch <= len(seen.epochs):
        return False
    session = seen.sessions[event.session - 1]
    realization, plan, state = seen.epochs[event.epoch - 1]
    drains = session.boundary is not None and event.position < session.boundary
    return (
        session.status == "OPEN"
        and event.position == session.next
        and (session.limit is None or session.done < session.limit)
        and event.epoch == (session.drains if drains else session.epoch)
        and state == (SETTLING if drains else ACTIVE)
        and any(item[2] == ACTIVE for item in seen.epochs)
        and (event.realization_id, event.plan_digest) == (realization, plan)
        and realization not in seen.dead
    )


def watch(seen: Seen, event: ev.Event | None, effects: Iterable[ev.Effect]) -> Seen:
    """Return what is known after an accepted event; AssertionError for effects that contradict what was seen."""
    effects = tuple(effects)
    for effect in effects:
        seen = _watch_effect(seen, event, effect)
    match event:
        case ev.NodeJoined():
            same = event.incarnation
            kept = {item for item in seen.stages if item.node != event.node_id or item.incarnation == same}
            members = {item for item in seen.members if item[0] != event.node_id}
            seen = seen._replace(
                members=frozenset({*members, (event.node_id, event.incarnation)}), stages=frozenset(kept)
            )
        case ev.RealizationStarted():
            seen = _start(seen, event)
        case ev.ParticipantLost():
            gone = (event.realization_id, event.participant)
            seen = seen._replace(
                stages=frozenset(item for item in seen.stages if (item.realization, item.participant) != gone)
            )
        case ev.EpochRetired():
            seen = seen._replace(dead=seen.dead | {seen.epochs[event.epoch - 1][0]})
        case ev.EpochReclaimed():
            realization, _, state = seen.epochs[event.epoch - 1]
            assert state not in (ACTIVE, SETTLING), "an epoch with authority was reclaimed"
            seen = _stop(_set_epoch(seen, event.epoch, EpochState.RECLAIMED.value), realization)
        case ev.RealizationReclaimed():
            assert event.realization_id in seen.dead, "a realization that lives was reclaimed"
            seen = _stop(seen, event.realization_id)
        case _:
            pass
    return seen


def _start(seen: Seen, event: ev.RealizationStarted) -> Seen:
    assert event.realization_id not in seen.realizations, "a realization id was used twice"
    incarnations = dict(seen.members)
    stages = set(seen.stages)
    adopted: tuple[str, ...] = ()
    if event.adopts is not msgspec.UNSET:
        adopted = event.adopts.participants
        assert event.adopts.realization_id in seen.dead, "stages of a living realization were adopted"
    for participant, node in event.participants:
        assert node in incarnations, "a stage was started on a stranger"
        stage = StageLife(event.realization_id, participant, node, incarnations[node])
        if participant in adopted:
            earlier = stage._replace(realization=event.adopts.realization_id)
            assert earlier in stages, f"{earlier} has ended, moved, or belongs to another, and was adopted"
            stages.remove(earlier)
        stages.add(stage)
    return seen._replace(realizations=seen.realizations | {event.realization_id}, stages=frozenset(stages))


def _stop(seen: Seen, realization: str) -> Seen:
    return seen._replace(stages=frozenset(item for item in seen.stages if item.realization != realization))


def _set_epoch(seen: Seen, number: int, state: str) -> Seen:
    realization, plan, _ = seen.epochs[number - 1]
    epochs = list(seen.epochs)
    epochs[number - 1] = (realization, plan, state)
    return seen._replace(epochs=tuple(epochs))


def _put(seen: Seen, number: int, session: Watched) -> Seen:
    sessions = list(seen.sessions)
    sessions[number - 1] = session
    return seen._replace(sessions=tuple(sessions))


def _watch_effect(seen: Seen, event: ev.Event | None, effect: ev.Effect) -> Seen:
    match effect:
        case ev.SessionOpened():
            assert isinstance(event, ev.SessionRequested)
            assert effect.session == len(seen.sessions) + 1, "a session number was skipped or used twice"
            assert seen.epochs[effect.epoch - 1][2] == ACTIVE, "a session was opened on an epoch without authority"
            limit = None if event.max_tokens is msgspec.UNSET else event.max_tokens
            session = Watched(event.prompt_tokens, limit, event.resumable is True, epoch=effect.epoch)
            return seen._replace(sessions=(*seen.sessions, session))
        case ev.Committed():
            session = seen.sessions[effect.session - 1]
            assert effect.position == session.next, "a position was repeated or skipped"
            session = session._replace(done=session.done + 1)
            if session.next == session.boundary:
                session = session._replace(drains=None, boundary=None)
            return _put(seen, effect.session, session)
        case ev.SessionSuspended():
            session = seen.sessions[effect.session - 1]
            assert session.status == "OPEN", "a session was suspended twice"
            assert session.resumable, "a session that cannot be resumed was suspended"
            assert effect.reason, "a session was suspended without a reason"
            assert (effect.epoch, effect.committed) == (session.epoch, session.done), "a session forgot something"
            return _put(seen, effect.session, session._replace(status="SUSPENDED", drains=None, boundary=None))
        case ev.SessionResumed():
            return _resume(seen, effect)
        case ev.SessionClosed():
            session = seen.sessions[effect.session - 1]
            assert session.status in ("OPEN", "SUSPENDED"), "a session ended twice"
            assert effect.committed == session.done, "a session forgot commits"
            if effect.state is SessionState.FAILED:
                assert effect.reason, "a session failed without a reason"
            if effect.state is SessionState.COMPLETED and session.limit is not None:
                stopped = isinstance(event, ev.SessionEnded) and event.stopped is True and session.done > 0
                assert session.done == session.limit or stopped, "a session is complete without all its tokens"
            ended = session._replace(status=effect.state.value, drains=None, boundary=None)
            return _put(seen, effect.session, ended)
        case _:
            return _watch_authority(seen, effect)


def _resume(seen: Seen, effect: ev.SessionResumed) -> Seen:
    session = seen.sessions[effect.session - 1]
    assert seen.epochs[effect.epoch - 1][2] == ACTIVE, "a session was bound to an epoch without authority"
    if session.status == "SUSPENDED" or effect.epoch == session.epoch:
        assert session.status == "SUSPENDED" or session.boundary is not None, "a bound session was bound again"
        assert effect.position == session.next, "a session was resumed elsewhere than where it was"
        return _put(
            seen, effect.session, session._replace(status="OPEN", epoch=effect.epoch, drains=None, boundary=None)
        )
    assert session.status == "OPEN", "an ended session was resumed"
    assert seen.epochs[session.epoch - 1][2] == SETTLING, "a session was handed over by an epoch that does not settle"
    assert effect.position >= session.next, "the boundary is behind what is committed"
    waits = effect.position > session.next
    moved = session._replace(
        epoch=effect.epoch,
        drains=session.epoch if waits else None,
        boundary=effect.position if waits else None,
    )
    return _put(seen, effect.session, moved)


def _watch_authority(seen: Seen, effect: ev.Effect) -> Seen:
    match effect:
        case ev.EpochActivated():
            assert effect.epoch == len(seen.epochs) + 1, "an epoch number was skipped or used twice"
            assert effect.realization_id not in seen.dead, "a dead realization was activated"
            assert all(item[0] != effect.realization_id for item in seen.epochs), "activated twice"
            assert all(item[2] != ACTIVE for item in seen.epochs), "two epochs are active"
            return seen._replace(epochs=(*seen.epochs, (effect.realization_id, effect.plan_digest, ACTIVE)))
        case ev.EpochSettling():
            assert seen.epochs[effect.epoch - 1][2] == ACTIVE, "an epoch settles that was not active"
            assert all(item[2] != SETTLING for item in seen.epochs), "two epochs settle"
            return _set_epoch(seen, effect.epoch, SETTLING)
        case ev.EpochLost():
            assert seen.epochs[effect.epoch - 1][2] in (ACTIVE, SETTLING), "an epoch lost what it had not"
            return _set_epoch(seen, effect.epoch, effect.state)
        case ev.RealizationDied():
            assert effect.realization_id not in seen.dead, "a realization died twice"
            return seen._replace(dead=seen.dead | {effect.realization_id}, losses=seen.losses + 1)
        case ev.MemberLost():
            return seen._replace(
                members=frozenset(item for item in seen.members if item[0] != effect.node_id),
                stages=frozenset(item for item in seen.stages if item.node != effect.node_id),
            )
        case ev.TransitionRecorded():
            return _watch_record(seen, effect)
        case _:
            return seen


def _watch_record(seen: Seen, effect: ev.TransitionRecorded) -> Seen:
    record = effect.record
    if seen.under_way is None:
        assert record.number == seen.transitions + 1, "a transition number was skipped or used twice"
        assert record.is_under_way, "a transition ended that never began"
        return seen._replace(under_way=record.number, transitions=record.number)
    assert record.number == seen.under_way, "two transitions are under way"
    if record.is_under_way:
        return seen
    serves = any(item[2] == ACTIVE for item in seen.epochs)
    outcome = record.outcome.value
    if outcome == "ACTIVATED":
        assert record.new_epoch == len(seen.epochs), "the record names another epoch"
        assert seen.epochs[record.new_epoch - 1][2] == ACTIVE, "the record says activated, and it is not"
        moved = {item.session: item.position for item in record.boundaries}
        open_sessions = {number: item for number, item in enumerate(seen.sessions, 1) if item.status != "OPEN"}
        for number, end in ((item.session, item.end) for item in record.replays):
            session = seen.sessions[number - 1]
            assert end == moved.get(number, session.next), "the replay ends elsewhere than the session goes on"
            assert number not in open_sessions or session.status == "SUSPENDED"
    else:
        assert record.reason, "a transition ended without a reason"
        assert not outcome.startswith(("RETAINED", "ABORTED_PREP")) or serves, f"{outcome} while nothing serves"
        if outcome.startswith("FAILED"):
            assert not serves, f"{outcome} while an epoch serves"
            assert all(item.status != "SUSPENDED" for item in seen.sessions), f"{outcome} leaves sessions waiting"
    return seen._replace(under_way=None)


def check(state: AuthorityState, seen: Seen) -> None:
    """Assert that the machine's state says what was seen, and keeps nothing that nobody needs."""
    known = {epoch.number: epoch for epoch in state.epochs}
    for number, (realization, plan, value) in enumerate(seen.epochs, 1):
        epoch = known.get(number)
        if epoch is None:
            assert value == EpochState.RECLAIMED.value, f"epoch {number} was forgotten as {value}"
        else:
            assert (epoch.realization_id, epoch.plan_digest, epoch.state.value) == (realization, plan, value)
    living = [item for item in seen.epochs if item[2] in (ACTIVE, SETTLING)]
    assert len([item for item in living if item[2] == ACTIVE]) <= 1, "two epochs are active"
    assert len([item for item in living if item[2] == SETTLING]) <= 1, "two epochs settle"
    for realization, _, _ in living:
        assert realization not in seen.dead, "a dead realization has authority"
        item = state.realization(realization)
        assert item is not None
        assert item.state is RealizationState.ACTIVATED
        stages = {(stage.participant, stage.node) for stage in seen.stages if stage.realization == realization}
        assert stages == set(item.participants), "an epoch has authority without all of its stages"
    opened = {number: item for number, item in enumerate(seen.sessions, 1) if item.status in ("OPEN", "SUSPENDED")}
    assert {session.number for session in state.sessions} == set(opened), "a session leaked or was forgotten"
    for session in state.sessions:
        item = opened[session.number]
        assert (session.next_position, session.suspended) == (item.next, item.status == "SUSPENDED")
        assert (session.settling_epoch, session.boundary) == (item.drains, item.boundary)
        if item.status == "OPEN":
            assert session.epoch == item.epoch
            assert seen.epochs[item.epoch - 1][2] == ACTIVE, "a session is bound to an epoch without authority"
            assert item.drains is None or seen.epochs[item.drains - 1][2] == SETTLING
    assert (None if state.transition is None else state.transition.number) == seen.under_way
    attempts = [
        item.id
        for item in state.realizations
        if item.transition is not None and item.state in (RealizationState.PREPARING, RealizationState.READY)
    ]
    alive = None if state.transition is None else state.transition.realization_id
    assert attempts == ([] if alive is None else [alive]), "an attempt lives without its transition"
    reclaimed = {item[0] for item in seen.epochs if item[2] == EpochState.RECLAIMED.value}
    assert not reclaimed & {item.id for item in state.realizations}, "a reclaimed realization is remembered"
