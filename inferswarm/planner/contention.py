"""Parts of a plan that share something: what the searches do not see, found by looking further.

The searches price stages and paths one by one. Where paths go over one segment of the network, or stages are on one
set of cores, they set the pace together, and a plan is worse than it was searched at. `look_further` then takes the
orders of Compute Units one by one, the most promising first, each with the cuts that are best when what is shared
counts. What an order takes at least is known beforehand, so that it may stop as soon as no other order can be better;
after `most_orders`, or at a deadline, it stops in any case, and what is left is a gap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise, permutations, product
from typing import NamedTuple

from inferswarm.planner.cost import Pricing, parts_together
from inferswarm.planner.solvers.building import Built
from inferswarm.planner.solvers.cuts import Group, best_cuts
from inferswarm.planner.solvers.exact import unit_groups
from inferswarm.planner.solvers.instance import Instance, Part, Steps, longest_ranges

MOST_ORDERS = 2000
"""Orders whose cuts are searched."""
MOST_LABELS = 1024
"""Ways to cover the chain up to one atom that are kept; see `best_cuts`."""
MOST_LISTED = 100_000
"""Orders of which it is known beforehand what they take at least; where there are more, nothing is looked at."""


class Further(NamedTuple):
    """What looking further found: a route that is better than the known one, if any, and what is proved of all.

    `bound`: no route has a smaller value, what is shared counted in.
    """

    value: float
    steps: Steps | None
    bound: float
    num_orders: int
    """How many orders were looked at."""


def look_further(
    built: Built,
    pricing: Pricing,
    known: float,
    bound: float,
    within: Collection[int] | None = None,
    seats: Sequence[Collection[int]] | None = None,
    ends: Sequence[int] | None = None,
    most_orders: int = MOST_ORDERS,
    clock: Callable[[], float] = time.perf_counter,
    deadline: float = math.inf,
) -> Further:
    """Return a route better than `known`, with what its parts share counted in, and what bounds all of them.

    `bound` is what was proved without it. `within`, when given, are the Compute Units (by their place in the
    instance) that a route must have, each of them; otherwise it may have any. `seats`, when given, are those that may
    be each participant, and `ends` the atoms that are covered after each. Stops soon after `deadline` on `clock`.
    """
    instance = built.instance
    units = unit_groups(instance)
    if _num_orders(units, instance.most_stages, within, seats) > MOST_LISTED:
        return Further(known, None, bound, 0)
    longest = longest_ranges(instance)
    listed = sorted(
        (max(bound, value), order)
        for order in _orders(units, instance, within, seats)
        if (value := _at_least(built, pricing, order)) < known
    )
    best: Steps | None = None
    proved = math.inf
    num_orders = 0
    for value, order in listed:
        if value >= known:
            break
        if num_orders >= most_orders or clock() > deadline:
            proved = min(proved, value)
            break
        num_orders += 1
        groups = groups_of(built, pricing, order)
        cuts = best_cuts(instance, order, longest, ends, groups, below=known, most_labels=MOST_LABELS)
        if cuts is None:
            continue
        if not cuts.exact:
            proved = min(proved, value)
        if cuts.value < known:
            known, best = cuts.value, cuts.steps
    return Further(known, best, min(known, proved), num_orders)


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


def _num_orders(
    units: Sequence[Sequence[int]],
    most_stages: int,
    within: Collection[int] | None,
    seats: Sequence[Collection[int]] | None,
) -> int:
    if seats is not None:
        return math.prod(sum(len(units[unit]) for unit in seat) for seat in seats)
    if within is not None:
        return math.factorial(len(within)) * math.prod(len(units[unit]) for unit in within)
    ways = max(map(len, units), default=1)
    return sum(math.perm(len(units), size) * ways**size for size in range(1, most_stages + 1))


def _orders(
    units: Sequence[Sequence[int]],
    instance: Instance,
    within: Collection[int] | None,
    seats: Sequence[Collection[int]] | None,
) -> Iterator[tuple[int, ...]]:
    sizes = range(1, instance.most_stages + 1) if within is None else (len(within),)
    members = range(len(units)) if within is None else sorted(within)
    orders = (order for size in sizes for order in permutations(members, size))
    if seats is not None:
        seated = product(*(sorted(seat) for seat in seats))
        orders = (
            order
            for order in seated
            if len(set(order)) == len(order) and (within is None or set(order) == set(within))
        )
    for order in orders:
        for sites in product(*(units[unit] for unit in order)):
            if instance.mixes(sites):
                yield sites


def _at_least(built: Built, pricing: Pricing, order: Sequence[int]) -> float:
    """Return what a route in this order takes at least; infinite where a path or a price is missing.

    Each atom is where it is cheapest, in each term; each path at its cheapest payload. Paths that share a segment set
    pace and cadence together. What stages share is left out.
    """
    instance = built.instance
    paths: list[Part] = []
    for source, target in pairwise(order):
        parts = [part for part in instance.hops[source][target] if part is not None]
        if not parts:
            return math.inf
        paths.append(_least(parts))
    if len(order) > 1:
        back = instance.returns[order[-1]][order[0]]
        if back is None:
            return math.inf
        paths.append(back)
    kinds = []
    for kind in range(instance.num_kinds):
        parts = [part for site in order if (part := instance.costs[site][kind]) is not None]
        if not parts:
            return math.inf
        kinds.append(_least(parts))
    every = [*paths, *(kinds[kind] for kind in instance.kinds)]
    groups: list[tuple[int, ...]] = [(place,) for place in range(len(paths))]
    groups += [group.paths for group in groups_of(built, pricing, order) if group.paths]
    # Some stage holds at least its share of the chain.
    held = sum(kinds[kind].pace for kind in instance.kinds) / len(order)
    each = sum(kinds[kind].step for kind in instance.kinds) / len(order)
    return instance.value(
        sum(part.seconds for part in every),
        max([held, *(sum(paths[place].pace for place in group) for group in groups)]),
        sum(part.step for part in every),
        max([each, *(sum(paths[place].step for place in group) for group in groups)]),
    )


def _least(parts: Sequence[Part]) -> Part:
    """Return a part that is no dearer in any term than any of these."""
    return Part(*map(min, zip(*parts, strict=True)))
