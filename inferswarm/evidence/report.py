"""What is in force now: the health of every scope that anything was seen of, alerts, quarantines, baselines.

Computed from the journal's documents each time, so that it is the same after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from inferswarm.documents import Document
from inferswarm.evidence.alerts import Alert, AlertCleared, open_alerts
from inferswarm.evidence.baselines import Baseline
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.health import Health, health_of
from inferswarm.evidence.journal import JournalDocument
from inferswarm.evidence.quarantine import Quarantine, quarantines_of
from inferswarm.evidence.types import QuestionKey


class HealthReport(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.health-report/1"):
    """Five axes for each scope, sorted; the alerts that nothing has cleared, oldest first; what is in quarantine."""

    scopes: tuple[Health, ...]
    alerts: tuple[Alert, ...]
    quarantines: tuple[Quarantine, ...]
    num_baselines: Annotated[int, msgspec.Meta(ge=0)]
    """Accepted baselines in force: one for each question, however many versions it has had."""


def scopes_of(events: Iterable[HealthEvent]) -> tuple[Scope, ...]:
    """Return every scope that an event concerns, sorted."""
    return tuple(sorted({scope for event in events for scope in event.concerns}))


def report_of(documents: Sequence[JournalDocument]) -> HealthReport:
    """Return what is in force after a journal's documents, in their order.

    Raises EvidenceError when something is cleared that was not open.
    """
    events = [item for item in documents if isinstance(item, HealthEvent)]
    return HealthReport(
        scopes=tuple(health_of(scope, events) for scope in scopes_of(events)),
        alerts=open_alerts([item for item in documents if isinstance(item, (Alert, AlertCleared))]),
        quarantines=quarantines_of(events).active,
        num_baselines=len({item.question for item in documents if isinstance(item, Baseline)}),
    )


def newest_baselines(
    documents: Iterable[Baseline | Alert | AlertCleared | HealthEvent],
) -> dict[QuestionKey, Baseline]:
    """Return the accepted baseline in force for each question. A journal holds the versions in their order."""
    return {item.question: item for item in documents if isinstance(item, Baseline)}
