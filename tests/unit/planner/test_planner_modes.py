"""Participants that differ in what they compute in and in where their states are, against an oracle and by hand."""

from __future__ import annotations

import importlib
import math
import random
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.documents import canonical_bytes, read_document
from inferswarm.planner import Decision, Policy, SolverLimits, Throughput, decide
from inferswarm.planner.problem import Mix, Mixture, Workload
from inferswarm.planner.solvers import solving
from inferswarm.units import format_seconds
from tests.unit.planner.mode_cases import BOTH, Way, mixed_world, try_ways
from tests.unit.planner.planner_cases import AMBER, COPPER, World, make_economics, make_graph, make_problem

deciding = importlib.import_module("inferswarm.planner.decide")
replace = msgspec.structs.replace
SEEDS = st.integers(0, 10**9)
thorough = settings(max_examples=40, derandomize=True, deadline=None)
LIMITS = SolverLimits(seconds=20.0)
MIXING = Policy(mix_representations=True)


def plan_for(world: World, policy: Policy = MIXING) -> Decision:
    return decide(world.problem, world.graph, world.workload, policy, world.economics, LIMITS)


def way_of(decision: Decision, world: World) -> tuple[str, tuple[tuple[str, int, str, str], ...]]:
    """Write a decision's plan as the oracle writes one."""
    plan = decision.plan
    nearest = {unit.id: unit.memory_ids[0] for unit in world.graph.compute_units}
    stages = []
    for item in plan.placements:
        place = nearest[item.compute_unit_id]
        if not isinstance(item.states_memory_id, msgspec.UnsetType):
            place = item.states_memory_id
        stages.append((item.compute_unit_id, item.end_unit, plan.representation_of(item), place))
    return plan.representation, tuple(stages)


def best_of(ways: list[Way]) -> float:
    return min((way.value for way in ways if way.fits and way.value is not None), default=math.inf)


def agrees(world: World, decision: Decision, mix: bool) -> None:
    """Check a decision against every plan: outcome, value, bound, and that the plan is what it says."""
    ways = list(try_ways(world, mix))
    truth = best_of(ways)
    if truth == math.inf:
        assert decision.plan is None
        return
    assert decision.plan is not None
    tried = {(way.representation, way.stages): way for way in ways}
    chosen = tried[way_of(decision, world)]
    assert chosen.fits
    assert chosen.value == pytest.approx(truth, rel=1e-6)
    assert decision.bound <= truth * (1 + 1e-9)
    assert all(account.fits for item in decision.plan.placements for account in item.accounts)
    assert read_document(Decision, canonical_bytes(decision), "decision") == decision
    if decision.proved_optimal:
        assert all(way.value is not None for way in ways if way.fits)


@thorough
@given(SEEDS, st.booleans(), st.booleans())
def test_the_chosen_plan_is_the_best_of_every_order_cut_and_mode(seed: int, apart: bool, mix: bool) -> None:
    world = mixed_world(seed, apart=apart)
    agrees(world, plan_for(world, MIXING if mix else Policy()), mix)


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_searched_agrees_as_well(monkeypatch, exact) -> None:
    monkeypatch.setattr(deciding, "MAX_COMPUTE_UNITS", 0)
    monkeypatch.setattr(solving, "MAX_EXACT_SITES", 6 if exact else 0)
    mixed = 0
    for seed in range(16):
        world = mixed_world(seed, complete=seed % 3 > 0)
        decision = plan_for(world)
        agrees(world, decision, True)
        mixed += decision.plan is not None and decision.plan.representation == BOTH
        assert decision.explain()
    assert mixed > 0


@pytest.mark.parametrize("objective", [Throughput(), Mix(request_weight=0.4), Mix(request_weight=0.0)])
def test_every_objective_is_the_best_of_every_order_cut_and_mode(objective) -> None:
    for seed in range(9):
        world = mixed_world(seed, complete=True, objective=objective)
        decision = plan_for(world)
        agrees(world, decision, True)
        if decision.plan is not None:
            assert not isinstance(decision.plan.prediction.throughput, msgspec.UnsetType)


def test_a_mix_keeps_the_longest_wait_between_tokens() -> None:
    kept = 0
    for seed in range(9):
        free = mixed_world(seed, complete=True, apart=False, objective=Mix(request_weight=0.7))
        decision = plan_for(free)
        if decision.plan is None:
            continue
        waited = free.workload.concurrency / decision.plan.prediction.throughput.point
        for share in (0.6, 0.95):
            objective = Mix(request_weight=0.7, max_inter_token_seconds=share * waited)
            world = free._replace(workload=replace(free.workload, objective=objective))
            agrees(world, plan_for(world), True)
            kept += best_of(list(try_ways(world))) < math.inf
    assert kept > 1


def two_nodes(seconds: dict[tuple[str, str], float], room: dict[str, int]) -> World:
    """Four units of 1000 bytes in amber and 500 in copper over two Nodes; seconds by Node and representation."""
    both = (AMBER, COPPER)
    mixture = Mixture(name=BOTH, primitive="plain", representations=both, payload_representation=AMBER)
    problem = replace(make_problem(4, representations=both), mixtures=(mixture,))
    curves = [
        make_economics({name: amount}, representations=(representation,)).services
        for (name, representation), amount in seconds.items()
    ]
    paths = make_economics(dict.fromkeys(room, 0.0), path_seconds=0.001).paths
    economics = replace(make_economics({}), services=tuple(item for some in curves for item in some), paths=paths)
    return World(problem, make_graph(room), Workload(prompt_tokens=16, output_tokens=11), economics)


UNLIKE = {("a", AMBER): 0.01, ("a", COPPER): 0.05, ("b", AMBER): 0.05, ("b", COPPER): 0.01}


def test_each_participant_computes_in_what_it_is_fast_in() -> None:
    world = two_nodes(UNLIKE, {"a": 2000, "b": 1000})
    decision = plan_for(world)
    plan = decision.plan
    assert (plan.representation, plan.payload_representation) == (BOTH, AMBER)
    assert sorted((item.node_name, item.representation, item.memory.needed_bytes) for item in plan.placements) == [
        ("a", AMBER, 2000),
        ("b", COPPER, 1000),
    ]
    assert {state.representation for item in plan.placements for state in item.states} == {AMBER, COPPER}
    assert decision.proved_optimal
    assert plan_for(world, Policy()).plan.representation in (AMBER, COPPER)


def test_a_mixture_that_is_no_better_than_one_representation_is_not_offered() -> None:
    alike = {(name, representation): 0.01 for name in "ab" for representation in (AMBER, COPPER)}
    decision = plan_for(two_nodes(alike, {"a": 2000, "b": 2000}))
    assert decision.plan.representation in (AMBER, COPPER)
    assert BOTH not in {family.representation for family in decision.families}
    assert BOTH in {report.representation for report in decision.solvers}


def test_the_best_plan_with_an_unused_unit_is_that_of_every_plan_or_of_those_that_do_not_mix() -> None:
    worlds = [mixed_world(seed, complete=True) for seed in range(40)]
    seen = set()
    for world in worlds:
        ways = [way for way in try_ways(world) if way.fits and way.value is not None]
        for item in plan_for(world).resources:
            named = re.match(r"not needed: the best plan with it( that does not mix)? takes (.+?), the", item.reason)
            if named is None:
                continue
            unmixed = named[1] is not None
            mine = [
                way.value
                for way in ways
                if item.compute_unit_id in {stage[0] for stage in way.stages}
                and not (unmixed and way.representation == BOTH)
            ]
            assert format_seconds(min(mine)) == named[2]
            seen.add(unmixed)
    assert seen == {True, False}


def test_a_policy_that_allows_one_representation_leaves_nothing_to_mix() -> None:
    world = two_nodes(UNLIKE, {"a": 2000, "b": 1000})
    decision = plan_for(world, replace(MIXING, representations=(COPPER,)))
    assert decision.plan.representation == COPPER
    assert BOTH not in {report.representation for report in decision.solvers}


def test_a_compute_unit_takes_part_once_whatever_it_could_compute_in() -> None:
    decision = plan_for(two_nodes(UNLIKE, {"a": 2000, "b": 10**6}))
    units = [item.compute_unit_id for item in decision.plan.placements]
    assert len(units) == len(set(units))


@thorough
@given(SEEDS)
def test_mixing_leaves_families_of_one_representation_as_they_are_and_worsens_nothing(seed: int) -> None:
    world = mixed_world(seed, complete=True)
    without, with_it = plan_for(world, Policy()), plan_for(world)
    pure = {(item.representation, item.compute_unit_ids): item.status for item in without.families}
    same = [item for item in with_it.families if item.representation != BOTH]
    assert {(item.representation, item.compute_unit_ids): item.status for item in same} == pure
    if without.plan is not None:
        assert with_it.plan.prediction.request.point <= without.plan.prediction.request.point * (1 + 1e-12)


@thorough
@given(SEEDS, st.sampled_from(["memory", "curve", "unit"]))
def test_more_memory_a_faster_curve_and_one_more_unit_never_worsen_a_proved_optimum(seed: int, more: str) -> None:
    world, rng = mixed_world(seed, complete=True), random.Random(seed)
    graph, economics = world.graph, world.economics
    less = world
    if more == "memory":
        which = rng.randrange(len(graph.memory_resources))
        resources = tuple(
            replace(item, capacity_bytes=replace(item.capacity_bytes, value=item.capacity_bytes.value + 300))
            if index == which
            else item
            for index, item in enumerate(graph.memory_resources)
        )
        world = world._replace(graph=replace(graph, memory_resources=resources))
    elif more == "curve":
        which = rng.randrange(len(economics.services))
        services = tuple(
            replace(item, base_seconds=item.base_seconds / 2) if index == which else item
            for index, item in enumerate(economics.services)
        )
        world = world._replace(economics=replace(economics, services=services))
    else:
        less = world._replace(graph=replace(graph, compute_units=graph.compute_units[:-1]))
    before, after = plan_for(less), plan_for(world)
    if before.plan is not None and before.proved_optimal:
        assert after.proved_optimal
        assert after.plan.prediction.request.point <= before.plan.prediction.request.point * (1 + 1e-12)


@thorough
@given(SEEDS)
def test_names_and_order_change_neither_status_nor_optimum(seed: int) -> None:
    world, rng = mixed_world(seed), random.Random(seed)
    names: dict[str, str] = {}

    def renamed(document):
        def new(found: re.Match[bytes]) -> bytes:
            old = found.group(1).decode()
            return f'"{names.setdefault(old, f"n{rng.randrange(10**12)}")}"'.encode()

        known = rb'"((?:node|name|cu|mem|far-cu|link)-[\w-]+|amber|copper)"'
        return msgspec.json.decode(re.sub(known, new, msgspec.json.encode(document)), type=type(document))

    def shuffled(items):
        return tuple(rng.sample(list(items), len(items)))

    graph = renamed(world.graph)
    graph = replace(
        graph,
        nodes=shuffled(graph.nodes),
        compute_units=shuffled(graph.compute_units),
        memory_resources=shuffled(graph.memory_resources),
        links=shuffled(graph.links),
    )
    economics = renamed(world.economics)
    economics = replace(economics, services=shuffled(economics.services), paths=shuffled(economics.paths))
    problem = renamed(world.problem)
    one, two = plan_for(world), plan_for(World(problem, graph, world.workload, economics))
    assert (one.outcome, one.proved_optimal) == (two.outcome, two.proved_optimal)
    assert sorted(item.status for item in one.families) == sorted(item.status for item in two.families)
    if one.plan is not None:
        assert two.plan.prediction.request.point == pytest.approx(one.plan.prediction.request.point, rel=1e-12)
