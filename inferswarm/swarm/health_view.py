"""A swarm's health as notebooks and terminals show it. The document itself stays plain data."""

from __future__ import annotations

from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import Health, health_of
from inferswarm.evidence.report import HealthReport
from inferswarm.resources.types import ResourceGraph


class HealthView:
    """A health report that shows itself, with the names of the resources that it is about."""

    def __init__(self, document: HealthReport, graph: ResourceGraph) -> None:
        """Wrap a report; `graph` gives the names."""
        self.document = document
        nodes = {node.id: node.name for node in graph.nodes}
        self.names = dict(nodes)
        self.names |= {unit.id: f"{nodes[unit.node_id]}, {unit.name}" for unit in graph.compute_units}
        self.names |= {memory.id: f"{nodes[memory.node_id]}, memory" for memory in graph.memory_resources}

    def of(self, scope: Scope) -> Health:
        """Return the five axes of one scope; all unknown when nothing was seen of it."""
        return next((item for item in self.document.scopes if item.scope == scope), health_of(scope, ()))

    def notes(self) -> tuple[str, ...]:
        """Return one line for each scope whose performance is degraded, and for each in quarantine."""
        found = [
            f"{item.scope.kind} {self._name(item.scope)} is degraded, by open alerts: {item.performance.detail}"
            for item in self.document.scopes
            if item.performance.state == "degraded"
        ]
        found += [
            f"{item.scope.kind} {self._name(item.scope)} is in quarantine: {item.detail}"
            for item in self.document.quarantines
        ]
        return tuple(found)

    def _name(self, scope: Scope) -> str:
        found = scope.id
        for identity, name in self.names.items():
            found = found.replace(identity, name)
        return found

    def __repr__(self) -> str:
        """One honest line."""
        report = self.document
        return (
            f"Health({len(report.scopes)} scopes: {len(report.alerts)} open alerts, "
            f"{len(report.quarantines)} in quarantine, {report.num_baselines} accepted baselines)"
        )

    def __str__(self) -> str:
        """The report as text."""
        from inferswarm.views.health import health_text

        return health_text(self.document, self.names)

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        from inferswarm.views.health import health_html

        return str(health_html(self.document, self.names))
