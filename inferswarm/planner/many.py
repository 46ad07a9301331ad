"""Families of a swarm with too many Compute Units to judge every set of them.

Each Compute Unit alone is judged as ever: technically, by policy, by price. Sets of several are searched, not listed:
a solver looks for the best plan over all sets, orders and cuts that the policy allows, and says how far from the best
it may be. When it finds none, two more searches tell why: one without the policy, one without prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import permutations, product
from typing import NamedTuple

from inferswarm.errors import SpecError
from inferswarm.planner.assemble import Case, build_plan
from inferswarm.planner.candidates import Finding
from inferswarm.planner.gates import (
    Rules,
    allowed_sites,
    capacity_refusals,
    integrity_refusals,
    policy_refusals,
    unit_refusals,
)
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.plan import SolverReport, Status
from inferswarm.planner.ranking import Draft, is_below
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView, Leg, Route, Site
from inferswarm.planner.solvers.building import Built, build_instance
from inferswarm.planner.solvers.cuts import best_cuts
from inferswarm.planner.solvers.instance import longest_ranges
from inferswarm.planner.solvers.solution import Solution, SolverLimits, SolverStatus
from inferswarm.planner.solvers.solving import solve
from inferswarm.units import format_seconds

MOST_PINNED_ORDERS = 4096
"""Ways to choose among several Compute Units of the pinned Nodes."""


class Searched(NamedTuple):
    """What became of one implementation: its drafts, the solver's report, and the curves that nobody has.

    `undecided`: no plan was found, some fit, and curves are missing: a plan that nobody can price may be allowed.
    """

    drafts: list[Draft]
    report: SolverReport | None
    missing: tuple[str, ...]
    undecided: bool = False


def search_many(
    case: Case, view: GraphView, rules: Rules, limits: SolverLimits, cutoff: float = math.inf
) -> Searched:
    """Judge one implementation over many Compute Units. Raises SpecError for pins with too many meanings.

    `cutoff` is the best value that another implementation has: nothing above it is looked for.
    """
    drafts = [_alone(case, site, view, rules) for site in view.sites]
    able = tuple(
        site
        for site in (draft.finding.sites[0] for draft in drafts)
        if not _gates(case, site) and not integrity_refusals(case.implementation, (site,))
    )
    allowed = allowed_sites(case.implementation, able, rules)
    policy, implementation = rules.policy, case.implementation
    if policy.representations and implementation.representation not in policy.representations:
        return Searched(drafts, None, ())
    missing = _missing(case, view, allowed)
    built = build_instance(case, view, allowed, policy.min_tokens_per_second, policy.max_participants)
    solution = _pinned(case, built, rules) if rules.pinned else solve(built.instance, limits, cutoff=cutoff)
    if solution.steps is not None and len(solution.steps) > 1:
        drafts.append(_ranked(case, built.route(solution.steps), solution.value))
        solution = _with_shared_segments(solution, drafts[-1].value)
    undecided = False
    if solution.steps is None and able and (cutoff == math.inf or solution.status == "INFEASIBLE"):
        reasons, undecided = _explained(case, view, rules, able, allowed, limits, missing)
        drafts += reasons
    return Searched(drafts, report_solution(case, solution), missing, undecided)


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


def _with_shared_segments(solution: Solution, value: float | None) -> Solution:
    """Return the solution with its plan's own value, where paths that share a segment make it worse than searched."""
    if value is None or solution.value is None or not is_below(solution.value, value):
        return solution
    return solution._replace(status="FEASIBLE", value=value)


def _gates(case: Case, site: Site) -> tuple[str, ...]:
    return unit_refusals(site, case.implementation) + capacity_refusals(site)


def _alone(case: Case, site: Site, view: GraphView, rules: Rules) -> Draft:
    """Judge one Compute Unit alone: technical gates, then the policy, then the price."""
    num_units = len(case.problem.units)
    accounts = [] if site.memory is None else [case.memory.account(site, 0, num_units)]
    short = [account for account in accounts if not account.fits]
    refusals = _gates(case, site)
    refusals = refusals or tuple(str(memory_violation(item, case.implementation.representation)) for item in short)
    if refusals:
        finding = Finding((site,), refusals=refusals, accounts=tuple(accounts))
        return Draft(case, finding, "TECHNICALLY_INFEASIBLE", refusals, None, ())
    plan = build_plan(case, (Leg(site, 0, num_units),))
    missing = case.pricing.missing(view, (site,), ())
    if shut := integrity_refusals(case.implementation, (site,)):
        finding = Finding((site,), route=(Leg(site, 0, num_units),), missing=missing, accounts=tuple(accounts))
        return Draft(case, finding, "INTEGRITY_EXCLUDED", shut, plan, missing)
    finding = Finding((site,), route=(Leg(site, 0, num_units),), missing=missing, accounts=tuple(accounts))
    refused = policy_refusals(rules, case.implementation, (site,))
    rate = rules.policy.min_tokens_per_second
    if not refused and rate is not None and plan.prediction is not None:
        reached = plan.prediction.decode_rate.point
        if reached * (1 + 1e-9) < rate:
            refused = (f"policy: no plan reaches {rate:g} tokens/s (its best: {reached:.3g})",)
    if refused:
        return Draft(case, finding, "POLICY_EXCLUDED", refused, plan, missing)
    if plan.prediction is None:
        reasons = tuple(f"cannot be priced: no {name}" for name in missing)
        return Draft(case, finding, "FEASIBLE_UNRANKED", reasons, plan, missing)
    return _timely(Draft(case, finding._replace(seconds=plan.prediction.request.point), "RANKED", (), plan, ()))


def _timely(draft: Draft) -> Draft:
    """Exclude a ranked family whose sessions wait longer from token to token than the objective allows.

    With C sessions that wait is C × the value, so if the best plan waits too long, all do.
    """
    workload, value = draft.case.workload, draft.value
    limit = None if workload.throughput is None else workload.throughput.max_inter_token_seconds
    if limit is None or value is None or workload.concurrency * value <= limit * (1 + SLACK):
        return draft
    wait = format_seconds(workload.concurrency * value)
    reason = f"policy: a session waits at least {wait} between tokens, at most {format_seconds(limit)} are allowed"
    return draft._replace(status="POLICY_EXCLUDED", reasons=(reason,))


def _ranked(case: Case, route: Route, value: float | None) -> Draft:
    sites = tuple(sorted((leg.site for leg in route), key=lambda site: site.id))
    finding = Finding(sites, route=route, seconds=value)
    return _timely(Draft(case, finding, "RANKED", (), build_plan(case, route), ()))


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
    built = build_instance(case, view, allowed, most_sites=policy.max_participants, priced=False)
    fitting = _pinned(case, built, rules) if rules.pinned else solve(built.instance, limits)
    if fitting.steps is not None and missing:
        reasons = tuple(f"cannot be priced: no {name}" for name in missing)
        return _listed(case, built.route(fitting.steps), "FEASIBLE_UNRANKED", reasons, missing), True
    if fitting.steps is not None and policy.min_tokens_per_second is not None:
        reason = f"policy: no plan was found that reaches {policy.min_tokens_per_second:g} tokens/s"
        return _listed(case, built.route(fitting.steps), "POLICY_EXCLUDED", (reason,), ()), False
    built = build_instance(case, view, able, priced=False)
    fitting = solve(built.instance, limits)
    if fitting.steps is not None:
        route = built.route(fitting.steps)
        refused = policy_refusals(rules, case.implementation, tuple(leg.site for leg in route))
        reasons = refused or ("policy: what the operator demands leaves no plan that was found",)
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
    services = case.pricing.missing(view, sites, ())
    lacking: dict[str, int] = {}
    nodes = {site.node.id: site for site in sites}
    pairs: Iterable[tuple[Site, Site]] = permutations(nodes.values(), 2)
    for source, target in pairs:
        if case.pricing.missing(view, (), [(source, target)]):
            lacking[source.node.name] = lacking.get(source.node.name, 0) + 1
    paths = (f"path curves from {name} to {count} of the other Nodes" for name, count in sorted(lacking.items()))
    return (*services, *paths)


def _pinned(case: Case, built: Built, rules: Rules) -> Solution:
    """Search the cuts for the order that the operator pinned, over the Compute Units that the pinned Nodes have."""
    seats = rules.seats(built.sites)
    assert seats is not None, "only called for pins"
    if math.prod(len(seat) for seat in seats) > MOST_PINNED_ORDERS:
        raise SpecError(
            "policy pinned_nodes",
            f"{math.prod(len(seat) for seat in seats)} ways to choose their Compute Units",
            f"at most {MOST_PINNED_ORDERS}",
        )
    instance = built.instance
    longest = longest_ranges(instance)
    ends = None if rules.ends is None else [instance.ends.index(end) + 1 for end in rules.ends]
    orders = [order for order in product(*map(sorted, seats)) if len(set(order)) == len(order)]
    found = [cuts for order in orders if (cuts := best_cuts(instance, order, longest, ends)) is not None]
    why = "the operator pinned the order: only the cuts are searched"
    if not found:
        return Solution("dynamic programming", "INFEASIBLE", None, None, math.inf, 0.0, 0.0, why)
    best = min(found, key=lambda cuts: (cuts.value, cuts.steps))
    proved = all(cuts.exact for cuts in found)
    bound = best.value if proved else 0.0
    status: SolverStatus = "OPTIMAL" if proved else "FEASIBLE"
    return Solution("dynamic programming", status, best.steps, best.value, bound, 0.0, 0.0, why)
