"""Alerts of degradation: documents that state what was seen and what follows, and guess no cause.

An alert is raised by comparing records with the accepted baseline: as many records in a row as the rule asks for,
each degraded by itself. One outlier among the samples moves no median, and one bad record raises nothing. It is
cleared by a revalidation: as many records in a row, all taken after it was raised, all within the baseline. Time, a
lack of news and insufficient samples clear nothing.

An alert is about performance. It makes no plan invalid and shuts nothing out; planning goes by the observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.documents import Digest, Digits, Document, digest
from inferswarm.errors import EvidenceError
from inferswarm.evidence.baselines import Baseline, compare_with_baseline
from inferswarm.evidence.comparison import Comparison, ComparisonRule
from inferswarm.evidence.dependencies import DEPENDENCIES, MetricDependencies, dependencies_of
from inferswarm.evidence.events import EventKind, HealthEvent, Scope
from inferswarm.evidence.types import ContextItem, Observation


class AlertRule(Document, frozen=True, kw_only=True):
    """When alerts are raised and cleared."""

    num_confirmations: int = 2
    """Records in a row that must be degraded to raise, and within the baseline to clear."""
    max_freshness_seconds: float = 86_400.0
    """Older records are no news: they raise nothing."""
    comparison: ComparisonRule = ComparisonRule()

    def __post_init__(self) -> None:
        """Refuse a rule by which a single record could raise an alert."""
        super().__post_init__()
        if self.num_confirmations < 2 or self.max_freshness_seconds <= 0:
            raise ValueError("an alert needs at least 2 records in a row, and a freshness of more than 0 s")


class Alert(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.alert/1"):
    """One degradation: every field is needed, and there is none for a cause."""

    fact: str
    """What was seen, in numbers."""
    subject: str
    metric: str
    scope: tuple[ContextItem, ...]
    """The context in which it was seen; nothing is said of any other."""
    baseline_id: Digest
    baseline_version: int
    observation_ids: tuple[Digest, ...]
    comparison: Comparison
    freshness_seconds: float
    """How old the newest of the observations was when the alert was raised."""
    response: str
    """What was done about it."""
    impact: str
    """What it affects."""
    revalidation: str
    """How to see whether it still holds."""
    raised_at_ns: Digits

    def __post_init__(self) -> None:
        """Refuse an alert with an empty statement, without observations, or without a degradation."""
        super().__post_init__()
        for name in ("fact", "subject", "metric", "response", "impact", "revalidation"):
            if not getattr(self, name).strip():
                raise ValueError(f"an alert states its {name}")
        if not self.scope or not self.observation_ids or self.freshness_seconds < 0:
            raise ValueError("an alert has a scope, and observations that are not from the future")
        if self.comparison.outcome != "degraded":
            raise ValueError(f"an alert is about a degradation, not about {self.comparison.outcome!r}")

    @property
    def id(self) -> str:
        """Return the digest that identifies this alert."""
        return digest(self)


class AlertCleared(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.alert-cleared/1"):
    """The revalidation that ended an alert."""

    alert_id: Digest
    baseline_id: Digest
    """The version that the records are within."""
    observation_ids: tuple[Digest, ...]
    comparison: Comparison
    cleared_at_ns: Digits

    def __post_init__(self) -> None:
        """Refuse an end without a revalidation that passed."""
        super().__post_init__()
        if not self.observation_ids or self.comparison.outcome not in ("none", "improved"):
            raise ValueError(f"an alert is cleared by records within the baseline, not {self.comparison.outcome!r}")


class Review(NamedTuple):
    """What looking at the newest records gave: their comparisons, oldest first, and at most one of the other two."""

    comparisons: tuple[Comparison, ...]
    alert: Alert | None
    cleared: AlertCleared | None


def review(
    baseline: Baseline,
    observations: Sequence[Observation],
    open_alert: Alert | None,
    *,
    now_ns: int,
    rule: AlertRule | None = None,
    impact: str = "plans that use this resource take the slower observations into account",
    declared: tuple[MetricDependencies, ...] = DEPENDENCIES,
) -> Review:
    """Look at the newest records of the baseline's question; raise an alert, clear the open one, or do neither.

    The order of `observations` changes nothing, and records from the future are left out. Raises SpecError for a
    record that the baseline does not hold for, EvidenceError for an open alert about something else.
    """
    rule = rule or AlertRule()
    if open_alert is not None and (open_alert.subject, open_alert.metric, open_alert.scope) != baseline.question:
        raise EvidenceError(f"alert {open_alert.id} is not about {baseline.metric} of {baseline.subject}")
    after_ns = None if open_alert is None else int(open_alert.raised_at_ns)
    known = sorted(
        (item for item in observations if int(item.taken_at_ns) <= now_ns),
        key=lambda item: (int(item.taken_at_ns), item.id),
    )
    news = [item for item in known if _is_news(item, now_ns, after_ns, rule)][-rule.num_confirmations :]
    comparisons = tuple(compare_with_baseline(baseline, [item], rule.comparison) for item in news)
    outcomes = {item.outcome for item in comparisons}
    if len(news) < rule.num_confirmations:
        return Review(comparisons, None, None)
    pooled = compare_with_baseline(baseline, news, rule.comparison)
    if open_alert is None and outcomes == {"degraded"} and pooled.outcome == "degraded":
        return Review(comparisons, _alert(baseline, news, pooled, now_ns, impact, rule, declared), None)
    if open_alert is not None and outcomes <= {"none", "improved"} and pooled.outcome in ("none", "improved"):
        cleared = AlertCleared(
            alert_id=open_alert.id,
            baseline_id=baseline.id,
            observation_ids=_ids(news),
            comparison=pooled,
            cleared_at_ns=str(now_ns),
        )
        return Review(comparisons, None, cleared)
    return Review(comparisons, None, None)


def open_alerts(records: Sequence[Alert | AlertCleared]) -> tuple[Alert, ...]:
    """Return the alerts of an ordered history that nothing has cleared, oldest first.

    Raises EvidenceError when something is cleared that is not open.
    """
    found: dict[str, Alert] = {}
    for record in records:
        if isinstance(record, Alert):
            found[record.id] = record
        elif found.pop(record.alert_id, None) is None:
            raise EvidenceError(f"alert {record.alert_id} is cleared and was not open")
    return tuple(found.values())


def performance_event(found: Alert | AlertCleared, scope: Scope) -> HealthEvent:
    """Return what an alert, or its end, says about the health of the scope that was measured: performance alone."""
    if isinstance(found, Alert):
        kind: EventKind = "slowed"
        at_ns, detail = found.raised_at_ns, found.fact
    else:
        kind = "sped-up" if found.comparison.outcome == "improved" else "performed-as-expected"
        at_ns, detail = found.cleared_at_ns, found.comparison.detail
    return HealthEvent(kind=kind, implicated=(scope,), at_ns=at_ns, evidence_ids=found.observation_ids, detail=detail)


def _is_news(record: Observation, now_ns: int, after_ns: int | None, rule: AlertRule) -> bool:
    taken_at_ns = int(record.taken_at_ns)
    fresh = (now_ns - taken_at_ns) / 1e9 <= rule.max_freshness_seconds
    return fresh and (after_ns is None or taken_at_ns > after_ns)


def _ids(records: Sequence[Observation]) -> tuple[str, ...]:
    return tuple(record.id for record in records)


def _alert(
    baseline: Baseline,
    news: Sequence[Observation],
    pooled: Comparison,
    now_ns: int,
    impact: str,
    rule: AlertRule,
    declared: tuple[MetricDependencies, ...],
) -> Alert:
    kind = dependencies_of(baseline.metric, declared)
    how = "measure it again" if kind is None else kind.remeasure
    return Alert(
        fact=f"{baseline.metric} of {baseline.subject}: {pooled.detail}, in {len(news)} records in a row",
        subject=baseline.subject,
        metric=baseline.metric,
        scope=baseline.context,
        baseline_id=baseline.id,
        baseline_version=baseline.version,
        observation_ids=_ids(news),
        comparison=pooled,
        freshness_seconds=(now_ns - int(news[-1].taken_at_ns)) / 1e9,
        response="recorded; nothing was excluded, and the accepted baseline stays as it is",
        impact=impact,
        revalidation=f"{how}: {rule.num_confirmations} records in a row within the baseline, taken after this alert",
        raised_at_ns=str(now_ns),
    )
