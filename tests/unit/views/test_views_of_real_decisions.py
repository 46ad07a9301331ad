"""Views of what the planner really returns: its words for participants, paths and terms are understood."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.planner import Decision, Policy, decide
from inferswarm.planner.problem import bytes_in
from inferswarm.resources.types import ResourceGraph
from inferswarm.views.drawing import draw_plan, plan_network
from inferswarm.views.html import decision_html
from inferswarm.views.labels import step_seconds, term_seconds
from inferswarm.views.text import decision_text
from tests.unit.views import sample_documents as sample
from tests.unit.views.test_views_drawing import all_text, assert_clean


def decide_over(graph: ResourceGraph, policy: Policy | None = None) -> Decision:
    return decide(sample.make_problem(), graph, sample.WORKLOAD, policy or Policy(), sample.make_economics(graph))


@pytest.mark.parametrize("number", [2, 3])
def test_every_time_of_a_real_plan_is_shown(number):
    graph = sample.make_graph(sample.NAMES[:3], capacities=(380_000_000 if number == 2 else 285_000_000,))
    plan = decide_over(graph).plan
    assert plan is not None
    assert len(plan.placements) == number
    network = plan_network(plan, sample.make_problem())
    assert all(data["seconds"] > 0 and data["payload_bytes"] > 0 for _, _, data in network.edges(data=True))
    for placement in plan.placements:
        first, step = (
            term_seconds(plan, placement.participant, "first-pass"),
            step_seconds(plan, placement.participant),
        )
        assert first is not None
        assert step is not None
        assert first > step > 0


def test_a_real_decision_is_drawn_cleanly_with_its_reasons():
    graph = sample.make_graph(sample.NAMES[:3])
    decision = decide_over(graph)
    figure = draw_plan(decision, graph, problem=sample.make_problem())
    assert_clean(figure)
    unused = [item for item in decision.resources if not item.used]
    assert unused
    words = all_text(figure)
    for item in unused:
        assert item.reason in words
        assert item.reason in decision_html(decision)


def test_a_real_refusal_is_shown_in_every_view():
    graph = sample.make_graph(capacities=(200_000_000,))
    decision = decide_over(graph)
    assert decision.plan is None
    assert_clean(draw_plan(decision, graph))
    assert decision_text(decision).startswith("no feasible plan: ")
    assert "TECHNICALLY_INFEASIBLE" in decision_html(decision)


def test_a_plan_that_mixes_is_drawn_with_what_each_participant_computes_in():
    graph = sample.make_graph(sample.NAMES[:2], capacities=(380_000_000,))
    problem = sample.make_problem()
    plan = decide_over(graph).plan
    assert plan is not None
    assert len(plan.placements) == 2
    replace = msgspec.structs.replace
    first, second = plan.placements
    apart = replace(first, representation="bf16", states_memory_id=graph.memory_resources[1].id)
    mixed = replace(
        plan,
        representation="bf16+fp32",
        placements=(apart, replace(second, representation="fp32")),
        payload_representation="bf16",
    )
    figure = draw_plan(mixed, graph, problem=problem)
    assert_clean(figure)
    words = all_text(figure)
    for piece in ("· in bf16", "· in fp32", f"its states are in {graph.memory_resources[1].id}"):
        assert piece in words
    carried = plan_network(mixed, problem).edges["stage-0", "stage-1"]["payload_bytes"]
    assert carried == bytes_in(problem.boundaries[first.end_unit - 1].payload_bytes_per_position, "bf16")
