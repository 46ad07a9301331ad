"""Paths that share a segment are in each other's way; the search's proof says only what it saw."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.planner import Inputs, Policy, Throughput, Workload, worth_measuring
from inferswarm.planner.sites import GraphView
from inferswarm.resources.types import ResourceGraph
from tests.unit.planner.planner_cases import make_economics, make_graph, make_link, make_problem

replace = msgspec.structs.replace
NAMES = ("ash", "birch", "oak")
ROOM = dict.fromkeys(NAMES, 2000)
"""Two units of a thousand bytes each: six units need all three Nodes."""


def over_one(graph: ResourceGraph, *pairs: tuple[str, str]) -> ResourceGraph:
    """Put the Links of these pairs over one segment; of all pairs when none is named."""
    chosen = {f"link-{source}-{target}" for source, target in pairs}
    links = tuple(
        replace(link, segments=("hub",)) if not pairs or link.id in chosen else link for link in graph.links
    )
    return replace(graph, links=links)


def make_inputs(*pairs: tuple[str, str], shared: bool, prompt_tokens: int = 64, objective=msgspec.UNSET) -> Inputs:
    graph = make_graph(ROOM)
    return Inputs(
        make_problem(6),
        over_one(graph, *pairs) if shared else graph,
        Workload(prompt_tokens=prompt_tokens, output_tokens=3, concurrency=1, objective=objective),
        Policy(pinned_nodes=NAMES),
        make_economics(dict.fromkeys(NAMES, 0.001), path_seconds=1.0),
    )


def test_the_later_chunks_wait_for_all_paths_of_the_slowest_segment() -> None:
    apart, together = (make_inputs(shared=shared).decide().plan.prediction for shared in (False, True))
    # Four chunks; two forward paths of 1 s each. The three that follow wait 1 s each, or 2 s on one segment.
    assert together.ttft.point - apart.ttft.point == pytest.approx(3 * 1.0)
    assert together.inter_token == apart.inter_token


def test_one_chunk_alone_is_in_nobodys_way() -> None:
    apart, together = (
        make_inputs(shared=shared, prompt_tokens=16).decide().plan.prediction for shared in (False, True)
    )
    assert apart == together


def test_paths_over_different_segments_do_not_add_up() -> None:
    # Only one of the two forward paths, and the way back, which no chunk goes.
    apart = make_inputs(shared=False).decide().plan.prediction
    one = make_inputs(("ash", "birch"), ("oak", "ash"), shared=True).decide().plan.prediction
    assert one.ttft == apart.ttft


def test_the_terms_still_add_up_to_the_request() -> None:
    decision = make_inputs(shared=True).decide()
    prediction = decision.plan.prediction
    assert sum(term.seconds for term in prediction.terms) == pytest.approx(prediction.request.point)
    assert sum(share.seconds for share in decision.breakdown.ttft) == pytest.approx(prediction.ttft.point)


def test_many_sessions_end_at_the_segment() -> None:
    inputs = make_inputs(shared=True, objective=Throughput())
    inputs = inputs._replace(workload=replace(inputs.workload, concurrency=1000))
    decision = inputs.decide()
    # Two forward paths and the way back, 1 s each: a token every 3 s.
    assert decision.plan.prediction.throughput.point == pytest.approx(1 / 3)
    slowest = decision.breakdown.cadence[0]
    assert (slowest.what, slowest.seconds) == ("shared", pytest.approx(3.0))
    assert "set by ash → birch and birch → oak and oak → ash shared" in " ".join(decision.explain().split())


def test_what_the_search_did_not_see_is_looked_at_and_proved() -> None:
    apart, together = (make_inputs(shared=shared).decide() for shared in (False, True))
    assert apart.proved_optimal
    assert together.proved_optimal
    assert together.bound == pytest.approx(apart.plan.prediction.request.point + 3.0)
    assert together.solvers[0].status == "OPTIMAL"


def test_of_many_units_as_well() -> None:
    names = ("ash", "birch", "oak", "elm", "fir", "pine", "rowan")
    graph = make_graph({name: 2000 if name in NAMES else 1000 for name in names})
    speeds = dict.fromkeys(names, 0.001)
    inputs = make_inputs(shared=False)._replace(
        graph=over_one(graph), policy=Policy(), economics=make_economics(speeds, path_seconds=1.0)
    )
    together, apart = inputs.decide(), inputs._replace(graph=graph).decide()
    assert together.plan.prediction.ttft.point - apart.plan.prediction.ttft.point == pytest.approx(3.0)
    assert not together.proved_optimal
    assert together.bound <= apart.plan.prediction.request.point * (1 + 1e-9)
    assert together.gap > 0


def test_a_segment_that_one_of_two_links_avoids_is_not_shared() -> None:
    graph = make_graph({"ash": 10, "birch": 10}, links=())
    over = replace(make_link("ash", "birch"), segments=("hub", "cable"))
    beside = replace(make_link("ash", "birch"), id="other", segments=("cable",))
    view = GraphView(replace(graph, links=(over, beside)))
    ash, birch = (view.node(name, "test") for name in ("ash", "birch"))
    assert view.segments(ash, birch) == {"cable"}
    assert view.segments(birch, ash) == frozenset()


def test_a_way_over_another_node_is_named_and_is_no_link() -> None:
    ring = [("ash", "birch"), ("birch", "oak"), ("oak", "ash")]
    graph = make_graph({"ash": 2000, "birch": 10, "oak": 2000}, links=ring)
    view = GraphView(graph)
    nodes = {name: view.node(name, "test") for name in NAMES}
    assert [node.name for node in view.way(nodes["ash"], nodes["oak"])] == ["ash", "birch", "oak"]
    assert not view.linked(nodes["ash"], nodes["oak"])
    inputs = make_inputs(shared=False)._replace(problem=make_problem(4), graph=graph, policy=Policy())
    decision = inputs.decide()
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    both = next(family for family in decision.families if family.node_names == ("ash", "oak"))
    assert both.reasons == (
        "no order connects all participants and leads back: no available Link ash → oak (there is a way over birch, "
        "which nothing relays)",
    )


def test_without_any_link_there_is_no_way() -> None:
    view = GraphView(make_graph({"ash": 10, "birch": 10}, links=[("birch", "ash")]))
    ash, birch = (view.node(name, "test") for name in ("ash", "birch"))
    assert view.way(ash, birch) == ()
    assert view.way(ash, ash) == (ash,)


def test_what_a_shared_segment_hides_is_seen_where_the_question_is_asked_again() -> None:
    inputs = make_inputs(shared=True)._replace(policy=Policy())
    inputs = inputs._replace(economics=make_economics(dict.fromkeys(NAMES, 0.001), path_seconds=1.0, low=0.99))
    found = worth_measuring(inputs, inputs.decide())
    assert found.num_solved
    assert not any("the search leaves open" in line for line in found.unsettled)
