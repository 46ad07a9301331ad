"""What the health of resources means for a plan: which gate each axis closes, and for what.

Availability and compatibility are technical. Integrity is a gate of its own, between what is possible and what the
operator allows. Qualification belongs to the policy of correctness. Performance closes nothing: it is for ranking.
A Node, a Compute Unit and a Memory Resource close every site that needs them; an implementation closes one primitive
in one representation on one Compute Unit; a path closes that direction between two Nodes, as if it had no Link.
Artifacts, their sources and participants of a running plan are no resources that a plan chooses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from inferswarm.evidence.events import Axis, Scope
from inferswarm.evidence.health import Health, exclusions

TECHNICAL: tuple[Axis, ...] = ("availability", "compatibility")


class Closed(NamedTuple):
    """One axis of one scope that speaks against it."""

    scope: Scope
    axis: Axis
    reason: str


class Standing:
    """What health closes, by scope."""

    def __init__(self, health: Iterable[Health] = ()) -> None:
        """Index the exclusions of every scope; what nothing speaks against takes no part."""
        self._closed: dict[Scope, list[Closed]] = {}
        for item in health:
            found = [Closed(item.scope, reason.axis, reason.reason) for reason in exclusions(item)]
            self._closed.setdefault(item.scope, []).extend(found)

    def of(self, *scopes: Scope) -> tuple[Closed, ...]:
        """Return everything that speaks against any of these scopes, in their order."""
        return tuple(closed for scope in scopes for closed in self._closed.get(scope, ()))

    def path(self, source: str, target: str) -> tuple[Closed, ...]:
        """Return what speaks against the path from one Node's id to another's."""
        return self.of(Scope("path", f"{source}->{target}"))

    def memory_resource(self, memory_id: str) -> tuple[Closed, ...]:
        """Return what speaks against one Memory Resource, whoever uses it."""
        return self.of(Scope("memory-resource", memory_id))

    def site(self, node_id: str, compute_unit_id: str, memory_id: str | None) -> tuple[Closed, ...]:
        """Return what speaks against a site: its Node, its Compute Unit, its Memory Resource, its implementations."""
        own = [Scope("node", node_id), Scope("compute-unit", compute_unit_id)]
        if memory_id is not None:
            own.append(Scope("memory-resource", memory_id))
        suffix = f"@{compute_unit_id}"
        own += sorted(scope for scope in self._closed if scope.kind == "implementation" and scope.id.endswith(suffix))
        return self.of(*own)


def implementation_scope(primitive: str, representation: str, compute_unit_id: str) -> Scope:
    """Return the scope of one primitive in one representation on one Compute Unit."""
    return Scope("implementation", f"{primitive}/{representation}@{compute_unit_id}")


def applies(closed: Closed, primitive: str, representation: str, compute_unit_id: str) -> bool:
    """Whether what is closed on a site is closed for this implementation: always, unless it is about another one."""
    other = closed.scope.kind == "implementation"
    return not other or closed.scope == implementation_scope(primitive, representation, compute_unit_id)
