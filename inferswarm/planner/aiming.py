"""Solving one implementation again for another figure than the workload's objective, over what the policy leaves."""

from __future__ import annotations

import math

import msgspec

from inferswarm.planner.assemble import Case, plan_route
from inferswarm.planner.cost import Pricing, price_route, rate_together
from inferswarm.planner.economics import Economics
from inferswarm.planner.gates import (
    Rules,
    allowed_sites,
    integrity_refusals,
    representation_refusals,
)
from inferswarm.planner.goals import MANY_TOKENS, Aim
from inferswarm.planner.grouping import search_groups
from inferswarm.planner.modes import site_refusals
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import Throughput
from inferswarm.planner.sites import GraphView, Site
from inferswarm.planner.solvers.building import Built, build_instance
from inferswarm.planner.solvers.solution import Solution, SolverLimits
from inferswarm.planner.solvers.solving import solve


def aimed_case(case: Case, economics: Economics, aim: Aim) -> Case:
    """Return the case whose value is the figure to make best; memory stays that of the workload."""
    if aim == "workload":
        return case
    if aim == "throughput":
        workload = msgspec.structs.replace(case.workload, objective=Throughput())
        return case._replace(
            workload=workload, pricing=Pricing(case.problem, case.implementation, workload, economics)
        )
    return weighted_case(case, economics, 0 if aim == "first-token" else MANY_TOKENS)


def weighted_case(case: Case, economics: Economics, later_tokens: int) -> Case:
    """Return the case whose value is the time to the first token + `later_tokens` × the time between tokens."""
    workload = msgspec.structs.replace(case.workload, objective=msgspec.UNSET)
    pricing = Pricing(case.problem, case.implementation, workload, economics, later_tokens)
    return case._replace(workload=workload, pricing=pricing)


def aimed_value(case: Case, plan: ExecutionPlan, view: GraphView, aim: Aim) -> float:
    """Return the figure of a plan that an aim makes least, what its parts share counted in; infinite without a price.

    For the next token it is weighed with the first one as `aimed_case` does.
    """
    prices = price_route(case.pricing, plan_route(plan, view))
    if plan.prediction is None or prices is None:
        return math.inf
    if aim == "workload":
        return predicted_value(case.workload, plan.prediction)
    if aim == "throughput":
        return 1 / rate_together(case.workload.concurrency, prices).point
    steps = plan.prediction.inter_token.point * MANY_TOKENS if aim == "next-token" else 0.0
    return plan.prediction.ttft.point + steps


def open_sites(case: Case, view: GraphView, rules: Rules) -> tuple[Site, ...]:
    """Return the sites that pass the gates of feasibility and integrity, and that no policy excludes.

    They are those of the policy's own view: what it keeps free is not there.
    """
    implementation = case.implementation
    if representation_refusals(rules, implementation):
        return ()
    able = (
        site
        for site in view.sites
        if not site_refusals(case, site) and not integrity_refusals(implementation, (site,))
    )
    return rules.view.same_sites(allowed_sites(implementation, able, rules))


def solve_case(
    case: Case, rules: Rules, sites: tuple[Site, ...], limits: SolverLimits, cutoff: float = math.inf
) -> tuple[Built, Solution]:
    """Solve a case over sites that are open, without pins. Limits on single figures are not looked at."""
    policy = rules.policy

    def search(group: tuple[Site, ...], limits: SolverLimits, cutoff: float) -> tuple[Built, Solution]:
        built = build_instance(case, rules.view, group, policy.min_tokens_per_second, policy.max_participants)
        return built, solve(built.instance, limits, cutoff=cutoff)

    return search_groups(case.implementation, rules, sites, search, limits, cutoff)
