"""Properties that hold for every world: names mean nothing, more is never worse, policy is not physics."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.planner import Decision, Economics, Policy, decide
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.resources.types import ResourceGraph
from tests.unit.planner.planner_cases import World, random_world, try_everything

SEEDS = st.integers(0, 10**9)
thorough = settings(max_examples=60, derandomize=True, deadline=None)
replace = msgspec.structs.replace


def plan_for(world: World, policy: Policy | None = None) -> Decision:
    return decide(world.problem, world.graph, world.workload, policy or Policy(), world.economics)


def statuses(decision: Decision) -> dict[tuple[str, tuple[str, ...]], str]:
    return {(item.representation, item.compute_unit_ids): item.status for item in decision.families}


def renamed(world: World, rng: random.Random) -> tuple[World, dict[str, str]]:
    """Give everything another name, and shuffle every tuple whose order has no meaning."""
    names: dict[str, str] = {}

    def new(old: str) -> str:
        return names.setdefault(old, f"n{rng.randrange(10**12)}")

    def shuffled(items):
        return tuple(rng.sample(list(items), len(items)))

    def resized(sizes):
        return shuffled(tuple(replace(size, representation=new(size.representation)) for size in sizes))

    problem, graph, workload, economics = world
    units = tuple(
        replace(
            unit,
            id=new(unit.id),
            cost_class=new(unit.cost_class),
            states=shuffled(tuple(map(new, unit.states))),
            mutable_bytes_per_position=resized(unit.mutable_bytes_per_position),
        )
        for unit in problem.units
    )
    other_problem = replace(
        problem,
        id=new(problem.id),
        strategy=new(problem.strategy),
        units=units,
        states=shuffled(tuple(replace(item, id=new(item.id), sizes=resized(item.sizes)) for item in problem.states)),
        boundaries=tuple(
            replace(item, payload_bytes_per_position=resized(item.payload_bytes_per_position))
            for item in problem.boundaries
        ),
        implementations=shuffled(
            tuple(
                replace(
                    item,
                    primitive=new(item.primitive),
                    representation=new(item.representation),
                    required_capabilities=tuple(map(new, item.required_capabilities)),
                )
                for item in problem.implementations
            )
        ),
        transients=shuffled(
            tuple(
                replace(
                    item,
                    name=new(item.name),
                    representation=new(item.representation),
                    cost_classes=shuffled(tuple(map(new, item.cost_classes))),
                )
                for item in problem.transients
            )
        ),
    )
    other_graph = ResourceGraph(
        swarm_id=new(graph.swarm_id),
        nodes=shuffled(tuple(replace(item, id=new(item.id), name=new(item.name)) for item in graph.nodes)),
        compute_units=shuffled(
            tuple(
                replace(
                    item,
                    id=new(item.id),
                    node_id=new(item.node_id),
                    memory_ids=tuple(map(new, item.memory_ids)),
                    capabilities=shuffled(tuple(map(new, item.capabilities))),
                )
                for item in graph.compute_units
            )
        ),
        memory_resources=shuffled(
            tuple(replace(item, id=new(item.id), node_id=new(item.node_id)) for item in graph.memory_resources)
        ),
        links=shuffled(
            tuple(
                replace(item, id=new(item.id), source=new(item.source), target=new(item.target))
                for item in graph.links
            )
        ),
    )
    other_economics = Economics(
        services=shuffled(
            tuple(
                replace(
                    item,
                    compute_unit_id=new(item.compute_unit_id),
                    cost_class=new(item.cost_class),
                    representation=new(item.representation),
                )
                for item in economics.services
            )
        ),
        paths=shuffled(
            tuple(replace(item, source=new(item.source), target=new(item.target)) for item in economics.paths)
        ),
    )
    return World(other_problem, other_graph, workload, other_economics), names


@thorough
@given(SEEDS)
def test_names_and_order_of_input_change_neither_status_nor_optimum_nor_selection(seed: int) -> None:
    world = random_world(seed)
    other, names = renamed(world, random.Random(seed))
    one, two = plan_for(world), plan_for(other)
    expected = {
        (names[representation], tuple(sorted(names[unit] for unit in units))): status
        for (representation, units), status in statuses(one).items()
    }
    assert statuses(two) == expected
    assert (one.outcome, one.proved_optimal) == (two.outcome, two.proved_optimal)
    if one.plan is None:
        return
    assert two.plan.prediction.request == one.plan.prediction.request
    fastest = [item for item in try_everything(world) if item.fits and item.seconds is not None]
    fastest.sort(key=lambda item: item.seconds)
    if len(fastest) == 1 or fastest[1].seconds > fastest[0].seconds * (1 + 1e-9):

        def shape(plan: ExecutionPlan, rename) -> list[tuple[str, int, int, int]]:
            return [
                (rename(item.compute_unit_id), item.first_unit, item.end_unit, item.memory.needed_bytes)
                for item in plan.placements
            ]

        assert shape(two.plan, str) == shape(one.plan, names.get)


@thorough
@given(SEEDS)
def test_one_more_resource_never_makes_a_proved_optimum_worse(seed: int) -> None:
    world = random_world(seed, complete=True)
    units = world.graph.compute_units
    fewer = replace(world.graph, compute_units=units[:-1])
    before, after = plan_for(world._replace(graph=fewer)), plan_for(world)
    if before.plan is not None:
        assert after.plan is not None
        if before.proved_optimal and after.proved_optimal:
            earlier, later = before.plan.prediction.request.point, after.plan.prediction.request.point
            assert later <= earlier * (1 + 1e-12)


@thorough
@given(SEEDS, st.randoms(use_true_random=False))
def test_no_policy_changes_what_is_technically_feasible(seed: int, rng: random.Random) -> None:
    world = random_world(seed)
    nodes = [node.name for node in world.graph.nodes]
    legal = [item.representation for item in world.problem.implementations]
    policy = Policy(
        representations=tuple(rng.sample(legal, rng.randint(0, len(legal)))),
        excluded_nodes=tuple(rng.sample(nodes, rng.randint(0, 1))),
        pinned_nodes=tuple(rng.sample(nodes, rng.randint(0, min(2, len(nodes))))),
        max_participants=rng.choice((None, 1, 2)),
        min_tokens_per_second=rng.choice((None, 1.0, 10.0)),
    )
    free, bound = statuses(plan_for(world)), statuses(plan_for(world, policy))
    assert free.keys() == bound.keys()
    for family, status in free.items():
        infeasible = status == "TECHNICALLY_INFEASIBLE"
        assert (bound[family] == "TECHNICALLY_INFEASIBLE") == infeasible


@thorough
@given(SEEDS)
def test_no_selected_cut_is_invented_and_no_link_either(seed: int) -> None:
    world = random_world(seed)
    links = {(link.source, link.target) for link in world.graph.links if link.available}
    for family in plan_for(world).families:
        if family.best is None:
            continue
        placements = family.best.placements
        assert placements[0].first_unit == 0
        assert placements[-1].end_unit == len(world.problem.units)
        for before, after in zip(placements, (*placements[1:], placements[0]), strict=True):
            if after is not placements[0]:
                assert before.end_unit == after.first_unit
                assert world.problem.boundaries[before.end_unit - 1].legal
            assert before.node_id == after.node_id or (before.node_id, after.node_id) in links


@thorough
@given(SEEDS)
def test_an_infeasible_set_without_common_memory_shows_the_split_that_lacks_least(seed: int) -> None:
    world = random_world(seed)
    least: dict[tuple[str, tuple[str, ...]], float] = {}
    for tried in try_everything(world):
        least[tried.family] = min(least.get(tried.family, tried.lack), tried.lack)
    memory_of = {unit.id: unit.memory_ids[0] for unit in world.graph.compute_units}
    shared = len(set(memory_of.values())) < len(memory_of)
    for family in plan_for(world).families:
        if family.status == "TECHNICALLY_INFEASIBLE" and family.memory and not shared:
            known = [item for item in family.memory if item.available_bytes is not None]
            if len(known) == len(family.memory) and (family.representation, family.compute_unit_ids) in least:
                worst = max(item.needed_bytes - item.available_bytes for item in known)
                assert worst == least[family.representation, family.compute_unit_ids]


@thorough
@given(SEEDS)
def test_terms_of_every_prediction_and_account_add_up(seed: int) -> None:
    world = random_world(seed)
    for family in plan_for(world).families:
        for account in family.memory:
            assert account.needed_bytes == sum(term.bytes for term in account.terms)
        if family.best is None or family.best.prediction is None:
            continue
        prediction = family.best.prediction
        assert sum(term.seconds for term in prediction.terms) == pytest.approx(prediction.request.point)
        for interval in (prediction.ttft, prediction.inter_token, prediction.request, prediction.decode_rate):
            assert interval.low <= interval.point <= interval.high
