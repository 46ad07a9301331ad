"""The front holds what is best in each figure, and nothing that another plan beats in all of them."""

from __future__ import annotations

import pytest

from inferswarm.planner import Inputs, ParetoFront, Policy, SolverLimits, Workload, pareto, pareto_front
from inferswarm.planner.pareto import front_of_ranked
from inferswarm.swarm.displays import DecisionView
from tests.unit.planner.planner_cases import make_economics, make_graph, make_problem, random_world, try_everything


def front_of(inputs: Inputs, **options) -> ParetoFront:
    return pareto_front(inputs, inputs.decide(), **options)


# Two stages halve the pace of a long prompt's chunks, and the path between them slows every later token.
PIPELINE = Inputs(
    make_problem(4),
    make_graph({"birch": 9000, "oak": 9000}),
    Workload(prompt_tokens=320, output_tokens=1000),
    Policy(),
    make_economics({"birch": 0.01, "oak": 0.011}, path_seconds=0.02),
)


def test_plans_that_are_better_in_something_are_on_the_front() -> None:
    front = front_of(PIPELINE)
    assert front.complete
    first, *_, last = front.points
    assert len(first.plan.placements) == 2
    assert len(last.plan.placements) == 1
    assert first.ttft.point < last.ttft.point
    assert first.decode_rate.point < last.decode_rate.point
    assert [point.chosen for point in front.points].count(True) == 1
    assert "chosen: amber over birch" in "\n".join(map(str, front.points))


@pytest.mark.parametrize("seed", range(25))
def test_its_ends_are_the_best_of_all_plans_and_nothing_on_it_is_beaten(seed: int) -> None:
    world = random_world(seed, complete=True)
    inputs = Inputs(world.problem, world.graph, world.workload, Policy(), world.economics)
    front = front_of(inputs)
    tried = [plan for plan in try_everything(world) if plan.fits and plan.seconds is not None]
    assert bool(tried) == bool(front.points)
    if not tried:
        return
    later = world.workload.output_tokens - 1
    least_first = min(plan.seconds - later * plan.step for plan in tried)
    assert min(point.ttft.point for point in front.points) == pytest.approx(least_first)
    assert max(point.decode_rate.point for point in front.points) == pytest.approx(
        1 / min(plan.step for plan in tried), rel=1e-4
    )
    figures = [(-point.ttft.point, point.decode_rate.point, point.throughput.point) for point in front.points]
    for one in figures:
        assert not any(one != other and all(a >= b for a, b in zip(other, one, strict=True)) for other in figures)


def test_with_several_sessions_throughput_is_a_figure_of_its_own() -> None:
    many = PIPELINE._replace(workload=Workload(prompt_tokens=16, output_tokens=50, concurrency=8))
    front = front_of(many)
    fastest = max(front.points, key=lambda point: point.throughput.point)
    assert len(fastest.plan.placements) == 2
    assert fastest.decode_rate.point < max(point.decode_rate.point for point in front.points)
    assert fastest.throughput.point > 1.5 * fastest.decode_rate.point


def test_without_time_the_front_is_that_of_the_families_and_says_so() -> None:
    front = front_of(PIPELINE, limits=SolverLimits(seconds=0.0))
    assert not front.complete
    assert front.points


def test_the_explanation_shows_the_front_where_there_is_a_choice() -> None:
    text = PIPELINE.decide().explain()
    assert "Plans of which none beats another in everything" in text
    assert "birch, amber (chosen): first token" in text


def test_ranked_plans_are_shown_in_all_three_figures_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: let `DecisionView.explain` pass no front."""
    many = PIPELINE._replace(workload=Workload(prompt_tokens=16, output_tokens=50, concurrency=8))
    decision = many.decide()
    monkeypatch.setattr(pareto, "Resolver", None)
    front = front_of_ranked(many, decision)
    assert [len(point.plan.placements) for point in front.points if not point.chosen] == [2]
    text = DecisionView(decision, many.graph, many.problem, many).explain()
    (said,) = (part for part in text.split("\n\n") if part.startswith("Plans of which none beats"))
    assert said.count("all sessions ") == 2
    assert "--what-if" in said
