"""The solvers against exhaustion, the subset dynamic programming and each other, on random plain numbers."""

from __future__ import annotations

import math
import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.planner.solvers import Hold, Instance, Part, Profile, Solution, SolverLimits, evaluate, solve, solving
from inferswarm.planner.solvers.bounds import most_of_kinds, quick_bound
from inferswarm.planner.solvers.counted import count_chain, fill
from inferswarm.planner.solvers.cuts import best_cuts
from inferswarm.planner.solvers.exact import best_of_all
from inferswarm.planner.solvers.heuristic import search_orders
from inferswarm.planner.solvers.instance import equal_sites, longest_ranges
from inferswarm.planner.solvers.relaxation import relax
from tests.unit.planner.solver_cases import brute_force, held_karp, random_instance

SEEDS = st.integers(0, 10**9)
thorough = settings(max_examples=60, derandomize=True, deadline=None)
ENOUGH = SolverLimits(seconds=20.0)
OBJECTIVES = ("request", "throughput", "mix")


@pytest.fixture
def never_exact(monkeypatch):
    """Send every instance, however small, to the heuristic, the linear bound and the constraint program."""
    monkeypatch.setattr(solving, "MAX_EXACT_SITES", 0)


def value_of(solution: Solution) -> float:
    return math.inf if solution.value is None else solution.value


def agrees(solution: Solution, truth: float) -> bool:
    """Whether a solution says what is true: within its rounding where it claims a proof, and its bound holds."""
    if solution.steps is None:
        return solution.status == "INFEASIBLE" and truth == math.inf
    value = value_of(solution)
    within = value <= truth + 2 * solution.rounding + 1e-9 if solution.status == "OPTIMAL" else value >= truth - 1e-9
    return within and value >= truth - 1e-9 and solution.bound <= truth + 1e-9


@thorough
@given(SEEDS)
def test_dynamic_programming_finds_what_exhaustion_finds(seed):
    modes = seed % 2 == 1
    instance = random_instance(seed, sites=(1, 3 if modes else 4), atoms=(1, 5 if modes else 6), modes=modes)
    found = best_of_all(instance)
    truth = brute_force(instance)
    assert (math.inf if found is None else found[0]) == pytest.approx(truth)
    if found is not None:
        assert evaluate(instance, found[1]) == pytest.approx(truth)


@pytest.mark.usefixtures("never_exact")
@pytest.mark.parametrize("modes", [False, True])
@pytest.mark.parametrize("objective", ["request", "throughput", "mix"])
def test_the_constraint_program_finds_what_exhaustion_finds(objective, modes):
    methods = set()
    for seed in range(50):
        instance = random_instance(seed, sites=(1, 3 if modes else 5), atoms=(1, 6), objective=objective, modes=modes)
        solution = solve(instance, ENOUGH)
        methods.add(solution.method)
        assert solution.status in ("OPTIMAL", "INFEASIBLE"), seed
        assert agrees(solution, brute_force(instance)), seed
        if solution.steps is not None:
            assert evaluate(instance, solution.steps) == pytest.approx(solution.value)
            assert solution.rounding <= 1e-5 * value_of(solution)
    assert "constraint programming" in methods


def test_the_subset_dynamic_programming_agrees_where_no_memory_is_shared():
    for seed in range(60):
        instance = random_instance(seed, sites=(1, 4), atoms=(1, 5), shared=False)._replace(step_limit=None)
        assert held_karp(instance) == pytest.approx(brute_force(instance)), seed
        found = best_of_all(instance)
        assert (math.inf if found is None else found[0]) == pytest.approx(held_karp(instance)), seed


@pytest.mark.parametrize("alike", [True, False])
def test_more_sites_than_exhaustion_can_try_agree_with_the_subset_dynamic_programming(alike):
    for seed in range(6):
        instance = random_instance(seed, sites=(7, 8), atoms=(6, 7), alike=alike, shared=False)
        instance = instance._replace(step_limit=None, later_chunks=0.0, most_sites=None)
        solution = solve(instance, ENOUGH)
        assert solution.status in ("OPTIMAL", "INFEASIBLE")
        assert agrees(solution, held_karp(instance)), seed


@thorough
@given(SEEDS)
def test_the_heuristic_is_never_better_than_the_best_and_never_below_the_bound(seed):
    instance = random_instance(seed, sites=(1, 4), objective=OBJECTIVES[seed % 3], modes=seed % 2 == 1)
    truth = brute_force(instance)
    guess = search_orders(instance, math.inf, time.perf_counter)
    known = math.inf if guess is None else guess.value
    assert known >= truth - 1e-9
    if guess is not None:
        assert evaluate(instance, guess.steps) == pytest.approx(guess.value)
    alone = [evaluate(instance, ((site, instance.num_atoms),)) for site in range(instance.num_sites)]
    least_alone = min((value for value in alone if value is not None), default=math.inf)
    for best_known, steps in ((known, None if guess is None else guess.steps), (math.inf, None)):
        relaxed, _ = relax(instance, best_known, steps, math.inf, time.perf_counter)
        assert min(least_alone, relaxed.bound, best_known) <= truth + 1e-9


@thorough
@given(SEEDS)
def test_a_bound_of_a_program_that_was_stopped_at_once_still_holds(seed):
    instance = random_instance(seed, sites=(1, 4), objective=OBJECTIVES[seed % 3], modes=seed % 2 == 1)
    alone = [evaluate(instance, ((site, instance.num_atoms),)) for site in range(instance.num_sites)]
    relaxed, _ = relax(instance, math.inf, None, 0.0, time.perf_counter)
    assert min([relaxed.bound, *(value for value in alone if value is not None)]) <= brute_force(instance) + 1e-9


@thorough
@given(SEEDS)
def test_what_the_bound_rules_out_is_in_no_better_route(seed):
    instance = random_instance(seed, gaps=False)
    found = best_of_all(instance)
    if found is None or len(found[1]) < 2:
        return
    value, steps = found
    relaxed, _ = relax(instance, value * (1 + 1e-6), None, math.inf, time.perf_counter)
    order = [site for site, _ in steps]
    assert set(order) <= relaxed.sites
    assert set(pairwise(order)) <= relaxed.forward
    assert (order[-1], order[0]) in relaxed.back


@thorough
@given(SEEDS)
def test_counts_of_atoms_alike_are_worth_what_the_best_cuts_are(seed):
    instance = random_instance(seed, alike=True, atoms=(3, 9), shared=False)._replace(step_limit=None)
    longest = longest_ranges(instance)
    counted = count_chain(instance, longest)
    assert counted is not None
    assert counted.exact
    rng = random.Random(seed)
    order = rng.sample(range(instance.num_sites), rng.randint(1, instance.num_sites))
    if not 2 <= len(order) <= instance.most_stages:
        return
    # Without paths, what is left is what the counts decide.
    free = tuple(tuple((Part(0.0),) for _ in range(instance.num_sites)) for _ in range(instance.num_sites))
    back = tuple(tuple(Part(0.0) for _ in range(instance.num_sites)) for _ in range(instance.num_sites))
    instance = instance._replace(hops=free, returns=back)
    counts, cuts = fill(counted._replace(instance=instance), order), best_cuts(instance, order, longest)
    assert (counts is None) == (cuts is None)
    if counts is not None and cuts is not None:
        assert cuts.exact
        assert instance.value(counts.seconds, counts.pace) == pytest.approx(cuts.value)


def improved(instance: Instance, rng: random.Random) -> Instance:
    """More memory somewhere, and a faster path somewhere."""
    memory = rng.randrange(len(instance.room))
    room = tuple(amount + 5 * (at == memory) for at, amount in enumerate(instance.room))
    a, b = (instance.unit_of(rng.randrange(instance.num_sites)) for _ in range(2))
    share = rng.uniform(0, 1)

    def faster(part: Part | None) -> Part:
        return Part(0.2, 0.2, 0.2) if part is None else Part(*(term * share for term in part))

    hops = tuple(
        tuple(
            tuple(map(faster, by)) if (instance.unit_of(source), instance.unit_of(target)) == (a, b) else by
            for target, by in enumerate(row)
        )
        for source, row in enumerate(instance.hops)
    )
    return instance._replace(room=room, hops=hops)


@pytest.mark.usefixtures("never_exact")
def test_more_memory_and_a_faster_path_never_worsen_a_proved_optimum():
    for seed in range(40):
        instance = random_instance(
            seed, sites=(1, 4), atoms=(3, 6), objective=OBJECTIVES[seed % 3], modes=seed % 2 == 1
        )
        before, after = solve(instance, ENOUGH), solve(improved(instance, random.Random(seed)), ENOUGH)
        assert after.status in ("OPTIMAL", "INFEASIBLE")
        assert value_of(after) <= value_of(before) + 2 * before.rounding + 2 * after.rounding + 1e-9, seed


@pytest.mark.usefixtures("never_exact")
def test_the_order_in_which_sites_are_given_changes_no_optimum():
    for seed in range(40):
        instance = random_instance(seed, sites=(1, 3), atoms=(2, 6), modes=True)
        rng = random.Random(seed)
        other = rng.sample(range(instance.num_sites), instance.num_sites)
        shuffled = instance._replace(
            costs=tuple(instance.costs[site] for site in other),
            holds=tuple(instance.holds[site] for site in other),
            units=tuple(instance.units[site] for site in other),
            forms=tuple(instance.forms[site] for site in other) if instance.forms else (),
            hops=tuple(tuple(instance.hops[a][b] for b in other) for a in other),
            returns=tuple(tuple(instance.returns[a][b] for b in other) for a in other),
        )
        one, two = solve(instance, ENOUGH), solve(shuffled, ENOUGH)
        assert one.status == two.status
        if one.value is not None:
            assert two.value == pytest.approx(one.value, rel=1e-5)


def twins(num_sites: int, num_atoms: int) -> Instance:
    """Sites that nothing distinguishes: each holds two atoms between the ends at most."""
    hop = ((Part(1.0, 0.1, 1.0),) * num_sites,) * num_sites
    return Instance(
        kinds=(0, *(1 for _ in range(num_atoms - 2)), 2),
        ends=tuple(range(1, num_atoms + 1)),
        profiles=(Profile((1, 1, 1)),),
        payloads=(0,) * num_atoms,
        costs=((Part(1.0, 0.1, 1.0),) * 3,) * num_sites,
        holds=tuple((Hold(site),) for site in range(num_sites)),
        room=(3,) * num_sites,
        hops=tuple(tuple((part,) for part in row) for row in hop),
        returns=hop,
        later_chunks=1.0,
    )


def test_sites_that_nothing_distinguishes_are_known_to_be_equal_and_are_searched_in_time():
    instance = twins(14, 30)
    assert equal_sites(instance) == [list(range(14))]
    started = time.process_time()
    solution = solve(instance, ENOUGH)
    # 30 atoms, at most 3 each: ten stages, whose paths and atoms all cost 1; the slowest stage has three atoms.
    assert solution.value == pytest.approx(30 + 10 + 0.3)
    assert solution.status == "OPTIMAL"
    assert time.process_time() - started < 10.0


def test_a_site_that_shares_its_memory_has_no_equal():
    instance = twins(4, 6)._replace(holds=((Hold(0),), (Hold(0),), (Hold(1),), (Hold(2),)), room=(6, 3, 3))
    assert equal_sites(instance) == [[2, 3]]


@pytest.mark.parametrize("alike", [True, False])
def test_without_time_the_best_plan_so_far_comes_back_with_a_bound_that_holds(alike):
    instance = random_instance(5, sites=(8, 8), atoms=(7, 7), alike=alike, shared=False, gaps=False)
    instance = instance._replace(step_limit=None, most_sites=None, later_chunks=0.0, room=(25,) * 8)
    truth = held_karp(instance)
    solution = solve(instance, SolverLimits(seconds=0.0))
    assert solution.steps is not None
    assert solution.bound <= truth + 1e-9 <= value_of(solution) + 2e-9
    assert 0 <= solution.gap <= 1


@pytest.mark.usefixtures("never_exact")
def test_equal_inputs_give_equal_solutions():
    for seed in range(12):
        instance = random_instance(seed, sites=(4, 5), atoms=(4, 6))
        first, second = solve(instance, ENOUGH), solve(instance, ENOUGH)
        assert first._replace(wall_seconds=0.0) == second._replace(wall_seconds=0.0)


@pytest.mark.usefixtures("never_exact")
def test_a_cutoff_hides_nothing_below_it_and_no_bound_exceeds_the_best():
    for seed in range(40):
        instance = random_instance(seed, sites=(2, 5), atoms=(3, 6))
        truth = brute_force(instance)
        if truth == math.inf:
            continue
        for share in (0.7, 1.3):
            solution = solve(instance, ENOUGH, cutoff=share * truth)
            assert solution.bound <= truth + 1e-9, seed
            if share > 1:
                assert value_of(solution) <= truth + 2 * solution.rounding + 1e-9, seed
            else:
                assert solution.bound >= share * truth - 2 * solution.rounding - 1e-9, seed


@thorough
@given(SEEDS)
def test_the_quick_bound_is_below_every_route_over_several_sites(seed):
    instance = random_instance(seed, sites=(1, 4), objective=OBJECTIVES[seed % 3], modes=seed % 2 == 1)
    limits = [most_of_kinds(instance, reach) for reach in longest_ranges(instance)]
    alone = [evaluate(instance, ((site, instance.num_atoms),)) for site in range(instance.num_sites)]
    least_alone = min((value for value in alone if value is not None), default=math.inf)
    assert min(quick_bound(instance, limits), least_alone) <= brute_force(instance) + 1e-9


def test_a_given_order_gets_its_best_cuts_and_given_ends_are_kept():
    instance = random_instance(3, sites=(3, 3), atoms=(6, 6), gaps=False)._replace(
        room=(1000,) * 3, holds=((Hold(0),), (Hold(1),), (Hold(2),)), step_limit=None, most_sites=None
    )
    longest = longest_ranges(instance)
    best = min(
        value
        for first in range(1, 5)
        for second in range(first + 1, 6)
        if (value := evaluate(instance, ((2, first), (0, second), (1, 6)))) is not None
    )
    free = best_cuts(instance, (2, 0, 1), longest)
    assert free is not None
    assert free.value == pytest.approx(best)
    fixed = best_cuts(instance, (2, 0, 1), longest, (1, 3, 6))
    assert fixed is not None
    assert fixed.steps == ((2, 1), (0, 3), (1, 6))
    assert best_cuts(instance, (2, 0, 1), longest, (3, 2, 6)) is None
