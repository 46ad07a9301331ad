"""Drives the state machine for a Coordinator: time, the ledger, and whoever waits for an effect.

What an event changed is in the ledger before this returns, so nothing that follows from it can be seen earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from inferswarm.errors import CommitRefused
from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, EpochState
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.transitions import apply

_QUIET = (ev.NodeRenewed, ev.ClockAdvanced, ev.ResultArrived, ev.LeaseGranted)
"""Events that come all the time and are not audited: their effects, if any, are."""
ENDED = "its Coordinator ended before it did"
"""Why nothing serves when a Coordinator begins, and why sessions failed that cannot be resumed."""


class AuthorityKeeper:
    """The only holder of the authority state of a scope in a process."""

    def __init__(self, scope: str, ledger: Ledger, on_effect: Callable[[ev.Effect], None]) -> None:
        """Go on from the ledger, where nothing serves any more; `on_effect` hears each effect after it was recorded.

        Sessions that can be resumed are suspended, other open ones have failed; of that `on_effect` hears nothing.
        """
        kept = ledger.authority(scope)
        if kept is None:
            session, epoch = ledger.next_numbers()
            kept = AuthorityState(scope=scope, next_session=session, next_epoch=epoch)
        self._ledger = ledger
        self._on_effect = on_effect
        begun = restored(kept, ledger.open_sessions(), ENDED)
        with ledger.transaction():
            self._write(begun.state, [], begun.effects)
            ledger.close_unknown((session.number for session in begun.state.sessions), ENDED)
        self.state = begun.state

    def advance(self, event: ev.Event) -> tuple[ev.Effect, ...]:
        """Apply an event now; record what it changed; return its effects, refusals included.

        Raises AuthorityUncertain, having changed nothing, when the ledger's lease is somebody else's.
        """
        transition = apply(self.state, event, time.monotonic())
        refusals = [effect for effect in transition.effects if isinstance(effect, ev.Refused)]
        effects = [effect for effect in transition.effects if not isinstance(effect, (ev.Refused, ev.Committed))]
        if refusals or effects or not isinstance(event, _QUIET):
            with self._ledger.transaction():
                for refusal in refusals:
                    self._ledger.refuse(refusal.code.value, f"{type(event).__name__}: {refusal.detail}")
                if effects or not refusals:
                    self._write(transition.state, [event], effects)
                if isinstance(event, ev.EpochReclaimed) and not refusals:
                    self._ledger.set_epoch_state(event.epoch, EpochState.RECLAIMED.value)
        self.state = transition.state
        for effect in effects:
            self._on_effect(effect)
        return transition.effects

    def _write(self, state: AuthorityState, events: Sequence[ev.Event], effects: Sequence[ev.Effect]) -> None:
        self._ledger.record(state.term, [*events, *effects])
        self._ledger.keep_authority(state)
        for effect in effects:
            self._record(effect)

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
