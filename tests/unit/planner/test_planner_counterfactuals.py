"""Counterfactuals are solved: the least change makes the difference, and a little less does not."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from inferswarm.planner import Counterfactual, Inputs, Policy, SolverLimits, Workload, counterfactuals
from inferswarm.planner.counterfactuals import BYTES_RESOLUTION, LINK_RESOLUTION
from inferswarm.planner.problem import Reservation
from inferswarm.planner.resolving import LEAST_DIFFERENCE, value_of
from inferswarm.resources.types import declared
from tests.unit.planner.planner_cases import make_economics, make_graph, make_problem, random_world

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=32, output_tokens=11)


def make_inputs(capacities, seconds, *, links=None, policy=None, **paths) -> Inputs:
    return Inputs(
        make_problem(4),
        make_graph(capacities, links=links),
        WORKLOAD,
        policy or Policy(),
        make_economics(seconds, **paths),
    )


def only(items: tuple[Counterfactual, ...], kind: str) -> Counterfactual:
    (item,) = [item for item in items if item.kind == kind]
    return item


def users(decision) -> set[str]:
    return {placement.node_name for placement in decision.plan.placements}


SHORT = make_inputs({"birch": 3500, "oak": 2500}, {"birch": 0.01, "oak": 0.02})
FAR = {"birch": 9000, "pine": 2500}
SPEEDS = {"birch": 0.01, "pine": 0.001}


def test_the_bytes_that_one_unit_lacks_alone_are_exact() -> None:
    found = counterfactuals(SHORT)
    lacking = {item.node_name: item.amount for item in found.items if item.kind == "fits-alone"}
    assert lacking == {"birch": 500.0, "oak": 1500.0}


def test_what_would_take_more_than_twice_the_room_is_no_small_change() -> None:
    found = counterfactuals(make_inputs({"birch": 1999, "oak": 2000}, {"birch": 0.01, "oak": 0.02}))
    assert {item.node_name for item in found.items if item.kind == "fits-alone"} == {"oak"}


def test_the_least_memory_that_makes_a_better_plan_is_found() -> None:
    found = counterfactuals(SHORT)
    item = only(found.items, "memory")
    assert (item.node_name, item.amount) == ("birch", 500.0)
    assert [placement.node_name for placement in item.plan.placements] == ["birch"]
    assert item.value_before == pytest.approx(value_of(SHORT.decide().plan))
    assert item.value_after < item.value_before
    assert str(item).startswith("with 500 B more on birch (mem-birch), amber over birch becomes the best plan")


def test_memory_that_the_policy_keeps_free_is_no_room_for_a_plan() -> None:
    kept = SHORT._replace(
        graph=make_graph({"birch": 4200, "oak": 2500}),
        policy=Policy(reservations=(Reservation("birch", 1000),)),
    )
    item = only(counterfactuals(kept).items, "memory")
    assert (item.node_name, item.amount) == ("birch", 800.0)


def test_memory_that_changes_nothing_is_said_to() -> None:
    found = counterfactuals(SHORT)
    assert any(
        line.startswith("more memory on oak") and "makes no better plan" in line for line in found.without_effect
    )
    assert found.unsettled == ()


def test_where_nothing_is_feasible_the_least_memory_for_any_plan_is_found() -> None:
    item = only(counterfactuals(make_inputs({"birch": 3500}, {"birch": 0.01})).items, "memory")
    assert (item.amount, item.value_before) == (500.0, None)
    assert "instead of no plan" in str(item)


def test_a_capacity_that_nobody_knows_is_asked_for_as_such() -> None:
    item = only(counterfactuals(make_inputs({"birch": None}, {"birch": 0.01})).items, "known-memory")
    assert item.amount == 4000.0
    assert str(item).startswith("if 4.00 kB were known to be available on birch (mem-birch)")


def test_the_greatest_latency_that_makes_a_node_worth_using_is_found() -> None:
    inputs = make_inputs(FAR, SPEEDS, path_seconds=1.0)
    assert users(inputs.decide()) == {"birch"}
    item = only(counterfactuals(inputs).items, "latency")
    assert item.node_name == "pine"
    for factor, used in ((1.0, True), (LINK_RESOLUTION, False)):
        varied = make_inputs(FAR, SPEEDS, path_seconds=item.amount * factor)
        assert ("pine" in users(varied.decide())) == used


def test_the_least_rate_that_makes_a_node_worth_using_is_found() -> None:
    inputs = make_inputs(FAR, SPEEDS, path_seconds=0.0001, seconds_per_byte=1.0)
    item = only(counterfactuals(inputs).items, "rate")
    for factor, used in ((1.0, True), (1 / LINK_RESOLUTION, False)):
        varied = make_inputs(FAR, SPEEDS, path_seconds=0.0001, seconds_per_byte=8 / (item.amount * factor))
        assert ("pine" in users(varied.decide())) == used


def test_where_only_both_together_help_both_are_named() -> None:
    inputs = make_inputs(FAR, SPEEDS, path_seconds=1.0, seconds_per_byte=1.0)
    kinds = {item.kind for item in counterfactuals(inputs).items if item.node_name == "pine"}
    assert kinds == {"fits-alone", "memory", "rate-without-latency"}


def test_a_link_that_is_not_there_is_supposed_and_its_plan_is_an_estimate() -> None:
    inputs = make_inputs(FAR, SPEEDS, links=())
    item = only(counterfactuals(inputs).items, "rate")
    assert {placement.node_name for placement in item.plan.placements} == {"birch", "pine"}
    assert item.plan.prediction.is_estimate


def test_a_node_that_no_link_makes_worth_using_is_said_to_be() -> None:
    found = counterfactuals(make_inputs({"birch": 9000, "pine": 2500}, {"birch": 0.01, "pine": 0.5}))
    assert "a better Link to and from pine makes no better plan, however fast it is" in found.without_effect
    assert all(item.kind == "fits-alone" for item in found.items)


def test_an_excluded_node_is_not_wished_for() -> None:
    found = counterfactuals(make_inputs(FAR, SPEEDS, path_seconds=1.0, policy=Policy(excluded_nodes=("pine",))))
    assert not any("pine" in str(item) for item in (*found.items, *found.without_effect))


def test_what_the_limits_cut_off_is_named_and_not_called_useless() -> None:
    inputs = make_inputs(FAR, SPEEDS, path_seconds=1.0)
    found = counterfactuals(inputs, most_solves=2)
    assert found.num_solved == 2
    assert found.unsettled
    assert not any("Link" in line for line in found.without_effect)


def test_whether_anything_helps_is_asked_before_how_little_of_it_does() -> None:
    names = ("ash", "birch", "oak")
    inputs = make_inputs(dict.fromkeys(names, 1500), dict.fromkeys(names, 0.01))
    found = counterfactuals(inputs, most_solves=4)  # the question itself, and once for each memory
    assert {item.node_name for item in found.items if item.kind == "memory"} == set(names)
    assert sum("a smaller change may be" in line for line in found.unsettled) == 3


def test_the_clock_that_is_given_ends_it() -> None:
    ticks = itertools.count()
    found = counterfactuals(SHORT, SolverLimits(seconds=20.0, clock=lambda: float(next(ticks))))
    assert 0 < found.num_solved < 20
    assert found.unsettled


@pytest.mark.parametrize("seed", range(12))
def test_more_memory_by_the_amount_is_enough_and_by_less_is_not(seed: int) -> None:
    world = random_world(seed, complete=True, max_sites=3)
    inputs = Inputs(world.problem, world.graph, world.workload, Policy(), world.economics)
    base = inputs.decide()
    before = float("inf") if base.plan is None else value_of(base.plan)
    for item in counterfactuals(inputs).items:
        if item.kind != "memory":
            continue
        memory = next(entry for entry in world.graph.memory_resources if entry.id == item.subject)
        have = memory.capacity_bytes.value
        room = 4 * sum(size.bytes for state in world.problem.states for size in state.sizes) + 10_000
        slack = 2 + int(room * BYTES_RESOLUTION)

        def value(capacity: int, memory=memory) -> float:
            larger = replace(memory, capacity_bytes=declared(capacity))
            memories = tuple(larger if entry.id == memory.id else entry for entry in world.graph.memory_resources)
            decision = inputs._replace(graph=replace(world.graph, memory_resources=memories)).decide()
            return float("inf") if decision.plan is None else value_of(decision.plan)

        assert value(have + int(item.amount)) < before * (1 - LEAST_DIFFERENCE)
        if item.amount > slack:
            less = value(have + int(item.amount) - slack)
            assert less == before or less == pytest.approx(before, rel=2 * LEAST_DIFFERENCE)
