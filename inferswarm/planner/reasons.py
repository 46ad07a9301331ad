"""Why each Compute Unit is or is not used, and what the decision says about itself, in one sentence each."""

from __future__ import annotations

from math import comb, perm

from inferswarm.planner.gates import Rules
from inferswarm.planner.plan import ResourceReason
from inferswarm.planner.problem import PlanningProblem
from inferswarm.planner.ranking import Draft
from inferswarm.planner.sites import GraphView, Site, unit_range
from inferswarm.units import format_seconds


def resource_reasons(
    view: GraphView, rules: Rules, drafts: list[Draft], chosen: Draft | None
) -> tuple[ResourceReason, ...]:
    """Return exactly one reason for each Compute Unit of the snapshot, in the order of their ids."""
    return tuple(_resource_reason(site, rules, drafts, chosen) for site in view.sites)


def _resource_reason(site: Site, rules: Rules, drafts: list[Draft], chosen: Draft | None) -> ResourceReason:
    placements = () if chosen is None or chosen.plan is None else chosen.plan.placements
    for placement in placements:
        if placement.compute_unit_id == site.id:
            reason = f"used: {placement.participant} holds {unit_range(placement.first_unit, placement.end_unit)}"
            return ResourceReason(compute_unit_id=site.id, node_name=site.node.name, used=True, reason=reason)
    return ResourceReason(
        compute_unit_id=site.id, node_name=site.node.name, used=False, reason=_why_unused(site, rules, drafts, chosen)
    )


def _why_unused(site: Site, rules: Rules, drafts: list[Draft], chosen: Draft | None) -> str:
    if not site.compute_unit.available:
        return "not available"
    if any(node.id == site.node.id for node in rules.excluded):
        return f"excluded by policy: Node {site.node.name} is excluded"
    with_it = [draft for draft in drafts if site.id in draft.finding.ids]
    alone = [draft for draft in with_it if len(draft.finding.ids) == 1]
    priced = [(draft.request_seconds, draft) for draft in with_it if draft.status == "RANKED"]
    times = [seconds for seconds, _ in priced if seconds is not None]
    if times and chosen is not None and chosen.request_seconds is not None:
        unfit = all(draft.status == "TECHNICALLY_INFEASIBLE" for draft in alone)
        tail = "; alone it does not fit" if unfit else ""
        best, selected = format_seconds(min(times)), format_seconds(chosen.request_seconds)
        return f"not needed: the best plan with it takes {best}, the chosen one {selected}{tail}"
    for draft in with_it:
        if draft.status == "FEASIBLE_UNRANKED":
            return f"no plan with it can be ranked: {draft.reasons[0]}"
    for draft in with_it:
        if draft.status == "POLICY_EXCLUDED":
            return f"no feasible plan with it is allowed: {draft.reasons[0]}"
    return f"no feasible plan contains it: {alone[0].reasons[0]}"


def summary_text(drafts: list[Draft], chosen: Draft | None) -> str:
    """Return the decision in one sentence."""
    if chosen is not None and chosen.plan is not None and chosen.request_seconds is not None:
        parts = ", ".join(
            f"{placement.node_name} ({unit_range(placement.first_unit, placement.end_unit)})"
            for placement in chosen.plan.placements
        )
        took = format_seconds(chosen.request_seconds)
        return f"{chosen.plan.representation} over {parts}: a request is predicted to take {took}"
    counts = {
        status: sum(draft.status == status for draft in drafts) for status in {draft.status for draft in drafts}
    }
    if unranked := counts.get("FEASIBLE_UNRANKED"):
        return f"{unranked} of {len(drafts)} families are feasible and allowed, and none of them can be priced"
    if excluded := counts.get("POLICY_EXCLUDED"):
        return f"{excluded} of {len(drafts)} families are technically feasible, and the policy allows none of them"
    return f"none of {len(drafts)} families is technically feasible"


def search_text(problem: PlanningProblem, num_sites: int, drafts: list[Draft], unproved: list[Draft]) -> str:
    """Return what was searched and how completely."""
    cuts = sum(boundary.legal for boundary in problem.boundaries)
    plans = len(problem.implementations) * sum(
        perm(num_sites, size) * comb(cuts, size - 1) for size in range(1, num_sites + 1)
    )
    text = (
        f"exact dynamic programming over {len(problem.implementations)} implementations, every subset and order of "
        f"{num_sites} available Compute Units and all {cuts} legal cuts: {len(drafts)} families, {plans:,} plans; "
        "objective: time to first token + (output tokens - 1) × time between tokens"
    )
    if unproved:
        text += f"; {len(unproved)} families hold plans that cannot be priced, so the choice is not proved the best"
    return text
