"""A simulated Coordinator's part that asks the machine, writes to the ledger, and gives orders to agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import (
    AuthorityState,
    Realization,
)
from inferswarm.fabric.machine.step import Transition
from inferswarm.fabric.recovery_records import (
    Trigger,
)
from inferswarm.fabric.simulation.ledger import SimulatedLedger
from inferswarm.fabric.simulation.network import Command, Endpoint, Network
from inferswarm.fabric.transitions import apply

Apply = Callable[[AuthorityState, ev.Event, float], Transition]
OnStep = Callable[[AuthorityState, ev.Event, Transition, float], None]


class Hooks(NamedTuple):
    """The machine that is driven, and who watches it."""

    apply: Apply = apply
    on_step: OnStep = lambda *_: None
    """Sees every step of the machine before what follows from it."""
    on_restore: Callable[[Transition], None] = lambda _: None
    """Sees the state from which a Coordinator begins."""


class SimulatedAuthority:
    """The state of one Coordinator process, and the only way to change it."""

    def __init__(self, network: Network, ledger: SimulatedLedger, name: str, hooks: Hooks) -> None:
        """`name` is where it is reached, and how the lease's row knows it."""
        self.name = name
        self.state = AuthorityState(scope=ledger.kept.scope)
        self._network, self._ledger, self._hooks = network, ledger, hooks
        self._term = 0
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._fed: dict[int, int] = {}
        """Positions of each session that the stages in force were given; -1 before it is opened there."""
        self._held: dict[str, dict[int, int]] = {}
        """What the stages of a realization hold of each session when its epoch begins."""
        self._awaited: dict[tuple[str, str, str], Command] = {}
        self._void: set[tuple[str, str]] = set()
        self._progress_at = 0.0
        self._cause = Trigger.FIRST_PLAN

    def advance(self, event: ev.Event) -> tuple[ev.Effect, ...]:
        """Apply an event; write what follows; act on it. Ends this Coordinator when the lease is not its own."""
        now = self._network.now
        before, transition = self.state, self._hooks.apply(self.state, event, now)
        self._ledger.check(self.name, self._term)
        self._hooks.on_step(before, event, transition, now)
        self.state = transition.state
        if not isinstance(event, ev.ResultArrived):
            self._ledger.kept = transition.state
        for effect in transition.effects:
            self._record(effect)
        for effect in transition.effects:
            self._act(effect, before)
        return transition.effects

    def accepted(self, event: ev.Event) -> bool:
        """Apply an event and say whether it was taken."""
        return not any(isinstance(effect, ev.Refused) for effect in self.advance(event))

    def _record(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Refused():
                self._ledger.refusals[effect.code.value] += 1
            case ev.SessionClosed():
                log = self._ledger.sessions[effect.session]
                self._ledger.sessions[effect.session] = log._replace(state=effect.state, reason=effect.reason)
            case ev.TransitionRecorded() if not effect.record.is_under_way:
                self._ledger.records.append(effect.record)
            case _:
                pass

    def _act(self, effect: ev.Effect, before: AuthorityState) -> None:
        match effect:
            case ev.MemberLost():
                member = before.member(effect.node_id)
                if member is not None:
                    self._void.add((member.node_id, member.incarnation))
                self._cause = Trigger.NODE_LOST
            case ev.RealizationDied():
                for key in [key for key in self._awaited if key[1] == effect.realization_id and key[0] != "stop"]:
                    del self._awaited[key]
            case ev.SessionResumed():
                epoch = self.state.epoch(effect.epoch)
                if epoch is not None and effect.session not in self._fed:
                    self._fed[effect.session] = self._held.get(epoch.realization_id, {}).get(effect.session, -1)
            case ev.SessionSuspended() | ev.SessionClosed():
                self._fed.pop(effect.session, None)
            case ev.EpochActivated():
                self._progress_at = self._network.now
                self._fed.clear()
            case _:
                pass

    def _lost(self, realization: str, participant: str, reason: str) -> None:
        self._cause = Trigger.PARTICIPANT_LOST
        self.advance(ev.ParticipantLost(realization_id=realization, participant=participant, reason=reason))

    def _realization(self, realization_id: str) -> Realization:
        found = self.state.realization(realization_id)
        assert found is not None, f"{realization_id} is not remembered"
        return found

    def _order(self, node: str, verb: str, realization: str, participant: str, details: Any = None) -> None:
        member = self.state.member(node)
        if member is None:
            return
        command = Command(self._term, member.incarnation, verb, realization, participant, details)
        self._awaited[verb, realization, participant] = command
        self._network.send(self.name, node, command)

    def _is_wired(self, realization: str) -> bool:
        return not any(verb == "wire" and known == realization for verb, known, _ in self._awaited)
