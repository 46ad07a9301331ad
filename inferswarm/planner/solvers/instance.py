"""The priced instance: plain numbers that every solver takes, whatever its method.

An instance is a chain of *atoms* (units between two legal cuts, which nothing can part) and *sites* that may hold a
contiguous range of atoms each. Atoms of one *kind* cost the same and take the same memory on the same site, so
solvers count them instead of naming them. A route's value is::

    sum:  seconds of all parts + pace_weight × the slowest pace
    max:  the larger of the two

over the parts: its stages, the paths between neighbors, and the way back. Costs of a stage add up over its atoms.
A stage's peak memory is `fixed_bytes`, its atoms' own bytes, and each *common* once that it touches: a state that
several atoms share, or short-lived memory that some kinds bring. Sites and atoms are indexes without meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Combine = Literal["sum", "max"]
Steps = tuple[tuple[int, int], ...]
"""A route: (site, atoms covered after its stage) for each stage in order."""
TINY = 1e-12
"""Relative: sums of floats in another order may differ by so much."""


class Part(NamedTuple):
    """What one atom on a site, or one path, adds to the seconds, to its part's pace, and to a step (all ≥ 0)."""

    seconds: float
    pace: float = 0.0
    step: float = 0.0

    def plus(self, other: Part) -> Part:
        """Return the sum, term by term."""
        return Part(self.seconds + other.seconds, self.pace + other.pace, self.step + other.step)


class Common(NamedTuple):
    """Bytes that a stage needs once when it holds any of these atoms."""

    bytes: int
    atoms: frozenset[int]


class Instance(NamedTuple):
    """One implementation's chain over the sites that may take part. See the module for the value of a route."""

    kinds: tuple[int, ...]
    """The kind of each atom. Atoms of one kind touch the same commons."""
    ends: tuple[int, ...]
    """Units of the chain that are covered after each atom."""
    own_bytes: tuple[int, ...]
    """By kind."""
    common: tuple[Common, ...]
    fixed_bytes: int
    payloads: tuple[int, ...]
    """The payload class of the boundary before each atom; the first entry means nothing."""
    costs: tuple[tuple[Part | None, ...], ...]
    """By site and kind; None where there is no price."""
    memory_of: tuple[int, ...]
    """The Memory Resource of each site."""
    room: tuple[int, ...]
    """Bytes available on each Memory Resource."""
    hops: tuple[tuple[tuple[Part | None, ...], ...], ...]
    """By source, target and payload class; None where there is no path or no price."""
    returns: tuple[tuple[Part | None, ...], ...]
    """By last and first site."""
    pace_weight: float
    combine: Combine = "sum"
    step_limit: float | None = None
    """The sum of the steps of all parts may not exceed this."""
    most_sites: int | None = None

    @property
    def num_atoms(self) -> int:
        """Return the length of the chain."""
        return len(self.kinds)

    @property
    def num_sites(self) -> int:
        """Return how many sites may take part."""
        return len(self.costs)

    @property
    def most_stages(self) -> int:
        """Return how many stages a route may have."""
        most = min(self.num_atoms, self.num_sites)
        return most if self.most_sites is None else min(most, self.most_sites)

    def value(self, seconds: float, pace: float) -> float:
        """Return the value of a route whose parts add up to `seconds` and whose slowest part has `pace`."""
        weighed = self.pace_weight * pace
        return seconds + weighed if self.combine == "sum" else max(seconds, weighed)

    def peak(self, first: int, end: int) -> int:
        """Return the peak memory of a stage that holds the atoms [first, end)."""
        held = sum(self.own_bytes[kind] for kind in self.kinds[first:end])
        return self.fixed_bytes + held + sum(item.bytes for item in self.common if touches(item, first, end))

    def stage(self, site: int, first: int, end: int) -> Part | None:
        """Return what the atoms [first, end) add on a site, or None when one of them has no price there."""
        total = Part(0.0)
        for kind in self.kinds[first:end]:
            part = self.costs[site][kind]
            if part is None:
                return None
            total = total.plus(part)
        return total


def touches(item: Common, first: int, end: int) -> bool:
    """Return whether a range of atoms needs a common."""
    if end - first < len(item.atoms):
        return any(atom in item.atoms for atom in range(first, end))
    return any(first <= atom < end for atom in item.atoms)


def longest_ranges(instance: Instance) -> list[list[int]]:
    """Return, by site and first atom, the end of the longest range that fits on the site alone and has a price.

    Equal to `first` when not even one atom does. Peaks grow with the range, so every shorter one fits as well.
    """
    num_atoms = instance.num_atoms
    peaks = [[instance.peak(first, end) for end in range(first + 1, num_atoms + 1)] for first in range(num_atoms)]
    longest: list[list[int]] = []
    for site, costs in enumerate(instance.costs):
        room = instance.room[instance.memory_of[site]]
        row = []
        for first in range(num_atoms):
            end = first
            while end < num_atoms and peaks[first][end - first] <= room and costs[instance.kinds[end]] is not None:
                end += 1
            row.append(end)
        longest.append(row)
    return longest


def evaluate(instance: Instance, steps: Sequence[tuple[int, int]]) -> float | None:
    """Return the exact value of a route, or None when it breaks a limit, lacks a path or a price, or is no route."""
    sites = [site for site, _ in steps]
    if not steps or len(set(sites)) < len(sites) or steps[-1][1] != instance.num_atoms:
        return None
    if len(sites) > instance.most_stages:
        return None
    parts: list[Part | None] = []
    held: dict[int, int] = {}
    first = 0
    for site, end in steps:
        if end <= first:
            return None
        memory = instance.memory_of[site]
        held[memory] = held.get(memory, 0) + instance.peak(first, end)
        parts.append(instance.stage(site, first, end))
        first = end
    for (source, end), (target, _) in pairwise(steps):
        parts.append(instance.hops[source][target][instance.payloads[end]])
    if len(steps) > 1:
        parts.append(instance.returns[sites[-1]][sites[0]])
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or any(amount > instance.room[memory] for memory, amount in held.items()):
        return None
    if instance.step_limit is not None and sum(part.step for part in known) > instance.step_limit * (1 + TINY):
        return None
    return instance.value(sum(part.seconds for part in known), max(part.pace for part in known))


def equal_sites(instance: Instance) -> list[list[int]]:
    """Return the sets of two or more sites that may be exchanged without changing any route's value."""
    by_look: dict[object, list[list[int]]] = {}
    counts = [instance.memory_of.count(memory) for memory in range(len(instance.room))]
    for site in range(instance.num_sites):
        memory = instance.memory_of[site]
        if counts[memory] > 1:
            continue
        groups = by_look.setdefault((instance.costs[site], instance.room[memory]), [])
        for group in groups:
            if all(_exchangeable(instance, site, other) for other in group):
                group.append(site)
                break
        else:
            groups.append([site])
    return [group for groups in by_look.values() for group in groups if len(group) > 1]


def _exchangeable(instance: Instance, a: int, b: int) -> bool:
    hops, returns = instance.hops, instance.returns
    if hops[a][b] != hops[b][a] or returns[a][b] != returns[b][a]:
        return False
    return all(
        hops[a][other] == hops[b][other]
        and hops[other][a] == hops[other][b]
        and returns[a][other] == returns[b][other]
        and returns[other][a] == returns[other][b]
        for other in range(instance.num_sites)
        if other not in (a, b)
    )
