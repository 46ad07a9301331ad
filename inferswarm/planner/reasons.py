"""Why each Compute Unit is or is not used, and what the decision says about itself, in one sentence each."""

from __future__ import annotations

from math import comb, inf, perm
from typing import NamedTuple

import msgspec

from inferswarm.planner.gates import (
    Rules,
    capacity_refusals,
    integrity_refusals,
    policy_refusals_alone,
    unit_refusals,
)
from inferswarm.planner.modes import families_of
from inferswarm.planner.plan import ExecutionPlan, NodeReason, Outcome, Placement, ResourceReason, SolverReport
from inferswarm.planner.problem import Mix, PlanningProblem, Workload
from inferswarm.planner.ranking import Draft, worth
from inferswarm.planner.sites import GraphView, Site, unit_range
from inferswarm.units import format_seconds


class Proof(NamedTuple):
    """What is proved of the chosen plan, over all implementations: see `Decision` for bound and gap."""

    proved: bool
    bound: float | None
    gap: float | None


def prove(reports: list[SolverReport], chosen: Draft | None) -> Proof:
    """Put the solvers' proofs together: no plan of any implementation is better than the least of their bounds."""
    value = None if chosen is None else chosen.value
    if value is None:
        return Proof(False, None, None)
    bounds = [report.bound for report in reports if report.bound is not None]
    bound = min([value, *bounds])
    settled = all(
        report.status in ("OPTIMAL", "INFEASIBLE") or (report.bound is not None and report.bound >= value)
        for report in reports
    )
    unknown = any(report.status == "UNKNOWN" and report.bound is None for report in reports)
    bound = 0.0 if unknown else bound
    return Proof(settled and not unknown, bound, (value - bound) / value if value > 0 else 0.0)


def resource_reasons(
    view: GraphView, rules: Rules, drafts: list[Draft], chosen: Draft | None, proof: Proof | None = None
) -> tuple[ResourceReason, ...]:
    """Return exactly one reason for each Compute Unit of the snapshot, in the order of their ids.

    `proof` is given where the drafts are not all sets of Compute Units: then no best plan with each is known.
    """
    return tuple(_resource_reason(site, rules, drafts, chosen, proof) for site in view.sites)


def _resource_reason(
    site: Site, rules: Rules, drafts: list[Draft], chosen: Draft | None, proof: Proof | None
) -> ResourceReason:
    placements = () if chosen is None or chosen.plan is None else chosen.plan.placements
    mine = next((placement for placement in placements if placement.compute_unit_id == site.id), None)
    if mine is not None:
        why = f"used: {mine.participant} holds {unit_range(mine.first_unit, mine.end_unit)}"
    elif proof is None:
        why = _why_unused(site, rules, drafts, chosen)
    else:
        why = _why_unused_of_many(site, rules, drafts, chosen, proof)
    unit = site.compute_unit
    return ResourceReason(
        compute_unit_id=unit.id,
        node_name=site.node.name,
        used=mine is not None,
        reason=why,
        kind=unit.kind,
        name=unit.name,
    )


def node_reasons(view: GraphView, resources: tuple[ResourceReason, ...]) -> tuple[NodeReason, ...]:
    """Return exactly one reason for each Node of the snapshot, in the order of their ids.

    That of an unused Node is its best Compute Unit's: the one that could have a part comes before one that could not.
    """
    nodes = {site.id: site.node.id for site in view.sites}
    own: dict[str, list[ResourceReason]] = {}
    for item in resources:
        own.setdefault(nodes[item.compute_unit_id], []).append(item)
    found = []
    for node in sorted(view.graph.nodes, key=lambda node: node.id):
        units = own.get(node.id, [])
        used = [item.reason.removeprefix("used: ") for item in units if item.used]
        reason = "it has no Compute Unit"
        if used:
            reason = f"used: {'; '.join(used)}"
        elif units:
            best = min(units, key=lambda item: not item.reason.startswith("not "))
            reason = best.reason if len(units) == 1 else f"{best.compute_unit_id}: {best.reason}"
        found.append(NodeReason(node_id=node.id, node_name=node.name, used=bool(used), reason=reason))
    return tuple(found)


def _why_unused(site: Site, rules: Rules, drafts: list[Draft], chosen: Draft | None) -> str:
    if not site.compute_unit.available:
        return "not available"
    if site.id in rules.closed:
        return f"excluded by policy: {rules.closed[site.id]}"
    with_it = [draft for draft in drafts if site.id in draft.finding.ids]
    alone = [draft for draft in with_it if len(draft.finding.ids) == 1]
    # Of a mixture only what is better than every plan of one representation is among the drafts.
    unmixed = "" if chosen is None or isinstance(rules.problem.mixtures, msgspec.UnsetType) else " that does not mix"
    ranked = [draft for draft in with_it if draft.status == "RANKED" and draft.request_seconds is not None]
    best = min(ranked, key=_seconds, default=None)
    if best is not None and chosen is not None:
        unfit = all(draft.status == "TECHNICALLY_INFEASIBLE" for draft in alone)
        tail = "; alone it does not fit" if unfit else ""
        settled = all(draft.bound is None or draft.bound >= _seconds(best) for draft in with_it)
        which = f"the best plan{'' if settled else ' found'} with it{'' if len(best.case.parts) > 1 else unmixed}"
        return f"not needed: {which} takes {format_seconds(_seconds(best))}, the chosen one {_took(chosen)}{tail}"
    none = _why_none(with_it, alone[0])
    return f"no plan with it that mixes is better than the chosen one, and of the others: {none}" if unmixed else none


def _why_none(with_it: list[Draft], alone: Draft) -> str:
    """Say why no plan with a Compute Unit has a rank: none can be trusted, priced, is allowed, or fits."""
    if with_it and all(draft.status in ("TECHNICALLY_INFEASIBLE", "INTEGRITY_EXCLUDED") for draft in with_it):
        for draft in with_it:
            if draft.status == "INTEGRITY_EXCLUDED":
                return f"no plan with it can be trusted: {draft.reasons[0]}"
    for draft in with_it:
        if draft.status == "FEASIBLE_UNRANKED":
            return f"no plan with it can be ranked: {draft.reasons[0]}"
    for draft in with_it:
        if draft.status == "POLICY_EXCLUDED":
            names = " + ".join(site.node.name for site in draft.finding.sites)
            which = names if len(draft.finding.sites) > 1 else f"{names} alone"
            which += f" in {draft.case.implementation.representation}"
            open_ = any(other.bound is not None for other in with_it)
            none = "no plan with it was found that is allowed" if open_ else "no feasible plan with it is allowed"
            return f"{none}; {which}: {draft.reasons[0].removeprefix('policy: ')}"
    return f"no feasible plan contains it: {alone.reasons[0]}"


def _seconds(draft: Draft) -> float:
    return inf if draft.request_seconds is None else draft.request_seconds


def _took(draft: Draft) -> str:
    return format_seconds(_seconds(draft))


def _why_unused_of_many(site: Site, rules: Rules, drafts: list[Draft], chosen: Draft | None, proof: Proof) -> str:
    if not site.compute_unit.available:
        return "not available"
    if site.id in rules.closed:
        return f"excluded by policy: {rules.closed[site.id]}"
    judged = {id(draft.case): draft.case.implementation for draft in drafts}.values()  # drafts share their cases
    gates = [capacity_refusals(site) + unit_refusals(site, implementation) for implementation in judged]
    if all(gates):
        return f"no feasible plan contains it: {gates[0][0]}"
    shut = [integrity_refusals(implementation, (site,)) for implementation in judged]
    if all(shut):
        return f"no plan with it can be trusted: {shut[0][0]}"
    refused = [policy_refusals_alone(rules, implementation, site) for implementation in judged]
    if all(refused):
        return f"no plan with it is allowed: {refused[0][0]}"
    if chosen is None or chosen.value is None or proof.gap is None:
        alone = next((draft for draft in drafts if draft.finding.ids == (site.id,) and draft.reasons), None)
        return f"no plan was found, with it or without it{f'; alone: {alone.reasons[0]}' if alone else ''}"
    selected = worth(chosen.case.workload, chosen.value)
    if proof.proved:
        better = "no plan with it that is allowed and can be priced is better than the chosen one"
        return f"not needed: {better}, {selected}, proved"
    return (
        f"not in the best plan found, {selected}; a plan with it can be at most {proof.gap:.2%} better than that, "
        "if it is allowed and can be priced"
    )


def summary_of_many(outcome: Outcome, drafts: list[Draft], reports: list[SolverReport], num_sites: int) -> str:
    """Say in one sentence why there is no plan, where sets of Compute Units were searched, not listed."""
    over = f"over the {num_sites} available Compute Units"
    if outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE":
        return f"some plans {over} fit and cannot be priced; of those that can, none was left"
    if any(report.status == "UNKNOWN" for report in reports):
        return f"no plan {over} was found; that there is none is not proved"
    if any(draft.status == "POLICY_EXCLUDED" for draft in drafts):
        return f"there are feasible plans {over}; the policy allows none of them"
    if any(draft.status == "INTEGRITY_EXCLUDED" for draft in drafts):
        return f"every plan {over} that was found contains what is in quarantine"
    return f"no plan {over} is technically feasible"


def search_of_many(
    problem: PlanningProblem,
    workload: Workload,
    num_sites: int,
    reports: list[SolverReport],
    proof: Proof,
    complete: bool,
) -> str:
    """Return what was searched, by which method, and what is proved, where sets were searched, not listed."""
    cuts = sum(boundary.legal for boundary in problem.boundaries)
    text = (
        f"subset, order and cuts of {num_sites} available Compute Units and {cuts} legal cuts, for each of "
        f"{len(families_of(problem))} implementations; objective: {objective_text(workload)}"
    )
    for report in reports:
        text += f"; {report.representation} by {report.method}: {report.status}"
    if proof.bound is not None and proof.gap is not None:
        if workload.throughput is None:
            text += f"; no plan that can be priced takes less than {worth(workload, proof.bound)}"
        elif proof.bound > 0:
            text += f"; no plan that can be priced gives more than {worth(workload, proof.bound)}"
        text += f", gap {proof.gap:.3%}"
    if not complete:
        text += "; some plans cannot be priced, so the choice is not proved the best"
    return text


def objective_text(workload: Workload) -> str:
    """Say what is made best."""
    request = "time to first token + (output tokens - 1) × time between tokens"
    if workload.throughput is not None:
        return f"tokens per second of {workload.concurrency} sessions together"
    if isinstance(workload.objective, Mix):
        weight, rest = workload.objective.request_weight, 1 - workload.objective.request_weight
        occupied = f"output tokens / tokens per second of {workload.concurrency} sessions"
        return f"{weight:g} × ({request}) + {rest:g} × ({occupied})"
    return request


def summary_text(drafts: list[Draft], chosen: Draft | None) -> str:
    """Return the decision in one sentence."""
    if chosen is not None and chosen.plan is not None and chosen.request_seconds is not None:
        parts = ", ".join(_holding(placement, chosen.plan) for placement in chosen.plan.placements)
        took = format_seconds(chosen.request_seconds)
        text = f"{chosen.plan.representation} over {parts}: a request is predicted to take {took}"
        workload = chosen.case.workload
        prediction = chosen.plan.prediction
        together = msgspec.UNSET if prediction is None else prediction.throughput
        if not isinstance(together, msgspec.UnsetType):
            text += f", {workload.concurrency} sessions at once to give {together.point:.3g} tokens/s"
        if isinstance(workload.objective, Mix) and chosen.value is not None:
            text += f"; weighed: {format_seconds(chosen.value)}"
        return text
    counts = {
        status: sum(draft.status == status for draft in drafts) for status in {draft.status for draft in drafts}
    }
    if unranked := counts.get("FEASIBLE_UNRANKED"):
        return f"{unranked} of {len(drafts)} families are feasible and allowed, and none of them can be priced"
    if excluded := counts.get("POLICY_EXCLUDED"):
        open_ = any(draft.status == "POLICY_EXCLUDED" and draft.bound is not None for draft in drafts)
        unsure = "; that no plan of theirs keeps all limits is not proved" if open_ else ""
        allows = "are technically feasible, and the policy allows none of them"
        return f"{excluded} of {len(drafts)} families {allows}{unsure}"
    if shut := counts.get("INTEGRITY_EXCLUDED"):
        return f"{shut} of {len(drafts)} families are technically feasible, and each contains what is in quarantine"
    return f"none of {len(drafts)} families is technically feasible"


def _holding(placement: Placement, plan: ExecutionPlan) -> str:
    """Say what one participant holds, where, and in what if the plan mixes; a Node that takes part twice, by unit."""
    again = sum(other.node_name == placement.node_name for other in plan.placements) > 1
    where = f"{placement.node_name}/{placement.compute_unit_id}" if again else placement.node_name
    own = placement.representation
    in_what = "" if isinstance(own, msgspec.UnsetType) else f" in {own}"
    return f"{where} ({unit_range(placement.first_unit, placement.end_unit)}{in_what})"


def search_text(problem: PlanningProblem, num_sites: int, drafts: list[Draft], unproved: list[Draft]) -> str:
    """Return what was searched and how completely."""
    cuts = sum(boundary.legal for boundary in problem.boundaries)
    mixtures = () if isinstance(problem.mixtures, msgspec.UnsetType) else problem.mixtures

    def choices(size: int) -> int:
        return len(problem.implementations) + sum(int(len(item.representations) ** size) for item in mixtures)

    plans = sum(perm(num_sites, size) * comb(cuts, size - 1) * choices(size) for size in range(1, num_sites + 1))
    mixed = f" and {len(mixtures)} mixture{'s' if len(mixtures) > 1 else ''} of them" if mixtures else ""
    text = (
        f"exact dynamic programming over {len(problem.implementations)} implementations{mixed}, every subset and "
        f"order of {num_sites} available Compute Units and all {cuts} legal cuts: {len(drafts)} families, {plans:,} "
        f"plans; objective: {objective_text(Workload())}"
    )
    if unproved:
        text += f"; {len(unproved)} families hold plans that cannot be priced, so the choice is not proved the best"
    return text
