"""From technical findings to ranked families: policy after feasibility, price after policy."""

from __future__ import annotations

import math
from typing import NamedTuple

from inferswarm.planner.assemble import Case, build_plan
from inferswarm.planner.candidates import Finding, SiteIds, feasible_members, technical_findings
from inferswarm.planner.gates import Rules, integrity_refusals, policy_refusals
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.plan import CandidateFamily, ExecutionPlan, Status
from inferswarm.planner.problem import Mix, Workload
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView, Site
from inferswarm.planner.spaces import Restriction
from inferswarm.units import format_seconds


class Draft(NamedTuple):
    """A family with its status, before it is compared with the chosen one.

    `plan` is its best member that the policy allows, or its best member at all when the policy allows none.
    """

    case: Case
    finding: Finding
    status: Status
    reasons: tuple[str, ...]
    plan: ExecutionPlan | None
    missing: tuple[str, ...]
    bound: float | None = None
    """What is proved of the family where its own plan does not show it: it is below the plan's price, as parts of the
    plan share something, or there is no plan that keeps all limits."""

    @property
    def request_seconds(self) -> float | None:
        """Return the predicted request time of the family's plan, or None when it has no price or no rank."""
        if self.plan is None or self.plan.prediction is None or self.status == "FEASIBLE_UNRANKED":
            return None
        return self.plan.prediction.request.point

    @property
    def value(self) -> float | None:
        """Return what the objective asks to be least, by the prediction of the family's plan."""
        if self.request_seconds is None or self.plan is None or self.plan.prediction is None:
            return None
        return predicted_value(self.case.workload, self.plan.prediction)

    @property
    def may_be_better(self) -> bool:
        """Whether some member that is feasible and allowed could not be priced."""
        return self.status == "FEASIBLE_UNRANKED" or (self.status == "RANKED" and bool(self.missing))


def draft_families(case: Case, view: GraphView, rules: Rules, known: float = math.inf) -> list[Draft]:
    """Judge all families of one implementation: technically, then by the policy, then by price.

    `known` is the value of another plan; what is not better matters to nobody.
    """
    findings = technical_findings(case, view, known)
    shut = {finding.ids: integrity_refusals(case.implementation, finding.sites) for finding in findings}
    refusals = {
        finding.ids: shut[finding.ids] or policy_refusals(rules, case.implementation, finding.sites)
        for finding in findings
    }
    allowed: dict[SiteIds, Finding] = {}
    if rules.restricts_members:
        open_ = [finding for finding in findings if not finding.refusals and not refusals[finding.ids]]
        sites = tuple(sorted({site.id: site for finding in open_ for site in finding.sites}.values(), key=_id))
        sites = rules.view.same_sites(sites)
        rate = rules.policy.min_tokens_per_second
        if sites:
            allowed = feasible_members(case, rules.view, sites, Restriction(rules.seats(sites), rules.ends, rate))
    drafts = []
    for finding in findings:
        plan = None if finding.route is None else build_plan(case, finding.route)
        member = allowed.get(finding.ids)
        if finding.refusals:
            drafts.append(Draft(case, finding, "TECHNICALLY_INFEASIBLE", finding.refusals, None, ()))
        elif shut[finding.ids]:
            drafts.append(Draft(case, finding, "INTEGRITY_EXCLUDED", shut[finding.ids], plan, finding.missing))
        elif refusals[finding.ids]:
            drafts.append(Draft(case, finding, "POLICY_EXCLUDED", refusals[finding.ids], plan, finding.missing))
        elif member is None:
            drafts.append(_priced_or_not(case, finding, finding, plan))
        else:
            drafts.append(_restricted(case, finding, member, plan, rules))
    return drafts


def known_value(drafts: list[Draft]) -> float:
    """Return the best value of ranked families; infinite where some plans could not be priced."""
    if any(draft.missing for draft in drafts):
        return math.inf
    return min((value for draft in drafts if (value := ranked_value(draft)) is not None), default=math.inf)


def offered(mixed: list[Draft], pure: list[Draft]) -> list[Draft]:
    """Return the families of a mixture that offer something: they are better than all of one representation.

    Those come first where they are as good. What could not be priced may be better, so it is kept, and so is what
    nobody may use although it is feasible, where nothing else over its Compute Units is.
    """
    best = min((value for draft in pure if (value := ranked_value(draft)) is not None), default=math.inf)
    feasible = {draft.finding.ids for draft in pure if draft.status != "TECHNICALLY_INFEASIBLE"}

    def worth_offering(draft: Draft) -> bool:
        value = ranked_value(draft)
        if draft.status == "TECHNICALLY_INFEASIBLE":
            return False
        if value is None:
            return draft.status == "FEASIBLE_UNRANKED" or draft.finding.ids not in feasible
        return bool(draft.missing) or is_below(value if draft.bound is None else draft.bound, best)

    return [draft for draft in mixed if worth_offering(draft)]


def choose(drafts: list[Draft]) -> Draft | None:
    """Return the best ranked family: best in the objective, then fewest participants, then names."""
    ranked = [draft for draft in drafts if draft.status == "RANKED"]
    return min(ranked, key=_preference, default=None)


def finish_family(draft: Draft, chosen: Draft | None) -> CandidateFamily:
    """Write a family's document, with how it compares to the chosen one as its last reason."""
    reasons = draft.reasons
    value = draft.value
    if draft.status == "RANKED" and chosen is not None and value is not None:
        best = chosen.value
        takes = "gives" if draft.case.workload.throughput is not None else "takes"
        if draft is chosen:
            reasons += (f"selected: predicted to {takes.removesuffix('s')} {worth(draft.case.workload, value)}",)
        elif value == best:
            reasons += (f"{takes} {worth(draft.case.workload, value)}, as the chosen plan does, which comes first",)
        elif best is not None:
            mine, chosens = worth(draft.case.workload, value), worth(draft.case.workload, best)
            which = "its best plan" if draft.bound is None else "its best plan that was found"
            reasons += (f"{which} {takes} {mine}, the chosen one {chosens}",)
    return CandidateFamily(
        representation=draft.case.implementation.representation,
        primitive=draft.case.implementation.primitive,
        compute_unit_ids=draft.finding.ids,
        node_names=tuple(site.node.name for site in draft.finding.sites),
        status=draft.status,
        reasons=reasons,
        best=draft.plan,
        memory=draft.finding.accounts,
        request_seconds=draft.request_seconds,
    )


def ranked_value(draft: Draft) -> float | None:
    """Return a ranked family's value of the objective, None for a family without a rank."""
    return draft.value if draft.status == "RANKED" else None


def is_below(proved: float, value: float) -> bool:
    """Whether what a search proved is less than a value by more than the order of float sums makes."""
    return proved < value * (1 - SLACK)


def excluded(draft: Draft, reason: str) -> Draft:
    """Return a ranked family whose best plan is not allowed: unranked where another may be that nobody can price.

    Several participants have other plans: the reason then says that it is about the best one that was found.
    """
    if draft.plan is not None and len(draft.plan.placements) > 1:
        reason = reason.replace("policy: ", "policy: its best plan that was found is not allowed: ", 1)
    if draft.missing:
        return draft._replace(status="FEASIBLE_UNRANKED", reasons=(*draft.reasons, reason), bound=None)
    return draft._replace(status="POLICY_EXCLUDED", reasons=(reason,))


def worth(workload: Workload, value: float) -> str:
    """Write a value of the objective for people: seconds of a request (weighed, in a mix), or tokens per second."""
    if workload.throughput is not None:
        return f"{1 / value:.3g} tokens/s"
    return f"{format_seconds(value)}{' (weighed)' if isinstance(workload.objective, Mix) else ''}"


def _restricted(case: Case, finding: Finding, member: Finding, plan: ExecutionPlan | None, rules: Rules) -> Draft:
    """Judge a family by those of its members that the policy's pins, reservations, Links and least rate leave."""
    if member.refusals:
        reasons = tuple(f"policy: {rules.cause} leave no plan: {reason}" for reason in member.refusals)
        return Draft(case, finding, "POLICY_EXCLUDED", reasons, plan, ())
    rate = rules.policy.min_tokens_per_second
    if member.seconds is None and not member.missing and rate is not None:
        best = (
            ""
            if plan is None or plan.prediction is None
            else f" (its best plan: {plan.prediction.decode_rate.point:.3g})"
        )
        reason = f"policy: no plan reaches {rate:g} tokens/s{best}"
        return Draft(case, finding, "POLICY_EXCLUDED", (reason,), plan, ())
    assert member.route is not None, "a finding without refusals has a route"
    return _priced_or_not(case, finding, member, build_plan(case, member.route))


def _priced_or_not(case: Case, finding: Finding, member: Finding, plan: ExecutionPlan | None) -> Draft:
    if member.seconds is None:
        reasons = tuple(f"cannot be priced: no {name}" for name in member.missing)
        return Draft(case, finding, "FEASIBLE_UNRANKED", reasons, plan, member.missing)
    reasons = tuple(f"some of its plans cannot be priced: no {name}" for name in member.missing)
    draft = Draft(case, finding, "RANKED", reasons, plan, member.missing)
    value = draft.value
    return draft._replace(bound=member.seconds) if value is not None and is_below(member.seconds, value) else draft


def _preference(draft: Draft) -> tuple[float, int, str, str, SiteIds]:
    value = draft.value
    assert value is not None, "a ranked family has a price"
    implementation = draft.case.implementation
    return (
        value,
        len(draft.finding.sites),
        implementation.representation,
        implementation.primitive,
        draft.finding.ids,
    )


def _id(site: Site) -> str:
    return site.id
