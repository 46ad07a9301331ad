"""A Coordinator for the simulated swarm: the lease, the clock, and what arrives."""

from __future__ import annotations

from typing import Any

from inferswarm.errors import AuthorityUncertain
from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    RealizationState,
    SessionState,
)
from inferswarm.fabric.frames import FrameKind
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.recovery_records import (
    Trigger,
)
from inferswarm.fabric.simulation.authority import Hooks
from inferswarm.fabric.simulation.changes import Choices, SimulatedChanges
from inferswarm.fabric.simulation.ledger import SimulatedLedger
from inferswarm.fabric.simulation.network import BEAT_SECONDS, LEASE_SECONDS, Beat, Heard, Join, Network, Reply


class SimulatedCoordinator(SimulatedChanges):
    """One process that wants to be the scope's Coordinator: it waits for the lease, and ends when it loses it."""

    def __init__(
        self,
        network: Network,
        ledger: SimulatedLedger,
        name: str,
        nodes: tuple[str, ...],
        choices: Choices,
        hooks: Hooks,
    ) -> None:
        """Begin to wait for the lease. `nodes` are the names that it asks to join."""
        super().__init__(network, ledger, name, hooks, choices)
        self.ended = False
        self.paused_until = -1.0
        self._nodes = nodes
        self._inbox: list[tuple[str, Any]] = []
        network.receivers[name] = self
        network.at(0.0, self._tick)

    def _tick(self) -> None:
        if self.ended:
            return
        self._network.at(BEAT_SECONDS / 2, self._tick)
        if self.paused_until >= self._network.now:
            return
        try:
            inbox, self._inbox = self._inbox, []
            for source, message in inbox:
                self._take(source, message)
            if self._term == 0:
                self._try_to_begin()
            else:
                self._keep_going()
        except AuthorityUncertain:
            self.ended = True

    def _try_to_begin(self) -> None:
        now = self._network.now
        term = self._ledger.acquire(self.name, now, LEASE_SECONDS)
        if term is None:
            return
        self._term = term
        begun = restored(self._ledger.kept, self._ledger.open_sessions(), "its Coordinator ended")
        self._hooks.on_restore(begun)
        self.state = self._ledger.kept = begun.state
        for effect in begun.effects:
            self._record(effect)
        if begun.state.epochs:
            self._cause = Trigger.COORDINATOR_RESTARTED
        self._grant(now)

    def _grant(self, since: float) -> None:
        self.accepted(ev.LeaseGranted(term=self._term, lease_until=since + LEASE_SECONDS))
        for node in self._nodes:
            if self.state.member(node) is None:
                self._network.send(self.name, node, Heard(self._term, "GREET"))

    def _keep_going(self) -> None:
        now = self._network.now
        self._ledger.renew(self.name, self._term, now, LEASE_SECONDS)
        self._grant(now)
        self.advance(ev.ClockAdvanced())
        self._watch_progress()
        self._prepare()
        self._consider()
        self._settle()
        self._reclaim()
        self._serve()

    def receive(self, source: str, message: Any) -> None:
        """Take a message; while paused or waiting for the lease it waits."""
        if self.ended:
            return
        if self.paused_until >= self._network.now or self._term == 0:
            self._inbox.append((source, message))
            return
        try:
            self._take(source, message)
        except AuthorityUncertain:
            self.ended = True

    def _take(self, source: str, message: Any) -> None:
        if self._term == 0:
            return
        match message:
            case Join():
                self._joined(source, message)
            case Beat():
                self._beat(source, message)
            case Reply():
                self._replied(message)
            case _:
                frame = self._network.open_frame(message[1])
                if frame is not None and frame.header.kind == FrameKind.RESULT:
                    self._result(frame)

    def _joined(self, source: str, join: Join) -> None:
        if (join.node, join.incarnation) in self._void:
            self._network.send(self.name, source, Heard(self._term, "VOID"))
            return
        until = self._network.now + LEASE_SECONDS
        member = self.state.member(join.node)
        if member is None or member.incarnation != join.incarnation:
            self.accepted(ev.NodeJoined(node_id=join.node, incarnation=join.incarnation, lease_until=until))
            self._reconsider = True
        for realization in self.state.realizations:
            for participant in realization.survivors():
                here = dict(realization.participants)[participant] == join.node
                starting = realization.state is RealizationState.PREPARING
                if here and not starting and (realization.id, participant) not in join.stages:
                    self._lost(realization.id, participant, "it is no longer there")
        for realization_id, participant in join.stages:
            known = self.state.realization(realization_id)
            if known is None or participant not in known.survivors():  # an orphan: nobody will ask for it
                self._order(join.node, "stop", realization_id, participant)
        self._network.send(self.name, source, Heard(self._term, "WELCOME"))

    def _beat(self, source: str, beat: Beat) -> None:
        until = self._network.now + LEASE_SECONDS
        renewed = ev.NodeRenewed(node_id=beat.node, incarnation=beat.incarnation, lease_until=until)
        if not self.accepted(renewed):
            answer = "VOID" if (beat.node, beat.incarnation) in self._void else "GREET"
            self._network.send(self.name, source, Heard(self._term, answer))
            return
        self._network.send(self.name, source, Heard(self._term, "SEEN"))
        for realization_id, participant in beat.gone:
            known = self.state.realization(realization_id)
            if known is not None and participant in known.survivors():
                self._lost(realization_id, participant, "it ended or answers nothing")

    def cancel(self, session: int) -> None:
        """A client left."""
        try:
            if self._term and not self.ended and self.state.session(session) is not None:
                self._close(session, SessionState.CANCELLED, "its client left")
        except AuthorityUncertain:
            self.ended = True
