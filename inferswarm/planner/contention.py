"""Looking further where the searches see too little: what parts of a plan share, and limits on single figures.

The searches price stages and paths one by one and make one value least. Where paths go over one segment of the
network, or stages are on one set of cores, they set the pace together, and a plan is worse than it was searched at;
and the best plan may break a limit on a figure that another one keeps. Over few Compute Units, or in a pinned order,
`look_further` then searches all plans again with everything counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from itertools import combinations, product
from typing import NamedTuple

from inferswarm.errors import SpecError
from inferswarm.planner.assemble import Case
from inferswarm.planner.core_sharing import core_shares
from inferswarm.planner.cost import Pricing, parts_together
from inferswarm.planner.gates import Rules
from inferswarm.planner.sites import Route, Site
from inferswarm.planner.solvers.building import Built, build_instance
from inferswarm.planner.solvers.cuts import Group
from inferswarm.planner.solvers.exact import MAX_EXACT_SITES
from inferswarm.planner.solvers.exhaustive import Share, search_all
from inferswarm.planner.solvers.gauges import Goal
from inferswarm.planner.solvers.instance import longest_ranges
from inferswarm.resources.types import CoreSet

MOST_PINNED_ORDERS = 4096
"""Ways to choose among several Compute Units of the pinned Nodes."""


class Further(NamedTuple):
    """What looking further found: a route that is better than the known one, if any, and what is proved of all.

    `bound`: no route has a smaller value. It is infinite where nothing was known and there is none.
    """

    value: float
    route: Route | None
    bound: float


class Searchable(NamedTuple):
    """Sites, and the sets of them (by their place) over which a plan may be: few enough to search them all."""

    sites: tuple[Site, ...]
    sets: tuple[frozenset[int], ...]


def searchable(case: Case, rules: Rules, sites: tuple[Site, ...]) -> Searchable | None:
    """Return the sets of sites that are open which the policy allows, or None where there are too many to try.

    A site on which no unit of the chain fits or has a price does not count. Raises SpecError for pins with too many
    meanings.
    """
    seats = rules.seats(sites)
    if seats is not None:
        members = {frozenset(order) for order in pinned_orders(seats)}
        members = {group for group in members if len(group) == len(seats)}
    else:
        if len(sites) > MAX_EXACT_SITES:
            sites = _useful(case, rules, sites)
        if len(sites) > MAX_EXACT_SITES:
            return None
        places = range(len(sites))
        members = {frozenset(group) for size in places for group in combinations(places, size + 1)}
    allowed = (
        group
        for group in members
        if not rules.set_refusals(case.implementation, tuple(sites[place] for place in sorted(group)))
    )
    return Searchable(sites, tuple(sorted(allowed, key=sorted)))


def pinned_orders(seats: Sequence[Collection[int]]) -> list[tuple[int, ...]]:
    """Return every choice of one Compute Unit for each seat. Raises SpecError where there are too many."""
    ways = math.prod(len(seat) for seat in seats)
    if ways > MOST_PINNED_ORDERS:
        raise SpecError(
            "policy pinned_nodes", f"{ways} ways to choose their Compute Units", f"at most {MOST_PINNED_ORDERS}"
        )
    return list(product(*map(sorted, seats)))


def look_further(
    case: Case,
    rules: Rules,
    among: Searchable,
    goal: Goal,
    known: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    deadline: float = math.inf,
) -> Further:
    """Return the best route whose value is below `known`, with everything that the goal and its parts share counted.

    The goal's value and limits are by the case's prices. Pins are kept. Stops soon after `deadline` on `clock`.
    """
    built = build_instance(case, rules.view, among.sites, figures=True)
    ends = None if rules.ends is None else tuple(built.instance.ends.index(end) + 1 for end in rules.ends)
    found = search_all(
        built.instance,
        goal,
        _shares(built, case.pricing),
        among.sets,
        rules.seats(among.sites),
        ends,
        known,
        clock,
        deadline,
    )
    return Further(found.value, None if found.steps is None else built.route(found.steps), found.bound)


def groups_of(built: Built, pricing: Pricing, order: Sequence[int]) -> tuple[Group, ...]:
    """Return which parts of an order share a segment of the network or too few cores."""
    count = len(order)
    return tuple(
        Group(
            tuple(index for index in group.members if index < count),
            tuple(index - count for index in group.members if index >= count),
            group.factors,
        )
        for group in parts_together(pricing, [built.sites[site] for site in order])
    )


def _useful(case: Case, rules: Rules, sites: tuple[Site, ...]) -> tuple[Site, ...]:
    built = build_instance(case, rules.view, sites, figures=True)
    reach = longest_ranges(built.instance)
    useful = {
        site.id
        for site, row in zip(built.sites, reach, strict=True)
        if any(end > first for first, end in enumerate(row))
    }
    return tuple(site for site in sites if site.id in useful)


def _shares(built: Built, pricing: Pricing) -> tuple[Share, ...]:
    """Return what parts of routes over these sites may share: segments of the network, and sets of cores."""
    sites, count = built.sites, len(built.sites)
    apart = tuple((0.0,) * count for _ in sites)
    over: dict[str, list[tuple[int, int]]] = {}
    for source, target in product(range(count), repeat=2):
        if sites[source].id != sites[target].id:
            for segment in pricing.segments(sites[source].node, sites[target].node):
                over.setdefault(segment, []).append((source, target))
    shares = []
    for pairs in sorted({tuple(pairs) for pairs in over.values()}):
        if len({(sites[source].id, sites[target].id) for source, target in pairs}) > 1:
            among = set(pairs)
            paths = tuple(tuple(float((a, b) in among) for b in range(count)) for a in range(count))
            shares.append(Share((0.0,) * count, paths))
    on: dict[CoreSet, list[int]] = {}
    for place, site in enumerate(sites):
        if (cores := pricing.cores(site)) is not None:
            on.setdefault(cores, []).append(place)
    for cores, places in on.items():
        threads = {sites[place].id: sites[place].compute_unit.threads for place in places}
        for each in core_shares(tuple(threads.values()), cores.num_cores):
            of = dict(zip(threads, each, strict=True))
            shares.append(Share(tuple(of.get(site.id, 0.0) for site in sites), apart))
    return tuple(shares)
