"""What a Coordinator does with the machine when something is lost, joins, or is drained, event by event.

The machine (`fabric/transitions.py`) takes any event at any time and refuses what is not allowed; the order in which
a Coordinator applies them is written here, once. `>` is an event that it applies, `<` an effect that it acts on after
the ledger has it. Every session that is to outlive its epoch was opened with `resumable`; every realization has a
numbered id (`authority.numbered_realization_id(state.next_attempt, nonce)`).

A stage, an agent or a link is lost (`ParticipantLost`, `NodeLeft`, or `ClockAdvanced` when a lease lapses)::

    < RealizationDied, EpochLost(NON_EXECUTABLE), SessionSuspended for each session
    > TransitionStarted(PARTICIPANT_LOST or NODE_LOST)
      plan over what is left; the surviving stages are not stopped yet
    > TransitionPlanned(mode REBUILD_ONE_STAGE | REPLAY | READOPTION)
    > RealizationStarted(transition, adopts=Adoption(the dead one, realization.survivors()))    only what is kept
      agents give adopted stages the new address (realization, and at activation the epoch), the others are started
      and materialized; sessions are opened on new stages, and fed from the journal or from the ledger
    > RealizationReadied
    > EpochRequested(transition)
    < EpochActivated, TransitionRecorded(ACTIVATED)
    > ResumptionRequested for each session, as its state is there and the plan admits it
    < SessionResumed(epoch, position): feed the token at position - 1, expect the result at position
    > EpochReclaimed(the lost one) when its remaining stages have been stopped

    An attempt that dies in between (RealizationDied, TransitionRecorded with one more Attempt) leads back to
    TransitionPlanned with the next best plan. When no plan is left:
    > TransitionConcluded(FAILED_COLD_REALIZATION after an attempt, or FAILED_UNRECOVERABLE_STATE)
    < SessionClosed(FAILED, reason) for each suspended session
    or, to wait for a Node to come back, > TransitionConcluded(ABORTED_PLANNING), and after the patience ended
    > RecoveryGivenUp(reason).

A Node joins or is drained, and another plan is better (make before break)::

    > TransitionStarted(NODE_JOINED or DRAIN)
    > TransitionConcluded(RETAINED_CURRENT_EPOCH | RETAINED_BY_POLICY with the verdict)         when the plan stays
    > TransitionPlanned(mode MAKE_BEFORE_BREAK, verdict), RealizationStarted(transition)
      sessions are opened on the new stages and fed from the ledger while the old epoch commits on
    > RealizationReadied
    > EpochRequested(transition, boundaries = (session, position) a few positions ahead of what is committed)
    < EpochSettling(old), EpochActivated(new), SessionResumed(session, new, position), TransitionRecorded(ACTIVATED)
      results of the old epoch below each position and of the new one from it on are committed; as a token below the
      position is committed it is fed to the new stages
    > EpochRetired(old) when no session has `settling_epoch` any more, or when it takes too long
    < SessionResumed again, with the position drawn back, for those that were not there yet
    > EpochReclaimed(old)

    A failed preparation: > TransitionConcluded(ABORTED_PREPARATION); the old epoch was never touched.
    > RealizationReclaimed(the attempt) when its stages have been stopped.

Both do not fit at once (cold cut-over): as above with mode SAFE_INTERRUPTED_COLD_CUTOVER, and before the preparation
`> EpochRetired(old)`, `< SessionSuspended` for each session, `> EpochReclaimed(old)`. Sessions are resumed as after a
loss. The new epoch's failure is then FAILED_COLD_REALIZATION, unless a next plan is tried.

The Coordinator restarts::

      the lease is acquired with a higher term; a second Coordinator waits here
      state, effects = restored(the ledger's last state, the ledger's commits, reason); both go to the ledger
    > LeaseGranted(term)
    > NodeJoined for each agent that greets: with the incarnation of before, its stages may be adopted
    > TransitionStarted(COORDINATOR_RESTARTED), or the change that was under way goes on
    > TransitionPlanned(mode READOPTION), RealizationStarted(adopts = all survivors), … as after a loss

What the ledger has to do for that: keep the state (a document) in the same transaction as the audit of the event that
changed it; write commits, and every state, only while the row of the lease has this Coordinator's term, in the same
transaction, because a process can be stopped between asking the machine and writing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, OpenSession, RealizationState, SessionState
from inferswarm.fabric.machine.realizations import end_realization
from inferswarm.fabric.machine.sessions import closed
from inferswarm.fabric.machine.step import Transition

NEVER = -1.0
"""A time before every reading of a clock."""


def restored(kept: AuthorityState, committed: Iterable[tuple[int, int]], reason: str) -> Transition:
    """Return the state from which a new Coordinator goes on, and what that ends, to be recorded before it acts.

    `kept` is the last state that the ledger has; it may be older than the commits. `committed` has the number of each
    session that is open in the ledger and its next position. Nothing serves, no Node is a member, and no lease runs.
    Realizations are dead but leave their stages for adoption; sessions are suspended, or have failed when they cannot
    be resumed or when the ledger has nothing of them. A change that was under way stays so, without its attempt.
    Raises ValueError when the ledger's commits contradict its state.
    """
    positions = dict(committed)
    effects: list[ev.Effect] = []
    sessions: list[OpenSession] = []
    for session in kept.sessions:
        position = positions.get(session.number)
        if position is None:
            effects.append(closed(session, SessionState.FAILED, f"{reason}; nothing of it was kept"))
            continue
        if position < session.next_position:
            raise ValueError(
                f"session {session.number} has committed up to {session.next_position}; its commits end at {position}"
            )
        # No boundary counts any more: the commits may be past it, and both epochs end here.
        sessions.append(replace(session, next_position=position, settling_epoch=None, boundary=None))
    state = replace(kept, members=(), lease_until=NEVER, sessions=tuple(sessions))
    for realization in kept.realizations:
        if realization.state is not RealizationState.DEAD:
            ended = end_realization(state, realization.id, reason)
            state = ended.state
            effects.extend(ended.effects)
    return Transition(state, tuple(effects))
