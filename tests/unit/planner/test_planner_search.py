"""The search on plain numbers: it needs no names, no documents and no luck."""

from __future__ import annotations

import random
import time
from itertools import combinations, permutations

import pytest

from inferswarm.planner.search import ChainSpace, HopOption, StageOption, best_routes, quick_routes


def random_space(seed: int, *, budgets: int = 0) -> ChainSpace:
    rng = random.Random(seed)
    num_units, num_sites = rng.randint(1, 6), rng.randint(1, 4)

    far = rng.choice((0.0, 4.0))

    def uses() -> tuple[float, ...]:
        return tuple(float(rng.randint(0, 4)) for _ in range(budgets))

    def maybe(option: HopOption) -> HopOption | None:
        return option if rng.random() < 0.9 else None

    ends = [end for end in range(1, num_units) if rng.random() < 0.8] + [num_units]
    return ChainSpace(
        num_units=num_units,
        stages=[
            [
                [StageOption(end, rng.uniform(0, 9), rng.uniform(0, 5), uses()) for end in ends if end > first]
                for first in range(num_units)
            ]
            for _ in range(num_sites)
        ],
        hops=[
            [
                [maybe(HopOption(far + rng.uniform(0, 1), rng.uniform(0, 3), uses())) for _ in range(num_units)]
                for _ in range(num_sites)
            ]
            for _ in range(num_sites)
        ],
        returns=[
            [maybe(HopOption(rng.uniform(0, 1), uses=uses())) for _ in range(num_sites)] for _ in range(num_sites)
        ],
        pace_weight=rng.choice((0.0, 1.0, 5.0)),
        limits=tuple(float(rng.randint(2, 9)) for _ in range(budgets)),
    )


def exhaust(space: ChainSpace) -> dict[frozenset[int], float]:
    best: dict[frozenset[int], float] = {}
    for count in range(1, len(space.stages) + 1):
        for order in permutations(range(len(space.stages)), count):
            for cuts in combinations(range(1, space.num_units), count - 1):
                value = evaluate(space, order, (*cuts, space.num_units))
                if value is not None:
                    best[frozenset(order)] = min(best.get(frozenset(order), float("inf")), value)
    return best


def evaluate(space: ChainSpace, order: tuple[int, ...], ends: tuple[int, ...]) -> float | None:
    parts: list[StageOption | HopOption] = []
    start = 0
    for index, (site, end) in enumerate(zip(order, ends, strict=True)):
        if index:
            hop = space.hops[order[index - 1]][site][start]
            if hop is None:
                return None
            parts.append(hop)
        stage = next((option for option in space.stages[site][start] if option.end == end), None)
        if stage is None:
            return None
        parts.append(stage)
        start = end
    back = space.returns[order[-1]][order[0]] if len(order) > 1 else None
    if len(order) > 1 and back is None:
        return None
    everything = [*parts, *([back] if back is not None else [])]
    for index, limit in enumerate(space.limits):
        if sum(part.uses[index] for part in everything) > limit:
            return None
    return sum(part.seconds for part in everything) + space.pace_weight * max(part.pace for part in parts)


def every_set(space: ChainSpace) -> list[frozenset[int]]:
    sites = range(len(space.stages))
    return [frozenset(group) for size in range(1, len(sites) + 1) for group in combinations(sites, size)]


@pytest.mark.parametrize("budgets", [0, 1, 2])
def test_every_set_gets_the_optimum_of_an_exhaustive_search(budgets):
    for seed in range(400):
        space = random_space(seed, budgets=budgets)
        found = best_routes(space, every_set(space))
        expected = exhaust(space)
        assert found.keys() == expected.keys()
        for group, route in found.items():
            assert route.value == pytest.approx(expected[group]), seed
            order = tuple(site for site, _ in route.steps)
            assert evaluate(space, order, tuple(end for _, end in route.steps)) == pytest.approx(route.value)
            assert frozenset(order) == group


def test_only_wanted_sets_are_searched_and_they_are_searched_exactly():
    for seed in range(60):
        space = random_space(seed)
        expected = exhaust(space)
        wanted = every_set(space)[::2]
        found = best_routes(space, wanted)
        assert found.keys() == expected.keys() & set(wanted)
        assert all(route.value == pytest.approx(expected[group]) for group, route in found.items())


def test_a_quick_search_of_a_pure_pace_is_exact():
    for seed in range(60):
        space = random_space(seed)
        paces = space._replace(
            pace_weight=1.0,
            stages=[[[item._replace(seconds=0.0) for item in row] for row in site] for site in space.stages],
            hops=[[[hop and hop._replace(seconds=0.0) for hop in row] for row in table] for table in space.hops],
            returns=[[back and back._replace(seconds=0.0) for back in row] for row in space.returns],
        )
        found = quick_routes(paces)
        assert {group: route.value for group, route in found.items()} == pytest.approx(exhaust(paces))


def test_seats_and_ends_restrict_order_and_cuts():
    stages = [[[StageOption(end, 1.0, 0.0) for end in range(first + 1, 4)] for first in range(3)] for _ in range(2)]
    hops = [[[HopOption(0.0)] * 3 for _ in range(2)] for _ in range(2)]
    space = ChainSpace(3, stages, hops, [[HopOption(0.0)] * 2] * 2, 0.0)
    both = frozenset({0, 1})
    assert best_routes(space, [both])[both].steps == ((0, 1), (1, 3))
    seated = space._replace(seats=(frozenset({1}), frozenset({0})))
    assert best_routes(seated, [both])[both].steps == ((1, 1), (0, 3))
    assert best_routes(seated._replace(ends=(2, 3)), [both])[both].steps == ((1, 2), (0, 3))


@pytest.mark.parametrize(("num_sites", "limit_seconds"), [(2, 1.0), (3, 1.0), (6, 10.0)])
def test_thirty_two_units_are_searched_in_time(num_sites, limit_seconds):
    rng = random.Random(num_sites)
    stages = []
    for _ in range(num_sites):
        step, passing = rng.uniform(0.5, 2), rng.uniform(0.5, 2)
        stages.append(
            [
                [StageOption(end, (end - first) * step, (end - first) * passing) for end in range(first + 1, 33)]
                for first in range(32)
            ]
        )
    hops = [[[HopOption(rng.uniform(0, 1), 0.1)] * 32 for _ in range(num_sites)] for _ in range(num_sites)]
    returns = [[HopOption(rng.uniform(0, 1)) for _ in range(num_sites)] for _ in range(num_sites)]
    space = ChainSpace(32, stages, hops, returns, pace_weight=3.0)
    started = time.process_time()
    found = best_routes(space, every_set(space))
    assert time.process_time() - started < limit_seconds
    assert len(found) == 2**num_sites - 1
