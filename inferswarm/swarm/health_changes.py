"""How the performance of resources changes with their alerts: one event for each, however many alerts it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inferswarm.evidence.alerts import Alert, AlertCleared, performance_event
from inferswarm.evidence.events import HealthEvent, Scope, ScopeKind
from inferswarm.evidence.report import HealthReport
from inferswarm.resources.types import ResourceGraph

_PATH = "path:"


def kinds_of(graph: ResourceGraph) -> dict[str, ScopeKind]:
    """Return what each resource of a graph is, by its id."""
    found: dict[str, ScopeKind] = {node.id: "node" for node in graph.nodes}
    found |= {unit.id: "compute-unit" for unit in graph.compute_units}
    return found | {memory.id: "memory-resource" for memory in graph.memory_resources}


def scope_of(subject: str, kinds: Mapping[str, ScopeKind]) -> Scope:
    """Return the resource that records are about: a path, whatever its addresses, or what the graph says it is."""
    if subject.startswith(_PATH):
        return Scope("path", subject.removeprefix(_PATH).split(" over ")[0])
    return Scope(kinds.get(subject, "node"), subject)


def performance_changes(
    before: HealthReport,
    raised: Sequence[Alert],
    cleared: Sequence[AlertCleared],
    within: Iterable[Scope],
    kinds: Mapping[str, ScopeKind],
    at_ns: str,
) -> list[HealthEvent]:
    """Return one event for each scope whose performance changed.

    A scope is degraded by the worst of the alerts that were raised, and as expected again when its last open one was
    cleared. One of which nothing was known is as expected when new records of it are `within` its baselines.
    """
    ended = {item.alert_id for item in cleared}
    standing = [alert for alert in before.alerts if alert.id not in ended] + list(raised)
    open_about = {scope_of(alert.subject, kinds) for alert in standing}
    worst: dict[Scope, Alert] = {}
    for alert in raised:
        scope = scope_of(alert.subject, kinds)
        if scope not in worst or _badness(alert) > _badness(worst[scope]):
            worst[scope] = alert
    events = [performance_event(worst[scope], scope) for scope in sorted(worst)]
    alerts = {alert.id: alert for alert in before.alerts}
    last = {scope_of(alerts[item.alert_id].subject, kinds): item for item in cleared}
    events += [performance_event(last[scope], scope) for scope in sorted(set(last) - open_about)]
    states = {item.scope: item.performance.state for item in before.scopes}
    for scope in sorted(set(within) - open_about - set(last)):
        if states.get(scope, "unknown") == "unknown":
            detail = "measured, and not worse than what was accepted by more than the limit of an alert"
            events.append(HealthEvent(kind="performed-as-expected", implicated=(scope,), at_ns=at_ns, detail=detail))
    return events


def _badness(alert: Alert) -> float:
    """Return how many times worse than accepted it was."""
    ratio = alert.comparison.ratio
    assert ratio is not None  # a degradation has one
    return ratio if alert.comparison.better == "lower" else 1 / ratio
