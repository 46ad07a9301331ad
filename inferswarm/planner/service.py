"""Limits on single figures of a plan that the objective does not make best: the first token, the whole request.

The search finds the best plan in the objective. Where that plan keeps the limits, nothing else is asked. Where it
does not, the same plans are searched again for the first token, and for weighings between it and the time between
tokens: the best of these that keeps the limits is one that was found. Among few Compute Units all plans are then
searched with the limits, and with what their parts share, so that the best is proved. Among many, how much better
another may be is bounded twice: by the best plan without the limits, and by Lagrange's bound, for any λ ≥ 0::

    least request within the limit ≥ min over all plans of (request + λ × (first token - limit))

What is predicted is a request that is alone; waiting for other sessions is not in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from inferswarm.planner.aiming import aimed_case, open_sites, solve_case, weighted_case
from inferswarm.planner.assemble import Case, build_plan, plan_route
from inferswarm.planner.candidates import Finding, SiteIds, priced_members
from inferswarm.planner.contention import Searchable, look_further
from inferswarm.planner.economics import Economics
from inferswarm.planner.gates import Rules
from inferswarm.planner.goals import ServiceLimits, broken_by, goal_of, limits_of
from inferswarm.planner.objective import shares_of
from inferswarm.planner.plan import ExecutionPlan, SolverReport
from inferswarm.planner.ranking import Draft, excluded, is_below, ranked_value, worth
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView
from inferswarm.planner.solvers.solution import SolverLimits, SolverStatus
from inferswarm.planner.spaces import Restriction
from inferswarm.units import format_seconds

WEIGHINGS = (0, 1 / 32, 1 / 8, 1 / 3, 2 / 3)
"""Of the tokens after the first: how much they count beside it in each further search."""
FEW_WEIGHINGS = (0, 1 / 8)
"""The same among few Compute Units, where all plans are searched then."""


class Other(NamedTuple):
    """What a further search found for one set of sites, or over all of them: a plan, and the least first token."""

    plan: ExecutionPlan | None
    later_tokens: int
    least: float
    """No plan has less of first token + `later_tokens` × time between tokens."""


def settle(
    case: Case,
    rules: Rules,
    economics: Economics,
    drafts: list[Draft],
    known: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    deadline: float = math.inf,
) -> list[Draft]:
    """Return the drafts of all sets of few Compute Units, each judged by those of its plans that keep the limits.

    Then all sets whose best plan is not known, for its limits or for what its parts share, are searched together for
    a plan that is better than the best one, and better than `known`. Where a deadline cuts in, bounds stay.
    """
    limits = limits_of(case.workload, rules.policy)
    late = {draft.finding.ids: draft for draft in drafts if draft.status == "RANKED" and limits.broken_by(draft.plan)}
    if late:
        ids = {site.id for draft in late.values() for site in draft.finding.sites}
        sites = tuple(site for site in rules.view.sites if site.id in ids)
        restriction = Restriction(rules.seats(sites), rules.ends, rules.policy.min_tokens_per_second)
        others: dict[SiteIds, list[Other]] = {key: [] for key in late}
        for later in _weighings(case, FEW_WEIGHINGS):
            found = priced_members(weighted_case(case, economics, later), rules.view, sites, restriction, late)
            for key, (seconds, route) in found.items():
                others[key].append(Other(build_plan(case, route), later, seconds))
        judged = {key: _judged(draft, rules, limits, others[key]) for key, draft in late.items()}
        drafts = [judged.get(draft.finding.ids, draft) for draft in drafts]
    best = min([known, *(value for draft in drafts if (value := ranked_value(draft)) is not None)])
    open_ = [draft for draft in drafts if draft.bound is not None and is_below(draft.bound, best)]
    if not open_:
        return drafts
    goal = goal_of(case.workload, rules.policy)
    further = look_further(case, rules, _among(rules, open_), goal, best, clock, deadline)
    found_ids = tuple(sorted(leg.site.id for leg in further.route or ()))
    settled = []
    for draft in drafts:
        if further.route is not None and draft.finding.ids == found_ids:
            draft = _with_plan(draft, limits, build_plan(case, further.route))
        settled.append(draft if draft.bound is None else _closed(draft, limits, further.bound))
    return settled


def _among(rules: Rules, drafts: list[Draft]) -> Searchable:
    ids = {site.id for draft in drafts for site in draft.finding.sites}
    sites = tuple(site for site in rules.view.sites if site.id in ids)
    place = {site.id: index for index, site in enumerate(sites)}
    return Searchable(sites, tuple(frozenset(place[site.id] for site in draft.finding.sites) for draft in drafts))


def _with_plan(draft: Draft, limits: ServiceLimits, plan: ExecutionPlan) -> Draft:
    """Return a family with a plan that keeps all limits in place of the one that it had."""
    reasons = draft.reasons
    if broken := "; ".join(limits.broken_by(draft.plan)):
        unpriced = tuple(f"some of its plans cannot be priced: no {name}" for name in draft.missing)
        reasons = (*unpriced, f"policy: its best plan without the limits is not allowed: {broken}")
    return draft._replace(status="RANKED", reasons=reasons, plan=plan)


def _closed(draft: Draft, limits: ServiceLimits, proved: float) -> Draft:
    """Return a family that was open with what is proved: no plan over any of those is better than `proved`."""
    assert draft.bound is not None, "only asked for a family that was open"
    bound, value = max(draft.bound, proved), ranked_value(draft)
    if value is not None:
        return draft._replace(bound=bound if is_below(bound, value) else None)
    if math.isfinite(bound):
        return draft._replace(bound=bound)
    if draft.status == "FEASIBLE_UNRANKED":
        return draft._replace(bound=None)
    reason = f"policy: {'; '.join(limits.broken_by(draft.plan))}; no plan over these Compute Units keeps all limits"
    return draft._replace(reasons=(reason,), bound=None)


def settle_many(
    case: Case,
    view: GraphView,
    rules: Rules,
    economics: Economics,
    drafts: list[Draft],
    report: SolverReport,
    solver_limits: SolverLimits,
) -> tuple[list[Draft], SolverReport]:
    """Search many Compute Units again where the best plan that was found is not allowed, and report what is proved.

    `report` holds the bound of all plans without the limits on single figures.
    """
    limits = limits_of(case.workload, rules.policy)
    bound = 0.0 if report.bound is None else report.bound
    if _impossible(case, limits, (), bound) is not None:
        return drafts, _reported(report, drafts, bound, True)
    others: list[Other] = []
    sites = open_sites(case, view, rules)
    weighings = _weighings(case, WEIGHINGS)
    aims = [weighted_case(case, economics, later) for later in weighings]
    aims += [aimed_case(case, economics, "throughput")] if shares_of(case.workload).cadence else []
    until = solver_limits.clock() + solver_limits.seconds
    for place, other in enumerate(aims):
        left = max(0.0, until - solver_limits.clock()) / (len(aims) - place)
        built, solution = solve_case(other, rules, sites, solver_limits._replace(seconds=left))
        plan = None if solution.steps is None else build_plan(case, built.route(solution.steps))
        weighed = place < len(weighings)
        others.append(Other(plan, weighings[place] if weighed else -1, solution.bound if weighed else 0.0))
    inside = [_family(case, rules, plan) for plan in _in_time(rules, others) if len(plan.placements) > 1]
    if inside:
        best = min(inside, key=_value)
        drafts = [draft for draft in drafts if draft.finding.ids != best.finding.ids] + [best]
    bound = max([bound, *_bounds(case, limits, others)])
    proved = _impossible(case, limits, others, bound)
    return drafts, _reported(report, drafts, bound, proved is not None)


def _weighings(case: Case, shares: Iterable[float]) -> tuple[int, ...]:
    """Return how many later tokens count in each further search, each number once."""
    return tuple(sorted({round(share * (case.workload.output_tokens - 1)) for share in shares}))


def _in_time(rules: Rules, others: Iterable[Other]) -> list[ExecutionPlan]:
    """Return the plans that keep all limits."""
    plans = (other.plan for other in others if other.plan is not None and other.plan.prediction is not None)
    return [plan for plan in plans if not broken_by(plan, rules.policy)]


def _value(draft: Draft) -> float:
    return math.inf if draft.value is None else draft.value


def _judged(draft: Draft, rules: Rules, limits: ServiceLimits, others: list[Other]) -> Draft:
    """Return a family whose best plan breaks a limit with the best one that was found to keep all, or without."""
    unlimited = _value(draft)
    bound = max([unlimited if draft.bound is None else draft.bound, *_bounds(draft.case, limits, others)])
    best = min((draft._replace(plan=plan) for plan in _in_time(rules, others)), key=_value, default=None)
    broken = "; ".join(limits.broken_by(draft.plan))
    if best is not None:
        reason = f"policy: its best plan, {worth(draft.case.workload, unlimited)}, is not allowed: {broken}"
        return best._replace(reasons=(*draft.reasons, reason), bound=bound if is_below(bound, _value(best)) else None)
    proved = _impossible(draft.case, limits, others, unlimited if draft.bound is None else draft.bound)
    if draft.missing:
        unranked = excluded(draft, f"policy: {broken}; no plan that can be priced was found to keep all limits")
        return unranked._replace(bound=None if proved else bound)
    if proved is not None:
        return draft._replace(status="POLICY_EXCLUDED", reasons=(f"policy: {proved}",), bound=None)
    reason = f"policy: {broken}; no plan was found that keeps all limits, and that there is none is not proved"
    return draft._replace(status="POLICY_EXCLUDED", reasons=(reason,), bound=bound)


def _impossible(case: Case, limits: ServiceLimits, others: Iterable[Other], least_value: float) -> str | None:
    """Say why no plan keeps the limits, where that is proved; `least_value` is that of any plan in the objective."""
    first = max((other.least for other in others if other.later_tokens == 0), default=0.0)
    if limits.first_token is not None and first > limits.first_token * (1 + SLACK):
        allowed, least = format_seconds(limits.first_token), format_seconds(first)
        return f"no plan gives the first token within {allowed} (the fastest: {least})"
    alone = not shares_of(case.workload).cadence
    if alone and limits.request is not None and least_value > limits.request * (1 + SLACK):
        allowed, least = format_seconds(limits.request), format_seconds(least_value)
        return f"no plan answers a request within {allowed} (the fastest: {least})"
    wait = case.workload.max_inter_token_seconds
    if case.workload.throughput is not None and wait is not None:
        # Where throughput alone counts, a value is what a session waits, divided by their number.
        waited = least_value * case.workload.concurrency
        if waited > wait * (1 + SLACK):
            return f"no plan has a session wait {format_seconds(wait)} at most (the least: {format_seconds(waited)})"
    return None


def _bounds(case: Case, limits: ServiceLimits, others: Iterable[Other]) -> list[float]:
    """Return Lagrange's bounds of the least request time within the limit on the first token; see the module."""
    later = case.workload.output_tokens - 1
    if limits.first_token is None or shares_of(case.workload).cadence:
        return []
    found = []
    for other in others:
        if 0 < other.later_tokens <= later and math.isfinite(other.least):
            factor = later / other.later_tokens  # 1 + λ
            found.append(factor * other.least - (factor - 1) * limits.first_token)
    return found


def _family(case: Case, rules: Rules, plan: ExecutionPlan) -> Draft:
    """Return the family of a plan, as one that was searched and not listed."""
    route = plan_route(plan, rules.view)
    sites = tuple(sorted((leg.site for leg in route), key=lambda site: site.id))
    seconds = None if plan.prediction is None else plan.prediction.request.point
    return Draft(case, Finding(sites, route=route, seconds=seconds), "RANKED", (), plan, ())


def _reported(report: SolverReport, drafts: list[Draft], bound: float, proved: bool) -> SolverReport:
    """Return a report of the best plan that keeps the limits, in place of one that does not."""
    value = min((_value(draft) for draft in drafts if draft.status == "RANKED"), default=math.inf)
    why = f"{report.why}; then for plans that keep the limits on the first token and the request"
    if math.isinf(value):
        status: SolverStatus = "INFEASIBLE" if proved else "UNKNOWN"
        return msgspec.structs.replace(report, status=status, value=None, bound=None, gap=None, why=why)
    bound = min(bound, value)
    gap = (value - bound) / value if value > 0 else 0.0
    status = "FEASIBLE" if is_below(bound, value) else "OPTIMAL"
    return msgspec.structs.replace(report, status=status, value=value, bound=bound, gap=gap, why=why)
