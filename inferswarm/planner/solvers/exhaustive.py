"""The exact search where every figure of a route counts: limits on single figures, and what its parts share.

The other searches make one value least, of parts that are priced one by one. Here a route is judged by its figures::

    first   = Σ first + later_chunks × pace     pace = the longest chunk of one part, or of parts that share something
    request = first + tokens after the first × Σ step
    each    = max(Σ step / sessions, the longest step of one part, or of parts that share something)

Routes grow stage by stage, over sets of Compute Units as in `planner.search`. A *label*, a route that covers the
chain up to some atom, is dropped only where another with the same first, last and used Compute Units is no worse in
all that can matter, or where a gauge (see there) shows that no continuation keeps a limit or betters what is known.

All is searched with few labels for each place first, so that the best route of that makes the gauges strict, and then
with more. It is exact once nothing was dropped for its number. Sites, units and atoms are indexes without meaning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from operator import add, gt, le
from typing import Any, NamedTuple

from inferswarm.planner.solvers.bounds import most_of_kinds
from inferswarm.planner.solvers.gauges import Gauge, Goal, gauges_of, rest_of
from inferswarm.planner.solvers.instance import (
    Instance,
    Part,
    Steps,
    Trail,
    longest_ranges,
    peak_tables,
    shared_memories,
    steps_of_trail,
)

WIDTHS = (4, 64, 2048)
"""Labels that are kept for one place, in one search after the other."""
NOISE = 1e-12
"""Relative: how far sums of the same floats in another order may be apart."""


class Share(NamedTuple):
    """What several parts share, so that together they take the weighed sum of their times."""

    stages: tuple[float, ...]
    """The weight of each site's stage, 0 for none. If any has one, it counts where two Compute Units have a part."""
    paths: tuple[tuple[float, ...], ...]
    """The weight of each path by its two sites."""


class Exhausted(NamedTuple):
    """The best route below what was known, with its value, if there is one. None has a smaller value than `bound`."""

    value: float
    steps: Steps | None
    bound: float


class _Label(NamedTuple):
    """A route up to some atom: sums of first and step, the longest chunk and step of one part, and other sums.

    `sums` are of shared Memory Resources, then of what parts share: their chunks, then their steps, as far as needed.
    """

    first: float
    step: float
    pace: float
    slowest: float
    sums: tuple[float, ...]
    trail: Trail


_Key = tuple[int, int, int, int]
"""First unit, bit set of units used, bit set of forms used, last unit."""
_Frontier = dict[_Key, dict[int, list[_Label]]]


def search_all(
    instance: Instance,
    goal: Goal,
    shares: Sequence[Share] = (),
    sets: Collection[frozenset[int]] | None = None,
    seats: Sequence[Collection[int]] | None = None,
    ends: Sequence[int] | None = None,
    known: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    deadline: float = math.inf,
) -> Exhausted:
    """Return the best route whose value is below `known` and that keeps the goal's limits.

    `instance` is one of `build_figures`: a part's seconds are what it adds to the first token. `sets`, when given,
    are the sets of units that a route may be over, `seats` the units that may be each participant, and `ends` the
    atoms that are covered after each. Stops soon after `deadline` on `clock`, with a smaller bound.
    """
    search = _Search(instance, goal, shares, sets, seats, ends, known)
    bound = 0.0
    for width in WIDTHS:
        bound = max(bound, search.sweep(width, clock, deadline))
        if bound >= search.known or clock() > deadline:
            break
    return Exhausted(search.known, search.steps, min(bound, search.known))


class _Search:
    """One question: what is known of it so far, and the tables that every sweep uses."""

    def __init__(
        self,
        instance: Instance,
        goal: Goal,
        shares: Sequence[Share],
        sets: Collection[frozenset[int]] | None,
        seats: Sequence[Collection[int]] | None,
        ends: Sequence[int] | None,
        known: float,
    ) -> None:
        self.known = known
        self.steps: Steps | None = None
        self._instance, self._goal, self._ends = instance, goal, ends
        self._units = [instance.unit_of(site) for site in range(instance.num_sites)]
        self._sets = None if sets is None else {_bits(members) for members in sets}
        self._seats = None if seats is None else [_bits(seat) for seat in seats]
        self._most = instance.most_stages if seats is None else len(seats)
        self._site_of = {unit: site for site, unit in enumerate(self._units)}
        limited = math.isfinite(min(goal.first_limit, goal.request_limit))
        self._paced = instance.later_chunks > 0 and (goal.request > 0 or limited)
        self._cadenced = goal.cadence > 0 or math.isfinite(goal.wait_limit)
        self._shares = tuple(shares) if self._paced or self._cadenced else ()
        self._sharing = [
            _bits(unit for unit, weight in zip(self._units, share.stages, strict=True) if weight)
            for share in self._shares
        ]
        self._memories = shared_memories(instance, range(instance.num_sites))
        self._room = tuple(float(instance.room_together(memory)) for memory in self._memories)
        tables = peak_tables(instance)
        reach = longest_ranges(instance, tables)
        self._stages = [
            [self._options(site, first, end, tables) for first, end in enumerate(row)]
            for site, row in enumerate(reach)
        ]
        self._holds = [most_of_kinds(instance, row) for row in reach]
        limits = ((goal.first_limit, 0.0), (goal.request_limit, goal.request_tokens))
        factors = {tokens for limit, tokens in limits if math.isfinite(limit)}
        self._factors = sorted(factors | ({goal.later_tokens} if goal.request else set()))
        self._stepped = self._cadenced or math.isfinite(goal.step_limit)
        self._free: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}
        self._gauges: list[Gauge] = []
        self._caps: list[float] = []
        self._rests: dict[int, list[list[float]]] = {}

    def sweep(self, width: int, clock: Callable[[], float], deadline: float) -> float:
        """Search with so many labels for one place; return what every route that was dropped for that takes at least.

        Infinite where none was.
        """
        self._gauges, self._rests = gauges_of(self._instance, self._goal, self.known), {}
        self._set_caps()
        left = math.inf
        sums = len(self._memories) + len(self._shares) * (int(self._paced) + int(self._cadenced))
        frontier: _Frontier = {(-1, 0, 0, -1): {0: [_Label(0.0, 0.0, 0.0, 0.0, (0.0,) * sums, ())]}}
        for _ in range(self._most):
            grown: _Frontier = {}
            places = list(frontier.items())
            for place, (key, by_atom) in enumerate(places):
                for atom, labels in by_atom.items():
                    if clock() > deadline:
                        rest = [*places[place:], *grown.items()]
                        return min([left, *(self._least(at[1], by) for at, by in rest)])
                    for site in range(self._instance.num_sites):
                        self._grow(key, atom, labels, site, grown)
            for key, by_atom in grown.items():
                for atom, labels in by_atom.items():
                    kept = self._undominated(key[1], labels)
                    if len(kept) > width:
                        kept, lost = self._promising(kept, width)
                        left = min(left, self._least(key[1], {atom: lost}))
                    by_atom[atom] = kept
            frontier = grown
        return left

    def _grow(self, key: _Key, atom: int, labels: list[_Label], site: int, grown: _Frontier) -> None:
        """Append each stage that a site may hold from an atom on to each label."""
        instance, (first_unit, used, forms, last) = self._instance, key
        unit, depth = self._units[site], used.bit_count()
        bit = 1 << unit
        if used & bit or not self._free_after(used) & bit:
            return
        if self._seats is not None and not self._seats[depth] & bit:
            return
        hop: Part | None = Part(0.0)
        if depth:
            hop = instance.hops[self._site_of[last]][site][instance.payloads[atom]]
        if hop is None:
            return
        before = [share.paths[self._site_of[last]][site] for share in self._shares] if depth else []
        over = self._together(hop, before)
        used |= bit
        form = forms | (1 << instance.forms[site] if instance.forms else 0)
        whole = instance.num_atoms
        rests = self._rests_after(used)
        active = self._active(used)
        offset, count, num_memories = len(self._memories), len(self._shares), len(self._memories)
        steps_at = offset + (count if self._paced else 0)
        by_atom: dict[int, list[_Label]] | None = None
        for end, part, uses in self._stages[site][atom]:
            if self._ends is not None and end != self._ends[depth]:
                continue
            if end < whole and rests[0][end] == math.inf:
                continue
            more = (*uses, *over)
            if count:
                on = self._together(part, [share.stages[site] for share in self._shares])
                more = (*uses, *map(add, over, on))
            first, step = hop.seconds + part.seconds, hop.step + part.step
            pace, slowest = max(hop.pace, part.pace), max(hop.step, part.step)
            for label in labels:
                sums = tuple(map(add, label.sums, more)) if more else ()
                if num_memories and any(map(gt, sums, self._room)):
                    continue
                new = _Label(
                    label.first + first,
                    label.step + step,
                    max(label.pace, pace),
                    max(label.slowest, slowest),
                    sums,
                    (label.trail, site, end),
                )
                if end == whole:
                    self._finish(new, unit if first_unit < 0 else first_unit, used, form, site)
                    continue
                top_pace, top_step = new.pace, new.slowest
                for at in active:
                    if self._paced:
                        top_pace = max(top_pace, sums[offset + at])
                    if self._cadenced:
                        top_step = max(top_step, sums[steps_at + at])
                for gauge, rest, cap in zip(self._gauges, rests, self._caps, strict=True):
                    least = gauge.first * new.first + gauge.step * new.step + gauge.pace * top_pace
                    if least + gauge.slowest * top_step + rest[end] >= cap:
                        break
                else:
                    if by_atom is None:
                        start = unit if first_unit < 0 else first_unit
                        by_atom = grown.setdefault((start, used, form, unit), {})
                    by_atom.setdefault(end, []).append(new)

    def _finish(self, label: _Label, first_unit: int, used: int, forms: int, last: int) -> None:
        """Take a route over the whole chain as the best one if it keeps everything and is better."""
        instance, depth = self._instance, used.bit_count()
        if (instance.forms and forms.bit_count() < 2) or (self._sets is not None and used not in self._sets):
            return
        if self._seats is not None and depth < len(self._seats):
            return
        if depth > 1:
            back = instance.returns[last][self._site_of[first_unit]]
            if back is None:
                return
            factors = [share.paths[last][self._site_of[first_unit]] for share in self._shares]
            over = (*(0.0 for _ in self._memories), *self._together(back, factors))
            label = label._replace(
                first=label.first + back.seconds,
                step=label.step + back.step,
                slowest=max(label.slowest, back.step),
                sums=tuple(map(add, label.sums, over)),
            )
        pace, slowest = self._tops(label, used)
        value = 0.0
        for gauge in self._gauges:
            # Those of a limit and a value together follow from the others.
            figure = gauge.first * label.first + gauge.step * label.step + gauge.pace * pace + gauge.slowest * slowest
            if not gauge.known:
                if figure > gauge.most:
                    return
            elif gauge.most == 0.0:
                value = max(value, figure)
        if value < self.known:
            self.known, self.steps = value, steps_of_trail(label.trail)
            self._set_caps()

    def _set_caps(self) -> None:
        """Set what each gauge must be below, now that a value is known."""
        self._caps = [
            gauge.most + gauge.known * self.known * (1 - NOISE) if gauge.known else gauge.most
            for gauge in self._gauges
        ]

    def _rests_after(self, used: int) -> list[list[float]]:
        """Return, by gauge and atoms covered, what the units that may still follow add at least."""
        if used not in self._rests:
            free = self._free_after(used)
            sites = [site for site, unit in enumerate(self._units) if free >> unit & 1]
            left = self._most - used.bit_count()
            self._rests[used] = [rest_of(self._instance, gauge, sites, self._holds, left) for gauge in self._gauges]
        return self._rests[used]

    def _free_after(self, used: int) -> int:
        """Return the units that may still follow those that are used."""
        if used not in self._free:
            free = _bits(self._units)
            if self._sets is not None:
                free = 0
                for members in self._sets:
                    free |= members if members & used == used else 0
            if self._seats is not None:
                later = 0
                for seat in self._seats[used.bit_count() :]:
                    later |= seat
                free &= later
            self._free[used] = free & ~used
        return self._free[used]

    def _active(self, used: int) -> list[int]:
        """Return which shares count: those of stages only where two units have a part."""
        return [at for at, units in enumerate(self._sharing) if not units or (units & used).bit_count() > 1]

    def _tops(self, label: _Label, used: int) -> tuple[float, float]:
        """Return the pace and the longest step, with what is shared counted in."""
        pace, slowest = label.pace, label.slowest
        at = len(self._memories)
        for index in self._active(used):
            if self._paced:
                pace = max(pace, label.sums[at + index])
            if self._cadenced:
                slowest = max(slowest, label.sums[at + index + (len(self._shares) if self._paced else 0)])
        return pace, slowest

    def _together(self, part: Part, factors: Sequence[float]) -> tuple[float, ...]:
        """Return what a part adds to what is shared."""
        factors = factors or [0.0] * len(self._shares)
        paces = [weight * part.pace for weight in factors] if self._paced else []
        return (*paces, *(weight * part.step for weight in factors)) if self._cadenced else tuple(paces)

    def _options(
        self, site: int, first: int, end: int, tables: list[list[list[int]]]
    ) -> list[tuple[int, Part, tuple[float, ...]]]:
        """Return the ranges that a site may hold from an atom on: end, what it adds, and what it takes of memory."""
        profiles = dict(self._instance.holds[site])
        total = Part(0.0)
        options = []
        for atom in range(first, end):
            part = self._instance.costs[site][self._instance.kinds[atom]]
            assert part is not None, "longest ranges are priced"
            total = total.plus(part)
            uses = tuple(
                float(tables[profiles[memory]][first][atom - first]) if memory in profiles else 0.0
                for memory in self._memories
            )
            options.append((atom + 1, total, uses))
        return options

    def _least(self, used: int, by_atom: dict[int, list[_Label]]) -> float:
        """Return what any route takes at least that one of these labels grows to."""
        rests = self._rests_after(used) if used else None
        found = math.inf
        for atom, labels in by_atom.items():
            for label in labels:
                pace, slowest = self._tops(label, used)
                values = [
                    gauge.first * label.first
                    + gauge.step * label.step
                    + gauge.pace * pace
                    + gauge.slowest * slowest
                    + (rests[place][atom] if rests else 0.0)
                    for place, gauge in enumerate(self._gauges)
                    if gauge.known == 1.0 and gauge.most == 0.0
                ]
                found = min(found, max(values))
        return found

    def _promising(self, labels: list[_Label], width: int) -> tuple[list[_Label], list[_Label]]:
        """Return as many labels as may be kept, half of them by the value, half by the first token; and the rest."""
        value = self._gauges[0]
        by_value = sorted(
            labels, key=lambda label: value.first * label.first + value.step * label.step + value.pace * label.pace
        )
        kept = by_value[: width // 2]
        rest = sorted(by_value[width // 2 :], key=lambda label: (label.first, label.step))
        more = width - len(kept)
        return kept + rest[:more], rest[more:]

    def _open_memories(self, used: int) -> list[int]:
        """Return which sums of shared memory can still grow."""
        if used not in self._open:
            free = self._free_after(used)
            sites = [site for site, unit in enumerate(self._units) if free >> unit & 1]
            held = {hold.memory for site in sites for hold in self._instance.holds[site]}
            self._open[used] = [place for place, memory in enumerate(self._memories) if memory in held]
        return self._open[used]

    def _undominated(self, used: int, labels: list[_Label]) -> list[_Label]:
        """Keep the labels that no other is as good as, in all that can matter."""
        if len(labels) < 2:
            return labels
        open_ = self._open_memories(used)
        at = len(self._memories)
        entries = []
        for label in labels:
            times = [label.first + weight * label.step for weight in self._factors]
            times += [label.step] if self._stepped else []
            times += [label.pace] if self._paced else []
            times += [label.slowest, *label.sums[at:]] if self._cadenced else [*label.sums[at:]]
            bytes_ = tuple(label.sums[place] for place in open_)
            entries.append(((*times, *bytes_), (*(time * (1 + NOISE) for time in times), *bytes_), label))
        entries.sort(key=lambda entry: entry[0])
        kept: list[tuple[float, ...]] = []
        left = []
        for mine, loose, label in entries:
            if not any(all(map(le, other, loose)) for other in kept):
                kept.append(mine)
                left.append(label)
        return left


def _bits(indexes: Collection[int] | Any) -> int:
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return bits
