"""Sessions: opened, committed, suspended when their epoch goes, resumed by the next one, ended."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, Epoch, EpochState, OpenSession, RefusalCode, SessionState
from inferswarm.fabric.machine.step import Transition, refuse, refused_without_lease

_AUTHORIZED = (EpochState.ACTIVE, EpochState.SETTLING)


def open_session(state: AuthorityState, event: ev.SessionRequested, now: float) -> Transition:
    """A session begins on the epoch in force."""
    if (refused := refused_without_lease(state, now)) is not None:
        return refused
    active = state.active_epoch()
    if active is None:
        return refuse(state, RefusalCode.NO_ACTIVE_AUTHORITY, f"no epoch is active for {state.scope}")
    if event.prompt_tokens < 1:
        return refuse(state, RefusalCode.MALFORMED_POSITION, "a session needs at least one prompt token")
    if event.max_tokens is not msgspec.UNSET and event.max_tokens < 1:
        return refuse(state, RefusalCode.MALFORMED_POSITION, "a session needs room for at least one token")
    session = OpenSession(
        number=state.next_session,
        epoch=active.number,
        prompt_tokens=event.prompt_tokens,
        next_position=event.prompt_tokens,
        resumable=event.resumable is True,
        max_tokens=None if event.max_tokens is msgspec.UNSET else event.max_tokens,
    )
    opened = ev.SessionOpened(session=session.number, epoch=active.number, prompt_tokens=event.prompt_tokens)
    state = replace(state, sessions=(*state.sessions, session), next_session=state.next_session + 1)
    return Transition(state, (opened,))


def resume_session(state: AuthorityState, event: ev.ResumptionRequested, now: float) -> Transition:
    """A suspended session goes on where it was, under the epoch in force."""
    if (refused := refused_without_lease(state, now)) is not None:
        return refused
    session, active = state.session(event.session), state.active_epoch()
    if session is None:
        return refuse(state, RefusalCode.SESSION_MISMATCH, f"session {event.session} is not open")
    if not session.suspended:
        return refuse(state, RefusalCode.SESSION_NOT_SUSPENDED, f"session {session.number} is on {session.epoch}")
    if active is None:
        return refuse(state, RefusalCode.NO_ACTIVE_AUTHORITY, f"no epoch is active for {state.scope}")
    bound = replace(session, epoch=active.number, suspended=False)
    resumed = ev.SessionResumed(session=session.number, epoch=active.number, position=session.next_position)
    return Transition(put_session(state, bound), (resumed,))


def end_session(state: AuthorityState, event: ev.SessionEnded) -> Transition:
    """A session ends. It is complete only with every token that it may have, or when the answer itself stopped."""
    session = state.session(event.session)
    if session is None:
        return refuse(state, RefusalCode.SESSION_MISMATCH, f"session {event.session} is not open")
    committed = session.next_position - session.prompt_tokens
    complete = session.max_tokens is None or committed == session.max_tokens
    stopped = event.stopped is True and committed > 0
    if event.state is SessionState.COMPLETED and not complete and not stopped:
        detail = f"session {session.number} has {committed} of {session.max_tokens} tokens and did not stop"
        return refuse(state, RefusalCode.ANSWER_INCOMPLETE, detail)
    kept = tuple(item for item in state.sessions if item is not session)
    return Transition(replace(state, sessions=kept), (closed(session, event.state, event.reason),))


def give_up(state: AuthorityState, reason: str) -> Transition:
    """Fail every suspended session."""
    if state.transition is not None:
        detail = f"transition {state.transition.number} may still serve them"
        return refuse(state, RefusalCode.TRANSITION_UNDER_WAY, detail)
    return fail_suspended(state, reason)


def fail_suspended(state: AuthorityState, reason: str) -> Transition:
    """Fail every suspended session, whatever is under way."""
    effects = tuple(closed(item, SessionState.FAILED, reason) for item in state.sessions if item.suspended)
    return Transition(replace(state, sessions=tuple(item for item in state.sessions if not item.suspended)), effects)


def leave_epoch(
    state: AuthorityState, epoch: Epoch, to: EpochState, reason: str, *, keep_resumable: bool = True
) -> Transition:
    """An epoch loses its authority: its sessions are suspended, or end when they cannot or may not be resumed.

    Where it was settling, its successor commits its sessions from what is committed on.
    """
    ended_as = SessionState.FAILED if to is EpochState.NON_EXECUTABLE else SessionState.CANCELLED
    effects: list[ev.Effect] = [ev.EpochLost(epoch=epoch.number, state=to.value, reason=reason)]
    kept: list[OpenSession] = []
    for session in state.sessions:
        if session.suspended or epoch.number not in (session.epoch, session.settling_epoch):
            kept.append(session)
        elif session.settling_epoch == epoch.number:
            kept.append(replace(session, settling_epoch=None, boundary=None))
            effects.append(
                ev.SessionResumed(session=session.number, epoch=session.epoch, position=session.next_position)
            )
        elif session.resumable and keep_resumable:
            kept.append(suspended(session))
            effects.append(suspension(session, reason))
        else:
            effects.append(closed(session, ended_as, reason))
    changed = tuple(replace(item, state=to, reason=reason) if item is epoch else item for item in state.epochs)
    return Transition(replace(state, epochs=changed, sessions=tuple(kept)), tuple(effects))


def suspended(session: OpenSession) -> OpenSession:
    """Return a session that is bound to no epoch."""
    return replace(session, suspended=True, settling_epoch=None, boundary=None)


def suspension(session: OpenSession, reason: str) -> ev.SessionSuspended:
    """Return the effect of suspending a session."""
    committed = session.next_position - session.prompt_tokens
    return ev.SessionSuspended(session=session.number, epoch=session.epoch, reason=reason, committed=committed)


def closed(session: OpenSession, to: SessionState, reason: str) -> ev.SessionClosed:
    """Return the effect of a session's end."""
    committed = session.next_position - session.prompt_tokens
    return ev.SessionClosed(session=session.number, state=to, reason=reason, committed=committed)


def put_session(state: AuthorityState, session: OpenSession) -> AuthorityState:
    """Return the state with another version of one open session."""
    changed = tuple(session if item.number == session.number else item for item in state.sessions)
    return replace(state, sessions=changed)


def commit(state: AuthorityState, event: ev.ResultArrived, now: float) -> Transition:
    """Take a result as the next commit of its session, or say with one code why it is not."""
    if (refused := refused_without_lease(state, now)) is not None:
        return refused
    active = state.active_epoch()
    if active is None:
        return refuse(state, RefusalCode.NO_ACTIVE_AUTHORITY, f"result of epoch {event.epoch}")
    epoch = state.epoch(event.epoch)
    if epoch is None or epoch.state not in _AUTHORIZED:
        return refuse(
            state,
            RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH,
            f"result of epoch {event.epoch}; epoch {active.number} has authority",
        )
    if event.realization_id != epoch.realization_id:
        return refuse(state, RefusalCode.WRONG_REALIZATION, event.realization_id)
    if event.plan_digest != epoch.plan_digest:
        return refuse(state, RefusalCode.PLAN_DIGEST_MISMATCH, event.plan_digest)
    session = state.session(event.session)
    if session is None:
        return refuse(state, RefusalCode.SESSION_MISMATCH, f"session {event.session} is not open")
    if session.suspended:
        return refuse(state, RefusalCode.SESSION_SUSPENDED, f"session {session.number} is bound to no epoch")
    if epoch.number not in (session.epoch, session.settling_epoch):
        detail = f"epoch {epoch.number} settles; epoch {session.epoch} commits session {session.number}"
        return refuse(state, RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH, detail)
    return _commit_position(state, event, session)


def _commit_position(state: AuthorityState, event: ev.ResultArrived, session: OpenSession) -> Transition:
    last = None if session.max_tokens is None else session.prompt_tokens + session.max_tokens - 1
    if event.position < session.prompt_tokens:
        return refuse(state, RefusalCode.MALFORMED_POSITION, f"position {event.position} is inside the prompt")
    if last is not None and event.position > last:
        return refuse(state, RefusalCode.MALFORMED_POSITION, f"position {event.position} is past the last, {last}")
    if event.position != session.next_position:
        return refuse(
            state,
            RefusalCode.NON_NEXT_COMMIT_POSITION,
            f"position {event.position}; the next is {session.next_position}",
        )
    if event.epoch != session.committing_epoch():
        return refuse(
            state,
            RefusalCode.BEFORE_CUTOVER_BOUNDARY,
            f"position {event.position}; epoch {event.epoch} commits from {session.boundary} on",
        )
    moved = replace(session, next_position=session.next_position + 1)
    if moved.next_position == moved.boundary:
        moved = replace(moved, settling_epoch=None, boundary=None)
    committed = ev.Committed(session=session.number, position=event.position, epoch=event.epoch)
    return Transition(put_session(state, moved), (committed,))
