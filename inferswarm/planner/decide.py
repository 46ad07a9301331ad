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
from inferswarm.planner.modes import families_of, searched
from inferswarm.planner.objective import shares_of
from inferswarm.planner.plan import ESTIMATE, Breakdown, Decision, ExecutionPlan, InputDigests, Outcome, SolverReport
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy, Workload
from inferswarm.planner.qualification import QualificationRecord
from inferswarm.planner.ranking import (
    Draft,
    choose,
    draft_families,
    finish_family,
    is_below,
    known_value,
    offered,
    ranked_value,
)
from inferswarm.planner.reasons import (
    node_reasons,
    prove,
    resource_reasons,
    search_of_many,
    search_text,
    summary_of_many,
    summary_text,
)
from inferswarm.planner.service import settle, settle_many
from inferswarm.planner.sites import GraphView, Leg
from inferswarm.planner.solvers.exact import MAX_EXACT_SITES
from inferswarm.planner.solvers.solution import SolverLimits, SolverStatus
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
    qualification: tuple[QualificationRecord, ...] = (),
) -> Decision:
    """Choose the best plan that is feasible and allowed, or say truthfully why there is none.

    The result holds every family's status and reasons, one reason for every Compute Unit, and whether the choice
    is proved to be the best, or how far from it it may be. `limits` bound the search over more than six available
    Compute Units, for all implementations together. Declared curves count as unknown performance, so that nothing is
    chosen by them, unless `allow_estimates`: then the decision, its words and its plan's prediction say that they are
    an estimate. `health` closes gates by its axes, see `planner.standing`. `qualification` is what a policy that
    requires bit-exactness goes by, see `planner.qualification`. Raises SpecError for input that is wrong: a workload
    beyond the strategy's longest session, unknown names in the policy, contradictory economics.
    """
    view = GraphView(graph, Standing(health))
    standing = [site for site in view.sites if site.compute_unit.available]
    inputs = InputDigests(
        problem=digest(problem),
        graph=digest(graph),
        policy=digest(policy),
        workload=digest(workload),
        economics=digest(economics),
    )
    problem = searched(problem, policy)
    economics = usable(economics, allow_estimates)
    rules = resolve_policy(policy, problem, view, qualification, economics.paths)
    estimated = economics.rests_on_declared
    few = len(standing) <= MAX_COMPUTE_UNITS and not shares_of(workload).cadence
    few = few and workload.max_inter_token_seconds is None
    drafts: list[Draft] = []
    reports: list[SolverReport] = []
    missing: dict[str, None] = {}
    undecided, best = False, math.inf
    limits = limits or SolverLimits()
    started = limits.clock()
    ordered = families_of(problem)
    for place, implementation in enumerate(ordered):
        case = make_case(problem, implementation, workload, economics, (inputs.problem, inputs.graph), rules.view)
        if few:
            mixed = len(case.parts) > 1
            known = known_value(drafts) if mixed else math.inf
            drafted = draft_families(case, view, rules, known)
            found = settle(case, rules, economics, drafted, known, limits.clock, started + limits.seconds)
            reports.append(_exact_report(implementation, found, len(standing), known))
            found = offered(found, drafts) if mixed else found
        else:
            left = max(0.0, limits.seconds - (limits.clock() - started))
            fair = limits._replace(seconds=left / (len(ordered) - place))
            answer = search_many(case, view, rules, fair, best)
            found, report = answer.drafts, answer.report
            if answer.open and report is not None:
                left = max(0.0, limits.seconds - (limits.clock() - started))
                rest = limits._replace(seconds=left / (len(ordered) - place))
                found, report = settle_many(case, view, rules, economics, found, report, rest)
            best = min([best, *(value for draft in found if (value := ranked_value(draft)) is not None)])
            reports += [report] if report is not None else []
            missing |= dict.fromkeys(answer.missing)
            lost = any(draft.status == "RANKED" for draft in answer.drafts) and bool(answer.missing)
            undecided = undecided or answer.undecided or lost
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
    resources = resource_reasons(view, rules, drafts, chosen, None if few else proof)
    return Decision(
        inputs=inputs,
        outcome=outcome,
        summary=f"{ESTIMATE}: {summary}" if estimated else summary,
        plan=None if chosen is None else chosen.plan,
        families=tuple(finish_family(draft, chosen) for draft in drafts),
        resources=resources,
        nodes=node_reasons(view, resources),
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
        qualification=digest(sorted(qualification, key=lambda item: item.id)) if qualification else msgspec.UNSET,
        breakdown=_breakdown(view, chosen),
    )


def _breakdown(view: GraphView, chosen: Draft | None) -> Breakdown | msgspec.UnsetType:
    if chosen is None or chosen.plan is None:
        return msgspec.UNSET
    parts = break_down(chosen.case.pricing, plan_route(chosen.plan, view))
    return msgspec.UNSET if parts is None else parts


def _exact_report(
    implementation: Implementation, drafts: list[Draft], num_sites: int, known: float = math.inf
) -> SolverReport:
    """Report the search of every set of few Compute Units: its best plan is proved to be that.

    Where paths of plans share segments, which the search does not see, only its bound is proved; and so it is where
    limits on single figures leave plans that were not found. Plans that are not below `known` were not looked for.
    """
    best = min((value for draft in drafts if (value := ranked_value(draft)) is not None), default=None)
    proved = (ranked_value(draft) if draft.bound is None else draft.bound for draft in drafts)
    bound = min((value for value in proved if value is not None), default=None)
    if known < math.inf:
        bound = known if bound is None else min(bound, known)
    if best is not None and bound is not None and not is_below(bound, best):
        bound = best
    return SolverReport(
        representation=implementation.representation,
        primitive=implementation.primitive,
        method="dynamic programming",
        why=f"{num_sites} available Compute Units, at most {MAX_COMPUTE_UNITS}: all subsets, orders and cuts",
        status=_settled(best, bound),
        value=best,
        bound=bound,
        gap=None if best is None or bound is None else (best - bound) / best,
    )


def _settled(best: float | None, bound: float | None) -> SolverStatus:
    if best is None:
        return "INFEASIBLE" if bound is None else "UNKNOWN"
    return "OPTIMAL" if bound == best else "FEASIBLE"


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
    """Return the decision's plan.

    Raises InfeasiblePlan when there is none: with the violations, or with the evidence that is missing.
    """
    if decision.plan is not None:
        return decision.plan
    violations = [
        memory_violation(account, family.representation)
        for family in decision.families
        if family.status == "TECHNICALLY_INFEASIBLE"
        for account in family.memory
        if not account.fits
    ]
    raise InfeasiblePlan(f"{decision.outcome}: {decision.summary}", violations, decision.missing_evidence)


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
