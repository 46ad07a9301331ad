"""The planner against an oracle that tries every plan, on random small worlds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.planner import Policy, decide
from tests.unit.planner.planner_cases import World, random_world, try_everything

SEEDS = st.integers(0, 10**9)
thorough = settings(max_examples=200, derandomize=True, deadline=None)


def best_by_family(world: World, **conditions):
    """For each family: whether a member fits, and the least request time of the priced members that fit."""
    feasible, best = set(), {}
    for tried in try_everything(world):
        if tried.fits and all(getattr(tried, name) in allowed for name, allowed in conditions.items()):
            feasible.add(tried.family)
            if tried.seconds is not None:
                best[tried.family] = min(best.get(tried.family, math.inf), tried.seconds)
    return feasible, best


@thorough
@given(SEEDS)
def test_every_family_has_the_status_and_the_optimum_that_exhaustion_finds(seed: int) -> None:
    world = random_world(seed)
    feasible, best = best_by_family(world)
    decision = decide(world.problem, world.graph, world.workload, Policy(), world.economics)
    listed = {(family.representation, family.compute_unit_ids): family for family in decision.families}
    assert feasible <= set(listed)
    for key, family in listed.items():
        if key not in feasible:
            assert family.status == "TECHNICALLY_INFEASIBLE"
            assert family.best is None
        elif key in best:
            assert family.status == "RANKED"
            assert family.request_seconds == pytest.approx(best[key], rel=1e-9)
        else:
            assert family.status == "FEASIBLE_UNRANKED"
            assert family.best is not None
            assert family.best.prediction is None
        assert family.reasons


@thorough
@given(SEEDS)
def test_the_selected_plan_is_one_of_the_oracles_and_the_best(seed: int) -> None:
    world = random_world(seed)
    tried = {(item.representation, item.sites, item.ends): item for item in try_everything(world) if item.fits}
    decision = decide(world.problem, world.graph, world.workload, Policy(), world.economics)
    priced = [item.seconds for item in tried.values() if item.seconds is not None]
    if not priced:
        expected = "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE" if tried else "NO_FEASIBLE_PLAN"
        assert decision.outcome == expected
        assert decision.plan is None
        return
    plan = decision.plan
    assert plan is not None
    key = (
        plan.representation,
        tuple(placement.compute_unit_id for placement in plan.placements),
        tuple(placement.end_unit for placement in plan.placements),
    )
    assert tried[key].seconds == pytest.approx(min(priced), rel=1e-9)
    assert all(placement.memory.fits for placement in plan.placements)
    if decision.proved_optimal:
        assert all(item.seconds is not None for item in tried.values())


@thorough
@given(SEEDS, st.floats(0.05, 1.5))
def test_a_least_rate_is_applied_to_plans_not_to_families(seed: int, factor: float) -> None:
    world = random_world(seed, complete=True, max_sites=3)
    tried = [item for item in try_everything(world) if item.fits]
    if not tried:
        return
    limit = factor * max(item.step for item in tried)
    expected = [item.seconds for item in tried if item.step <= limit * (1 + 1e-9)]
    policy = Policy(min_tokens_per_second=1 / limit)
    decision = decide(world.problem, world.graph, world.workload, policy, world.economics)
    if not expected:
        assert decision.outcome in ("NO_FEASIBLE_PLAN", "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE")
    else:
        assert decision.plan is not None
        assert decision.plan.prediction.request.point == pytest.approx(min(expected), rel=1e-9)


@thorough
@given(SEEDS, st.randoms(use_true_random=False))
def test_pinned_nodes_and_cuts_give_the_best_plan_of_those_that_match(seed: int, rng) -> None:
    world = random_world(seed, max_sites=3)
    tried = list(try_everything(world))
    if not tried:
        return
    chosen = rng.choice(tried)
    home = {unit.id: unit.node_id for unit in world.graph.compute_units}
    nodes = tuple(home[site] for site in chosen.sites)
    cuts = tuple(end - 1 for end in chosen.ends[:-1])
    pin_cuts = rng.random() < 0.5
    policy = Policy(pinned_nodes=nodes, pinned_cuts=cuts if pin_cuts else ())
    matching = [
        item
        for item in tried
        if item.fits
        and tuple(home[site] for site in item.sites) == nodes
        and (not pin_cuts or item.ends == chosen.ends)
    ]
    decision = decide(world.problem, world.graph, world.workload, policy, world.economics)
    priced = [item.seconds for item in matching if item.seconds is not None]
    assert (decision.plan is not None) == bool(priced)
    assert decision.overrides
    if priced:
        assert decision.plan.prediction.request.point == pytest.approx(min(priced), rel=1e-9)
        assert tuple(placement.node_id for placement in decision.plan.placements) == nodes
    elif matching:
        assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    else:
        assert decision.outcome == "NO_FEASIBLE_PLAN"
