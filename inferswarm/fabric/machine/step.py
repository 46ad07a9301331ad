"""What one step of the machine returns, and the tests that several steps share."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, RefusalCode


class Transition(NamedTuple):
    """The state after an event, and what follows from it, in order."""

    state: AuthorityState
    effects: tuple[ev.Effect, ...] = ()


def refuse(state: AuthorityState, code: RefusalCode, detail: str) -> Transition:
    """Return the unchanged state and why."""
    return Transition(state, (ev.Refused(code=code, detail=detail),))


def refused_without_lease(state: AuthorityState, now: float) -> Transition | None:
    """Return the refusal of a Coordinator whose own lease ran out, or None while it runs."""
    if state.lease_until < now:
        return refuse(state, RefusalCode.LEASE_LAPSED, f"the lease of term {state.term} ran out")
    return None
