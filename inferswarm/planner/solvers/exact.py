"""The exact search for few sites, on an instance: every subset, order and cut by dynamic programming."""

from __future__ import annotations

from itertools import combinations

from inferswarm.planner.search import ChainSpace, HopOption, StageOption, best_routes
from inferswarm.planner.solvers.instance import Instance, Part, Steps, longest_ranges

MAX_EXACT_SITES = 6
"""More sites have too many subsets and orders."""


def chain_space(instance: Instance) -> ChainSpace:
    """Return the search space of an instance whose values are sums. Raises AssertionError for another one."""
    assert instance.combine == "sum", "the labels' bounds are for sums"
    shared = [memory for memory in range(len(instance.room)) if instance.memory_of.count(memory) > 1]
    timed = instance.step_limit is not None
    limits = [float(instance.room[memory]) for memory in shared]
    if instance.step_limit is not None:
        limits.append(instance.step_limit)
    nothing = (0.0,) * len(shared)

    def hop(part: Part | None) -> HopOption | None:
        return part and HopOption(part.seconds, part.pace, (*nothing, part.step) if timed else nothing)

    def stages(site: int, first: int, end: int) -> list[StageOption]:
        options: list[StageOption] = []
        total = Part(0.0)
        for atom in range(first, end):
            part = instance.costs[site][instance.kinds[atom]]
            assert part is not None, "longest ranges are priced"
            total = total.plus(part)
            uses = nothing
            if instance.memory_of[site] in shared:
                peak = float(instance.peak(first, atom + 1))
                uses = tuple(peak if memory == instance.memory_of[site] else 0.0 for memory in shared)
            options.append(StageOption(atom + 1, total.seconds, total.pace, (*uses, total.step) if timed else uses))
        return options

    return ChainSpace(
        num_units=instance.num_atoms,
        stages=[
            [stages(site, first, end) for first, end in enumerate(reach)]
            for site, reach in enumerate(longest_ranges(instance))
        ],
        hops=[
            [
                [hop(by_payload[payload]) if by_payload else None for payload in instance.payloads]
                for by_payload in row
            ]
            for row in instance.hops
        ],
        returns=[[hop(part) for part in row] for row in instance.returns],
        pace_weight=instance.pace_weight,
        limits=tuple(limits),
    )


def best_of_all(instance: Instance) -> tuple[float, Steps] | None:
    """Return the best route and its value, or None when there is none. Exact; for at most six sites."""
    sites = range(instance.num_sites)
    wanted = [frozenset(group) for size in range(1, instance.most_stages + 1) for group in combinations(sites, size)]
    found = best_routes(chain_space(instance), wanted)
    best = min(found.values(), key=lambda route: (route.value, len(route.steps), route.steps), default=None)
    return None if best is None else (best.value, best.steps)
