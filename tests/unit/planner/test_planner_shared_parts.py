"""What parts of a plan share is looked at among few Compute Units: the decision is the best with it counted in."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec
import pytest

from inferswarm.planner import Inputs, Policy, SolverLimits, Throughput, Workload
from inferswarm.planner.assemble import make_case
from inferswarm.planner.contention import look_further, searchable
from inferswarm.planner.cost import predict
from inferswarm.planner.goals import goal_of
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.problem import Mix
from inferswarm.planner.sites import GraphView, Leg
from inferswarm.resources.types import CoreSet
from tests.unit.planner.planner_cases import (
    World,
    make_economics,
    make_graph,
    make_problem,
    random_world,
    try_everything,
)

replace = msgspec.structs.replace
NAMES = ("ash", "birch", "oak")
AROUND = (("ash", "birch"), ("birch", "oak"), ("oak", "ash"))


def ring(shared: bool, policy: Policy | None = None, objective=msgspec.UNSET) -> Inputs:
    """Three Nodes of two units each. One way around is faster; over one segment it is slower than the other."""
    graph = make_graph(dict.fromkeys(NAMES, 2000))
    around = {f"link-{source}-{target}" for source, target in AROUND}
    links = tuple(replace(link, segments=("hub",)) if shared and link.id in around else link for link in graph.links)
    paths = {(a, b): 1.0 if (a, b) in AROUND else 1.1 for a in NAMES for b in NAMES if a != b}
    return Inputs(
        make_problem(6),
        replace(graph, links=links),
        Workload(prompt_tokens=64, output_tokens=3, concurrency=1, objective=objective),
        policy or Policy(),
        make_economics(dict.fromkeys(NAMES, 0.001), path_seconds=paths),
    )


def hops_of(decision) -> set[tuple[str, str]]:
    return set(pairwise(placement.node_name for placement in decision.plan.placements))


def test_a_plan_whose_paths_share_a_segment_gives_way_to_a_better_one_with_proof() -> None:
    apart, together = ring(shared=False).decide(), ring(shared=True).decide()
    assert hops_of(apart) <= set(AROUND)
    assert not hops_of(together) & set(AROUND)
    # Four chunks over two paths, three of them waiting for the slower one; two more steps over three paths.
    assert apart.plan.prediction.request.point == pytest.approx(2 * 1.0 + 3 * 1.0 + 2 * 3 * 1.0, abs=0.2)
    assert together.plan.prediction.request.point == pytest.approx(2 * 1.1 + 3 * 1.1 + 2 * 3 * 1.1, abs=0.2)
    assert together.proved_optimal
    assert (together.gap, together.solvers[0].status) == (0.0, "OPTIMAL")
    forced = ring(shared=True, policy=Policy(pinned_nodes=NAMES)).decide()
    assert forced.plan.prediction.request.point > together.plan.prediction.request.point + 1


@pytest.mark.parametrize("objective", [Throughput(), Mix(request_weight=0.5)])
def test_so_it_does_where_many_sessions_count(objective) -> None:
    decision = ring(shared=True, objective=objective)
    decision = decision._replace(workload=replace(decision.workload, concurrency=8)).decide()
    assert not hops_of(decision) & set(AROUND)
    assert decision.proved_optimal


def test_that_every_plan_waits_too_long_is_not_claimed_where_only_what_is_shared_makes_the_best_one_wait() -> None:
    asked = ring(shared=True, objective=Mix(request_weight=1.0, max_inter_token_seconds=10.0))
    asked = asked._replace(workload=replace(asked.workload, prompt_tokens=16, concurrency=8))
    decision = asked.decide()
    # Over the segment a session waits 8 × 3 s for each token, the other way around 8 × 1.1 s.
    if decision.plan is None:
        assert "not proved" in decision.summary
        assert {report.status for report in decision.solvers} == {"UNKNOWN"}
    else:
        assert not hops_of(decision) & set(AROUND)


def test_when_the_time_is_up_the_gap_remains() -> None:
    inputs = ring(shared=True)
    rules = inputs.rules(inputs.view)
    implementation = inputs.problem.implementations[0]
    case = make_case(inputs.problem, implementation, inputs.workload, inputs.economics, ("p", "g"), rules.view)
    among, goal = searchable(case, rules, rules.view.sites), goal_of(inputs.workload, inputs.policy)
    nothing = look_further(case, rules, among, goal, known=14.2, deadline=-math.inf)
    assert (nothing.route, nothing.value) == (None, 14.2)
    assert 0 <= nothing.bound < 12.2
    found = look_further(case, rules, among, goal, known=14.2)
    assert found.route is not None
    assert found.bound == found.value == pytest.approx(12.1, abs=0.2)


def crowded_world(seed: int, objective) -> World:
    """A random world whose Links go over few segments and whose Compute Units share cores."""
    rng = random.Random(seed)
    world = random_world(seed, complete=True)
    graph = world.graph
    links = tuple(
        replace(link, segments=tuple(rng.sample(("hub", "cable"), rng.choice((0, 1, 1, 2))))) for link in graph.links
    )
    units = tuple(replace(unit, core_set_id="cores") if rng.random() < 0.5 else unit for unit in graph.compute_units)
    sets = (CoreSet(id="cores", num_cores=rng.randint(1, 4)),)
    return world._replace(
        graph=replace(graph, links=links, compute_units=units, core_sets=sets),
        workload=replace(world.workload, prompt_tokens=60, concurrency=rng.choice((1, 3)), objective=objective),
    )


@pytest.mark.parametrize("objective", [msgspec.UNSET, Throughput(), Mix(request_weight=0.4)])
def test_the_chosen_plan_is_the_best_by_what_every_plan_is_predicted_to_do(objective) -> None:
    hidden = 0
    for seed in range(40):
        world = crowded_world(seed, objective)
        view = GraphView(world.graph)
        sites = {site.id: site for site in view.sites}
        values = []
        for tried in try_everything(world):
            if not tried.fits:
                continue
            implementation = next(
                item for item in world.problem.implementations if item.representation == tried.representation
            )
            case = make_case(world.problem, implementation, world.workload, world.economics, ("p", "g"), view)
            starts = (0, *tried.ends)
            legs = zip(tried.sites, starts, tried.ends, strict=False)
            prediction = predict(case.pricing, tuple(Leg(sites[name], start, end) for name, start, end in legs))
            values.append(predicted_value(world.workload, prediction))
        if not values:
            continue
        inputs = Inputs(world.problem, world.graph, world.workload, Policy(), world.economics)
        decision = inputs.decide(SolverLimits(seconds=60.0))
        assert decision.proved_optimal, seed
        found = predicted_value(world.workload, decision.plan.prediction)
        assert found == pytest.approx(min(values), rel=1e-6), seed
        assert decision.bound <= min(values) * (1 + 1e-9)
        hidden += any("what their parts share" in report.why for report in decision.solvers)
    assert hidden or objective is msgspec.UNSET
