"""Plans of which none beats another in everything: first token, next one, and the tokens of all sessions together.

A decision chooses by one objective. This front shows what else was to be had: the best plan of each ranked family,
and the plans that are best in one figure alone, less those that another equals or beats in all three. Of each that is
left it is then asked whether any plan at all beats it, which takes its place. A plan that is best in no figure and in
no family may lie between these; a front of all of them would be longer than anybody reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferswarm.documents import Document, digest
from inferswarm.planner.assemble import make_case, plan_route
from inferswarm.planner.cost import predict, price_route, rate_together
from inferswarm.planner.goals import Aim, goal_of
from inferswarm.planner.modes import families_of, searched
from inferswarm.planner.plan import CandidateFamily, Decision, ExecutionPlan, Interval, Prediction
from inferswarm.planner.resolving import Describe, Inputs, Resolver, describe
from inferswarm.planner.solvers.gauges import Goal
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.units import format_seconds

AIMS: tuple[Aim, ...] = ("first-token", "next-token", "throughput")
MOST_ASKED = 64
"""Plans of which it is asked whether another beats them."""
BEST = 1e-6
"""Relative: how far the best of one figure may be from what is proved to be the best; solvers round."""
BETTER = 1e-8
"""Relative: how much better a plan must be in all figures together to take another's place."""


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
    """The front, by the time to the first token.

    `complete`: it is proved that it holds the best of each figure, and that no plan at all beats one of it. Over many
    Compute Units that is not proved.
    """

    points: tuple[ParetoPoint, ...]
    num_candidates: int
    complete: bool


def pareto_front(inputs: Inputs, decision: Decision, limits: SolverLimits | None = None) -> ParetoFront:
    """Return the front over a decision's ranked families and the plans that are best in one figure alone.

    `limits` bound the search for the latter. Raises SpecError when the decision was made from other inputs' names.
    """
    resolver = Resolver(limits or SolverLimits(), most_solves=len(AIMS) + MOST_ASKED)
    plans = _ranked(decision)
    complete = True
    for aim in AIMS:
        best = resolver.best(inputs, aim)
        complete = complete and best is not None and not best.bound < best.value * (1 - BEST)
        if best is not None and best.plan is not None:
            plans.append(best.plan)
    priced = _Priced(inputs, decision)
    points = priced.points(plans)
    found = []
    for point in _unbeaten(points):
        best = resolver.reach(inputs, *_beside(inputs, point))
        if best is None:
            complete = False
            break
        complete = complete and best.bound >= best.value * (1 - BETTER)
        if best.plan is not None:
            found.append(best.plan)
    return _front([*points, *priced.points(found)], complete)


def front_of_ranked(inputs: Inputs, decision: Decision) -> ParetoFront:
    """Return the front over a decision's ranked families alone: nothing is searched, so it is not complete.

    Raises SpecError when the decision was made from other inputs' names.
    """
    return _front(_Priced(inputs, decision).points(_ranked(decision)), complete=False)


def _ranked(decision: Decision) -> list[ExecutionPlan]:
    plans = [family.best for family in decision.families if family.status == "RANKED" and family.best is not None]
    return plans if decision.plan is None else [*plans, decision.plan]


def _front(points: list[ParetoPoint], complete: bool) -> ParetoFront:
    kept = _unbeaten(points)
    kept.sort(key=lambda point: (point.ttft.point, -point.decode_rate.point, len(point.plan.placements)))
    return ParetoFront(points=tuple(kept), num_candidates=len(points), complete=complete)


class _Priced:
    """Plans as points, each plan once: with the figures that the front compares, whatever the objective is."""

    def __init__(self, inputs: Inputs, decision: Decision) -> None:
        self._view = inputs.rules(inputs.view).view
        self._decision, self._sessions = decision, inputs.workload.concurrency
        digests = digest(inputs.problem), digest(inputs.graph)
        problem = searched(inputs.problem, inputs.policy)
        self._cases = {
            (item.representation, item.primitive): make_case(
                problem, item, inputs.workload, inputs.curves, digests, self._view
            )
            for item in families_of(problem)
        }
        self._seen: set[tuple[object, ...]] = set()

    def points(self, plans: Iterable[ExecutionPlan]) -> list[ParetoPoint]:
        """Return the plans that have a price and were not there before."""
        points = []
        chosen = self._decision.plan
        for plan in plans:
            pricing = self._cases[plan.representation, plan.primitive].pricing
            route = plan_route(plan, self._view)
            prices, prediction = price_route(pricing, route), predict(pricing, route)
            key = (plan.representation, plan.primitive, *((leg.site.id, leg.end_unit, leg.mode) for leg in route))
            if prices is None or prediction is None or key in self._seen:
                continue
            self._seen.add(key)
            points.append(
                ParetoPoint(
                    plan=plan,
                    ttft=prediction.ttft,
                    decode_rate=prediction.decode_rate,
                    throughput=rate_together(self._sessions, prices),
                    chosen=chosen is not None and plan.placements == chosen.placements,
                )
            )
        return points


def _beside(inputs: Inputs, point: ParetoPoint) -> tuple[Goal, float]:
    """Return the goal of plans that are no worse than a point in any figure, and below what value one is better.

    Each figure counts relative to the point's.
    """
    first, step, each = point.ttft.point, 1 / point.decode_rate.point, 1 / point.throughput.point
    weight = 1 / max(first, step)
    goal = goal_of(inputs.workload, inputs.policy)
    goal = goal._replace(
        request=weight,
        later_tokens=1 / (weight * step),
        cadence=1 / each,
        first_limit=min(goal.first_limit, first),
        step_limit=min(goal.step_limit, step),
        wait_limit=min(goal.wait_limit, each * goal.sessions),
    )
    return goal, (weight * first + 2.0) * (1 - BETTER)


def _unbeaten(points: Iterable[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other beats; of points that are equal in all figures the chosen one, or one."""
    by_figures: dict[tuple[float, float, float], ParetoPoint] = {}
    for point in sorted(points, key=lambda point: (not point.chosen, len(point.plan.placements))):
        by_figures.setdefault(_figures_of(point), point)
    return [point for point in by_figures.values() if not any(_beats(other, point) for other in by_figures.values())]


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
