"""The planner's rules where there are too many Compute Units to judge every set: what is searched keeps them too."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from inferswarm.planner import Decision, Policy, SolverLimits, Workload, decide
from tests.unit.planner.planner_cases import ENOUGH, World, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=40, output_tokens=11)
NAMES = "abcdefgh"
PATIENT = SolverLimits(seconds=30.0)


def swarm_of(names: str, seed: int, *, illegal=(), broken=(), rooms=(1000, 2000, 3000)) -> World:
    """Unlike Nodes with room for one to three of ten units; `broken` pairs have no Link."""
    rng = random.Random(seed)
    seconds = {name: rng.uniform(0.005, 0.05) for name in names}
    paths = {(a, b): rng.uniform(0.001, 0.02) for a in names for b in names if a != b}
    graph = make_graph(
        {name: rooms[index % len(rooms)] for index, name in enumerate(names)},
        links=[pair for pair in paths if pair not in set(broken)],
    )
    problem = make_problem(10, illegal=illegal)
    return World(problem, graph, WORKLOAD, make_economics(seconds, path_seconds=paths))


def plan_of(world: World, policy: Policy | None = None) -> Decision:
    return decide(world.problem, world.graph, world.workload, policy or Policy(), world.economics, PATIENT)


def route_of(decision: Decision) -> list[tuple[str, int]]:
    assert decision.plan is not None
    return [(placement.node_name, placement.end_unit) for placement in decision.plan.placements]


@pytest.mark.rule(3)
@pytest.mark.rule(4)
def test_of_many_units_no_more_are_used_than_are_better():
    """Where the fastest of eight Nodes holds everything and a prompt is one chunk, it is used alone.

    Mutation: add a reward for each used site to the constraint program's objective, or drop single sites from the
    guesses of `search_orders`.
    """
    one_chunk = Workload(prompt_tokens=16, output_tokens=11)
    decision = plan_of(swarm_of(NAMES, 1, rooms=(ENOUGH,))._replace(workload=one_chunk))
    assert len(route_of(decision)) == 1
    assert decision.proved_optimal
    assert sum(item.used for item in decision.resources) == 1
    assert all(item.reason for item in decision.resources)


@pytest.mark.rule(10)
@pytest.mark.rule(39)
@pytest.mark.parametrize("seed", [0, 1])
def test_of_many_units_no_plan_invents_a_cut_or_a_link(seed):
    """With forbidden cuts and missing Links every cut and every path of the searched plan is a declared one.

    Mutation: let `building._atoms` cut at every boundary, or price a path between Nodes that no Link connects.
    """
    rng = random.Random(seed)
    broken = [(a, b) for a in NAMES for b in NAMES if a != b and rng.random() < 0.3]
    world = swarm_of(NAMES, seed, illegal=(2, 5), broken=broken)
    route = route_of(plan_of(world))
    assert all(world.problem.boundaries[end - 1].legal for _, end in route[:-1])
    names = [name for name, _ in route]
    links = {(link.source, link.target) for link in world.graph.links}
    for before, after in (*pairwise(names), (names[-1], names[0])):
        assert (f"node-{before}", f"node-{after}") in links


@pytest.mark.rule(8)
@pytest.mark.rule(38)
def test_of_many_units_names_and_their_order_mean_nothing():
    """The same eight Nodes under other names, listed backwards, give the same plan under the other names.

    Mutation: let `equal_sites` or the heuristic look at names, or break the constraint program's ties by index only.
    """
    world = swarm_of(NAMES, 5)
    words = dict(zip(NAMES, "zyxwvuts", strict=True))

    def other(text: str) -> str:
        lead, dash, name = text.rpartition("-")
        return f"{lead}{dash}{words[name]}"

    graph = replace(
        world.graph,
        nodes=tuple(replace(item, id=other(item.id), name=words[item.name]) for item in world.graph.nodes)[::-1],
        compute_units=tuple(
            replace(item, id=other(item.id), node_id=other(item.node_id), memory_ids=(other(item.memory_ids[0]),))
            for item in world.graph.compute_units
        )[::-1],
        memory_resources=tuple(
            replace(item, id=other(item.id), node_id=other(item.node_id)) for item in world.graph.memory_resources
        )[::-1],
        links=tuple(
            replace(item, source=other(item.source), target=other(item.target)) for item in world.graph.links
        ),
    )
    economics = replace(
        world.economics,
        services=tuple(
            replace(item, compute_unit_id=other(item.compute_unit_id)) for item in world.economics.services
        ),
        paths=tuple(
            replace(item, source=other(item.source), target=other(item.target)) for item in world.economics.paths
        ),
    )
    one, two = plan_of(world), plan_of(world._replace(graph=graph, economics=economics))
    assert one.proved_optimal
    assert two.proved_optimal
    assert [(words[name], end) for name, end in route_of(one)] == route_of(two)


@pytest.mark.rule(27)
def test_of_many_units_what_is_unknown_is_neither_free_nor_impossible():
    """A Node without measured curves is not chosen, not called infeasible, and keeps the choice from being proved.

    Mutation: price a missing curve as 0 in `build_instance`, or leave `missing` out of what `decide` calls proved.
    """
    world = swarm_of(NAMES, 2)
    known = tuple(curve for curve in world.economics.services if curve.compute_unit_id != "cu-c")
    decision = plan_of(world._replace(economics=replace(world.economics, services=known)))
    assert "c" not in [name for name, _ in route_of(decision)]
    assert not decision.proved_optimal
    (reason,) = [item.reason for item in decision.resources if item.node_name == "c"]
    assert "infeasible" not in reason


@pytest.mark.rule(1)
@pytest.mark.rule(5)
def test_of_many_units_a_demand_removes_plans_and_makes_nothing_infeasible():
    """Excluding Nodes changes no family's technical status, and never gives a better plan.

    Mutation: build the instance over all able sites whatever the policy, or call what a policy refuses infeasible.
    """
    world = swarm_of(NAMES, 3)
    free = plan_of(world)
    bound = plan_of(world, Policy(excluded_nodes=(route_of(free)[0][0],)))
    assert route_of(free)[0][0] not in [name for name, _ in route_of(bound)]

    def impossible(decision: Decision) -> list[tuple[str, ...]]:
        return [item.node_names for item in decision.families if item.status == "TECHNICALLY_INFEASIBLE"]

    assert impossible(bound) == impossible(free)
    assert free.plan is not None
    assert bound.plan is not None
    assert free.plan.prediction is not None
    assert bound.plan.prediction is not None
    assert bound.plan.prediction.request.point >= free.plan.prediction.request.point
