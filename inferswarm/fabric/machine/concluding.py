"""The end of a change that activates nothing: only an outcome that agrees with who has authority is taken."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, RefusalCode
from inferswarm.fabric.machine.changes import finished, under_way, unknown_transition
from inferswarm.fabric.machine.realizations import end_realization
from inferswarm.fabric.machine.sessions import fail_suspended
from inferswarm.fabric.machine.step import Transition, refuse
from inferswarm.fabric.recovery_records import ENDS_SESSIONS, KEEPS_AUTHORITY, NEEDS_AN_ATTEMPT, TransitionRecord


def conclude_transition(state: AuthorityState, event: ev.TransitionConcluded, now: float) -> Transition:
    """Close the record. An attempt that is alive dies; where nothing can serve, suspended sessions fail."""
    record = under_way(state, event.transition)
    if record is None:
        return unknown_transition(state, event.transition)
    if (fault := contradiction(state, record, event)) is not None:
        return refuse(state, RefusalCode.OUTCOME_CONTRADICTS_AUTHORITY, f"{event.outcome.value}: {fault}")
    effects: list[ev.Effect] = []
    if record.realization_id is not None:
        ended = end_realization(state, record.realization_id, event.reason)
        state = ended.state
        effects.extend(ended.effects)
    if event.outcome in ENDS_SESSIONS:
        failed = fail_suspended(state, event.reason)
        state = failed.state
        effects.extend(failed.effects)
    last = record if state.transition is None else state.transition
    if event.verdict is not msgspec.UNSET:
        last = replace(last, verdict=event.verdict)
    closing = finished(state, last, event.outcome, event.reason, now)
    return Transition(closing.state, (*effects, *closing.effects))


def contradiction(state: AuthorityState, record: TransitionRecord, event: ev.TransitionConcluded) -> str | None:
    """Return what an outcome says that is not so, or None."""
    active = state.active_epoch()
    if event.outcome in KEEPS_AUTHORITY and active is None:
        return "no epoch has authority that could be kept"
    if event.outcome in ENDS_SESSIONS and active is not None:
        return f"epoch {active.number} serves"
    tried = record.realization_id is not None or bool(record.attempts)
    if event.outcome in NEEDS_AN_ATTEMPT and not tried:
        return "nothing was prepared"
    if event.outcome not in NEEDS_AN_ATTEMPT and record.realization_id is not None:
        return f"{record.realization_id} is being prepared"
    return None
