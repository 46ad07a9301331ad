"""A simulated Coordinator's sessions: opened, fed to the stages of the epoch in force, committed, closed."""

from __future__ import annotations

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    SessionState,
)
from inferswarm.fabric.frames import Address, Frame, FrameKind, encode, plan_prefix
from inferswarm.fabric.simulation.authority import Hooks, SimulatedAuthority
from inferswarm.fabric.simulation.ledger import SessionLog, SimulatedLedger
from inferswarm.fabric.simulation.network import Network

STALL_SECONDS = 2.5
"""An epoch whose sessions commit nothing for so long has lost its route."""
MAX_OPEN = 3


class SimulatedSessions(SimulatedAuthority):
    """What clients asked for, and how far it is."""

    def __init__(self, network: Network, ledger: SimulatedLedger, name: str, hooks: Hooks) -> None:
        """As `SimulatedAuthority`."""
        super().__init__(network, ledger, name, hooks)
        self.wanted: list[tuple[int, int]] = []
        """Prompt and answer lengths of requests that wait for an epoch."""

    def _result(self, frame: Frame) -> None:
        header = frame.header
        epoch = self.state.epoch(header.epoch)
        digest = "" if epoch is None else epoch.plan_digest
        claimed = digest if plan_prefix(digest) == header.plan else header.plan
        effects = self.advance(
            ev.ResultArrived(
                epoch=header.epoch,
                realization_id=header.realization,
                plan_digest=claimed,
                session=header.session,
                position=header.position,
            )
        )
        if not isinstance(effects[-1], ev.Committed):
            return
        token = int.from_bytes(frame.payload, "little")
        self._ledger.commit(header.session, header.position, token, header.epoch)
        self._progress_at = self._network.now
        log = self._ledger.sessions[header.session]
        if len(log.tokens) == log.max_tokens:
            self._close(header.session, SessionState.COMPLETED, "length")
        else:
            self._feed(header.session)

    def _close(self, session: int, state: SessionState, reason: str) -> None:
        self.advance(ev.SessionEnded(session=session, state=state, reason=reason))
        self._send_first(FrameKind.CLOSE, session)

    def _serve(self) -> None:
        """Open what was asked for, resume what waits, and feed what is behind."""
        active = self.state.active_epoch()
        if active is None or not self._is_wired(active.realization_id):
            return
        while self.wanted and len(self.state.sessions) < MAX_OPEN:
            prompt, answer = self.wanted.pop(0)
            opened = self.advance(ev.SessionRequested(prompt_tokens=prompt, resumable=True, max_tokens=answer))
            for effect in opened:
                if isinstance(effect, ev.SessionOpened):
                    self._ledger.sessions[effect.session] = SessionLog(prompt, answer)
                    self._fed[effect.session] = -1
        for session in self.state.sessions:
            if session.suspended:
                self.advance(ev.ResumptionRequested(session=session.number))
            self._feed(session.number)

    def _feed(self, number: int) -> None:
        """Give the stages of the epoch in force what they lack of a session. The last position is sampled."""
        session = self.state.session(number)
        fed = self._fed.get(number)
        active = self.state.active_epoch()
        if session is None or session.suspended or fed is None or active is None:
            return
        if not self._is_wired(active.realization_id):
            return
        if fed < 0:
            self._send_first(FrameKind.OPEN, number, count=session.prompt_tokens + (session.max_tokens or 0))
            fed = 0
        known = session.next_position  # tokens of all positions below are known
        sampled = session.boundary is None
        end = known if sampled else min(known, (session.boundary or 0) - 1)
        if fed < end:
            self._send_first(FrameKind.INPUT, number, position=fed, count=end - fed, sample=sampled)
            fed = end if not sampled else 1 << 30  # from here on the stages feed each other
        self._fed[number] = fed

    def _send_first(
        self, kind: FrameKind, session: int, *, position: int = 0, count: int = 0, sample: bool = False
    ) -> None:
        active = self.state.active_epoch()
        if active is None or not self._is_wired(active.realization_id):
            return
        realization = self._realization(active.realization_id)
        first = self._endpoints[realization.id, realization.participants[0][0]]
        address = Address(self.state.scope, active.number, realization.id, plan_prefix(active.plan_digest))
        header = address.header(kind, session, position=position, count=count, sample=sample)
        parts = tuple(bytes(part) for part in encode(header))
        self._network.send_frame(self.name, first.node, first.process, parts)

    def _watch_progress(self) -> None:
        """A route that carries nothing while somebody waits is lost."""
        active, now = self.state.active_epoch(), self._network.now
        waiting = [item for item in self.state.sessions if not item.suspended]
        if active is None or (not waiting and self._is_wired(active.realization_id)):
            self._progress_at = now
        elif now - self._progress_at > STALL_SECONDS:
            self._lost(active.realization_id, "the route", "nothing arrives")
