"""The planner's answer: an automatic decision, a plan that somebody names, and refusals.

The order is fixed: what is technically feasible, then what the operator allows, then what is expected to be best.
A plan is never changed after it is made; when the resources change, another one is made.
"""

from __future__ import annotations

from inferswarm.documents import digest
from inferswarm.errors import InfeasiblePlan, SpecError
from inferswarm.planner.assemble import build_plan, make_case
from inferswarm.planner.economics import Economics
from inferswarm.planner.gates import ends_of_cuts, resolve_policy, unit_refusals
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.plan import Decision, ExecutionPlan, InputDigests, Outcome
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy, Workload
from inferswarm.planner.ranking import Draft, choose, draft_families, finish_family
from inferswarm.planner.reasons import resource_reasons, search_text, summary_text
from inferswarm.planner.sites import GraphView, Leg
from inferswarm.resources.types import ResourceGraph

MAX_COMPUTE_UNITS = 6
"""Available Compute Units that the exact search supports."""


def decide(
    problem: PlanningProblem,
    graph: ResourceGraph,
    workload: Workload,
    policy: Policy,
    economics: Economics,
) -> Decision:
    """Choose the best plan that is feasible and allowed, or say truthfully why there is none.

    The result holds every family's status and reasons, one reason for every Compute Unit, and whether the choice
    is proved to be the best. Raises SpecError for input that is wrong: a workload beyond the strategy's longest
    session, unknown names in the policy, contradictory economics, more than 6 available Compute Units.
    """
    view = GraphView(graph)
    standing = [site for site in view.sites if site.compute_unit.available]
    if len(standing) > MAX_COMPUTE_UNITS:
        raise SpecError(
            "available Compute Units", len(standing), f"at most {MAX_COMPUTE_UNITS}: the exact search stops there"
        )
    rules = resolve_policy(policy, problem, view)
    inputs = InputDigests(
        problem=digest(problem),
        graph=digest(graph),
        policy=digest(policy),
        workload=digest(workload),
        economics=digest(economics),
    )
    drafts: list[Draft] = []
    for implementation in sorted(problem.implementations, key=lambda item: (item.representation, item.primitive)):
        case = make_case(problem, implementation, workload, economics, (inputs.problem, inputs.graph))
        drafts += draft_families(case, view, rules)
    chosen = choose(drafts)
    unproved = [draft for draft in drafts if draft.may_be_better]
    outcome: Outcome
    if chosen is not None:
        outcome = "SELECTED"
    elif any(draft.status == "FEASIBLE_UNRANKED" for draft in drafts):
        outcome = "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    else:
        outcome = "NO_FEASIBLE_PLAN"
    missing = {name: None for draft in unproved for name in draft.missing}
    if missing:
        missing |= dict.fromkeys(economics.missing)
    return Decision(
        inputs=inputs,
        outcome=outcome,
        summary=summary_text(drafts, chosen),
        plan=None if chosen is None else chosen.plan,
        families=tuple(finish_family(draft, chosen) for draft in drafts),
        resources=resource_reasons(view, rules, drafts, chosen),
        policy=policy,
        overrides=rules.overrides(),
        proved_optimal=chosen is not None and not unproved,
        search=search_text(problem, len(standing), drafts, unproved),
        missing_evidence=tuple(missing),
    )


def force_plan(
    problem: PlanningProblem,
    graph: ResourceGraph,
    workload: Workload,
    economics: Economics,
    nodes: tuple[str, ...],
    cuts: tuple[int, ...],
    representation: str,
) -> ExecutionPlan:
    """Build the plan that the caller names, even if its memory does not fit: its accounts say so.

    `nodes` are names or ids of Nodes (or ids of Compute Units, where a Node has several) in the order of the route;
    `cuts` are the unit indexes after which the chain is cut. Raises SpecError for unknown names, cuts that the
    strategy does not declare legal and representations that it does not declare; InfeasiblePlan when a Compute Unit
    cannot execute its part or a Link is missing.
    """
    view = GraphView(graph)
    if not nodes:
        raise SpecError("nodes", nodes, "at least one")
    sites = tuple(view.site(name, "nodes") for name in nodes)
    if len({site.id for site in sites}) != len(sites):
        raise SpecError("nodes", nodes, "each Compute Unit at most once")
    ends = ends_of_cuts(problem, cuts, len(sites), "cuts")
    implementation = _implementation(problem, representation)
    reasons = [reason for site in sites for reason in unit_refusals(site, implementation)]
    for before, after in zip(sites, (*sites[1:], sites[0]), strict=True):
        if len(sites) > 1 and not view.linked(before.node, after.node):
            reasons.append(f"no available Link {before.node.name} → {after.node.name}")
    if reasons:
        raise InfeasiblePlan(f"the named plan cannot run: {'; '.join(reasons)}")
    case = make_case(problem, implementation, workload, economics, (digest(problem), digest(graph)))
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
