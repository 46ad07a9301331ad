"""What people call the Compute Units of a decision: by their Node, and more where that does not tell which."""

from __future__ import annotations

import re

import msgspec

from inferswarm.planner.plan import CandidateFamily, Decision, ExecutionPlan, ResourceReason

LEAST_DIGITS = 4
"""Characters of an id behind the kind that are always written."""


class Names:
    """The names of one decision's Compute Units, each the shortest that means only one."""

    def __init__(self, decision: Decision) -> None:
        """Name the Compute Units that the decision gives reasons for."""
        own: dict[str, list[ResourceReason]] = {}
        for item in decision.resources:
            own.setdefault(item.node_name, []).append(item)
        self._names = {item.compute_unit_id: _short(item, items) for items in own.values() for item in items}
        self._kinds = {
            item.compute_unit_id: (item.kind, item.name)
            for item in decision.resources
            if not isinstance(item.kind, msgspec.UnsetType) and not isinstance(item.name, msgspec.UnsetType)
        }
        placements = () if decision.plan is None else decision.plan.placements
        self._parts = {item.participant: self.unit(item.compute_unit_id, item.node_name) for item in placements}

    def unit(self, compute_unit_id: str, node_name: str) -> str:
        """Return the name of a Compute Unit: its Node's, where that has no other one."""
        return self._names.get(compute_unit_id, f"{node_name}/{compute_unit_id}")

    def hardware(self, compute_unit_id: str, threads: int) -> str:
        """Return what executes: the threads of a CPU, the name of another Compute Unit."""
        kind, name = self._kinds.get(compute_unit_id, ("cpu", ""))
        return f"{threads} {'thread' if threads == 1 else 'threads'}" if kind == "cpu" else str(name)

    def family(self, family: CandidateFamily) -> str:
        """Return the names of a family's Compute Units."""
        return " + ".join(map(self.unit, family.compute_unit_ids, family.node_names))

    def plan(self, plan: ExecutionPlan) -> str:
        """Return what a plan is over, in the order of its route, and in what representation."""
        route = (self.unit(placement.compute_unit_id, placement.node_name) for placement in plan.placements)
        return f"{plan.representation} over {' → '.join(route)}"

    def part(self, subject: str) -> str:
        """Return a stage or a path of the chosen plan with its Compute Units in place of its stages."""
        return re.sub(r"stage-\d+", lambda found: self._parts.get(found.group(), found.group()), subject)


def _short(item: ResourceReason, items: list[ResourceReason]) -> str:
    if len(items) == 1:
        return item.node_name
    kind = item.kind
    if isinstance(kind, msgspec.UnsetType):
        return f"{item.node_name}/{item.compute_unit_id}"
    if sum(other.kind == kind for other in items) == 1:
        return f"{item.node_name}/{kind}"
    others = [other.compute_unit_id for other in items if other is not item]
    least = len(kind) + 1 + LEAST_DIGITS if item.compute_unit_id.startswith(f"{kind}-") else LEAST_DIGITS
    for length in range(least, len(item.compute_unit_id)):
        if not any(other.startswith(item.compute_unit_id[:length]) for other in others):
            return f"{item.node_name}/{item.compute_unit_id[:length]}"
    return f"{item.node_name}/{item.compute_unit_id}"
