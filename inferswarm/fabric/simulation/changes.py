"""A simulated Coordinator's changes of epochs, in the order that `fabric/recovery.py` states."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inferswarm.documents import digest
from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    EpochState,
    OpenSession,
    Realization,
    RealizationState,
    numbered_realization_id,
)
from inferswarm.fabric.frames import Address, plan_prefix
from inferswarm.fabric.recovery_records import (
    SessionBoundary,
    TransitionMode,
    TransitionOutcome,
    TransitionRecord,
    Trigger,
)
from inferswarm.fabric.simulation.authority import Hooks
from inferswarm.fabric.simulation.ledger import SimulatedLedger
from inferswarm.fabric.simulation.network import Network, Reply, Wiring
from inferswarm.fabric.simulation.sessions import SimulatedSessions

NUM_STAGES = 2
PREPARE_SECONDS = 3.0
PATIENCE_SECONDS = 12.0
"""How long suspended sessions wait for a Node to come back."""
MAX_ATTEMPTS = 3
SETTLE_SECONDS = 1.0
"""How long an epoch may settle before it is retired."""


class Choices(NamedTuple):
    """What a planner would have decided."""

    overlap_fits: bool = True
    boundary_ahead: int = 3
    """Positions between what is committed at a cut-over and the boundary."""
    worth_a_change: bool = True
    """Whether the economics of change favor another plan while one serves."""


class SimulatedChanges(SimulatedSessions):
    """From what was lost or joined to an epoch that serves, and what is left over stopped."""

    def __init__(self, network: Network, ledger: SimulatedLedger, name: str, hooks: Hooks, choices: Choices) -> None:
        """As `SimulatedAuthority`; `choices` stand in for a planner."""
        super().__init__(network, ledger, name, hooks)
        self.choices = choices
        self.draining: set[str] = set()
        self._stopped: set[tuple[str, str]] = set()
        self._prepare_until = 0.0
        self._settled_at = 0.0
        self._idle_since: float | None = None
        self._reconsider = False

    def _plan(self) -> tuple[tuple[str, str], ...]:
        """Two stages over the best two members, or both on one: later names are faster, none that drains."""
        usable = sorted(
            (item.node_id for item in self.state.members if item.node_id not in self.draining), reverse=True
        )
        if not usable:
            return ()
        return tuple((f"stage-{index}", usable[min(index, len(usable) - 1)]) for index in range(NUM_STAGES))

    def _consider(self) -> None:
        """Ask for another epoch when nothing serves, or when another plan is better."""
        record, active = self.state.transition, self.state.active_epoch()
        if record is not None:
            if record.realization_id is None:
                self._next_attempt(record)
            return
        if active is not None:
            self._idle_since = None
            places = self._realization(active.realization_id).participants
            drained = any(node in self.draining for _, node in places) and self._plan() not in ((), places)
            if self.state.settling_epoch() is None and (self._reconsider or drained):
                self._reconsider = False
                self._start(Trigger.DRAIN if drained else Trigger.NODE_JOINED)
            return
        suspended = [item for item in self.state.sessions if item.suspended]
        if not self._plan():
            if self._idle_since is None:
                self._idle_since = self._network.now
            if suspended and self._network.now - self._idle_since > PATIENCE_SECONDS:
                self.advance(ev.RecoveryGivenUp(reason="no Node came back in time"))
            return
        self._idle_since = None
        if suspended or self.wanted:
            self._start(self._cause)

    def _start(self, trigger: Trigger) -> None:
        if self.accepted(ev.TransitionStarted(trigger=trigger, detail="", recovery_contract="replay the record")):
            record = self.state.transition
            assert record is not None
            self._next_attempt(record)

    def _conclude(self, outcome: TransitionOutcome, reason: str) -> None:
        record = self.state.transition
        assert record is not None
        self.advance(ev.TransitionConcluded(transition=record.number, outcome=outcome, reason=reason))

    def _next_attempt(self, record: TransitionRecord) -> None:
        active = self.state.active_epoch()
        places = self._plan()
        if active is not None and record.attempts:
            self._conclude(TransitionOutcome.ABORTED_PREPARATION, record.attempts[-1].reason)
        elif len(record.attempts) >= MAX_ATTEMPTS:
            self._conclude(TransitionOutcome.FAILED_REALIZATION, record.attempts[-1].reason)
        elif not places:
            self._conclude(TransitionOutcome.ABORTED_PLANNING, "no Node is left")
        elif active is not None and places == self._realization(active.realization_id).participants:
            self._conclude(TransitionOutcome.RETAINED_CURRENT_EPOCH, "the plan is the same")
        elif active is not None and not self.choices.worth_a_change and record.trigger is not Trigger.DRAIN:
            self._conclude(TransitionOutcome.RETAINED_BY_POLICY, "it gains less than it costs")
        else:
            self._attempt(record, places)

    def _attempt(self, record: TransitionRecord, places: tuple[tuple[str, str], ...]) -> None:
        active = self.state.active_epoch()
        adopts: ev.Adoption | msgspec.UnsetType = msgspec.UNSET
        if active is None:
            adopts = self._survivors(places)
            kept = 0 if adopts is msgspec.UNSET else len(adopts.participants)
            mode = {0: TransitionMode.REPLAY, len(places): TransitionMode.READOPTION}.get(
                kept, TransitionMode.REBUILD_ONE_STAGE
            )
        elif self.choices.overlap_fits:
            mode = TransitionMode.MAKE_BEFORE_BREAK
        else:
            mode = TransitionMode.SAFE_INTERRUPTED_CUTOVER
            self.advance(ev.EpochRetired(epoch=active.number, reason="both do not fit at once"))
        plan = digest(places)
        self.advance(
            ev.TransitionPlanned(
                transition=record.number, plan_digest=plan, decision_digest="", snapshot_digest="", mode=mode
            )
        )
        fresh = numbered_realization_id(self.state.next_attempt, f"{self._term:x}")
        started = ev.RealizationStarted(
            realization_id=fresh,
            plan_digest=plan,
            participants=places,
            transition=record.number,
            adopts=adopts,
        )
        if not self.accepted(started):
            return
        self._prepare_until = self._network.now + PREPARE_SECONDS
        self._held[fresh] = {}
        for participant, node in places:
            adopted = adopts is not msgspec.UNSET and participant in adopts.participants
            source = adopts.realization_id if adopts is not msgspec.UNSET and adopted else None
            self._order(node, "adopt" if adopted else "start", fresh, participant, source)

    def _survivors(self, places: tuple[tuple[str, str], ...]) -> ev.Adoption | msgspec.UnsetType:
        """Return what the newest dead realization leaves where the plan wants it."""
        members = {item.node_id: item.incarnation for item in self.state.members}
        for realization in reversed(self.state.realizations):
            if realization.state is not RealizationState.DEAD:
                continue
            incarnations = dict(realization.incarnations)
            kept = tuple(
                participant
                for participant, node in realization.participants
                if participant in realization.survivors()
                and (participant, node) in places
                and members.get(node) == incarnations.get(node)
            )
            if kept:
                return ev.Adoption(realization_id=realization.id, participants=kept)
        return msgspec.UNSET

    def _replied(self, reply: Reply) -> None:
        command = reply.command
        key = (command.verb, command.realization, command.participant)
        if command.verb == "stop":
            self._stopped.add((command.realization, command.participant))
        elif self._awaited.get(key) is not command:
            return
        self._awaited.pop(key, None)
        if reply.endpoint is not None:
            self._endpoints[command.realization, command.participant] = reply.endpoint
        known = self.state.realization(command.realization)
        if not reply.done and command.verb != "stop" and known is not None:
            self._lost(command.realization, command.participant, f"{command.verb} failed")
            return
        if command.verb == "adopt":
            held = self._held.setdefault(command.realization, {})
            brought = dict(reply.held)
            for session in self.state.sessions:
                usable = min(brought.get(session.number, 0), session.next_position - 1)
                held[session.number] = min(held.get(session.number, usable), usable)
        self._prepare()

    def _prepare(self) -> None:
        """Go on with the attempt that is alive, as far as its stages have answered."""
        record = self.state.transition
        if record is None or record.realization_id is None:
            return
        realization = self._realization(record.realization_id)
        if self._network.now > self._prepare_until:
            self.advance(ev.RealizationEnded(realization_id=realization.id, reason="its stages took too long"))
            return
        if any(key[1] == realization.id for key in self._awaited):
            return
        if realization.state is RealizationState.PREPARING:
            held = self._held[realization.id]
            if record.mode not in (TransitionMode.REBUILD_ONE_STAGE, TransitionMode.READOPTION):
                held = {item.number: item.next_position - 1 for item in self.state.sessions}
            held = {number: count for number, count in held.items() if count > 0}
            self._held[realization.id] = held
            ends = {
                item.number: item.prompt_tokens + (item.max_tokens or 0)
                for item in self.state.sessions
                if item.number in held
            }
            details = (tuple(held.items()), tuple(ends.items()))
            self.advance(ev.RealizationReadied(realization_id=realization.id))
            for participant, node in realization.participants:
                self._order(node, "hold", realization.id, participant, details)
        elif realization.state is RealizationState.READY:
            self._switch(record, realization)

    def _switch(self, record: TransitionRecord, realization: Realization) -> None:
        active = self.state.active_epoch()
        boundaries: tuple[SessionBoundary, ...] = ()
        if active is not None:
            if self.state.settling_epoch() is not None:
                return
            boundaries = tuple(
                SessionBoundary(item.number, self._boundary(item))
                for item in self.state.sessions
                if not item.suspended and item.number in self._held[realization.id]
            )
        requested = ev.EpochRequested(realization_id=realization.id, transition=record.number, boundaries=boundaries)
        if not self.accepted(requested):
            return
        self._settled_at = self._network.now + SETTLE_SECONDS
        epoch = self.state.active_epoch()
        assert epoch is not None
        address = Address(self.state.scope, epoch.number, realization.id, plan_prefix(epoch.plan_digest))
        endpoints = [self._endpoints[realization.id, participant] for participant, _ in realization.participants]
        for index, (participant, node) in enumerate(realization.participants):
            following = endpoints[index + 1] if index + 1 < len(endpoints) else None
            wiring = Wiring(address, following, endpoints[0], self.name)
            self._order(node, "wire", realization.id, participant, wiring)

    def _boundary(self, session: OpenSession) -> int:
        last = session.prompt_tokens + (session.max_tokens or 0)
        return min(session.next_position + self.choices.boundary_ahead, last)

    def _settle(self) -> None:
        """Retire an epoch that settles when nothing is left for it to commit, or after a while."""
        settling = self.state.settling_epoch()
        if settling is None:
            return
        drains = any(item.settling_epoch == settling.number for item in self.state.sessions)
        if not drains or self._network.now > self._settled_at:
            self.advance(ev.EpochRetired(epoch=settling.number, reason="its successor serves"))

    def _reclaim(self) -> None:
        """Stop the stages of what is dead, once nothing of it can be adopted any more."""
        waits = any(item.suspended for item in self.state.sessions) and self.state.active_epoch() is None
        if self.state.transition is not None or waits:
            return
        members = {item.node_id for item in self.state.members}
        for realization in self.state.realizations:
            if realization.state is not RealizationState.DEAD:
                continue
            places = dict(realization.participants)
            left = [  # one that was reported as lost may only be silent
                name for name in places if places[name] in members and (realization.id, name) not in self._stopped
            ]
            for name in left:
                self._order(places[name], "stop", realization.id, name)
            if not left:
                self._forget(realization)

    def _forget(self, realization: Realization) -> None:
        dead = (EpochState.RETIRED, EpochState.NON_EXECUTABLE)
        for epoch in self.state.epochs:
            if epoch.realization_id == realization.id and epoch.state in dead:
                self.advance(ev.EpochReclaimed(epoch=epoch.number))
                return
        self.advance(ev.RealizationReclaimed(realization_id=realization.id))
