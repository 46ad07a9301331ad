"""Drives the state machine for a Coordinator: time, the ledger, and whoever waits for an effect.

What an event changed is in the ledger before this returns, so nothing that follows from it can be seen earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from inferswarm.errors import CommitRefused
from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, EpochState
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.transitions import apply

_QUIET = (ev.NodeRenewed, ev.ClockAdvanced, ev.ResultArrived, ev.LeaseGranted)
"""Events that come all the time and are not audited: their effects, if any, are."""


class AuthorityKeeper:
    """The only holder of the authority state of a scope in a process."""

    def __init__(self, scope: str, ledger: Ledger, on_effect: Callable[[ev.Effect], None]) -> None:
        """Start from the ledger's numbers; `on_effect` is called for each effect after it was recorded."""
        session, epoch = ledger.next_numbers()
        self.state = AuthorityState(scope=scope, next_session=session, next_epoch=epoch)
        self._ledger = ledger
        self._on_effect = on_effect

    def advance(self, event: ev.Event) -> tuple[ev.Effect, ...]:
        """Apply an event now; record what it changed; return its effects, refusals included."""
        transition = apply(self.state, event, time.monotonic())
        self.state = transition.state
        refusals = [effect for effect in transition.effects if isinstance(effect, ev.Refused)]
        for refusal in refusals:
            self._ledger.refuse(refusal.code.value, f"{type(event).__name__}: {refusal.detail}")
        effects = [effect for effect in transition.effects if not isinstance(effect, (ev.Refused, ev.Committed))]
        if effects or (not refusals and not isinstance(event, _QUIET)):
            self._ledger.record(self.state.term, [event, *effects])
        for effect in effects:
            self._record(effect)
        if isinstance(event, ev.EpochReclaimed) and not refusals:
            self._ledger.set_epoch_state(event.epoch, EpochState.RECLAIMED.value)
        for effect in effects:
            self._on_effect(effect)
        return transition.effects

    def demand(self, event: ev.Event) -> tuple[ev.Effect, ...]:
        """Apply an event that must not be refused. Raises CommitRefused with the refusal's code otherwise."""
        effects = self.advance(event)
        for effect in effects:
            if isinstance(effect, ev.Refused):
                raise CommitRefused(effect.code.value, effect.detail)
        return effects

    def _record(self, effect: ev.Effect) -> None:
        match effect:
            case ev.EpochActivated():
                state = EpochState.ACTIVE.value
                self._ledger.save_epoch(effect.epoch, effect.realization_id, effect.plan_digest, state)
            case ev.EpochLost():
                self._ledger.set_epoch_state(effect.epoch, effect.state, effect.reason)
            case ev.SessionClosed():
                self._ledger.end_session(effect.session, effect.state.value, effect.reason)
            case _:
                pass  # the audit has it
