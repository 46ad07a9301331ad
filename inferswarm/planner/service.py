"""Limits on single figures of a plan that the objective does not make best: the first token, the whole request.

The search finds the best plan in the objective. Where that plan keeps the limits, nothing else is asked. Where it
does not, the same plans are searched again for the first token, and for weighings between it and the time between
tokens: the best of these that keeps the limits is taken, as one that was found and not as the best. How much better
another may be is bounded twice: by the best plan without the limits, and by Lagrange's bound, for any λ ≥ 0::

    least request within the limit ≥ min over all plans of (request + λ × (first token - limit))

What is predicted is a request that is alone; waiting for other sessions is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from inferswarm.planner.aiming import open_sites, solve_case, weighted_case
from inferswarm.planner.assemble import Case, build_plan, plan_route
from inferswarm.planner.candidates import Finding, SiteIds, feasible_members
from inferswarm.planner.economics import Economics
from inferswarm.planner.gates import Rules
from inferswarm.planner.objective import excessive_wait, shares_of
from inferswarm.planner.plan import ExecutionPlan, Interval, SolverReport
from inferswarm.planner.problem import Policy, Workload
from inferswarm.planner.ranking import Draft, excluded, is_below, worth
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView
from inferswarm.planner.solvers.solution import SolverLimits, SolverStatus
from inferswarm.planner.spaces import Restriction
from inferswarm.units import format_seconds

WEIGHINGS = (0, 1 / 32, 1 / 8, 1 / 3, 2 / 3)
"""Of the tokens after the first: how much they count beside it in each further search."""


class ServiceLimits(NamedTuple):
    """The most seconds to the first token and of a whole request; None without a limit."""

    first_token: float | None
    request: float | None

    def broken_by(self, plan: ExecutionPlan | None) -> tuple[str, ...]:
        """Say which limits a plan breaks, in numbers; none where it has no prediction."""
        if plan is None or plan.prediction is None:
            return ()
        checks: tuple[tuple[str, Interval, float | None], ...] = (
            ("the first token", plan.prediction.ttft, self.first_token),
            ("a request", plan.prediction.request, self.request),
        )
        return tuple(
            f"{what} takes {format_seconds(figure.point)}, at most {format_seconds(limit)} are allowed"
            for what, figure, limit in checks
            if limit is not None and figure.point > limit * (1 + SLACK)
        )


class Other(NamedTuple):
    """What a further search found for one set of sites, or over all of them: a plan, and the least first token."""

    plan: ExecutionPlan | None
    later_tokens: int
    least: float
    """No plan has less of first token + `later_tokens` × time between tokens."""


def limits_of(workload: Workload, policy: Policy) -> ServiceLimits:
    """Return the limits of objective and policy together: the stricter one of each."""
    own = policy.max_first_token_seconds
    firsts = [workload.max_first_token_seconds, None if isinstance(own, msgspec.UnsetType) else own]
    request = policy.max_request_seconds
    return ServiceLimits(
        min((limit for limit in firsts if limit is not None), default=None),
        None if isinstance(request, msgspec.UnsetType) else request,
    )


def keep_limits(case: Case, rules: Rules, economics: Economics, drafts: list[Draft]) -> list[Draft]:
    """Return the drafts of all sets of few Compute Units, each judged by those of its plans that keep the limits."""
    limits = limits_of(case.workload, rules.policy)
    late = {draft.finding.ids: draft for draft in drafts if draft.status == "RANKED" and limits.broken_by(draft.plan)}
    if not late:
        return drafts
    ids = {site.id for draft in late.values() for site in draft.finding.sites}
    sites = tuple(site for site in rules.view.sites if site.id in ids)
    restriction = Restriction(rules.seats(sites), rules.ends, rules.policy.min_tokens_per_second)
    others: dict[SiteIds, list[Other]] = {key: [] for key in late}
    for later in _weighings(case):
        found = feasible_members(weighted_case(case, economics, later), rules.view, sites, restriction)
        for key, kept in others.items():
            member = found[key]
            if member.route is not None and member.seconds is not None:
                kept.append(Other(build_plan(case, member.route), later, member.seconds))
    judged = {key: _judged(draft, limits, others[key]) for key, draft in late.items()}
    return [judged.get(draft.finding.ids, draft) for draft in drafts]


def keep_limits_of_many(
    case: Case,
    view: GraphView,
    rules: Rules,
    economics: Economics,
    drafts: list[Draft],
    report: SolverReport | None,
    solver_limits: SolverLimits,
) -> tuple[list[Draft], SolverReport | None]:
    """Return the drafts of many Compute Units judged by the limits, and the report of what is proved then.

    A Compute Unit alone has one plan. Where the best plan that was found breaks a limit, others are searched for.
    """
    limits = limits_of(case.workload, rules.policy)
    late = [draft.status == "RANKED" and bool(limits.broken_by(draft.plan)) for draft in drafts]
    if not any(late) or report is None:
        return drafts, report
    judged = [_excluded(draft, limits) if broken else draft for draft, broken in zip(drafts, late, strict=True)]
    kept = [draft.value for draft in judged if draft.status == "RANKED" and draft.value is not None]
    if report.value is None or min(kept, default=math.inf) <= report.value * (1 + SLACK):
        return judged, report
    others: list[Other] = []
    sites = () if rules.pinned else open_sites(case, view, rules)
    weighings = _weighings(case) if sites else ()
    until = solver_limits.clock() + solver_limits.seconds
    for place, later in enumerate(weighings):
        left = max(0.0, until - solver_limits.clock()) / (len(weighings) - place)
        other = weighted_case(case, economics, later)
        built, solution = solve_case(other, rules, sites, solver_limits._replace(seconds=left))
        plan = None if solution.steps is None else build_plan(case, built.route(solution.steps))
        others.append(Other(plan, later, solution.bound))
    inside = [_family(case, rules, plan) for plan in _in_time(limits, others) if len(plan.placements) > 1]
    if inside:
        best = min(inside, key=_value)
        judged = [draft for draft in judged if draft.finding.ids != best.finding.ids] + [best]
    bound = max([0.0 if report.bound is None else report.bound, *_bounds(case, limits, others)])
    proved = _impossible(case, limits, others, bound)
    return judged, _reported(report, judged, bound, proved is not None)


def _weighings(case: Case) -> tuple[int, ...]:
    """Return how many later tokens count in each further search, each number once."""
    return tuple(sorted({round(share * (case.workload.output_tokens - 1)) for share in WEIGHINGS}))


def _in_time(limits: ServiceLimits, others: Iterable[Other]) -> list[ExecutionPlan]:
    """Return the plans that keep these limits, and the objective's own on the wait between tokens."""
    plans = (other.plan for other in others if other.plan is not None and other.plan.prediction is not None)
    return [
        plan
        for plan in plans
        if not limits.broken_by(plan) and excessive_wait(plan.workload, plan.prediction) is None
    ]


def _value(draft: Draft) -> float:
    return math.inf if draft.value is None else draft.value


def _excluded(draft: Draft, limits: ServiceLimits) -> Draft:
    return excluded(draft, f"policy: {'; '.join(limits.broken_by(draft.plan))}")


def _judged(draft: Draft, limits: ServiceLimits, others: list[Other]) -> Draft:
    """Return a family whose best plan breaks a limit with its best plan that was found to keep all, or excluded."""
    unlimited = _value(draft)
    bound = max([unlimited if draft.bound is None else draft.bound, *_bounds(draft.case, limits, others)])
    inside = [draft._replace(plan=plan, bound=None) for plan in _in_time(limits, others)]
    best = min(inside, key=_value, default=None)
    broken = "; ".join(limits.broken_by(draft.plan))
    if best is not None:
        reason = f"policy: its best plan, {worth(draft.case.workload, unlimited)}, is not allowed: {broken}"
        open_ = bound if is_below(bound, _value(best)) else None
        return best._replace(reasons=(*draft.reasons, reason), bound=open_)
    if draft.missing:
        return excluded(draft, f"policy: {broken}; no plan that can be priced was found to keep all limits")
    proved = _impossible(draft.case, limits, others, unlimited if draft.bound is None else draft.bound)
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
