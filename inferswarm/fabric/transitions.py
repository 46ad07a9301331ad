"""`apply(state, event, now)`: the only function that changes authority. Pure and total.

Every event either changes the state as its docstring says, or is refused with one code and changes nothing. The
Coordinator's own lease is looked at by every event that needs it: a lapsed Coordinator commits nothing. A member's
lease lapses with `ClockAdvanced`, which the Coordinator applies several times in a lease. The steps themselves are in
`fabric/machine/`, by subject; in which order a Coordinator takes them is in `fabric/recovery.py`.
"""

from __future__ import annotations

from typing import assert_never

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState
from inferswarm.fabric.machine import changes, concluding, epochs, members, realizations, sessions
from inferswarm.fabric.machine.step import Transition

__all__ = ["Transition", "apply"]


def apply(state: AuthorityState, event: ev.Event, now: float) -> Transition:
    """Return what `event` at time `now` makes of `state`."""
    match event:
        case ev.ResultArrived():
            return sessions.commit(state, event, now)
        case ev.LeaseGranted():
            return members.grant_lease(state, event)
        case ev.NodeJoined():
            return members.join(state, event)
        case ev.NodeRenewed():
            return members.renew(state, event, now)
        case ev.NodeLeft():
            return members.lose_member(state, event.node_id, event.reason)
        case ev.ClockAdvanced():
            return members.expire(state, now)
        case ev.RealizationStarted():
            return realizations.start_realization(state, event)
        case ev.RealizationReadied():
            return realizations.ready_realization(state, event)
        case ev.RealizationEnded():
            return realizations.end_realization(state, event.realization_id, event.reason)
        case ev.RealizationReclaimed():
            return realizations.reclaim_realization(state, event)
        case ev.ParticipantLost():
            return realizations.lose_participant(state, event)
        case ev.EpochRequested():
            return epochs.activate(state, event, now)
        case ev.EpochRetired():
            return epochs.retire(state, event)
        case ev.EpochReclaimed():
            return epochs.reclaim(state, event)
        case ev.SessionRequested():
            return sessions.open_session(state, event, now)
        case ev.ResumptionRequested():
            return sessions.resume_session(state, event, now)
        case ev.SessionEnded():
            return sessions.end_session(state, event)
        case ev.TransitionStarted():
            return changes.start_transition(state, event, now)
        case ev.TransitionPlanned():
            return changes.plan_transition(state, event, now)
        case ev.TransitionConcluded():
            return concluding.conclude_transition(state, event, now)
        case ev.RecoveryGivenUp():
            return sessions.give_up(state, event.reason)
        case _:
            assert_never(event)
