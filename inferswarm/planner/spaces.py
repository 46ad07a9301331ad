"""From a case to the search's plain numbers, and back: what may be combined, priced or measured in free memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from inferswarm.planner.search import ChainSpace, Found, HopOption, StageOption, Uses
from inferswarm.planner.sites import Route
from inferswarm.planner.solvers.building import Built
from inferswarm.planner.solvers.exact import UnitSpace, chain_space, unit_groups
from inferswarm.planner.solvers.instance import Instance, peak_tables, shared_memories


class Restriction(NamedTuple):
    """What an operator may ask of the members of a family: seats and ends as in `ChainSpace`, and a least rate.

    Ends are units of the problem's chain.
    """

    seats: tuple[frozenset[int], ...] | None = None
    ends: tuple[int, ...] | None = None
    min_tokens_per_second: float | None = None

    def applied(self, built: UnitSpace, instance: Instance) -> UnitSpace:
        """Return a space with seats and ends as asked."""
        ends = None if self.ends is None else tuple(instance.ends.index(end) + 1 for end in self.ends)
        return built._replace(space=built.space._replace(seats=self.seats, ends=ends))


def priced_space(built: Built, restriction: Restriction) -> UnitSpace:
    """Return the space of plans that fit and can be priced; a route's value is that of the objective."""
    return restriction.applied(chain_space(built.instance), built.instance)


def fitting_space(unpriced: Built, restriction: Restriction) -> UnitSpace:
    """Return the space of plans that fit, priced or not; every route's value is 0. A least rate plays no part."""
    return priced_space(unpriced, restriction)


def headroom_space(unpriced: Built, restriction: Restriction) -> UnitSpace:
    """Return the space of all plans, fitting or not; a route's value is its worst lack of memory, in bytes.

    A value of 0 or less means that the route fits. Neither prices nor a least rate play a part.
    """
    instance = unpriced.instance
    groups, tables = unit_groups(instance), peak_tables(instance)
    shared = shared_memories(instance, range(instance.num_sites))
    no_bytes = (0.0,) * len(shared)

    def settle(pace: float, uses: Uses) -> float:
        lacks = [used - instance.room[memory] for used, memory in zip(uses, shared, strict=True) if used]
        return max([pace, *lacks])

    def option(site: int, first: int, end: int) -> StageOption:
        peaks = {memory: tables[profile][first][end - first - 1] for memory, profile in instance.holds[site]}
        lack = max(peak - instance.room[memory] for memory, peak in peaks.items())
        return StageOption(end, 0.0, float(lack), tuple(float(peaks.get(memory, 0)) for memory in shared), site)

    def hop(there: bool) -> HopOption | None:
        return HopOption(0.0, uses=no_bytes) if there else None

    linked = [
        [any(part is not None for part in instance.hops[source[0]][target[0]]) for target in groups]
        for source in groups
    ]
    num_atoms = instance.num_atoms
    space = ChainSpace(
        num_units=num_atoms,
        stages=[
            [
                [option(site, first, end) for site in group for end in range(first + 1, num_atoms + 1)]
                for first in range(num_atoms)
            ]
            for group in groups
        ],
        hops=[[[hop(there)] * num_atoms for there in row] for row in linked],
        returns=[[hop(instance.returns[last[0]][first[0]] is not None) for first in groups] for last in groups],
        pace_weight=1.0,
        limits=(float("inf"),) * len(shared),
        settle=settle,
        forms=instance.forms or None,
    )
    return restriction.applied(UnitSpace(space, groups), instance)


def least_totals(instance: Instance, most_parts: int) -> tuple[float, ...]:
    """Return the least sum of peaks of any split of the chain into 1, 2, … parts, wherever they are; inf for none."""
    tables, num_atoms = peak_tables(instance), instance.num_atoms
    ways = {tuple(profile for _, profile in holds) for holds in instance.holds}
    parts_end: dict[int, int] = {0: 0}
    totals: list[float] = []
    for _ in range(most_parts):
        longer: dict[int, int] = {}
        for first, so_far in parts_end.items():
            for end in range(first + 1, num_atoms + 1):
                peak = min(sum(tables[profile][first][end - first - 1] for profile in way) for way in ways)
                longer[end] = min(longer.get(end, so_far + peak), so_far + peak)
        parts_end = longer
        totals.append(longer.get(num_atoms, float("inf")))
    return tuple(totals)


def bytes_together(instance: Instance, members: Collection[int]) -> int:
    """Return what the Memory Resources that Compute Units may hold something on have together, each counted once."""
    groups = unit_groups(instance)
    held = {hold.memory for unit in members for site in groups[unit] for hold in instance.holds[site]}
    return sum(instance.room_together(memory) for memory in held)


def shares_memory(instance: Instance) -> bool:
    """Return whether several Compute Units may hold something on one Memory Resource."""
    return bool(shared_memories(instance, range(instance.num_sites)))


def route_of(built: Built, space: UnitSpace, found: Found) -> Route:
    """Return the route that the search found, with its sites and modes."""
    return built.route(space.steps(found))
