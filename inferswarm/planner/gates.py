"""The gates before ranking: what is technically impossible, and what the operator does not allow.

The two are kept apart: nothing in a policy makes a plan technically infeasible, and nothing technical is a matter
of policy. Each function returns reasons, and an empty tuple means that the gate is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from inferswarm.errors import SpecError
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy
from inferswarm.planner.sites import GraphView, Site
from inferswarm.planner.standing import TECHNICAL, Closed, applies
from inferswarm.resources.types import Node


def unit_refusals(site: Site, implementation: Implementation) -> tuple[str, ...]:
    """Return why a Compute Unit cannot execute an implementation at all."""
    who = f"Compute Unit {site.id} on {site.node.name}"
    reasons = []
    if not site.compute_unit.available:
        reasons.append(f"{who} is not available")
    lacking = sorted(set(implementation.required_capabilities) - set(site.compute_unit.capabilities))
    if lacking:
        reasons.append(f"{who} lacks {', '.join(lacking)}")
    if site.memory is None:
        reasons.append(f"{who} addresses no Memory Resource")
    reasons += [closed.reason for closed in _closed(site, implementation) if closed.axis in TECHNICAL]
    return tuple(reasons)


def integrity_refusals(implementation: Implementation, sites: Iterable[Site]) -> tuple[str, ...]:
    """Return why no plan over these sites can be trusted: what is in quarantine, each reason once."""
    reasons = (
        f"integrity: {closed.reason}"
        for site in sites
        for closed in _closed(site, implementation)
        if closed.axis == "integrity"
    )
    return tuple(dict.fromkeys(reasons))


def qualification_refusals(implementation: Implementation, sites: Iterable[Site]) -> tuple[str, ...]:
    """Return why the policy of correctness allows no plan over these sites, each reason once."""
    reasons = (
        f"policy: {closed.reason}"
        for site in sites
        for closed in _closed(site, implementation)
        if closed.axis == "qualification"
    )
    return tuple(dict.fromkeys(reasons))


def allowed_sites(implementation: Implementation, sites: Iterable[Site], rules: Rules) -> tuple[Site, ...]:
    """Return the sites that no policy excludes by themselves: neither their Node nor their qualification."""
    excluded = {node.id for node in rules.excluded}
    return tuple(
        site for site in sites if site.node.id not in excluded and not qualification_refusals(implementation, (site,))
    )


def _closed(site: Site, implementation: Implementation) -> tuple[Closed, ...]:
    return tuple(
        closed
        for closed in site.closed
        if applies(closed, implementation.primitive, implementation.representation, site.id)
    )


def capacity_refusals(site: Site) -> tuple[str, ...]:
    """Return why nothing may be placed on a site's Memory Resource: unknown sizes never fit."""
    if site.memory is None:
        return ()
    where = f"Memory Resource {site.memory.id} on {site.node.name}"
    reasons = []
    for name, fact in (("capacity", site.memory.capacity_bytes), ("reservation", site.memory.reserved_bytes)):
        if not fact.known:
            reasons.append(f"{where}: {name} is unknown ({fact.detail})")
    available = site.available_bytes
    if available is not None and available < 0:
        reasons.append(f"{where}: the reservation exceeds the capacity by {-available:,} B")
    return tuple(reasons)


class Rules(NamedTuple):
    """A policy with its names resolved against one problem and one snapshot."""

    policy: Policy
    excluded: tuple[Node, ...]
    pinned: tuple[Node, ...]
    ends: tuple[int, ...] | None
    """Where each pinned participant ends, or None when the cuts are free."""

    @property
    def restricts_members(self) -> bool:
        """Whether the policy also chooses within a set of Compute Units: its order, its cuts or its rate."""
        return bool(self.pinned) or self.policy.min_tokens_per_second is not None

    def seats(self, sites: tuple[Site, ...]) -> tuple[frozenset[int], ...] | None:
        """Return which of the sites may be each participant, or None when the order is free."""
        if not self.pinned:
            return None
        return tuple(
            frozenset(index for index, site in enumerate(sites) if site.node.id == node.id) for node in self.pinned
        )

    def overrides(self) -> tuple[str, ...]:
        """Describe the decisions that the operator took out of the planner's hands."""
        described = []
        if self.pinned:
            described.append(f"Nodes pinned, in this order: {', '.join(node.name for node in self.pinned)}")
        if self.policy.pinned_cuts:
            described.append(f"cuts pinned after units {', '.join(map(str, self.policy.pinned_cuts))}")
        return tuple(described)


def resolve_policy(policy: Policy, problem: PlanningProblem, view: GraphView) -> Rules:
    """Check a policy against what there is. Raises SpecError for unknown names and impossible demands."""
    known = sorted({implementation.representation for implementation in problem.implementations})
    for representation in policy.representations:
        if representation not in known:
            raise SpecError("policy representations", representation, f"one of {known}")
    if policy.max_participants is not None and policy.max_participants < 1:
        raise SpecError("policy max_participants", policy.max_participants, "at least 1")
    if policy.min_tokens_per_second is not None and policy.min_tokens_per_second <= 0:
        raise SpecError("policy min_tokens_per_second", policy.min_tokens_per_second, "more than 0")
    pinned = tuple(view.node(name, "policy pinned_nodes") for name in policy.pinned_nodes)
    for node, times in Counter(pinned).items():
        if times > len(view.sites_of(node)):
            raise SpecError(
                "policy pinned_nodes", f"{node.name} {times} times", f"at most {len(view.sites_of(node))} times"
            )
    if policy.pinned_cuts and not pinned:
        raise SpecError("policy pinned_cuts", policy.pinned_cuts, "pinned_nodes as well")
    ends = None
    if policy.pinned_cuts or len(pinned) == 1:
        ends = ends_of_cuts(problem, policy.pinned_cuts, len(pinned), "policy pinned_cuts")
    excluded = tuple(view.node(name, "policy excluded_nodes") for name in policy.excluded_nodes)
    return Rules(policy, excluded, pinned, ends)


def ends_of_cuts(
    problem: PlanningProblem, cuts: tuple[int, ...], num_participants: int, field: str
) -> tuple[int, ...]:
    """Return where each participant's range ends, for cuts after the given unit indexes.

    Raises SpecError unless there is one cut fewer than participants, the cuts ascend, and the strategy declares
    each of them legal.
    """
    if len(cuts) != num_participants - 1:
        raise SpecError(field, cuts, f"{num_participants - 1} cuts for {num_participants} participants")
    legal = [index for index, boundary in enumerate(problem.boundaries) if boundary.legal]
    for cut in cuts:
        if cut not in legal:
            raise SpecError(field, cut, f"a cut that the strategy declares legal: after one of the units {legal}")
    if list(cuts) != sorted(set(cuts)):
        raise SpecError(field, cuts, "ascending cuts")
    return (*(cut + 1 for cut in cuts), len(problem.units))


def policy_refusals(rules: Rules, implementation: Implementation, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Return why the operator does not allow any plan with this implementation over exactly these sites."""
    policy, reasons = rules.policy, []
    if policy.representations and implementation.representation not in policy.representations:
        allowed = ", ".join(policy.representations)
        reasons.append(f"policy: {implementation.representation} is not among the allowed representations: {allowed}")
    nodes = {site.node.id for site in sites}
    reasons += [f"policy: Node {node.name} is excluded" for node in rules.excluded if node.id in nodes]
    if policy.max_participants is not None and len(sites) > policy.max_participants:
        reasons.append(f"policy: {len(sites)} participants, at most {policy.max_participants} are allowed")
    if rules.pinned and Counter(site.node.id for site in sites) != Counter(node.id for node in rules.pinned):
        reasons.append(f"policy: the operator pinned {', '.join(node.name for node in rules.pinned)}")
    return (*reasons, *qualification_refusals(implementation, sites))
