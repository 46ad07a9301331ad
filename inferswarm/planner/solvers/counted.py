"""The chain as counts: first atom, last atom, and so many alike between them.

Where all atoms between the first and the last are of one kind, with equal paths into each, only how many of them a
site holds matters, not which: `exact` is true, and a route's value follows from its order and counts. Otherwise the
atoms between are replaced by their average, which serves to compare orders; the cuts are then found on the instance
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.planner.solvers.instance import Instance, Part


class Counted(NamedTuple):
    """An instance seen as counts: by site, what its first, its last and one atom between add, and how many fit."""

    instance: Instance
    exact: bool
    num_between: int
    first: tuple[Part | None, ...]
    last: tuple[Part | None, ...]
    between: tuple[Part | None, ...]
    most: tuple[tuple[int, int, int, int], ...]
    """How many between fit: with neither end, the first atom, the last, with both; -1 when not even 0 do."""


class Counts(NamedTuple):
    """How many atoms between each site of an order holds, and what all stages add up to."""

    counts: tuple[int, ...]
    seconds: float
    pace: float
    step: float
    slowest: float
    """The longest step of one stage."""


def count_chain(instance: Instance, longest: Sequence[Sequence[int]]) -> Counted | None:
    """See an instance as counts; None for chains of fewer than two atoms, which cannot be cut."""
    num_atoms = instance.num_atoms
    if num_atoms < 2:
        return None
    middle = range(1, num_atoms - 1)
    kinds = {instance.kinds[atom] for atom in middle}
    inner = frozenset(middle)
    exact = (
        len(kinds) <= 1
        and len(set(instance.payloads[1:])) <= 1
        and all(
            not inner & item.atoms or inner <= item.atoms for profile in instance.profiles for item in profile.common
        )
    )
    between: list[Part | None] = []
    for costs in instance.costs:
        parts = [costs[instance.kinds[atom]] for atom in middle]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            between.append(None)
        else:
            share = 1 / max(1, len(known))
            total = Part(0.0)
            for part in known:
                total = total.plus(part)
            between.append(known[0] if exact and known else Part(*(term * share for term in total)))
    most = []
    for site, _ in enumerate(instance.costs):
        reach = longest[site]
        both = num_atoms - 2 if reach[0] == num_atoms else -1
        start = reach[0] - 1 if reach[0] < num_atoms else num_atoms - 2
        tail = next((first for first in range(num_atoms) if reach[first] == num_atoms), num_atoms)
        alone = max((reach[first] - first for first in middle), default=0)
        most.append(
            (
                min(alone, num_atoms - 2),
                min(start, num_atoms - 2),
                min(num_atoms - 1 - tail, num_atoms - 2) if tail < num_atoms else -1,
                both,
            )
        )
    return Counted(
        instance,
        exact,
        num_atoms - 2,
        tuple(costs[instance.kinds[0]] for costs in instance.costs),
        tuple(costs[instance.kinds[-1]] for costs in instance.costs),
        tuple(between),
        tuple(most),
    )


def fill(counted: Counted, order: Sequence[int]) -> Counts | None:
    """Return the counts that give an order of two or more sites the least value, paths left out; None when none fit.

    Starts from the least seconds and lowers the slowest stage atom by atom, which passes every trade of seconds
    against pace that could be best. Memory that several sites share is left to the exact cuts.
    """
    instance = counted.instance
    final = len(order) - 1
    counts, caps, bases, units = [], [], [], []
    for place, site in enumerate(order):
        unit = counted.between[site]
        end = counted.first[site] if place == 0 else counted.last[site] if place == final else Part(0.0)
        cap = counted.most[site][1 if place == 0 else 2 if place == final else 0]
        least = 0 if place in (0, final) else 1
        if end is None or cap < least or (unit is None and least):
            return None
        counts.append(least)
        caps.append(cap if unit is not None else 0)
        bases.append(end)
        units.append(unit or Part(0.0))
    left = counted.num_between - sum(counts)
    if left < 0 or sum(caps) < counted.num_between:
        return None
    linear, peaked = instance.linear, instance.peaked
    cheapest = sorted(range(len(order)), key=lambda place: (linear(units[place]), place))
    for place in cheapest:
        more = min(left, caps[place] - counts[place])
        counts[place] += more
        left -= more
    tops = [peaked(base) + peaked(unit) * n for base, unit, n in zip(bases, units, counts, strict=True)]
    rises = [peaked(unit) for unit in units]

    def now() -> Counts:
        held = [
            Part(*(a + b * n for a, b in zip(base, unit, strict=True)))
            for base, unit, n in zip(bases, units, counts, strict=True)
        ]
        return Counts(
            tuple(counts),
            sum(part.seconds for part in held),
            max(part.pace for part in held),
            sum(part.step for part in held),
            max(part.step for part in held),
        )

    def worth(found: Counts) -> float:
        return instance.value(found.seconds, found.pace, found.step, found.slowest)

    best = now()
    best_value = worth(best)
    if instance.pace_weight <= 0 and instance.is_sum:
        return best
    while True:
        slow = max(range(len(order)), key=tops.__getitem__)
        if counts[slow] <= (0 if slow in (0, final) else 1):
            return best
        target = next(
            (place for place in cheapest if counts[place] < caps[place] and tops[place] + rises[place] < tops[slow]),
            None,
        )
        if target is None:
            return best
        for place, change in ((slow, -1), (target, 1)):
            counts[place] += change
            tops[place] += change * rises[place]
        found = now()
        value = worth(found)
        if value < best_value:
            best, best_value = found, value
        elif instance.value(found.seconds, 0.0, found.step) > best_value:
            return best
