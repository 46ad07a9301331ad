"""Properties of a decision under demands, over random worlds, few Compute Units listed and many searched.

Together with its neighbors this is where the properties of the planner are shown, all through `decide`:

=========================================  ============================================================
property                                   shown by
=========================================  ============================================================
exact, against trying every plan           test_planner_oracle; under demands: here
names and order mean nothing               test_planner_properties: names_and_order_of_input
more memory, speed, units are never worse  here: more_of_anything; test_planner_properties: one_more_resource
no policy changes what is feasible         test_planner_properties: no_policy_changes; new demands: here
demands that exclude nothing change none   here: a_policy_that_excludes_nothing
every cut is legal, no Link is invented    test_planner_properties: no_selected_cut; under demands: here
many units are searched as few are         test_planner_many: what_is_searched
=========================================  ============================================================
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.planner import Decision, Policy, Reservation, decide
from inferswarm.resources.types import declared
from tests.unit.planner.planner_cases import Tried, World, random_world, try_everything

SEEDS = st.integers(0, 10**9)
SEARCHED = st.booleans()
brief = settings(max_examples=25, derandomize=True, deadline=None)
replace = msgspec.structs.replace


@contextmanager
def as_many(searched: bool) -> Iterator[None]:
    """Send a small world the way of the large ones, where sets are searched and not listed."""
    with pytest.MonkeyPatch.context() as patch:
        if searched:
            patch.setattr(sys.modules["inferswarm.planner.decide"], "MAX_COMPUTE_UNITS", 0)
        yield


def plan_for(world: World, policy: Policy | None = None, searched: bool = False) -> Decision:
    with as_many(searched):
        return decide(world.problem, world.graph, world.workload, policy or Policy(), world.economics)


def spread_out(world: World, rng: random.Random) -> World:
    """Put the Nodes on one of two machines, and some Links on the air."""
    nodes = tuple(replace(node, host_id=rng.choice(("north", "south"))) for node in world.graph.nodes)
    links = tuple(replace(link, kind=rng.choice(("ethernet", "ethernet", "wireless"))) for link in world.graph.links)
    return world._replace(graph=replace(world.graph, nodes=nodes, links=links))


def random_demands(world: World, rng: random.Random) -> Policy:
    graph = world.graph
    units, memories = [item.id for item in graph.compute_units], [item.id for item in graph.memory_resources]
    machines = sorted({node.host_id for node in graph.nodes})
    return Policy(
        excluded_compute_units=tuple(rng.sample(units, rng.choice((0, 0, 1)))),
        reservations=tuple(Reservation(name, rng.randint(0, 500)) for name in rng.sample(memories, 1)),
        excluded_link_kinds=("wireless",) if rng.random() < 0.5 else (),
        approved_machines=tuple(rng.sample(machines, 1)) if rng.random() < 0.2 else msgspec.UNSET,
        max_machines=rng.choice((1, 2, msgspec.UNSET)),
    )


def allowed_plans(world: World, policy: Policy) -> list[Tried]:
    """Try every plan that the policy allows, by taking what it withholds out of the world itself."""
    graph = world.graph
    host_of = {node.id: node.host_id for node in graph.nodes}
    kept = {item.node: item.bytes for item in policy.reservations}
    machines = host_of.values() if policy.approved_machines is msgspec.UNSET else policy.approved_machines
    less = replace(
        graph,
        compute_units=tuple(
            replace(
                unit,
                available=unit.available
                and unit.id not in policy.excluded_compute_units
                and host_of[unit.node_id] in machines,
            )
            for unit in graph.compute_units
        ),
        memory_resources=tuple(
            replace(memory, reserved_bytes=declared(memory.reserved_bytes.value + kept.get(memory.id, 0)))
            for memory in graph.memory_resources
        ),
        links=tuple(link for link in graph.links if link.kind not in policy.excluded_link_kinds),
    )
    node_of = {unit.id: unit.node_id for unit in graph.compute_units}
    most = math.inf if policy.max_machines is msgspec.UNSET else policy.max_machines
    return [
        tried
        for tried in try_everything(world._replace(graph=less))
        if tried.fits and len({host_of[node_of[site]] for site in tried.sites}) <= most
    ]


@brief
@given(SEEDS, SEARCHED)
def test_what_demands_leave_is_searched_to_the_best_of_it(seed: int, searched: bool) -> None:
    rng = random.Random(seed)
    world = spread_out(random_world(seed, complete=rng.random() < 0.7), rng)
    policy = random_demands(world, rng)
    decision = plan_for(world, policy, searched)
    allowed = allowed_plans(world, policy)
    least = min((item.seconds for item in allowed if item.seconds is not None), default=None)
    if least is None:
        assert decision.plan is None
        assert decision.outcome == ("NO_FEASIBLE_PLAN" if not allowed else decision.outcome)
        return
    assert decision.plan.prediction.request.point == pytest.approx(least, rel=1e-9)
    key = decision.plan.representation, tuple(item.compute_unit_id for item in decision.plan.placements)
    assert (*key, tuple(item.end_unit for item in decision.plan.placements)) in {
        (item.representation, item.sites, item.ends) for item in allowed
    }


@brief
@given(SEEDS)
def test_demands_make_nothing_technically_infeasible(seed: int) -> None:
    rng = random.Random(seed)
    world = spread_out(random_world(seed), rng)
    policy = replace(random_demands(world, rng), max_first_token_seconds=1e-9, bit_exact_required=True)

    def infeasible(decision: Decision) -> set[tuple[str, tuple[str, ...]]]:
        return {
            (item.representation, item.compute_unit_ids)
            for item in decision.families
            if item.status == "TECHNICALLY_INFEASIBLE"
        }

    assert infeasible(plan_for(world, policy)) == infeasible(plan_for(world))


@brief
@given(SEEDS, SEARCHED)
def test_a_policy_that_excludes_nothing_changes_nothing(seed: int, searched: bool) -> None:
    world = random_world(seed)
    graph = world.graph
    harmless = Policy(
        representations=tuple(item.representation for item in world.problem.implementations),
        max_participants=len(graph.compute_units),
        min_tokens_per_second=1e-9,
        approved_nodes=tuple(node.id for node in graph.nodes),
        approved_compute_units=tuple(unit.id for unit in graph.compute_units),
        approved_machines=("somewhere",),
        reservations=tuple(Reservation(memory.id, 0) for memory in graph.memory_resources),
        excluded_link_kinds=("wireless",),
        max_machines=1,
        max_first_token_seconds=1e9,
        max_request_seconds=1e9,
    )
    free, bound = plan_for(world, None, searched), plan_for(world, harmless, searched)
    assert (bound.outcome, bound.proved_optimal) == (free.outcome, free.proved_optimal)
    if free.plan is not None:
        route = [(item.compute_unit_id, item.end_unit) for item in free.plan.placements]
        assert [(item.compute_unit_id, item.end_unit) for item in bound.plan.placements] == route
        assert bound.plan.prediction == free.plan.prediction
    if not searched:
        assert [family.status for family in bound.families] == [family.status for family in free.families]


@brief
@given(SEEDS, SEARCHED, st.sampled_from(["memory", "unit", "path"]))
def test_more_of_anything_never_makes_a_proved_optimum_worse(seed: int, searched: bool, what: str) -> None:
    rng = random.Random(seed)
    world = random_world(seed, complete=True)
    graph, economics = world.graph, world.economics
    if what == "memory":
        larger = rng.choice(graph.memory_resources)
        capacity = declared(larger.capacity_bytes.value + rng.randint(1, 1000))
        memories = tuple(
            replace(item, capacity_bytes=capacity) if item is larger else item for item in graph.memory_resources
        )
        better = world._replace(graph=replace(graph, memory_resources=memories))
    elif what == "unit":
        faster = rng.choice(graph.compute_units).id
        services = tuple(
            replace(item, base_seconds=item.base_seconds * 0.7, seconds_per_position=item.seconds_per_position * 0.7)
            if item.compute_unit_id == faster
            else item
            for item in economics.services
        )
        better = world._replace(economics=replace(economics, services=services))
    else:
        paths = tuple(replace(item, latency_seconds=item.latency_seconds * 0.5) for item in economics.paths)
        better = world._replace(economics=replace(economics, paths=paths))
    before, after = plan_for(world, None, searched), plan_for(better, None, searched)
    if before.plan is not None:
        assert after.plan is not None
        assert before.proved_optimal
        assert after.proved_optimal
        earlier, later = before.plan.prediction.request.point, after.plan.prediction.request.point
        assert later <= earlier * (1 + 1e-9)


@brief
@given(SEEDS, SEARCHED, st.floats(0.0, 1.0))
def test_a_limit_on_the_first_token_is_kept_and_its_bound_holds(seed: int, searched: bool, where: float) -> None:
    world = random_world(seed, complete=True)
    later = world.workload.output_tokens - 1
    plans = [(item.seconds - later * item.step, item.seconds) for item in try_everything(world) if item.fits]
    if not plans:
        return
    firsts = sorted(first for first, _ in plans)
    limit = firsts[0] + where * (min(plans, key=lambda plan: plan[1])[0] - firsts[0]) + 1e-9
    least = min(request for first, request in plans if first <= limit)
    decision = plan_for(world, Policy(max_first_token_seconds=limit), searched)
    assert decision.plan is not None, "the quickest first token of all is always searched for"
    prediction = decision.plan.prediction
    assert prediction.ttft.point <= limit * (1 + 1e-9)
    assert decision.bound <= least * (1 + 1e-9)
    assert least <= prediction.request.point * (1 + 1e-9)
    if decision.proved_optimal:
        assert prediction.request.point == pytest.approx(least, rel=1e-6)
