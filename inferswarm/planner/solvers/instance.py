"""The priced instance: plain numbers that every solver takes, whatever its method.

An instance is a chain of *atoms* (units between two legal cuts, which nothing can part) and *sites* that may hold a
contiguous range of atoms each. A site is a Compute Unit in one of the ways in which it may work (what it computes in,
and where its states are); each Compute Unit takes part once at most. Atoms of one *kind* cost the same and take the
same memory on the same site, so solvers count them instead of naming them. A route's value is::

    request_weight × (Σ seconds + later_chunks × the slowest pace) + cadence_weight × max(Σ steps / sessions, slowest)

over the parts: its stages, the paths between neighbors, and the way back, `slowest` being the longest step of one
part. Costs of a stage add up over its atoms. A site takes memory by a *profile* on each Memory Resource that it
holds something on: `fixed_bytes`, its atoms' own bytes, and each *common* once that it touches: a state that several
atoms share, or short-lived memory that some kinds bring. Sites and atoms are indexes without meaning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Steps = tuple[tuple[int, int], ...]
"""A route: (site, atoms covered after its stage) for each stage in order."""
Trail = Any
"""The same while it is being made, as (trail before it, site, atoms covered), empty where it begins: shared, not
copied."""
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


class Profile(NamedTuple):
    """What a range of atoms takes of one Memory Resource. `own_bytes` are by kind."""

    own_bytes: tuple[int, ...]
    common: tuple[Common, ...] = ()
    fixed_bytes: int = 0


class Hold(NamedTuple):
    """A site's memory on one Memory Resource: by which profile."""

    memory: int
    profile: int = 0


class Instance(NamedTuple):
    """One implementation's chain over the sites that may take part. See the module for the value of a route."""

    kinds: tuple[int, ...]
    """The kind of each atom. Atoms of one kind touch the same commons of every profile."""
    ends: tuple[int, ...]
    """Units of the chain that are covered after each atom."""
    profiles: tuple[Profile, ...]
    payloads: tuple[int, ...]
    """The payload class of the boundary before each atom; the first entry means nothing."""
    costs: tuple[tuple[Part | None, ...], ...]
    """By site and kind; None where there is no price."""
    holds: tuple[tuple[Hold, ...], ...]
    """By site: at least one, no Memory Resource twice."""
    room: tuple[int, ...]
    """Bytes available on each Memory Resource."""
    hops: tuple[tuple[tuple[Part | None, ...], ...], ...]
    """By source, target and payload class; None where there is no path or no price. Equal for sites of one unit."""
    returns: tuple[tuple[Part | None, ...], ...]
    """By last and first site. Equal for sites of one unit."""
    later_chunks: float
    units: tuple[int, ...] = ()
    """The Compute Unit of each site, of which a route has each once at most. Empty: each site is one."""
    forms: tuple[int, ...] = ()
    """What each site computes in, where a route must have two of them at least. Empty: it need not."""
    request_weight: float = 1.0
    cadence_weight: float = 0.0
    sessions: int = 1
    step_limit: float | None = None
    """The sum of the steps of all parts may not exceed this."""
    part_limit: float | None = None
    """The step of no part may exceed this; paths that do are None already."""
    most_sites: int | None = None

    @property
    def num_atoms(self) -> int:
        """Return the length of the chain."""
        return len(self.kinds)

    @property
    def num_kinds(self) -> int:
        """Return how many kinds of atoms there are."""
        return len(self.profiles[0].own_bytes)

    @property
    def num_sites(self) -> int:
        """Return how many sites may take part."""
        return len(self.costs)

    @property
    def num_units(self) -> int:
        """Return how many Compute Units the sites are."""
        return len(set(self.units)) if self.units else self.num_sites

    @property
    def most_stages(self) -> int:
        """Return how many stages a route may have."""
        most = min(self.num_atoms, self.num_units)
        return most if self.most_sites is None else min(most, self.most_sites)

    @property
    def pace_weight(self) -> float:
        """Return how much the slowest pace weighs in the value."""
        return self.request_weight * self.later_chunks

    @property
    def is_sum(self) -> bool:
        """Return whether the value is that of a request alone: sums and the slowest pace."""
        return self.cadence_weight <= 0

    def room_together(self, memory: int) -> int:
        """Return the bytes that all sites together may hold on a Memory Resource.

        Where more is reserved than is there, that is nothing: a route that holds nothing there is still one.
        """
        return max(0, self.room[memory])

    def unit_of(self, site: int) -> int:
        """Return the Compute Unit of a site."""
        return self.units[site] if self.units else site

    def rivals(self) -> list[list[int]]:
        """Return the sites of each Compute Unit that has several: one of them takes part at most."""
        groups: dict[int, list[int]] = {}
        for site, unit in enumerate(self.units):
            groups.setdefault(unit, []).append(site)
        return [group for group in groups.values() if len(group) > 1]

    def mixes(self, sites: Sequence[int]) -> bool:
        """Return whether sites compute in two forms at least, where they must."""
        return not self.forms or len({self.forms[site] for site in sites}) > 1

    def value(self, seconds: float, pace: float, step: float = 0.0, slowest: float = 0.0) -> float:
        """Return the value of a route: sums of its parts' seconds and steps, greatest pace and step of one part."""
        total = self.request_weight * (seconds + self.later_chunks * pace)
        if self.cadence_weight > 0:
            total += self.cadence_weight * max(step / self.sessions, slowest)
        return total

    def linear(self, part: Part) -> float:
        """Return what a part adds to the value at least, whatever sets the pace."""
        added = self.request_weight * part.seconds
        return added + self.cadence_weight * part.step / self.sessions if self.cadence_weight > 0 else added

    def peaked(self, part: Part) -> float:
        """Return what a part would add if it alone set the pace and the cadence."""
        added = self.pace_weight * part.pace
        return added + self.cadence_weight * part.step if self.cadence_weight > 0 else added

    def peak(self, first: int, end: int, profile: int = 0) -> int:
        """Return the peak memory of a stage that holds the atoms [first, end), by one profile."""
        own, common, fixed = self.profiles[profile]
        held = sum(own[kind] for kind in self.kinds[first:end])
        return fixed + held + sum(item.bytes for item in common if touches(item, first, end))

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


def peak_tables(instance: Instance) -> list[list[list[int]]]:
    """Return, by profile and first atom, the peaks of the ranges of one atom, two, … up to the chain's end."""
    tables = []
    for own, common, fixed in instance.profiles:
        bringing = [
            [place for place, item in enumerate(common) if atom in item.atoms] for atom in range(len(instance.kinds))
        ]
        table = []
        for first in range(instance.num_atoms):
            total, seen, row = fixed, set[int](), []
            for atom in range(first, instance.num_atoms):
                total += own[instance.kinds[atom]]
                for place in bringing[atom]:
                    if place not in seen:
                        seen.add(place)
                        total += common[place].bytes
                row.append(total)
            table.append(row)
        tables.append(table)
    return tables


def longest_ranges(instance: Instance, tables: list[list[list[int]]] | None = None) -> list[list[int]]:
    """Return, by site and first atom, the end of the longest range that fits on the site alone and has a price.

    Equal to `first` when not even one atom does. Peaks and steps grow with the range, so every shorter one fits as
    well. `tables` are `peak_tables` where they are known.
    """
    num_atoms, kinds = instance.num_atoms, instance.kinds
    tables = peak_tables(instance) if tables is None else tables
    slowest = math.inf if instance.part_limit is None else instance.part_limit * (1 + TINY)
    longest: list[list[int]] = []
    for site, costs in enumerate(instance.costs):
        held = [(tables[profile], instance.room[memory]) for memory, profile in instance.holds[site]]
        row = []
        for first in range(num_atoms):
            end, step = first, 0.0
            while end < num_atoms:
                part = costs[kinds[end]]
                if part is None or any(table[first][end - first] > room for table, room in held):
                    break
                step += part.step
                if step > slowest:
                    break
                end += 1
            row.append(end)
        longest.append(row)
    return longest


def shared_memories(instance: Instance, sites: Sequence[int]) -> list[int]:
    """Return the Memory Resources on which several Compute Units of these sites hold something."""
    users = Counter(
        memory
        for memory, _ in {(hold.memory, instance.unit_of(site)) for site in sites for hold in instance.holds[site]}
    )
    return sorted(memory for memory, times in users.items() if times > 1)


def evaluate(instance: Instance, steps: Sequence[tuple[int, int]]) -> float | None:
    """Return the exact value of a route, or None when it breaks a limit, lacks a path or a price, or is no route.

    Paths count one by one: what sharing a segment adds is not in it, see `contention`.
    """
    parts = parts_of(instance, steps)
    if parts is None:
        return None
    step = sum(part.step for part in parts)
    return instance.value(
        sum(part.seconds for part in parts), max(part.pace for part in parts), step, max(part.step for part in parts)
    )


def parts_of(instance: Instance, steps: Sequence[tuple[int, int]]) -> list[Part] | None:
    """Return the parts of a route (stages, paths, the way back), or None where `evaluate` gives none."""
    sites = [site for site, _ in steps]
    units = {instance.unit_of(site) for site in sites}
    if not steps or len(units) < len(sites) or steps[-1][1] != instance.num_atoms:
        return None
    if len(sites) > instance.most_stages or not instance.mixes(sites):
        return None
    parts: list[Part | None] = []
    held: dict[int, int] = {}
    first = 0
    for site, end in steps:
        if end <= first:
            return None
        for memory, profile in instance.holds[site]:
            held[memory] = held.get(memory, 0) + instance.peak(first, end, profile)
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
    if instance.part_limit is not None and any(part.step > instance.part_limit * (1 + TINY) for part in known):
        return None
    return known


def equal_sites(instance: Instance) -> list[list[int]]:
    """Return the sets of two or more sites that may be exchanged without changing any route's value."""
    by_look: dict[object, list[list[int]]] = {}
    users = Counter(hold.memory for holds in instance.holds for hold in holds)
    rivals = {site for group in instance.rivals() for site in group}
    for site, holds in enumerate(instance.holds):
        if site in rivals or any(users[hold.memory] > 1 for hold in holds):
            continue
        look = tuple((hold.profile, instance.room[hold.memory]) for hold in holds)
        form = instance.forms[site] if instance.forms else 0
        groups = by_look.setdefault((instance.costs[site], look, form), [])
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


def steps_of_trail(trail: Trail) -> Steps:
    """Return the route that a trail leads along."""
    steps: list[tuple[int, int]] = []
    while trail:
        trail, site, end = trail
        steps.append((site, end))
    return tuple(reversed(steps))
