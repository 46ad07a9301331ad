"""Plans of which none beats another in everything: first token, next one, and the tokens of all sessions together.

A decision chooses by one objective. This front shows what else was to be had: the best plan of each ranked family,
and the plans that are best in one figure alone, less those that another equals or beats in all three. A plan that is
best in no figure and in no family is not among them, though it may lie between these, or even beat one of them.
"""

from __future__ import annotations

from inferswarm.documents import Document, digest
from inferswarm.planner.aiming import Aim
from inferswarm.planner.assemble import make_case, plan_route
from inferswarm.planner.cost import predict, price_route, rate_together
from inferswarm.planner.modes import families_of, searched
from inferswarm.planner.plan import CandidateFamily, Decision, ExecutionPlan, Interval, Prediction
from inferswarm.planner.resolving import Describe, Inputs, Resolver, describe
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.units import format_seconds

AIMS: tuple[Aim, ...] = ("first-token", "next-token", "throughput")


class ParetoPoint(Document, frozen=True, kw_only=True):
    """One plan of the front. `throughput` is in tokens per second, of the workload's sessions at once together."""

    plan: ExecutionPlan
    ttft: Interval
    decode_rate: Interval
    throughput: Interval
    chosen: bool

    def __str__(self) -> str:
        """Return the plan and its three figures in one line."""
        return self.text(describe)

    def text(self, call: Describe) -> str:
        """Return the same, with the plan called as the caller wants."""
        mark = "chosen: " if self.chosen else ""
        return (
            f"{mark}{call(self.plan)}: first token {format_seconds(self.ttft.point)}, "
            f"{self.decode_rate.point:.3g} tokens/s, all sessions {self.throughput.point:.3g} tokens/s"
        )


class ParetoFront(Document, frozen=True, kw_only=True):
    """The front, by the time to the first token. `complete`: the best plans in one figure were all looked for."""

    points: tuple[ParetoPoint, ...]
    num_candidates: int
    complete: bool


def pareto_front(inputs: Inputs, decision: Decision, limits: SolverLimits | None = None) -> ParetoFront:
    """Return the front over a decision's ranked families and the plans that are best in one figure alone.

    `limits` bound the search for the latter. Raises SpecError when the decision was made from other inputs' names.
    """
    resolver = Resolver(limits or SolverLimits(), most_solves=len(AIMS))
    plans = [family.best for family in decision.families if family.status == "RANKED" and family.best is not None]
    if decision.plan is not None:
        plans.append(decision.plan)
    complete = True
    for aim in AIMS:
        best = resolver.best(inputs, aim)
        complete = complete and best is not None
        if best is not None and best.plan is not None:
            plans.append(best.plan)
    view = inputs.view
    digests = digest(inputs.problem), digest(inputs.graph)
    problem = searched(inputs.problem, inputs.policy)
    cases = {
        item.representation + " " + item.primitive: make_case(
            problem, item, inputs.workload, inputs.curves, digests, view
        )
        for item in families_of(problem)
    }
    points: dict[tuple[object, ...], ParetoPoint] = {}
    for plan in plans:
        pricing = cases[plan.representation + " " + plan.primitive].pricing
        route = plan_route(plan, view)
        prices, prediction = price_route(pricing, route), predict(pricing, route)
        key = (plan.representation, plan.primitive, *((leg.site.id, leg.end_unit, leg.mode) for leg in route))
        if prices is not None and prediction is not None:
            points[key] = ParetoPoint(
                plan=plan,
                ttft=prediction.ttft,
                decode_rate=prediction.decode_rate,
                throughput=rate_together(inputs.workload.concurrency, prices),
                chosen=decision.plan is not None and plan.placements == decision.plan.placements,
            )
    by_figures: dict[tuple[float, float, float], ParetoPoint] = {}
    for point in sorted(points.values(), key=lambda point: (not point.chosen, len(point.plan.placements))):
        by_figures.setdefault(_figures_of(point), point)  # of plans that are equal in all figures, one is enough
    kept = [point for point in by_figures.values() if not any(_beats(other, point) for other in by_figures.values())]
    kept.sort(key=lambda point: (point.ttft.point, -point.decode_rate.point, len(point.plan.placements)))
    return ParetoFront(points=tuple(kept), num_candidates=len(points), complete=complete)


def _figures_of(point: ParetoPoint) -> tuple[float, float, float]:
    """Return the figures, each the more the better, to nine digits: sums of floats in another order are equal."""
    figures = (-point.ttft.point, point.decode_rate.point, point.throughput.point)
    return float(f"{figures[0]:.9g}"), float(f"{figures[1]:.9g}"), float(f"{figures[2]:.9g}")


def _beats(one: ParetoPoint, other: ParetoPoint) -> bool:
    """Whether `one` is no worse in any figure and better in one."""
    mine, theirs = _figures_of(one), _figures_of(other)
    return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def front_of_families(decision: Decision) -> tuple[CandidateFamily, ...]:
    """Return the ranked families whose best plans no other's beats in both the first token and the rate of the next.

    By the time to the first token. Read off the decision: nothing is searched, so a family's plan is the one that
    is best in the objective, not in either figure. Of families that are equal in both, the chosen one or the first
    stands for all.
    """
    ranked = [
        (family, family.best.prediction)
        for family in decision.families
        if family.status == "RANKED" and family.best is not None and family.best.prediction is not None
    ]
    front = [
        (family, mine)
        for family, mine in ranked
        if not any(_figures(other) != _figures(mine) and _no_worse(other, mine) for _, other in ranked)
    ]
    front.sort(key=lambda item: (_figures(item[1]), item[0].best != decision.plan, item[0].node_names))
    by_figures: dict[tuple[float, float], CandidateFamily] = {}
    for family, figures in front:
        by_figures.setdefault(_figures(figures), family)
    return tuple(by_figures.values())


def _figures(prediction: Prediction) -> tuple[float, float]:
    return prediction.ttft.point, prediction.inter_token.point


def _no_worse(one: Prediction, other: Prediction) -> bool:
    return all(a <= b for a, b in zip(_figures(one), _figures(other), strict=True))
