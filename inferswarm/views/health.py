"""Health for people: five axes for each scope, alerts, quarantines with their evidence. As text and as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from inferswarm.evidence.alerts import Alert
from inferswarm.evidence.events import AXES, Scope
from inferswarm.evidence.health import AxisState
from inferswarm.evidence.quarantine import Quarantine
from inferswarm.evidence.report import HealthReport
from inferswarm.views.labels import count, short_digest
from inferswarm.views.markup import Content, Markup, badge, details, element, page, table
from inferswarm.views.text import WIDTH

_BAD = frozenset({"unavailable", "incompatible", "quarantined", "suspended", "invalid", "degraded"})
_GOOD = frozenset({"available", "compatible", "trusted", "applicable", "as-expected", "improved"})
Names = Mapping[str, str]
"""Names of Nodes, Compute Units and Memory Resources by their ids; an id without one is written as it is."""


def health_text(report: HealthReport, names: Names | None = None) -> str:
    """Return the report as plain text: each axis by itself, what is known of it and since what was seen."""
    named = names or {}
    lines = [_summary(report)]
    for health in report.scopes:
        lines += ["", _scope(health.scope, named)]
        for axis in AXES:
            state = health.on(axis)
            lines += _entry(f"  {axis:<14}{state.state:<12}", "" if state.state == "unknown" else state.detail)
    for group in _grouped(report.alerts):
        lines += ["", *_alert(group, named)]
    for quarantine in report.quarantines:
        lines += ["", *_quarantine(quarantine, named)]
    return "\n".join(lines) + "\n"


def health_html(report: HealthReport, names: Names | None = None) -> Markup:
    """Return the same as static HTML; everything is escaped."""
    named = names or {}
    axes = table(
        ("scope", *AXES),
        [(_scope(health.scope, named), *(_badge(health.on(axis)) for axis in AXES)) for health in report.scopes],
    )
    parts: list[Content] = [element("div", _summary(report), kind="title"), axes]
    if report.alerts:
        rows = [
            (
                _named(first.subject, named),
                first.metric,
                f"{worst:.2f}",
                str(num),
                first.fact,
                first.response,
                first.impact,
                first.revalidation,
            )
            for first, num, worst in _grouped(report.alerts)
        ]
        heads = ("subject", "metric", "times worse", "alerts", "fact", "response", "impact", "revalidation")
        parts.append(
            details(count(len(report.alerts), "open alert"), table(heads, rows, frozenset({2, 3})), opened=True)
        )
    if report.quarantines:
        shut = table(
            ("in quarantine", "finding", "evidence"),
            [(_scope(item.scope, named), item.detail, _ids(item.evidence_ids)) for item in report.quarantines],
        )
        parts.append(shut)
    return page(*parts)


def _summary(report: HealthReport) -> str:
    return (
        f"Health of {count(len(report.scopes), 'scope')}: {count(len(report.alerts), 'open alert')}, "
        f"{len(report.quarantines)} in quarantine, {count(report.num_baselines, 'accepted baseline')}"
    )


def _badge(state: AxisState) -> Markup:
    quality = "good" if state.state in _GOOD else "bad" if state.state in _BAD else ""
    return element("span", badge(state.state, quality), title=state.detail)


def _scope(scope: Scope, names: Names) -> str:
    return f"{scope.kind} {_named(scope.id, names)}"


def _named(identity: str, names: Names) -> str:
    """Write the names of all resources that an id is made of, and the id itself behind them.

    >>> _named("node-1->node-2", {"node-1": "birch", "node-2": "oak"})
    'birch->oak (node-1->node-2)'
    """
    found = identity
    for key in sorted(names, key=len, reverse=True):
        found = found.replace(key, names[key])
    return identity if found == identity else f"{found} ({identity})"


def _grouped(alerts: Iterable[Alert]) -> list[tuple[Alert, int, float]]:
    """Return, for each subject and metric, the worst alert, how many there are, and how many times worse it is."""
    groups: dict[tuple[str, str], list[Alert]] = {}
    for alert in alerts:
        groups.setdefault((alert.subject, alert.metric), []).append(alert)
    found = []
    for group in groups.values():
        worst = max(group, key=_times)
        found.append((worst, len(group), _times(worst)))
    return found


def _times(alert: Alert) -> float:
    ratio = alert.comparison.ratio
    if ratio is None:
        return 0.0
    return ratio if alert.comparison.better == "lower" else 1 / ratio


def _alert(group: tuple[Alert, int, float], names: Names) -> list[str]:
    alert, num, times = group
    more = "" if num == 1 else f", the worst of {num} alerts"
    lines = [f"alert: {alert.metric} of {_named(alert.subject, names)}, {times:.2f} times worse{more}"]
    scope = ", ".join(f"{item.key} {item.value}" for item in alert.scope)
    freshness = f"{alert.freshness_seconds:.0f} s old when it was raised"
    baseline = f"version {alert.baseline_version}, {short_digest(alert.baseline_id)}"
    for name, value in (
        ("fact", alert.fact),
        ("scope", scope),
        ("baseline", baseline),
        ("freshness", freshness),
        ("response", alert.response),
        ("impact", alert.impact),
        ("revalidation", alert.revalidation),
    ):
        lines += _entry(f"  {name:<14}", value)
    return lines


def _quarantine(item: Quarantine, names: Names) -> list[str]:
    lines = [f"quarantine: {_scope(item.scope, names)}"]
    lines += _entry(f"  {'finding':<14}", item.detail)
    lines += _entry(f"  {'evidence':<14}", _ids(item.evidence_ids))
    return lines + _entry(f"  {'ends':<14}", "by a revalidation of exactly this scope that passes; by nothing else")


def _ids(evidence: Iterable[str]) -> str:
    return ", ".join(short_digest(item) for item in evidence)


def _entry(lead: str, text: str) -> list[str]:
    """Return a line that begins with `lead`, its text wrapped beneath itself."""
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)) or [lead.rstrip()]
