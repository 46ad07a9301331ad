"""What happened in a swarm, in order: changes of authority from its ledger, and of health from its journal.

One sequence over four sources: what the Coordinator recorded of members, realizations, epochs, sessions and changes;
what it refused; how far acquisitions were; and acceptances, alerts and health events. It is read as it is asked for,
while the swarm runs or after. Within a source the order is that of writing; between them it is that of their clocks.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from inferswarm.documents import Digits, Document
from inferswarm.evidence.alerts import Alert, AlertCleared
from inferswarm.evidence.baselines import Baseline
from inferswarm.evidence.events import HealthEvent
from inferswarm.evidence.journal import Journal, JournalDocument
from inferswarm.fabric import events as ev
from inferswarm.fabric.acquisition_log import AcquisitionReported, ReportEntry, read_reports
from inferswarm.fabric.audit import AuditEntry, AuditItem, RefusedWork, read_audit, read_refusals
from inferswarm.fabric.recovery_records import TransitionRecord
from inferswarm.swarm.acquisition_progress import progress_line

FOLLOW_SECONDS = 0.2
"""How often a followed swarm is looked at."""
Source = Literal["authority", "refusal", "acquisition", "health"]
_HIDDEN = frozenset({"lease_until"})
"""Fields that say nothing to people: moments of a clock that is the Coordinator's own."""


class SwarmEvent(Document, frozen=True, kw_only=True):
    """One thing that happened."""

    at_ns: Digits
    """When it was written, since 1970 in UTC."""
    source: Source
    number: int
    """Its place in its source."""
    kind: str
    """The name of its document's kind; of a health event, what was seen."""
    document: AuditItem | RefusedWork | AcquisitionReported | JournalDocument

    @property
    def at(self) -> datetime:
        """When it was written, to the microsecond."""
        return datetime.fromtimestamp(int(self.at_ns) / 1e9, UTC)

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.at:%Y-%m-%d %H:%M:%S.%f}Z  {self.source:<9}  {self.kind:<24}  {_text(self.document)}".rstrip()


def swarm_events(
    ledger: Path | None,
    state_directory: Path,
    *,
    since_ns: int = 0,
    follow: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[SwarmEvent]:
    """Return what happened since a moment, oldest first; with `follow`, what happens too, without an end.

    `ledger` None: health alone. Raises SpecError for a file that is no ledger, DocumentError and EvidenceError for
    records that cannot be read or were altered.
    """
    places: dict[Source, int] = {"authority": 0, "refusal": 0, "acquisition": 0, "health": 0}
    while True:
        sources = [_health(Journal(state_directory), places["health"], since_ns)]
        if ledger is not None:
            sources.append(_ledger("authority", read_audit(ledger, places["authority"], since_ns)))
            sources.append(_ledger("refusal", read_refusals(ledger, places["refusal"], since_ns)))
            sources.append(_acquisitions(read_reports(ledger, places["acquisition"], since_ns)))
        for event in heapq.merge(*sources, key=lambda event: int(event.at_ns)):
            places[event.source] = event.number
            yield event
        if not follow:
            return
        pause(FOLLOW_SECONDS)


def _ledger(source: Source, entries: Iterator[AuditEntry]) -> Iterator[SwarmEvent]:
    for entry in entries:
        yield SwarmEvent(
            at_ns=str(entry.at_ns),
            source=source,
            number=entry.number,
            kind=type(entry.item).__name__,
            document=entry.item,
        )


def _acquisitions(entries: Iterator[ReportEntry]) -> Iterator[SwarmEvent]:
    for number, at_ns, report in entries:
        kind = type(report).__name__
        yield SwarmEvent(at_ns=str(at_ns), source="acquisition", number=number, kind=kind, document=report)


def _health(journal: Journal, after: int, since_ns: int) -> Iterator[SwarmEvent]:
    for entry in journal.entries():
        at_ns = _written(entry.document)
        if entry.sequence > after and int(at_ns) >= since_ns:
            kind = entry.document.kind if isinstance(entry.document, HealthEvent) else type(entry.document).__name__
            yield SwarmEvent(at_ns=at_ns, source="health", number=entry.sequence, kind=kind, document=entry.document)


def _written(document: JournalDocument) -> str:
    match document:
        case HealthEvent():
            return document.at_ns
        case Alert():
            return document.raised_at_ns
        case AlertCleared():
            return document.cleared_at_ns
        case Baseline():
            return document.accepted_at_ns


def _text(document: AuditItem | RefusedWork | AcquisitionReported | JournalDocument) -> str:
    match document:
        case HealthEvent():
            return f"{', '.join(str(scope) for scope in document.concerns)}: {document.detail}"
        case Alert():
            return document.fact
        case ev.TransitionRecorded():
            return _change_text(document.record)
        case AcquisitionReported():
            said = f"{document.realization} {document.state}: {progress_line(document.progress)}"
            return f"{said}; {document.reason}" if document.reason else said
        case _:
            return _fields(document)


def _change_text(record: TransitionRecord) -> str:
    """Write why a change was asked for, what became of it and how, and the reason."""
    words = [f"transition={record.number}", record.trigger.value, record.outcome.value]
    words += [] if record.mode is None else [record.mode.value]
    words += [] if record.new_epoch is None else [f"epoch={record.new_epoch}"]
    said = "; ".join(text for text in (record.detail, record.reason) if text)
    return f"{' '.join(words)}: {said}" if said else " ".join(words)


def _fields(document: Document) -> str:
    """Write the plain fields that are stated."""
    found = []
    for name in document.__struct_fields__:
        value = getattr(document, name)
        if name not in _HIDDEN and isinstance(value, str | int | float):
            found.append(f"{name}={value}")
    return " ".join(found)
