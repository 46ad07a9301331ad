"""The gates before ranking: what is technically impossible, and what the operator does not allow.

The two are kept apart: nothing in a policy makes a plan technically infeasible, and nothing technical is a matter
of policy. Each function returns reasons, and an empty tuple means that the gate is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from inferswarm.errors import SpecError
from inferswarm.planner.economics import PathCurve
from inferswarm.planner.eligibility import closed_by, withheld_by
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy
from inferswarm.planner.qualification import (
    QualificationRecord,
    exactness_objections,
    exactness_refusal,
    representations_of,
)
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
    """Return the sites that no policy excludes by themselves: neither where they are nor their qualification."""
    return tuple(
        site for site in sites if site.id not in rules.closed and not qualification_refusals(implementation, (site,))
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
    problem: PlanningProblem
    view: GraphView
    """The snapshot without what the policy withholds: memory that stays free, Links that may not be used."""
    closed: Mapping[str, str]
    """Compute Units that may not be used, each with the first demand that says so."""
    pinned: tuple[Node, ...]
    ends: tuple[int, ...] | None
    """Where each pinned participant ends, or None when the cuts are free."""
    withheld: tuple[str, ...] = ()
    """What the policy withholds, in words."""
    records: tuple[QualificationRecord, ...] = ()

    @property
    def restricts_members(self) -> bool:
        """Whether the policy also chooses within a set of Compute Units: order, cuts, rate, memory or Links."""
        return bool(self.pinned) or self.policy.min_tokens_per_second is not None or bool(self.withheld)

    @property
    def cause(self) -> str:
        """What leaves a set of Compute Units without a plan, where the policy chooses within it."""
        pins = ("the operator's pins",) if self.pinned else ()
        return " and ".join((*pins, *self.withheld)) or "the operator's demands"

    def seats(self, sites: tuple[Site, ...]) -> tuple[frozenset[int], ...] | None:
        """Return which of the sites may be each participant, or None when the order is free."""
        if not self.pinned:
            return None
        return tuple(
            frozenset(index for index, site in enumerate(sites) if site.node.id == node.id) for node in self.pinned
        )

    def groups(self, implementation: Implementation, sites: tuple[Site, ...]) -> tuple[tuple[Site, ...], ...]:
        """Return the sets of these sites within which every plan is known to be as exact as the policy demands."""
        if not self.policy.bit_exact_required:
            return (sites,)
        # What speaks against one participant speaks against every set that holds it.
        open_ = [
            site for site in sites if not exactness_objections(self.records, self.problem, implementation, (site,))
        ]
        covered = (
            tuple(site for site in open_ if not self._inexact(implementation, (site,), (record,)))
            for record in self.records
        )
        return tuple(dict.fromkeys(group for group in covered if group))

    def set_refusals(self, implementation: Implementation, sites: tuple[Site, ...]) -> tuple[str, ...]:
        """Return which demands about sets as a whole this set of sites does not meet."""
        policy, reasons = self.policy, []
        if policy.max_participants is not None and len(sites) > policy.max_participants:
            reasons.append(f"policy: {len(sites)} participants, at most {policy.max_participants} are allowed")
        machines = {site.node.host_id for site in sites}
        if not isinstance(policy.max_machines, msgspec.UnsetType) and len(machines) > policy.max_machines:
            reasons.append(f"policy: on {len(machines)} machines, at most {policy.max_machines} are allowed")
        if policy.bit_exact_required and (reason := self._inexact(implementation, sites, self.records)):
            reasons.append(reason)
        return tuple(reasons)

    def _inexact(
        self, implementation: Implementation, sites: tuple[Site, ...], records: tuple[QualificationRecord, ...]
    ) -> str | None:
        return exactness_refusal(records, self.problem, implementation, sites)

    def overrides(self) -> tuple[str, ...]:
        """Describe the decisions that the operator took out of the planner's hands."""
        described = []
        if self.pinned:
            described.append(f"Nodes pinned, in this order: {', '.join(node.name for node in self.pinned)}")
        if self.policy.pinned_cuts:
            described.append(f"cuts pinned after units {', '.join(map(str, self.policy.pinned_cuts))}")
        return tuple(described)


def resolve_policy(
    policy: Policy,
    problem: PlanningProblem,
    view: GraphView,
    records: tuple[QualificationRecord, ...] = (),
    paths: Iterable[PathCurve] = (),
) -> Rules:
    """Check a policy against what there is; `paths` are the curves that plans are priced with.

    Raises SpecError for unknown names and impossible demands.
    """
    known = sorted({implementation.representation for implementation in problem.implementations})
    for representation in policy.representations:
        if representation not in known:
            raise SpecError("policy representations", representation, f"one of {known}")
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
    withheld, words = withheld_by(policy, view, paths)
    return Rules(policy, problem, view.withholding(withheld), closed_by(policy, view), pinned, ends, words, records)


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
    reasons = list(representation_refusals(rules, implementation))
    reasons += dict.fromkeys(f"policy: {rules.closed[site.id]}" for site in sites if site.id in rules.closed)
    reasons += rules.set_refusals(implementation, sites)
    if rules.pinned and Counter(site.node.id for site in sites) != Counter(node.id for node in rules.pinned):
        reasons.append(f"policy: the operator pinned {', '.join(node.name for node in rules.pinned)}")
    return (*reasons, *qualification_refusals(implementation, sites))


def policy_refusals_alone(rules: Rules, implementation: Implementation, site: Site) -> tuple[str, ...]:
    """Return what the operator has against a site whatever it is used with: no plan that holds it is allowed."""
    exactness = rules.set_refusals(implementation, (site,)) if rules.policy.bit_exact_required else ()
    pinned = {node.id for node in rules.pinned}
    elsewhere = () if not pinned or site.node.id in pinned else ("policy: its Node is not among the pinned ones",)
    qualification = qualification_refusals(implementation, (site,))
    return (*representation_refusals(rules, implementation), *qualification, *exactness, *elsewhere)


def representation_refusals(rules: Rules, implementation: Implementation) -> tuple[str, ...]:
    """Return why the operator does not allow an implementation at all, whatever it runs on."""
    allowed = rules.policy.representations
    used = representations_of(rules.problem, implementation.representation)
    if not allowed or set(used) <= set(allowed):
        return ()
    name = implementation.representation
    return (f"policy: {name} is not among the allowed representations: {', '.join(allowed)}",)
