"""Limits on single figures and what parts of a plan share, against every plan: decisions, what-if questions, fronts.

The seeds are of worlds in which a search that prices parts one by one, or makes one value least, answers wrongly or
proves too little.
"""

from __future__ import annotations

import math
import sys
from contextlib import suppress

import msgspec
import pytest

from inferswarm.errors import SpecError
from inferswarm.planner import (
    Inputs,
    Policy,
    SolverLimits,
    Workload,
    counterfactuals,
    pareto_front,
    worth_measuring,
)
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.problem import Mix
from inferswarm.planner.resolving import Resolver
from tests.unit.planner.figure_cases import allowed_plans, limited_inputs
from tests.unit.planner.planner_cases import make_economics, make_graph, make_problem

replace = msgspec.structs.replace
ENOUGH = SolverLimits(seconds=60.0)
FEW = (12, 31, 39, 43)
MANY = (12, 25, 31, 32, 39)
AIMED = (12, 25, 66, 101)
FRONTS = (68, 101, 102)


def check(inputs: Inputs) -> None:
    plans, decision = allowed_plans(inputs), inputs.decide(ENOUGH)
    if not plans:
        assert decision.outcome == "NO_FEASIBLE_PLAN"
        assert "not proved" not in decision.summary
        return
    assert decision.plan is not None
    value = predicted_value(inputs.workload, decision.plan.prediction)
    assert value == pytest.approx(min(plan.value for plan in plans), rel=1e-6)
    assert decision.proved_optimal


@pytest.mark.parametrize("seed", FEW)
def test_the_best_plan_that_keeps_all_limits_is_chosen_and_proved(seed: int) -> None:
    """Mutation: leave `look_further` out of `service.settle`."""
    check(limited_inputs(seed))


@pytest.mark.parametrize("seed", MANY)
def test_so_it_is_where_sets_are_searched_and_few_units_are_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: let `contention.searchable` return None."""
    monkeypatch.setattr(sys.modules["inferswarm.planner.decide"], "MAX_COMPUTE_UNITS", 0)
    check(limited_inputs(seed))


@pytest.mark.parametrize("seed", AIMED)
def test_solving_again_finds_the_best_of_each_figure_within_limits_and_pins(seed: int) -> None:
    """Mutation: answer in `Resolver._solve` with what `solve_case` returns."""
    inputs = limited_inputs(seed)
    plans = allowed_plans(inputs)
    resolver = Resolver(ENOUGH, most_solves=4)
    for aim in ("workload", "first-token", "next-token", "throughput"):
        best = resolver.best(inputs, aim)
        figures = [
            {"workload": plan.value, "first-token": plan.first, "throughput": plan.each}.get(aim, plan.step)
            for plan in plans
        ]
        if not plans:
            assert (best.plan, best.bound) == (None, math.inf)
        elif aim == "next-token":
            assert best.plan.prediction.inter_token.point == pytest.approx(min(figures), rel=1e-4)
        else:
            assert best.value == pytest.approx(min(figures), rel=1e-6)
            assert best.bound <= min(figures) * (1 + 1e-9)


@pytest.mark.parametrize("seed", FRONTS)
def test_no_plan_at_all_beats_one_of_a_complete_front(seed: int) -> None:
    """Mutation: drop the loop over `_unbeaten(points)` in `pareto_front`."""
    inputs = limited_inputs(seed)
    plans = allowed_plans(inputs)
    front = pareto_front(inputs, inputs.decide(ENOUGH), ENOUGH)
    assert front.complete
    assert bool(front.points) == bool(plans)
    for point in front.points:
        mine = point.ttft.point, 1 / point.decode_rate.point, 1 / point.throughput.point
        for plan in plans:
            ratios = [other / own for other, own in zip((plan.first, plan.step, plan.each), mine, strict=True)]
            assert max(ratios) > 1 + 1e-8 or min(ratios) > 1 - 1e-7


def pinned_many(**demands: object) -> Inputs:
    """Eight Nodes with room, of which three are pinned: a quicker first token wants other cuts."""
    names = [f"n{index}" for index in range(8)]
    seconds = {name: 0.01 * (1 + 0.5 * index) for index, name in enumerate(names)}
    return Inputs(
        make_problem(8),
        make_graph(dict.fromkeys(names, 10**6)),
        Workload(prompt_tokens=320, output_tokens=2000),
        Policy(pinned_nodes=("n0", "n1", "n2"), **demands),
        make_economics(seconds, path_seconds=0.001),
    )


def test_other_cuts_of_a_pinned_order_are_searched_for_a_limit_whatever_else_there_is() -> None:
    free = pinned_many().decide().plan.prediction
    quickest = Resolver(ENOUGH, 1).best(pinned_many(), "first-token")
    assert quickest.value < 0.8 * free.ttft.point
    bound = pinned_many(max_first_token_seconds=quickest.value * 1.01).decide()
    assert bound.plan.prediction.ttft.point <= quickest.value * 1.01
    assert bound.proved_optimal
    below = pinned_many(max_first_token_seconds=quickest.value * 0.99).decide()
    assert below.outcome == "NO_FEASIBLE_PLAN"
    assert "not proved" not in below.summary


def test_of_many_units_a_limit_that_some_plan_keeps_is_never_called_impossible() -> None:
    inputs = pinned_many()._replace(policy=Policy())
    quickest = Resolver(ENOUGH, 1).best(inputs, "first-token").plan.prediction
    assert inputs.decide().plan.prediction.ttft.point > quickest.ttft.point * 1.5
    decision = inputs._replace(policy=Policy(max_first_token_seconds=quickest.ttft.point * 1.001)).decide()
    if decision.plan is None:
        assert {report.status for report in decision.solvers} == {"UNKNOWN"}
        assert "not proved" in decision.summary
    else:
        assert decision.plan.prediction.ttft.point <= quickest.ttft.point * 1.002
        assert decision.bound <= decision.plan.prediction.request.point


@pytest.mark.parametrize(
    "demand",
    [
        {"pinned_nodes": ("birch",)},
        {"max_request_seconds": 1e-3},
        {"min_tokens_per_second": 1e6},
        {"bit_exact_required": True},
    ],
)
def test_a_plan_that_the_policy_forbids_is_not_offered_for_more_memory(demand: dict[str, object]) -> None:
    inputs = Inputs(
        make_problem(4),
        make_graph({"birch": 5000, "oak": 3000}),
        Workload(),
        Policy(),
        make_economics({"birch": 0.01, "oak": 0.02}),
    )

    def offered(asked: Inputs) -> list[str]:
        found = counterfactuals(asked, SolverLimits(seconds=5.0), most_solves=0)
        return [item.node_name for item in found.items if item.kind == "fits-alone"]

    assert offered(inputs) == ["oak"]
    assert offered(inputs._replace(policy=Policy(**demand))) == []


ABSURD_SERVICES = (
    {"base_seconds": 1e308},
    {"seconds_per_position": 1e300},
    {"base_seconds": -1e308, "seconds_per_position": 1e308},
    {"high": 1e308},
    {"base_seconds": 5e-324, "seconds_per_position": 0.0},
    {"low": 5e-324},
)
ABSURD_PATHS = ({"latency_seconds": 1e308}, {"seconds_per_byte": 1e308}, {"high": 1e308}, {"latency_seconds": 5e-324})


@pytest.mark.parametrize("objective", [msgspec.UNSET, Mix(request_weight=0.5)])
@pytest.mark.parametrize("changes", [*ABSURD_SERVICES, *({"path": path} for path in ABSURD_PATHS)])
def test_absurd_curves_count_as_missing_or_are_refused_as_a_wrong_input(changes, objective) -> None:
    economics = make_economics({"ash": 0.01, "oak": 0.02})
    path = changes.get("path", {})
    own = {} if path else changes
    services = tuple(
        replace(curve, **own) if curve.compute_unit_id == "cu-ash" else curve for curve in economics.services
    )
    paths = tuple(replace(curve, **path) for curve in economics.paths)
    inputs = Inputs(
        make_problem(4),
        make_graph({"ash": 3000, "oak": 3000}),
        Workload(prompt_tokens=64, objective=objective),
        Policy(),
        replace(economics, services=services, paths=paths),
    )
    with suppress(SpecError):
        decision = inputs.decide()
        assert decision.plan is None or decision.plan.prediction.request.high < 1e15
        pareto_front(inputs, decision, SolverLimits(seconds=2.0))
        worth_measuring(inputs, decision, SolverLimits(seconds=2.0), most_solves=3)
