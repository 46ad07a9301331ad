"""A good plan quickly: build orders greedily, improve them by local search, then cut the best of them exactly.

An order of sites is judged by its paths and by the best counts of atoms for it (`counted.fill`). The search inserts,
removes, replaces and moves sites, and reverses parts of the order; rounds that stop improving restart from a
disturbed order. The best orders found then get their exact cuts. No bound comes from here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from itertools import pairwise
from typing import NamedTuple

from inferswarm.planner.solvers.counted import Counted, Counts, count_chain, fill
from inferswarm.planner.solvers.cuts import Cuts, best_cuts
from inferswarm.planner.solvers.instance import Instance, Steps, longest_ranges

Order = tuple[int, ...]
MOST_TRIALS = 24
"""Changes of one order that are priced exactly in each round, the most promising first."""
KEPT_ORDERS = 12
RESTARTS = 30


class Guess(NamedTuple):
    """The best route that came up."""

    value: float
    steps: Steps


def search_orders(
    instance: Instance, deadline: float, clock: Callable[[], float], seed: int = 0, hint: Steps | None = None
) -> Guess | None:
    """Return a good route, or None when none came up. Stops soon after `deadline` on `clock`.

    `hint` is a route to begin with.
    """
    longest = longest_ranges(instance)
    guesses: list[Cuts] = []
    for site in range(instance.num_sites):
        cuts = best_cuts(instance, (site,), longest)
        if cuts is not None:
            guesses.append(cuts)
    counted = count_chain(instance, longest)
    if counted is not None and instance.most_stages > 1:
        search = _Search(counted, random.Random(seed))
        hinted = () if hint is None or len(hint) < 2 else (tuple(site for site, _ in hint),)
        for order in (*hinted, *_starts(counted)):
            search.improve(order)
            if clock() > deadline:
                break
        for _ in range(RESTARTS):
            if clock() > deadline or not search.best:
                break
            search.improve(search.disturbed())
        for tried, (_, order) in enumerate(search.best):
            cuts = best_cuts(instance, order, longest)
            if cuts is not None:
                guesses.append(cuts)
            if (counted.exact and cuts is not None) or (clock() > deadline and tried > 1):
                break
        if not guesses:
            guesses += _roomier(instance, counted, longest)
    best = min(guesses, key=lambda cuts: (cuts.value, len(cuts.steps), cuts.steps), default=None)
    return None if best is None else Guess(best.value, best.steps)


class _Search:
    """Local search over orders of two or more sites, with the best orders seen."""

    def __init__(self, counted: Counted, rng: random.Random) -> None:
        self.counted = counted
        self.best: list[tuple[float, Order]] = []
        self._rng = rng
        self._filled: dict[tuple[frozenset[int], int, int], tuple[Order, Counts] | None] = {}
        instance = counted.instance
        payload = instance.payloads[1]
        self._unit_of = [instance.unit_of(site) for site in range(instance.num_sites)]
        self._hops = [
            [math.inf if (part := by_payload[payload]) is None else instance.linear(part) for by_payload in row]
            for row in instance.hops
        ]
        self._returns = [
            [math.inf if part is None else instance.linear(part) for part in row] for row in instance.returns
        ]
        self._typical = [
            math.inf if unit is None else instance.linear(unit) + instance.peaked(unit) / 4
            for unit in counted.between
        ]
        self._useful = [
            site for site, most in enumerate(counted.most) if max(most) > 0 and counted.between[site] is not None
        ]

    def improve(self, order: Order) -> None:
        """Follow improvements from an order until there is none."""
        instance = self.counted.instance
        value = self.price(order)
        while True:
            better: tuple[float, Order] | None = None
            for other in self._changes(order):
                price = self.price(other)
                if instance.forms and price < math.inf and instance.mixes(other):
                    self._keep(price, other)
                if price < value - 1e-12 * abs(value) and (better is None or price < better[0]):
                    better = (price, other)
            if better is None:
                break
            value, order = better
        if value < math.inf and instance.mixes(order):
            self._keep(value, order)

    def price(self, order: Order) -> float:
        """Return the value of an order with its best counts; infinite when nothing fits or a path is missing."""
        instance = self.counted.instance
        if not 2 <= len(order) <= instance.most_stages:
            return math.inf
        seconds = step = pace = slowest = 0.0
        for source, target in pairwise(order):
            hop = instance.hops[source][target][instance.payloads[1]]
            if hop is None:
                return math.inf
            seconds, step = seconds + hop.seconds, step + hop.step
            pace, slowest = max(pace, hop.pace), max(slowest, hop.step)
        back = instance.returns[order[-1]][order[0]]
        counts = None if back is None else self._fill(order)
        if back is None or counts is None:
            return math.inf
        step += back.step + counts.step
        value = instance.value(
            seconds + back.seconds + counts.seconds,
            max(pace, back.pace, counts.pace),
            step,
            max(slowest, back.step, counts.slowest),
        )
        if instance.step_limit is not None and step > instance.step_limit:
            value *= 1 + 10 * (step / instance.step_limit - 1)
        return value

    def disturbed(self) -> Order:
        """Return one of the best orders with a few sites dropped and a few others put in."""
        order = list(self._rng.choice(self.best[:4])[1])
        for _ in range(self._rng.randint(1, 3)):
            if len(order) > 2:
                order.pop(self._rng.randrange(len(order)))
        unit_of = self.counted.instance.unit_of
        inside = {unit_of(site) for site in order}
        outside = [site for site in range(self.counted.instance.num_sites) if unit_of(site) not in inside]
        for site in self._rng.sample(outside, min(len(outside), self._rng.randint(1, 3))):
            if unit_of(site) not in inside:
                inside.add(unit_of(site))
                order.insert(self._rng.randint(0, len(order)), site)
        return tuple(order)

    def _fill(self, order: Order) -> Counts | None:
        key = (frozenset(order), order[0], order[-1])
        if key not in self._filled:
            counts = fill(self.counted, order)
            self._filled[key] = None if counts is None else (order, counts)
        found = self._filled[key]
        return None if found is None else found[1]

    def _keep(self, value: float, order: Order) -> None:
        if all(other != order for _, other in self.best):
            self.best = sorted([*self.best, (value, order)])[:KEPT_ORDERS]

    def _changes(self, order: Order) -> Iterator[Order]:
        """Yield changed orders, the most promising first: an estimate leaves out what the counts would do."""
        known = self._fill(order) if len(order) > 1 else None
        share = self.counted.num_between / max(1, len(order))
        held = [share] * len(order) if known is None else [float(count) for count in known.counts]
        shorter = [(self._path(rest), rest) for rest in (order[:at] + order[at + 1 :] for at in range(len(order)))]
        moves = [(self._path(changed), changed) for changed in self._rearranged(order)]
        found = nsmallest(MOST_TRIALS // 4, shorter) if len(order) > 2 else []
        found += nsmallest(MOST_TRIALS // 4, moves)
        replaced = nsmallest(MOST_TRIALS // 4, self._replacements(order, held))
        found += [(value, (*order[:at], site, *order[at + 1 :])) for value, at, site in replaced]
        if len(order) < self.counted.instance.most_stages:
            inserted = nsmallest(MOST_TRIALS // 4, self._insertions(order, share))
            found += [(value, (*order[:at], site, *order[at:])) for value, at, site in inserted]
        for _, changed in sorted(found):
            yield changed

    def _replacements(self, order: Order, held: Sequence[float]) -> Iterator[tuple[float, int, int]]:
        hops, typical, path = self._hops, self._typical, self._path(order)
        unit_of = self._unit_of
        inside = frozenset(unit_of[site] for site in order)
        for at, old in enumerate(order):
            ending = at in (0, len(order) - 1)
            if not ending:
                before, after = order[at - 1], order[at + 1]
                gone = hops[before][old] + hops[old][after]
            for site in self._useful:
                if site == old or (unit_of[site] in inside and unit_of[site] != unit_of[old]):
                    continue
                if ending:
                    change = self._path((*order[:at], site, *order[at + 1 :]))
                else:
                    change = path - gone + hops[before][site] + hops[site][after]
                most = max(self.counted.most[site])
                yield change + typical[site] * min(held[at], most) - typical[old] * held[at], at, site

    def _insertions(self, order: Order, share: float) -> Iterator[tuple[float, int, int]]:
        hops, path, unit_of = self._hops, self._path(order), self._unit_of
        inside = frozenset(unit_of[site] for site in order)
        middle = sum(self._typical[site] for site in order if self._typical[site] < math.inf) / max(1, len(order))
        for at in range(len(order) + 1):
            ending = at in (0, len(order))
            for site in self._useful:
                if unit_of[site] in inside:
                    continue
                if ending:
                    change = self._path((*order[:at], site, *order[at:]))
                else:
                    before, after = order[at - 1], order[at]
                    change = path - hops[before][after] + hops[before][site] + hops[site][after]
                yield change + (self._typical[site] - middle) * min(share, self.counted.most[site][0]), at, site

    def _path(self, order: Order) -> float:
        hops = self._hops
        return sum(hops[source][target] for source, target in pairwise(order)) + self._returns[order[-1]][order[0]]

    @staticmethod
    def _rearranged(order: Order) -> Iterator[Order]:
        size = len(order)
        for place in range(size):
            rest = order[:place] + order[place + 1 :]
            for to in range(size):
                if to != place:
                    yield (*rest[:to], order[place], *rest[to:])
        for low in range(size):
            for high in range(low + 2, size + 1):
                yield (*order[:low], *reversed(order[low:high]), *order[high:])
        for place in range(1, size):
            yield order[place:] + order[:place]


def _starts(counted: Counted) -> Iterator[Order]:
    """Yield orders that cover the chain: nearest next site, by speed, by memory, and by both."""
    instance = counted.instance
    usable = [
        site
        for site in range(instance.num_sites)
        if counted.between[site] is not None and max(counted.most[site]) > 0
    ]

    def pace(site: int) -> float:
        part = counted.between[site]
        assert part is not None
        return instance.linear(part) + instance.peaked(part) / 4

    by_speed = sorted(usable, key=lambda site: (pace(site), site))
    by_room = sorted(usable, key=lambda site: (-counted.most[site][0], pace(site), site))
    by_both = sorted(usable, key=lambda site: (pace(site) / max(1, counted.most[site][0]), site))
    for ranked in (by_speed, by_both, by_room):
        for lead in ranked[:3]:
            yield from _grown(counted, lead, ranked, near=True)
        yield from _grown(counted, ranked[0], ranked, near=False) if ranked else ()


def _grown(counted: Counted, lead: int, ranked: Sequence[int], near: bool) -> Iterator[Order]:
    """Append sites until the chain is covered: the best-ranked next, or the one that is cheapest to get to."""
    instance = counted.instance
    payload = instance.payloads[1]
    order = [lead]
    inside = {instance.unit_of(lead)}
    rank = {site: place for place, site in enumerate(ranked)}
    while len(order) < instance.most_stages:
        if len(order) > 1 and fill(counted, order) is not None:
            break
        source = order[-1]
        choices: list[tuple[float, int]] = []
        for site in ranked:
            hop = instance.hops[source][site][payload]
            part = counted.between[site]
            if instance.unit_of(site) in inside or hop is None or part is None:
                continue
            cap = max(1, counted.most[site][0])
            cost = instance.linear(hop) / cap + instance.linear(part) if near else float(rank[site])
            choices.append((cost, site))
        if not choices:
            return
        order.append(min(choices)[1])
        inside.add(instance.unit_of(order[-1]))
    if len(order) > 1:
        yield tuple(order)


def _roomier(instance: Instance, counted: Counted, longest: Sequence[Sequence[int]]) -> list[Cuts]:
    """Try orders with more and more of the roomiest sites, where averages misled the search."""
    roomiest: dict[int, int] = {}
    for site in sorted(range(instance.num_sites), key=lambda site: (-counted.most[site][0], site)):
        roomiest.setdefault(instance.unit_of(site), site)
    ranked = list(roomiest.values())
    found: list[Cuts] = []
    for size in range(2, min(instance.most_stages, 48) + 1):
        cuts = best_cuts(instance, ranked[:size], longest)
        if cuts is not None:
            found.append(cuts)
            break
    return found
