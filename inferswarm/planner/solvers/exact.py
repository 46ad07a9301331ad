"""The exact search for few Compute Units, on an instance: every set, order, mode and cut by dynamic programming."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import NamedTuple

from inferswarm.planner.search import ChainSpace, Found, HopOption, StageOption, best_routes
from inferswarm.planner.solvers.instance import (
    Instance,
    Part,
    Steps,
    longest_ranges,
    peak_tables,
    shared_memories,
)

MAX_EXACT_SITES = 6
"""More Compute Units have too many subsets and orders."""


class UnitSpace(NamedTuple):
    """A search space whose sites are Compute Units, and the sites of the instance that each of them may be."""

    space: ChainSpace
    sites: tuple[tuple[int, ...], ...]

    def steps(self, found: Found) -> Steps:
        """Return what was found in the instance's sites: the choice of a stage is its site."""
        return tuple((site, end) for site, (_, end) in zip(found.choices, found.steps, strict=True))


def unit_groups(instance: Instance) -> tuple[tuple[int, ...], ...]:
    """Return the sites of each Compute Unit, in the order in which they first come."""
    groups: dict[int, list[int]] = {}
    for site in range(instance.num_sites):
        groups.setdefault(instance.unit_of(site), []).append(site)
    return tuple(map(tuple, groups.values()))


def chain_space(instance: Instance) -> UnitSpace:
    """Return the search space of an instance whose values are sums. Raises AssertionError for another one."""
    assert instance.is_sum, "the labels' bounds are for sums"
    groups = unit_groups(instance)
    shared = shared_memories(instance, range(instance.num_sites))
    tables = peak_tables(instance)
    timed = instance.step_limit is not None
    limits = [float(instance.room_together(memory)) for memory in shared]
    if instance.step_limit is not None:
        limits.append(instance.step_limit)
    nothing = (0.0,) * len(shared)
    weight = instance.request_weight

    def hop(part: Part | None) -> HopOption | None:
        return part and HopOption(weight * part.seconds, part.pace, (*nothing, part.step) if timed else nothing)

    def stages(site: int, first: int, end: int) -> list[StageOption]:
        options: list[StageOption] = []
        total = Part(0.0)
        profiles = dict(instance.holds[site])
        for atom in range(first, end):
            part = instance.costs[site][instance.kinds[atom]]
            assert part is not None, "longest ranges are priced"
            total = total.plus(part)
            uses = nothing
            if shared:
                uses = tuple(
                    float(tables[profiles[memory]][first][atom - first]) if memory in profiles else 0.0
                    for memory in shared
                )
            options.append(
                StageOption(
                    atom + 1, weight * total.seconds, total.pace, (*uses, total.step) if timed else uses, site
                )
            )
        return options

    reach = longest_ranges(instance, tables)
    space = ChainSpace(
        num_units=instance.num_atoms,
        stages=[
            [
                [option for site in group for option in stages(site, first, reach[site][first])]
                for first in range(instance.num_atoms)
            ]
            for group in groups
        ],
        hops=[
            [
                [
                    hop(by_payload[payload]) if by_payload else None
                    for by_payload in (instance.hops[source[0]][target[0]],)
                    for payload in instance.payloads
                ]
                for target in groups
            ]
            for source in groups
        ],
        returns=[[hop(instance.returns[last[0]][first[0]]) for first in groups] for last in groups],
        pace_weight=instance.pace_weight,
        limits=tuple(limits),
        forms=instance.forms or None,
    )
    return UnitSpace(space, groups)


def best_of_sets(instance: Instance, wanted: Collection[frozenset[int]]) -> dict[frozenset[int], tuple[float, Steps]]:
    """Return the value and the best route of each wanted set of Compute Units (by `unit_groups`) that has one."""
    built = chain_space(instance)
    found = best_routes(built.space, wanted)
    return {group: (route.value, built.steps(route)) for group, route in found.items()}


def best_of_all(instance: Instance) -> tuple[float, Steps] | None:
    """Return the best route and its value, or None when there is none. Exact; for at most six Compute Units."""
    units = range(instance.num_units)
    wanted = [frozenset(group) for size in range(1, instance.most_stages + 1) for group in combinations(units, size)]
    found = best_of_sets(instance, wanted).values()
    return min(found, key=lambda route: (route[0], len(route[1]), route[1]), default=None)
