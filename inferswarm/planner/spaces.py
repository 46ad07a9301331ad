"""From a case to the search's plain numbers, and back: what may be combined, priced or measured in free memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from inferswarm.planner.assemble import Case
from inferswarm.planner.cost import Price
from inferswarm.planner.search import SLACK, ChainSpace, Found, HopOption, StageOption, Uses
from inferswarm.planner.sites import GraphView, Leg, Route, Site


class Restriction(NamedTuple):
    """What an operator may ask of the members of a family: seats and ends as in `ChainSpace`, and a least rate."""

    seats: tuple[frozenset[int], ...] | None = None
    ends: tuple[int, ...] | None = None
    min_tokens_per_second: float | None = None


class SiteTables(NamedTuple):
    """Sites of a search and the memory that they have: `None` in `shared` where no other site has the same one."""

    sites: tuple[Site, ...]
    available: tuple[int, ...]
    shared: tuple[int | None, ...]
    """For each site, the position of its Memory Resource among the shared ones."""
    shared_available: tuple[int, ...]


def make_tables(sites: tuple[Site, ...]) -> SiteTables:
    """Tabulate sites whose capacity is known. Raises AssertionError for a site that should not be here."""
    available = []
    for site in sites:
        assert site.available_bytes is not None, "sites of unknown capacity do not reach the search"
        available.append(site.available_bytes)
    owners = [site.memory.id if site.memory is not None else "" for site in sites]
    common = [memory for memory, times in sorted(Counter(owners).items()) if times > 1]
    return SiteTables(
        sites,
        tuple(available),
        tuple(common.index(owner) if owner in common else None for owner in owners),
        tuple(available[owners.index(memory)] for memory in common),
    )


def priced_space(case: Case, view: GraphView, tables: SiteTables, restriction: Restriction) -> ChainSpace:
    """Return the space of plans that fit and can be priced; a route's value is its predicted request time.

    Uses are the bytes on each shared Memory Resource and, when a least rate is asked for, the time of a step.
    """
    pricing, rate = case.pricing, restriction.min_tokens_per_second

    def value(price: Price) -> float:
        return price.chunk.point + price.once.point + pricing.later_tokens * price.step.point

    def pace(price: Price) -> float:
        return price.chunk.point if pricing.later_chunks else 0.0

    def uses(bytes_used: Uses, price_step: float) -> Uses:
        return bytes_used if rate is None else (*bytes_used, price_step)

    no_bytes = (0.0,) * len(tables.shared_available)

    def stages(index: int, site: Site) -> Iterator[list[StageOption]]:
        prices = [pricing.unit(site, unit) for unit in case.problem.units]
        for first, ends, needed in _ranges(case):
            options: list[StageOption] = []
            seconds = slow = step = 0.0
            for end, (price, peak) in enumerate(zip(prices[first:], needed, strict=False), start=first + 1):
                if price is None or peak > tables.available[index]:
                    break
                seconds, slow, step = seconds + value(price), slow + pace(price), step + price.step.point
                if end in ends:
                    options.append(StageOption(end, seconds, slow, uses(_bytes_used(tables, index, peak), step)))
            yield options

    def hop(source: Site, target: Site, first: int) -> HopOption | None:
        if not view.linked(source.node, target.node):
            return None
        price = pricing.hop(source.node, target.node, first)
        return price and HopOption(value(price), pace(price), uses(no_bytes, price.step.point))

    def back(last: Site, first: Site) -> HopOption | None:
        if not view.linked(last.node, first.node):
            return None
        price = pricing.feedback(last.node, first.node)
        return price and HopOption(value(price), 0.0, uses(no_bytes, price.step.point))

    slowest_step = () if rate is None else ((1 + SLACK) / rate,)
    return ChainSpace(
        num_units=len(case.problem.units),
        stages=[list(stages(index, site)) for index, site in enumerate(tables.sites)],
        hops=_hop_table(case, tables.sites, hop),
        returns=[[back(last, first) for first in tables.sites] for last in tables.sites],
        pace_weight=float(pricing.later_chunks),
        limits=(*map(float, tables.shared_available), *slowest_step),
        seats=restriction.seats,
        ends=restriction.ends,
    )


def fitting_space(case: Case, view: GraphView, tables: SiteTables, restriction: Restriction) -> ChainSpace:
    """Return the space of plans that fit, priced or not; every route's value is 0. A least rate plays no part."""
    space = headroom_space(case, view, tables, restriction)
    fitting = [
        [[option._replace(pace=0.0) for option in options if option.pace <= 0] for options in site_stages]
        for site_stages in space.stages
    ]
    return space._replace(stages=fitting, limits=tuple(map(float, tables.shared_available)), settle=None)


def headroom_space(case: Case, view: GraphView, tables: SiteTables, restriction: Restriction) -> ChainSpace:
    """Return the space of all plans, fitting or not; a route's value is its worst lack of memory, in bytes.

    A value of 0 or less means that the route fits. Neither prices nor a least rate play a part.
    """
    no_bytes = (0.0,) * len(tables.shared_available)

    def settle(pace: float, uses: Uses) -> float:
        lacks = (used - there for used, there in zip(uses, tables.shared_available, strict=True) if used)
        return max(pace, *lacks) if any(uses) else pace

    def stages(index: int) -> Iterator[list[StageOption]]:
        for first, ends, needed in _ranges(case):
            yield [
                StageOption(end, 0.0, float(peak - tables.available[index]), _bytes_used(tables, index, peak))
                for end, peak in enumerate(needed, start=first + 1)
                if end in ends
            ]

    def hop(source: Site, target: Site, _first: int) -> HopOption | None:
        return HopOption(0.0, uses=no_bytes) if view.linked(source.node, target.node) else None

    return ChainSpace(
        num_units=len(case.problem.units),
        stages=[list(stages(index)) for index in range(len(tables.sites))],
        hops=_hop_table(case, tables.sites, hop),
        returns=[[hop(last, first, 0) for first in tables.sites] for last in tables.sites],
        pace_weight=1.0,
        limits=(float("inf"),) * len(tables.shared_available),
        settle=settle,
        seats=restriction.seats,
        ends=restriction.ends,
    )


def least_totals(case: Case, most_parts: int) -> tuple[float, ...]:
    """Return the least sum of peaks of any split of the chain into 1, 2, … parts, wherever they are; inf for none."""
    num_units = len(case.problem.units)
    parts_end = {0: 0}
    totals: list[float] = []
    for _ in range(most_parts):
        longer: dict[int, int] = {}
        for first, ends, needed in _ranges(case):
            if first in parts_end:
                for end, peak in enumerate(needed, start=first + 1):
                    if end in ends:
                        longer[end] = min(longer.get(end, parts_end[first] + peak), parts_end[first] + peak)
        parts_end = longer
        totals.append(longer.get(num_units, float("inf")))
    return tuple(totals)


def bytes_together(tables: SiteTables, members: Collection[int]) -> int:
    """Return what the sites' Memory Resources have together, each counted once."""
    groups = {tables.shared[index] for index in members}
    own = sum(tables.available[index] for index in members if tables.shared[index] is None)
    return own + sum(tables.shared_available[at] for at in groups if at is not None)


def route_of(tables: SiteTables, found: Found) -> Route:
    """Return the route that the search found, with its sites."""
    starts = (0, *(end for _, end in found.steps))
    return tuple(
        Leg(tables.sites[index], start, end) for start, (index, end) in zip(starts, found.steps, strict=False)
    )


def legal_ends(case: Case) -> frozenset[int]:
    """Return where a range of units may end: at each legal cut, and at the chain's end."""
    cuts = (index + 1 for index, boundary in enumerate(case.problem.boundaries) if boundary.legal)
    return frozenset((*cuts, len(case.problem.units)))


def _ranges(case: Case) -> Iterator[tuple[int, frozenset[int], tuple[int, ...]]]:
    """Yield, for every unit, the ends and peaks of the ranges that start there; none where no cut is legal."""
    ends = legal_ends(case)
    for first in range(len(case.problem.units)):
        yield first, ends, case.memory.needed_from(first) if first == 0 or first in ends else ()


def _bytes_used(tables: SiteTables, index: int, peak: int) -> Uses:
    position = tables.shared[index]
    return tuple(float(peak) if position == at else 0.0 for at in range(len(tables.shared_available)))


def _hop_table(
    case: Case, sites: tuple[Site, ...], hop: Callable[[Site, Site, int], HopOption | None]
) -> list[list[list[HopOption | None]]]:
    starts = legal_ends(case)
    return [
        [
            [hop(source, target, first) if first in starts else None for first in range(len(case.problem.units))]
            for target in sites
        ]
        for source in sites
    ]
