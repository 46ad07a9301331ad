"""Quarantine: excluding the narrowest scope that evidence of integrity speaks against, until a revalidation passes.

A pure function of an ordered list of events. Only events of the integrity axis have any effect; a resource that is
slow, hot, narrow or gone is none of its business, and one that is fast buys nothing. There is no clock in it: what
is shut stays shut however long it takes. It opens when a revalidation of exactly that scope passes, with evidence of
its own that was taken after the last finding against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from inferswarm.documents import Digest, Digits, Document
from inferswarm.evidence.events import EFFECTS, HealthEvent, Scope

AuditEffect = Literal["opened", "extended", "cleared", "no-effect", "refused"]


class Quarantine(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.quarantine/1"):
    """One scope that is shut, and the events that speak against it."""

    scope: Scope
    since_ns: Digits
    last_finding_ns: Digits
    event_ids: tuple[Digest, ...]
    evidence_ids: tuple[str, ...]
    detail: str


class AuditEntry(Document, frozen=True, kw_only=True):
    """What one event did to one scope, in the order of the events."""

    index: int
    """Place of the event in the list."""
    event_id: Digest
    scope: Scope
    effect: AuditEffect
    detail: str


class QuarantineState(NamedTuple):
    """What is shut now, sorted by scope, and how it came to that."""

    active: tuple[Quarantine, ...]
    audit: tuple[AuditEntry, ...]

    def of(self, *scopes: Scope) -> tuple[Quarantine, ...]:
        """Return the quarantines that any of these scopes is under: all that a piece of work would touch."""
        return tuple(item for item in self.active if item.scope in scopes)


def quarantines_of(events: Iterable[HealthEvent]) -> QuarantineState:
    """Return what is in quarantine after these events, with an audit of every event.

    Order is the order given, as a journal keeps it. Raises nothing: an event that may not do what it claims is in
    the audit as refused.
    """
    active: dict[Scope, Quarantine] = {}
    audit: list[AuditEntry] = []
    for index, event in enumerate(events):
        for scope in event.concerns:
            effect, detail = _apply(active, event, scope)
            audit.append(AuditEntry(index=index, event_id=event.id, scope=scope, effect=effect, detail=detail))
    return QuarantineState(tuple(active[scope] for scope in sorted(active)), tuple(audit))


def _apply(active: dict[Scope, Quarantine], event: HealthEvent, scope: Scope) -> tuple[AuditEffect, str]:
    """Let one event act on one scope; return what it did."""
    effect = EFFECTS[event.kind]
    current = active.get(scope)
    if effect.axis != "integrity":
        return "no-effect", f"{event.kind} is about {effect.axis}"
    if effect.state == "quarantined":
        active[scope] = _found(current, event, scope)
        return ("opened" if current is None else "extended"), event.detail
    if current is None:
        return "no-effect", f"{event.kind}: {scope} is not in quarantine"
    if event.kind != "integrity-revalidation-passed":
        return "refused", f"{event.kind} is no revalidation"
    if int(event.at_ns) <= int(current.last_finding_ns):
        return "refused", "the revalidation is not later than the last finding"
    if shared := sorted(set(event.evidence_ids) & set(current.evidence_ids)):
        return "refused", f"its evidence is what speaks against it: {', '.join(shared)}"
    del active[scope]
    return "cleared", event.detail


def _found(current: Quarantine | None, event: HealthEvent, scope: Scope) -> Quarantine:
    if current is None:
        return Quarantine(
            scope=scope,
            since_ns=event.at_ns,
            last_finding_ns=event.at_ns,
            event_ids=(event.id,),
            evidence_ids=tuple(sorted(set(event.evidence_ids))),
            detail=event.detail,
        )
    return Quarantine(
        scope=scope,
        since_ns=str(min(int(current.since_ns), int(event.at_ns))),
        last_finding_ns=str(max(int(current.last_finding_ns), int(event.at_ns))),
        event_ids=(*current.event_ids, event.id),
        evidence_ids=tuple(sorted({*current.evidence_ids, *event.evidence_ids})),
        detail=event.detail,
    )
