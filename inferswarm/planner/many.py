"""Families of a swarm with too many Compute Units to judge every set of them.

Each Compute Unit alone is judged as ever: technically, by policy, by price. Sets of several are searched, not listed:
a solver looks for the best plan over all sets, orders and cuts that the policy allows, and says how far from the best
it may be. When it finds none, two more searches tell why: one without the policy, one without prices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import permutations
from typing import NamedTuple

from inferswarm.planner.assemble import Case, build_plan, plan_route
from inferswarm.planner.candidates import Finding
from inferswarm.planner.contention import Searchable, groups_of, look_further, pinned_orders, searchable
from inferswarm.planner.gates import (
    Rules,
    allowed_sites,
    integrity_refusals,
    policy_refusals,
    representation_refusals,
)
from inferswarm.planner.goals import broken_by, goal_of
from inferswarm.planner.grouping import search_groups
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.modes import modes_of, site_refusals
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.plan import ExecutionPlan, SolverReport, Status
from inferswarm.planner.ranking import Draft, excluded, is_below
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView, Leg, Route, Site
from inferswarm.planner.solvers.building import Built, build_instance
from inferswarm.planner.solvers.cuts import best_cuts
from inferswarm.planner.solvers.instance import longest_ranges
from inferswarm.planner.solvers.solution import Solution, SolverLimits, SolverStatus
from inferswarm.planner.solvers.solving import solve
from inferswarm.units import format_seconds


class Searched(NamedTuple):
    """What became of one implementation: its drafts, the solver's report, and the curves that nobody has.

    `undecided`: no plan was found that is allowed, some fit, and curves are missing: one without a price may be.
    `open`: the best plan that was found is not allowed, and no other one was searched for.
    """

    drafts: list[Draft]
    report: SolverReport | None
    missing: tuple[str, ...]
    undecided: bool = False
    open: bool = False


def search_many(
    case: Case, view: GraphView, rules: Rules, limits: SolverLimits, cutoff: float = math.inf
) -> Searched:
    """Judge one implementation over many Compute Units. Raises SpecError for pins with too many meanings.

    `cutoff` is the best value that another implementation has: nothing above it is looked for.
    """
    mixed = len(case.parts) > 1
    drafts = [] if mixed else [_alone(case, site, view, rules) for site in view.sites]
    able = tuple(
        site
        for site in view.sites
        if not site_refusals(case, site) and not integrity_refusals(case.implementation, (site,))
    )
    allowed = rules.view.same_sites(allowed_sites(case.implementation, able, rules))
    policy = rules.policy
    if representation_refusals(rules, case.implementation):
        return Searched(drafts, None, ())
    missing = _missing(case, rules.view, allowed)
    deadline = limits.clock() + limits.seconds

    def search(sites: tuple[Site, ...], limits: SolverLimits, cutoff: float) -> tuple[Built, Solution]:
        built = build_instance(case, rules.view, sites, policy.min_tokens_per_second, policy.max_participants)
        return built, _pinned(case, built, rules) if rules.pinned else solve(built.instance, limits, cutoff=cutoff)

    built, solution = search_groups(case.implementation, rules, allowed, search, limits, cutoff)
    route = None if solution.steps is None else built.route(solution.steps)
    plan = None if route is None else build_plan(case, route)
    undecided = open_ = False
    refused: Route | None = None
    overlooked = _overlooked(case, solution, plan)
    if overlooked or broken_by(plan, policy) or (route is None and _unsettled(rules, solution, cutoff)):
        among = searchable(case, rules, allowed)
        if among is not None:
            refused = route if broken_by(plan, policy) else None
            solution, route = _with_everything(case, rules, among, solution, cutoff, limits, deadline)
        elif broken_by(plan, policy):
            open_, solution = True, solution._replace(status="UNKNOWN", value=None)
        elif overlooked:
            solution = _with_what_is_shared(case, solution, plan)
    if route is None and refused is not None and len(refused) > 1 and cutoff == math.inf:
        drafts.append(_ranked(case, refused, None, rules))  # what is best without the limits says why
        undecided = bool(missing)
    elif route is not None and len(route) > 1:
        draft = _ranked(case, route, solution.value, rules)
        if not mixed or draft.value is None or is_below(draft.value, cutoff):
            drafts.append(draft)
        undecided = draft.status != "RANKED" and bool(missing)
    elif route is None and able and (cutoff == math.inf or solution.status == "INFEASIBLE"):
        reasons, undecided = _explained(case, view, rules, able, allowed, limits, missing)
        drafts += [draft for draft in reasons if not mixed or draft.status != "TECHNICALLY_INFEASIBLE"]
    return Searched(drafts, report_solution(case, solution), missing, undecided, open_)


def _overlooked(case: Case, solution: Solution, plan: ExecutionPlan | None) -> bool:
    """Whether a plan is worse than it was searched at, because parts of it share something."""
    if plan is None or plan.prediction is None or solution.value is None:
        return False
    return is_below(solution.value, predicted_value(case.workload, plan.prediction))


def _unsettled(rules: Rules, solution: Solution, cutoff: float) -> bool:
    """Whether nothing was found and it is not proved that there is nothing below the cutoff."""
    if rules.pinned:
        return True  # the search of a pinned order keeps few labels, and may lose what fits
    return solution.status == "UNKNOWN" and solution.bound < cutoff


def _with_everything(
    case: Case,
    rules: Rules,
    among: Searchable,
    solution: Solution,
    cutoff: float,
    limits: SolverLimits,
    deadline: float,
) -> tuple[Solution, Route | None]:
    """Search all plans again with all limits and what their parts share; return what is proved, and the best one."""
    found = look_further(case, rules, among, goal_of(case.workload, rules.policy), cutoff, limits.clock, deadline)
    bound = max(found.bound, min(solution.bound, found.value))
    why = f"{solution.why}; then all plans once more, with all limits and with what their parts share"
    solution = solution._replace(method="dynamic programming", why=why, rounding=0.0, steps=None, bound=bound)
    if found.route is None:
        nothing: SolverStatus = "INFEASIBLE" if bound == math.inf else "UNKNOWN"
        return solution._replace(status=nothing, value=None), None
    status: SolverStatus = "FEASIBLE" if is_below(bound, found.value) else "OPTIMAL"
    return solution._replace(status=status, value=found.value), found.route


def report_solution(case: Case, solution: Solution) -> SolverReport:
    """Write a solution's proof as a document."""
    return SolverReport(
        representation=case.implementation.representation,
        primitive=case.implementation.primitive,
        method=solution.method,
        why=solution.why,
        status=solution.status,
        value=solution.value,
        bound=solution.bound if math.isfinite(solution.bound) else None,
        gap=solution.gap if math.isfinite(solution.gap) else None,
        rounding_seconds=solution.rounding,
    )


def _with_what_is_shared(case: Case, solution: Solution, plan: ExecutionPlan | None) -> Solution:
    """Return what is proved where parts of the plan share something, which makes it worse than it was searched at."""
    assert plan is not None, "only asked for a plan with a price"
    assert plan.prediction is not None, "only asked for a plan with a price"
    value = predicted_value(case.workload, plan.prediction)
    status: SolverStatus = "FEASIBLE" if is_below(solution.bound, value) else "OPTIMAL"
    return solution._replace(status=status, value=value)


def _alone(case: Case, site: Site, view: GraphView, rules: Rules) -> Draft:
    """Judge one Compute Unit alone: technical gates, then the policy, then the price."""
    num_units = len(case.problem.units)
    account = None if site.memory is None else case.memory.account(site, 0, num_units)
    refusals = site_refusals(case, site)
    legs = [] if refusals else _fitting(case, site)
    if not refusals and not legs and account is not None:
        refusals = (str(memory_violation(account, case.implementation.representation)),)
    if refusals:
        finding = Finding((site,), refusals=refusals, accounts=() if account is None else (account,))
        return Draft(case, finding, "TECHNICALLY_INFEASIBLE", refusals, None, ())
    plans = _plans(case, legs)
    modes = {leg.mode for leg in legs}
    missing = case.pricing.missing(view, (site,), (), lambda _: sorted(modes))
    finding = Finding(
        (site,), route=plan_route(plans[0], view), missing=missing, accounts=plans[0].placements[0].accounts
    )
    if shut := integrity_refusals(case.implementation, (site,)):
        return Draft(case, finding, "INTEGRITY_EXCLUDED", shut, plans[0], missing)
    refused = policy_refusals(rules, case.implementation, (site,))
    own = rules.view.same_sites((site,))[0]
    kept = [] if refused else _fitting(case, own)
    if kept:
        plans = _plans(case, kept)
        finding = finding._replace(route=plan_route(plans[0], rules.view))
    elif not refused:
        lacking = memory_violation(case.memory.account(own, 0, num_units), case.implementation.representation)
        refused = (f"policy: {rules.cause} leave no plan: {lacking}",)
    rate = rules.policy.min_tokens_per_second
    if not refused and rate is not None:
        rates = [None if plan.prediction is None else plan.prediction.decode_rate.point for plan in plans]
        open_ = [
            plan
            for plan, each in zip(plans, rates, strict=True)
            if each is None or each * (1 + SLACK) >= rate  # what has no price may reach it
        ]
        if not open_:
            best = max(each for each in rates if each is not None)
            refused = (f"policy: no plan reaches {rate:g} tokens/s (its best: {best:.3g})",)
        plans = open_ or plans
    plans = [plan for plan in plans if not broken_by(plan, rules.policy)] or plans
    plan = plans[0]
    if refused:
        return Draft(case, finding, "POLICY_EXCLUDED", refused, plan, missing)
    reasons = tuple(f"cannot be priced: no {name}" for name in missing)
    if plan.prediction is None:
        return Draft(case, finding, "FEASIBLE_UNRANKED", reasons, plan, missing)
    finding = finding._replace(seconds=plan.prediction.request.point)
    if missing:
        reasons = tuple(f"some of its plans cannot be priced: no {name}" for name in missing)
    return _within_limits(Draft(case, finding, "RANKED", reasons, plan, missing), rules)


def _fitting(case: Case, site: Site) -> list[Leg]:
    """Return the ways in which one Compute Unit can hold everything."""
    legs = (Leg(site, 0, len(case.problem.units), mode) for mode in modes_of(case, site))
    return [leg for leg in legs if all(account.fits for account in case.accounts((leg,))[0])]


def _plans(case: Case, legs: list[Leg]) -> list[ExecutionPlan]:
    """Return the plan of each way, the best one first; those without a price come last."""

    def value(plan: ExecutionPlan) -> float:
        return math.inf if plan.prediction is None else predicted_value(case.workload, plan.prediction)

    return sorted((build_plan(case, (leg,)) for leg in legs), key=value)


def _within_limits(draft: Draft, rules: Rules) -> Draft:
    """Exclude a ranked family whose best plan that was found breaks a limit on a single figure."""
    broken = broken_by(draft.plan, rules.policy)
    return excluded(draft, f"policy: {'; '.join(broken)}") if broken else draft


def _ranked(case: Case, route: Route, value: float | None, rules: Rules) -> Draft:
    sites = tuple(sorted((leg.site for leg in route), key=lambda site: site.id))
    finding = Finding(sites, route=route, seconds=value)
    return _within_limits(Draft(case, finding, "RANKED", (), build_plan(case, route), ()), rules)


def _explained(
    case: Case,
    view: GraphView,
    rules: Rules,
    able: tuple[Site, ...],
    allowed: tuple[Site, ...],
    limits: SolverLimits,
    missing: tuple[str, ...],
) -> tuple[list[Draft], bool]:
    """Say why no plan over several Compute Units was found: prices, then the policy, then what fits and is linked.

    The second item is `Searched.undecided`.
    """
    policy = rules.policy

    def search(sites: tuple[Site, ...], limits: SolverLimits, cutoff: float) -> tuple[Built, Solution]:
        built = build_instance(case, rules.view, sites, most_sites=policy.max_participants, priced=False)
        return built, _pinned(case, built, rules) if rules.pinned else solve(built.instance, limits, cutoff=cutoff)

    built, fitting = search_groups(case.implementation, rules, allowed, search, limits)
    if fitting.steps is not None and missing:
        reasons = tuple(f"cannot be priced: no {name}" for name in missing)
        return _listed(case, built.route(fitting.steps), "FEASIBLE_UNRANKED", reasons, missing), True
    wait = case.workload.max_inter_token_seconds
    if fitting.steps is not None and (policy.min_tokens_per_second is not None or wait is not None):
        demands = [] if policy.min_tokens_per_second is None else [f"{policy.min_tokens_per_second:g} tokens/s"]
        demands += [] if wait is None else [f"at most {format_seconds(wait)} between the tokens of a session"]
        reason = f"policy: no plan was found that reaches {' and '.join(demands)}"
        return _listed(case, built.route(fitting.steps), "POLICY_EXCLUDED", (reason,), ()), False
    built = build_instance(case, view, able, priced=False)
    fitting = solve(built.instance, limits)
    if fitting.steps is not None:
        route = built.route(fitting.steps)
        refused = policy_refusals(rules, case.implementation, tuple(leg.site for leg in route))
        reasons = refused or (f"policy: {rules.cause} leave no plan that was found",)
        return _listed(case, route, "POLICY_EXCLUDED", reasons, ()), False
    if fitting.status != "INFEASIBLE":
        return [], False
    reason = f"no subset of these {len(able)} Compute Units has an order and legal cuts that fit: proved"
    return [Draft(case, Finding(able, refusals=(reason,)), "TECHNICALLY_INFEASIBLE", (reason,), None, ())], False


def _listed(
    case: Case, route: Route, status: Status, reasons: tuple[str, ...], missing: tuple[str, ...]
) -> list[Draft]:
    """Return the family of a route that has no rank; a Compute Unit alone has its family already."""
    if len(route) < 2:
        return []
    sites = tuple(sorted((leg.site for leg in route), key=lambda site: site.id))
    finding = Finding(sites, route=route, missing=missing)
    return [Draft(case, finding, status, reasons, build_plan(case, route), missing)]


def _missing(case: Case, view: GraphView, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Name the curves that plans over these sites could need and nobody has; paths by their source, counted."""
    services = case.pricing.missing(view, sites, (), lambda site: modes_of(case, site))
    lacking: dict[str, int] = {}
    nodes = {site.node.id: site for site in sites}
    pairs: Iterable[tuple[Site, Site]] = permutations(nodes.values(), 2)
    for source, target in pairs:
        if case.pricing.missing(view, (), [(source, target)]):
            lacking[source.node.name] = lacking.get(source.node.name, 0) + 1
    paths = (f"path curves from {name} to {count} of the other Nodes" for name, count in sorted(lacking.items()))
    on = Counter(site.node.id for site in sites)
    within = ((site, site) for node, site in nodes.items() if on[node] > 1)
    return (*services, *paths, *case.pricing.missing(view, (), within))


def _pinned(case: Case, built: Built, rules: Rules) -> Solution:
    """Search the cuts for the order that the operator pinned, over the Compute Units that the pinned Nodes have."""
    seats = rules.seats(built.sites)
    assert seats is not None, "only called for pins"
    instance = built.instance
    longest = longest_ranges(instance)
    ends = None if rules.ends is None else [instance.ends.index(end) + 1 for end in rules.ends]
    orders = [
        order
        for order in pinned_orders(seats)
        if len({instance.unit_of(site) for site in order}) == len(order) and instance.mixes(order)
    ]
    found = [
        cuts
        for order in orders
        if (cuts := best_cuts(instance, order, longest, ends, groups_of(built, case.pricing, order))) is not None
    ]
    why = "the operator pinned the order: only the cuts are searched"
    if not found:
        return Solution("dynamic programming", "INFEASIBLE", None, None, math.inf, 0.0, 0.0, why)
    best = min(found, key=lambda cuts: (cuts.value, cuts.steps))
    proved = all(cuts.exact for cuts in found)
    bound = best.value if proved else 0.0
    status: SolverStatus = "OPTIMAL" if proved else "FEASIBLE"
    return Solution("dynamic programming", status, best.steps, best.value, bound, 0.0, 0.0, why)
