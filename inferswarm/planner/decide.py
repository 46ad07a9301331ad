"""The planner's answer: an automatic decision, a plan that somebody names, and refusals.

The order is fixed: what is technically feasible, then what the operator allows, then what is expected to be best.
A plan is never changed after it is made; when the resources change, another one is made.
"""

from __future__ import annotations

import math

import msgspec

from inferswarm.documents import digest
from inferswarm.errors import InfeasiblePlan, SpecError
from inferswarm.evidence.health import Health
from inferswarm.planner.assemble import build_plan, make_case, plan_route
from inferswarm.planner.bottleneck import break_down
from inferswarm.planner.economics import Economics, usable
from inferswarm.planner.gates import ends_of_cuts, integrity_refusals, resolve_policy, unit_refusals
from inferswarm.planner.many import search_many
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.plan import ESTIMATE, Breakdown, Decision, ExecutionPlan, InputDigests, Outcome, SolverReport
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy, Workload
from inferswarm.planner.ranking import Draft, choose, draft_families, finish_family, ranked_value
from inferswarm.planner.reasons import (
    prove,
    resource_reasons,
    search_of_many,
    search_text,
    summary_of_many,
    summary_text,
)
from inferswarm.planner.sites import GraphView, Leg
from inferswarm.planner.solvers.exact import MAX_EXACT_SITES
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.planner.standing import Standing
from inferswarm.resources.types import ResourceGraph

MAX_COMPUTE_UNITS = MAX_EXACT_SITES
"""Available Compute Units up to which every set of them is judged. More are searched by `planner.solvers`."""


def decide(
    problem: PlanningProblem,
    graph: ResourceGraph,
    workload: Workload,
    policy: Policy,
    economics: Economics,
    limits: SolverLimits | None = None,
    *,
    allow_estimates: bool = False,
    health: tuple[Health, ...] = (),
) -> Decision:
    """Choose the best plan that is feasible and allowed, or say truthfully why there is none.

    The result holds every family's status and reasons, one reason for every Compute Unit, and whether the choice
    is proved to be the best, or how far from it it may be. `limits` bound the search over more than six available
    Compute Units, for all implementations together. Declared curves count as unknown performance, so that nothing is
    chosen by them, unless `allow_estimates`: then the decision, its words and its plan's prediction say that they are
    an estimate. `health` closes gates by its axes, see `planner.standing`. Raises SpecError for input that is wrong:
    a workload beyond the strategy's longest session, unknown names in the policy, contradictory economics.
    """
    view = GraphView(graph, Standing(health))
    standing = [site for site in view.sites if site.compute_unit.available]
    rules = resolve_policy(policy, problem, view)
    inputs = InputDigests(
        problem=digest(problem),
        graph=digest(graph),
        policy=digest(policy),
        workload=digest(workload),
        economics=digest(economics),
    )
    economics = usable(economics, allow_estimates)
    estimated = economics.rests_on_declared
    few = len(standing) <= MAX_COMPUTE_UNITS and workload.throughput is None
    drafts: list[Draft] = []
    reports: list[SolverReport] = []
    missing: dict[str, None] = {}
    undecided, best = False, math.inf
    limits = limits or SolverLimits()
    started = limits.clock()
    ordered = sorted(problem.implementations, key=lambda item: (item.representation, item.primitive))
    for place, implementation in enumerate(ordered):
        case = make_case(problem, implementation, workload, economics, (inputs.problem, inputs.graph), view)
        if few:
            found = draft_families(case, view, rules)
            reports.append(_exact_report(implementation, found, len(standing)))
        else:
            left = max(0.0, limits.seconds - (limits.clock() - started))
            fair = limits._replace(seconds=left / (len(ordered) - place))
            searched = search_many(case, view, rules, fair, best)
            found = searched.drafts
            best = min([best, *(value for draft in found if (value := ranked_value(draft)) is not None)])
            reports += [searched.report] if searched.report is not None else []
            missing |= dict.fromkeys(searched.missing)
            undecided = undecided or searched.undecided
        drafts += found
    chosen = choose(drafts)
    unproved = [draft for draft in drafts if draft.may_be_better]
    outcome: Outcome
    if chosen is not None:
        outcome = "SELECTED"
    elif undecided or any(draft.status == "FEASIBLE_UNRANKED" for draft in drafts):
        outcome = "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    else:
        outcome = "NO_FEASIBLE_PLAN"
    missing |= {name: None for draft in unproved for name in draft.missing}
    complete = not missing and not unproved
    if missing:
        missing |= dict.fromkeys(economics.missing)
    proof = prove(reports, chosen)
    summary = summary_text(drafts, chosen)
    if not few and chosen is None:
        summary = summary_of_many(outcome, drafts, reports, len(standing))
    searched_how = (
        search_text(problem, len(standing), drafts, unproved)
        if few
        else search_of_many(problem, workload, len(standing), reports, proof, complete)
    )
    return Decision(
        inputs=inputs,
        outcome=outcome,
        summary=f"{ESTIMATE}: {summary}" if estimated else summary,
        plan=None if chosen is None else chosen.plan,
        families=tuple(finish_family(draft, chosen) for draft in drafts),
        resources=resource_reasons(view, rules, drafts, chosen, None if few else proof),
        policy=policy,
        overrides=rules.overrides(),
        proved_optimal=chosen is not None and complete and proof.proved,
        search=f"{searched_how}; priced by an {ESTIMATE}" if estimated else searched_how,
        missing_evidence=tuple(missing),
        solvers=tuple(reports),
        bound=proof.bound,
        gap=proof.gap,
        basis="declared" if estimated else msgspec.UNSET,
        health=digest(sorted(health, key=lambda item: item.scope)) if health else msgspec.UNSET,
        breakdown=_breakdown(view, chosen),
    )


def _breakdown(view: GraphView, chosen: Draft | None) -> Breakdown | msgspec.UnsetType:
    if chosen is None or chosen.plan is None:
        return msgspec.UNSET
    parts = break_down(chosen.case.pricing, plan_route(chosen.plan, view))
    return msgspec.UNSET if parts is None else parts


def _exact_report(implementation: Implementation, drafts: list[Draft], num_sites: int) -> SolverReport:
    """Report the search of every set of few Compute Units: its best plan is proved to be that.

    Where paths of plans share segments, which the search does not see, only its bound is proved.
    """
    values = [(value, draft.bound) for draft in drafts if (value := ranked_value(draft)) is not None]
    best = min((value for value, _ in values), default=None)
    bound = min((value if proved is None else proved for value, proved in values), default=None)
    return SolverReport(
        representation=implementation.representation,
        primitive=implementation.primitive,
        method="dynamic programming",
        why=f"{num_sites} available Compute Units, at most {MAX_COMPUTE_UNITS}: all subsets, orders and cuts",
        status="INFEASIBLE" if best is None else "OPTIMAL" if bound == best else "FEASIBLE",
        value=best,
        bound=bound,
        gap=None if best is None or bound is None else (best - bound) / best,
    )


def force_plan(
    problem: PlanningProblem,
    graph: ResourceGraph,
    workload: Workload,
    economics: Economics,
    nodes: tuple[str, ...],
    cuts: tuple[int, ...],
    representation: str,
    *,
    allow_estimates: bool = False,
    health: tuple[Health, ...] = (),
) -> ExecutionPlan:
    """Build the plan that the caller names, even if its memory does not fit: its accounts say so.

    `nodes` are names or ids of Nodes (or ids of Compute Units, where a Node has several) in the order of the route;
    `cuts` are the unit indexes after which the chain is cut. Declared curves give a prediction only with
    `allow_estimates`, and it says that it is an estimate. Raises SpecError for unknown names, cuts that the
    strategy does not declare legal and representations that it does not declare; InfeasiblePlan when a Compute Unit
    cannot execute its part or is in quarantine, or a Link is missing.
    """
    view = GraphView(graph, Standing(health))
    if not nodes:
        raise SpecError("nodes", nodes, "at least one")
    sites = tuple(view.site(name, "nodes") for name in nodes)
    if len({site.id for site in sites}) != len(sites):
        raise SpecError("nodes", nodes, "each Compute Unit at most once")
    ends = ends_of_cuts(problem, cuts, len(sites), "cuts")
    implementation = _implementation(problem, representation)
    reasons = [reason for site in sites for reason in unit_refusals(site, implementation)]
    reasons += integrity_refusals(implementation, sites)
    for before, after in zip(sites, (*sites[1:], sites[0]), strict=True):
        if len(sites) > 1 and not view.linked(before.node, after.node):
            reasons.append(f"no available Link {before.node.name} → {after.node.name}")
    if reasons:
        raise InfeasiblePlan(f"the named plan cannot run: {'; '.join(reasons)}")
    curves = usable(economics, allow_estimates)
    case = make_case(problem, implementation, workload, curves, (digest(problem), digest(graph)), view)
    starts = (0, *ends)
    return build_plan(
        case, tuple(Leg(site, start, end) for site, start, end in zip(sites, starts, ends, strict=False))
    )


def require_plan(decision: Decision) -> ExecutionPlan:
    """Return the decision's plan. Raises InfeasiblePlan with the violations when there is none."""
    if decision.plan is not None:
        return decision.plan
    violations = [
        memory_violation(account, family.representation)
        for family in decision.families
        if family.status == "TECHNICALLY_INFEASIBLE"
        for account in family.memory
        if not account.fits
    ]
    raise InfeasiblePlan(f"{decision.outcome}: {decision.summary}", violations)


def check_drift(plan: ExecutionPlan, graph: ResourceGraph) -> None:
    """Refuse a plan that was made for another snapshot of the resources; the planner never repairs one.

    Raises SpecError with both digests.
    """
    current = digest(graph)
    if plan.graph_digest != current:
        raise SpecError(
            "plan graph_digest", plan.graph_digest, f"the current resource graph {current}; make another plan"
        )


def _implementation(problem: PlanningProblem, representation: str) -> Implementation:
    fitting = [item for item in problem.implementations if item.representation == representation]
    if len(fitting) != 1:
        known = sorted({item.representation for item in problem.implementations})
        needed = f"one of {known}" if not fitting else "a representation with a single primitive"
        raise SpecError("representation", representation, needed)
    return fitting[0]
