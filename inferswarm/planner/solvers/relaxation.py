"""A lower bound for every route over two or more sites, and what no better route can contain.

The linear program relaxes a route: how much a site is used, how many atoms of each kind it holds, and how much each
path into it and back counts, all fractional. Each used site has as much way in as way out; the ways may fall into
several circles, which added rows forbid one by one (a circle that cannot hold the whole chain must be left). Paths
enter the program when their reduced cost says so.

The bound does not trust the solver: from whatever multipliers it returns, the Lagrangian value is computed here, with
every path counted, whether it entered the program or not. So it is valid at any moment that the search stops. A path
or a site whose reduced cost lifts the bound above the best known value is in no better route.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import pairwise
from typing import Any, NamedTuple

from inferswarm.planner.solvers.bounds import cheapest_part, most_of_kinds, quick_bound
from inferswarm.planner.solvers.instance import Instance, Part, Steps, longest_ranges, shared_memories

NEAREST = 8
"""Cheapest paths into and out of each site that the program starts with."""
MARGIN = 1e-9
"""Relative; what is excluded must exceed the best known value by this."""
PATIENCE, WORTH_GOING_ON = 4, 1e-4
"""The program stops growing after so many rounds that did not raise the bound by this share."""
PROMISING = (0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
"""Shares of the gap; paths whose reduced cost is below that are the promising ones."""
LEAST_SECONDS, MOST_SECONDS = 0.05, 600.0
"""What one solution of the program may take, whatever the time limit."""
INFINITY = math.inf


class Relaxed(NamedTuple):
    """`bound` holds for routes over two or more sites; what `sites`, `forward`, `back` lack is in no better one."""

    bound: float
    sites: frozenset[int]
    forward: frozenset[tuple[int, int]]
    back: frozenset[tuple[int, int]]

    @property
    def num_ways(self) -> int:
        """Return how many paths are left, forward and back."""
        return len(self.forward) + len(self.back)

    def tighter(self, other: Relaxed) -> Relaxed:
        """Return what both together prove."""
        return Relaxed(
            max(self.bound, other.bound),
            self.sites & other.sites,
            self.forward & other.forward,
            self.back & other.back,
        )


class _Row:
    """One row of the program, and the solver's constraint for it."""

    def __init__(self, constraint: Any, low: float, high: float) -> None:
        self.constraint, self.low, self.high = constraint, low, high
        self.dual = 0.0
        self.kept = 0.0
        """The multiplier that gave the best bound so far."""

    def read(self, trusted: bool) -> None:
        dual = self.constraint.dual_value() if trusted else 0.0
        if (dual > 0 and self.low == -INFINITY) or (dual < 0 and self.high == INFINITY) or not math.isfinite(dual):
            dual = 0.0
        self.dual = dual

    @property
    def worth(self) -> float:
        if self.dual == 0.0:
            return 0.0
        return self.dual * (self.low if self.dual > 0 else self.high)


class _Column(NamedTuple):
    variable: Any
    cost: float
    most: float
    entries: list[tuple[_Row, float]]

    def reduced(self) -> float:
        return self.cost - sum(row.dual * amount for row, amount in self.entries)


def relax(
    instance: Instance,
    best_known: float,
    known: Steps | None,
    deadline: float,
    clock: Callable[[], float],
    most_ways: int | None = None,
) -> tuple[Relaxed, Relaxed | None]:
    """Bound all routes over two or more sites from below. `known` is a route whose paths to start with, if any.

    `best_known` is a value that a route has, or infinity; it limits what must be kept. If more than `most_ways` paths
    must be, the second result holds the most promising ones, as many as allowed: it proves nothing. The bound is
    infinite, and nothing is left, where all sites together cannot hold the chain.
    """
    limits = [most_of_kinds(instance, reach) for reach in longest_ranges(instance)]
    floor = quick_bound(instance, limits)
    if floor == INFINITY:
        nothing: frozenset[tuple[int, int]] = frozenset()
        return Relaxed(INFINITY, frozenset(), nothing, nothing), None
    program = _Program(instance, best_known, known, limits)
    best = program.solve(clock, deadline)
    best = best._replace(bound=max(best.bound, floor))
    stalled = 0
    while best.bound < best_known * (1 - MARGIN) and clock() < deadline and stalled < PATIENCE:
        if not program.grow():
            break
        result = program.solve(clock, deadline)
        stalled = stalled + 1 if result.bound < best.bound * (1 + WORTH_GOING_ON) else 0
        best = best.tighter(result)
    if most_ways is None or best.num_ways <= most_ways or best_known == INFINITY:
        return best, None
    return best, program.promising(most_ways)


class _Slowest(NamedTuple):
    """The rows of a maximum over parts: by stage's site, by path's source, and for the sum over all parts."""

    stages: list[_Row]
    paths: list[_Row]
    whole: _Row | None


class _Program:
    """The linear program, grown by paths and rows."""

    def __init__(
        self, instance: Instance, best_known: float, known: Steps | None, limits: list[tuple[int, list[int]]]
    ) -> None:
        from ortools.linear_solver import pywraplp

        self.instance = instance
        self.best_known = best_known
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._solver.SetSolverSpecificParametersAsString("use_dual_simplex: true")
        self._rows: list[_Row] = []
        self._columns: list[_Column] = []
        self._circles: list[tuple[frozenset[int], _Row]] = []
        self._paths: dict[tuple[int, int, bool], _Column] = {}
        self._best = -INFINITY
        classes = sorted(set(instance.payloads[1:]))
        self._forward = [[cheapest_part(by, classes) for by in row] for row in instance.hops]
        self._back = instance.returns
        self._counts = [instance.kinds.count(kind) for kind in range(instance.num_kinds)]
        self.most_atoms = [most for most, _ in limits]
        self.most_of_kind = [most for _, most in limits]
        self._build()
        for source, target, back in self._first_paths(known):
            self._add_path(source, target, back)

    def _row(self, low: float, high: float) -> _Row:
        row = _Row(self._solver.Constraint(low, high), low, high)
        self._rows.append(row)
        return row

    def _column(self, cost: float, most: float, entries: list[tuple[_Row, float]]) -> _Column:
        variable = self._solver.NumVar(0.0, most, "")
        if cost:
            self._solver.Objective().SetCoefficient(variable, cost)
        for row, amount in entries:
            row.constraint.SetCoefficient(variable, amount)
        column = _Column(variable, cost, most, entries)
        self._columns.append(column)
        return column

    def _build(self) -> None:
        """Write everything but the paths."""
        instance = self.instance
        sites = range(instance.num_sites)
        self._kind_rows = [self._row(count, count) for count in self._counts]
        self.out_rows = [self._row(0.0, 0.0) for _ in sites]
        self.in_rows = [self._row(0.0, 0.0) for _ in sites]
        self.closing = self._row(1.0, 1.0)
        self.step_row = None if instance.step_limit is None else self._row(-INFINITY, instance.step_limit)
        members = self._row(2.0, float(instance.most_stages))
        highest = self.best_known if self.best_known < INFINITY else self._worst()
        self.pace_rows = self._slowest(instance.pace_weight, highest)
        self.cadence_rows = self._slowest(instance.cadence_weight, highest)
        ends_kinds = (instance.kinds[0], instance.kinds[-1])
        self.first_rows = [self._end_row(ends_kinds[0]) for _ in sites]
        self.last_rows = [self._end_row(ends_kinds[1]) for _ in sites]
        room_rows: dict[int, _Row] = {}
        for memory in shared_memories(instance, sites):
            room_rows[memory] = self._row(-INFINITY, float(instance.room_together(memory)))
        once = {site: self._row(-INFINITY, 1.0) for group in instance.rivals() for site in group[:1]}
        for group in instance.rivals():
            once |= dict.fromkeys(group, once[group[0]])
        forms = {form: self._row(1.0, INFINITY) for form in sorted(set(instance.forms))}
        self._used: list[_Column] = []
        for site in sites:
            least, most = self._row(0.0, INFINITY), self._row(-INFINITY, 0.0)
            entries = [(self.out_rows[site], -1.0), (self.in_rows[site], -1.0), (members, 1.0), (least, -1.0)]
            entries += [(most, -float(self.most_atoms[site]))]
            entries += [(once[site], 1.0)] if site in once else []
            entries += [(row, 1.0) for form, row in forms.items() if form != instance.forms[site]]
            rooms = [
                (instance.profiles[at], self._row(-INFINITY, 0.0), room_rows.get(memory))
                for memory, at in instance.holds[site]
            ]
            for (profile, room, shared), (memory, _) in zip(rooms, instance.holds[site], strict=True):
                entries.append((room, float(profile.fixed_bytes - instance.room[memory])))
                entries += [] if shared is None else [(shared, float(profile.fixed_bytes))]
            # Kinds of one atom are held through the rows of the ends; one that fills the range, through `most`.
            kind_rows = {
                kind: self._row(-INFINITY, 0.0)
                for kind, count in enumerate(self._counts)
                if count > 1 and self.most_of_kind[site][kind] < self.most_atoms[site]
            }
            entries += [(row, -float(self.most_of_kind[site][kind])) for kind, row in kind_rows.items()]
            self._used.append(self._column(0.0, 1.0 if self.most_atoms[site] else 0.0, entries))
            touch_rows: dict[int, list[_Row]] = {}
            for profile, room, shared in rooms:
                for item in profile.common:
                    held = {instance.kinds[atom] for atom in item.atoms}
                    rows = {kind: self._row(-INFINITY, 0.0) for kind in sorted(held)}
                    for kind, row in rows.items():
                        touch_rows.setdefault(kind, []).append(row)
                    entries = [(row, -float(self.most_of_kind[site][kind])) for kind, row in rows.items()]
                    entries.append((room, float(item.bytes)))
                    entries += [] if shared is None else [(shared, float(item.bytes))]
                    self._column(0.0, 1.0, entries)
            for kind, part in enumerate(instance.costs[site]):
                count = self.most_of_kind[site][kind]
                if part is None or not count:
                    continue
                entries = [(self._kind_rows[kind], 1.0), (least, 1.0), (most, 1.0)]
                for profile, room, shared in rooms:
                    own = float(profile.own_bytes[kind])
                    entries.append((room, own))
                    entries += [] if shared is None else [(shared, own)]
                entries += [(kind_rows[kind], 1.0)] if kind in kind_rows else []
                entries += self._peaking(site, part, stage=True)
                entries += [(row, 1.0) for row in touch_rows.get(kind, ())]
                if kind == ends_kinds[0]:
                    entries.append((self.first_rows[site], 1.0))
                if kind == ends_kinds[1]:
                    entries.append((self.last_rows[site], 1.0))
                self._column(*self._priced(part, float(count), entries))

    def _slowest(self, weight: float, highest: float) -> _Slowest:
        """Add what the slowest part has, with its weight; return its rows by stage, by path's source, and for sums.

        In a better route it is at most the best known value over its weight. Sums count for steps only.
        """
        if weight <= 0:
            return _Slowest([], [], None)
        stages, paths = ([self._row(-INFINITY, 0.0) for _ in range(self.instance.num_sites)] for _ in range(2))
        entries = [(row, -1.0) for row in (*stages, *paths)]
        whole = self._row(-INFINITY, 0.0)
        self._column(weight, highest / weight, [*entries, (whole, -1.0)])
        return _Slowest(stages, paths, whole)

    def _peaking(self, site: int, part: Part, stage: bool) -> list[tuple[_Row, float]]:
        """Return what a stage's atom, or a path from a site, adds to the rows of pace and cadence."""
        entries: list[tuple[_Row, float]] = []
        for slowest, amount in ((self.pace_rows, part.pace), (self.cadence_rows, part.step)):
            rows = slowest.stages if stage else slowest.paths
            if rows and amount:
                entries.append((rows[site], amount))
        whole = self.cadence_rows.whole
        if whole is not None and part.step:
            entries.append((whole, part.step / self.instance.sessions))
        return entries

    def _end_row(self, kind: int) -> _Row:
        """A site that begins (ends) the chain holds its first (last) atom; if it is one of a kind, no other does."""
        return self._row(0.0, 0.0 if self._counts[kind] == 1 else INFINITY)

    def _priced(
        self, part: Part, most: float, entries: list[tuple[_Row, float]]
    ) -> tuple[float, float, list[tuple[_Row, float]]]:
        if self.step_row is not None:
            entries.append((self.step_row, part.step))
        return self.instance.request_weight * part.seconds, most, entries

    def _worst(self) -> float:
        """Return a value that no route exceeds."""
        instance = self.instance
        parts = [part for costs in instance.costs for part in costs if part is not None]
        paths = [part for row in (*self._forward, *self._back) for part in row if part is not None]
        dearest = max(map(instance.linear, parts), default=0.0) * instance.num_atoms
        slowest = max(map(instance.peaked, (*parts, *paths)), default=0.0) * instance.num_atoms
        dearest += max(map(instance.linear, paths), default=0.0) * (instance.num_sites + 1)
        return 1.0 + dearest + slowest

    def _first_paths(self, known: Steps | None) -> set[tuple[int, int, bool]]:
        """Return the paths to begin with: all between few sites; else the cheapest of each, and the known route's."""
        sites = range(self.instance.num_sites)
        chosen: set[tuple[int, int, bool]] = set()
        for back, table in ((False, self._forward), (True, self._back)):
            there = {(a, b): part for a in sites for b in sites if a != b and (part := table[a][b]) is not None}
            if len(there) <= 2500:
                chosen |= {(a, b, back) for a, b in there}
                continue
            price = self.instance.linear
            for site in sites:
                ways = [(price(there[site, b]), (site, b, back)) for b in sites if (site, b) in there]
                ways_in = [(price(there[a, site]), (a, site, back)) for a in sites if (a, site) in there]
                chosen |= {way for _, way in (*nsmallest(NEAREST, ways), *nsmallest(NEAREST, ways_in))}
        order = [site for site, _ in known or ()]
        chosen |= {(a, b, False) for a, b in pairwise(order)}
        return chosen | ({(order[-1], order[0], True)} if len(order) > 1 else set())

    def _add_path(self, source: int, target: int, back: bool) -> None:
        part = self._back[source][target] if back else self._forward[source][target]
        if part is None or (source, target, back) in self._paths:
            return
        entries = [(self.out_rows[source], 1.0), (self.in_rows[target], 1.0)]
        entries += self._peaking(source, part, stage=False)
        if back:
            entries += [(self.closing, 1.0), (self.first_rows[target], -1.0), (self.last_rows[source], -1.0)]
        entries += [(row, 1.0) for inside, row in self._circles if source in inside and target not in inside]
        self._paths[source, target, back] = self._column(*self._priced(part, 1.0, entries))

    def solve(self, clock: Callable[[], float], deadline: float) -> Relaxed:
        """Solve the program as it is, and bound with its multipliers, and with their mean with the best ones so far.

        Multipliers of a program that still lacks paths jump about; the mean with good ones is often better than both.
        """
        left = min(max(deadline - clock(), LEAST_SECONDS), MOST_SECONDS)
        self._solver.SetTimeLimit(int(left * 1000))
        self.solved = self._solver.Solve() == self._solver.OPTIMAL
        # Everything is read now: the solver forgets it when the program grows.
        for row in self._rows:
            row.read(self.solved)
        if self.solved:
            self._value = abs(self._solver.Objective().Value())
            self._use = [column.variable.solution_value() for column in self._used]
            self._flow = {key: column.variable.solution_value() for key, column in self._paths.items()}
        result, self.reduced = self._bounded()
        if self._best > -INFINITY and result.bound < self.best_known * (1 - MARGIN):
            duals = [row.dual for row in self._rows]
            for row in self._rows:
                row.dual = (row.dual + row.kept) / 2
            mean, _ = self._bounded()
            result = mean.tighter(result)
            for row, dual in zip(self._rows, duals, strict=True):
                row.dual = dual
        return result

    def promising(self, most_ways: int) -> Relaxed | None:
        """Return what a route could contain if its value were closer to the bound; None if that is still too much."""
        best_known = self.best_known
        for row in self._rows:
            row.dual = row.kept
        for share in PROMISING:
            self.best_known = self._best + share * (best_known - self._best)
            left, _ = self._bounded()
            if left.num_ways <= most_ways:
                break
        self.best_known = best_known
        return left if left.num_ways <= most_ways else None

    def _bounded(self) -> tuple[Relaxed, dict[bool, list[list[float]]]]:
        """Return the Lagrangian bound of the rows' multipliers, what it rules out, and the paths' reduced costs."""
        on_path = {id(column) for column in self._paths.values()}
        base = sum(row.worth for row in self._rows)
        base += sum(min(0.0, column.reduced()) * column.most for column in self._columns if id(column) not in on_path)
        reduced = {back: self._path_costs(back) for back in (False, True)}
        lows = [min(0.0, *map(min, (costs[site] for costs in reduced.values()))) for site in range(len(self._used))]
        bound = base + sum(lows)
        if bound > self._best:
            self._best = bound
            for row in self._rows:
                row.kept = row.dual
        limit = self.best_known * (1 + MARGIN) - bound
        sites = frozenset(
            site for site, used in enumerate(self._used) if used.most and max(0.0, used.reduced()) <= limit
        )
        forward, back = (
            frozenset(
                (a, b)
                for a, costs in enumerate(reduced[which])
                if a in sites
                for b, cost in enumerate(costs)
                if cost < INFINITY and cost - lows[a] <= limit and b in sites
            )
            for which in (False, True)
        )
        return Relaxed(bound, sites, forward, back), reduced

    def _path_costs(self, back: bool) -> list[list[float]]:
        """Return the reduced cost of every path; infinite where there is none."""
        table: Sequence[Sequence[Part | None]] = self._back if back else self._forward
        seconds = self.instance.request_weight
        step = 0.0 if self.step_row is None else self.step_row.dual
        if self.cadence_rows.whole is not None:
            step += self.cadence_rows.whole.dual / self.instance.sessions
        ins = [row.dual for row in self.in_rows]
        if back:
            ins = [dual - row.dual for dual, row in zip(ins, self.first_rows, strict=True)]
        costs = []
        for source, parts in enumerate(table):
            out = self.out_rows[source].dual
            pace = self.pace_rows.paths[source].dual if self.pace_rows.paths else 0.0
            each = step + (self.cadence_rows.paths[source].dual if self.cadence_rows.paths else 0.0)
            if back:
                out += self.closing.dual - self.last_rows[source].dual
            costs.append(
                [
                    INFINITY
                    if part is None or target == source
                    else seconds * part.seconds - out - ins[target] - pace * part.pace - each * part.step
                    for target, part in enumerate(parts)
                ]
            )
        for inside, row in self._circles:
            if row.dual:
                for source in inside:
                    costs[source] = [
                        cost if target in inside else cost - row.dual for target, cost in enumerate(costs[source])
                    ]
        return costs

    def grow(self) -> bool:
        """Add paths that could lower the program's value and rows that forbid circles; return whether any came."""
        if not self.solved:
            return False
        scale = 1e-7 * max(1e-9, self._value)
        grew = False
        for back, costs in self.reduced.items():
            for source, row in enumerate(costs):
                cheap = [(cost, target) for target, cost in enumerate(row) if cost < -scale]
                for _, target in nsmallest(NEAREST, cheap):
                    if (source, target, back) not in self._paths:
                        self._add_path(source, target, back)
                        grew = True
        return self._forbid_circles() or grew

    def _forbid_circles(self) -> bool:
        flow: dict[int, dict[int, float]] = {}
        for (source, target, _), amount in self._flow.items():
            if amount > 1e-6:
                outgoing = flow.setdefault(source, {})
                outgoing[target] = outgoing.get(target, 0.0) + amount
        known = {inside for inside, _ in self._circles}
        candidates = {group for least in (1e-6, 0.1, 0.3, 0.5, 0.7) for group in _joined(flow, least)}
        candidates |= {
            frozenset((a, b)) for a, targets in flow.items() for b in targets if a in flow.get(b, {}) and a < b
        }
        grew = False
        for inside in sorted(candidates - known, key=lambda group: (len(group), sorted(group))):
            if len(inside) < 2 or sum(self.most_atoms[site] for site in inside) >= self.instance.num_atoms:
                continue
            leaving = sum(
                amount for site in inside for target, amount in flow.get(site, {}).items() if target not in inside
            )
            site = max(inside, key=self._use.__getitem__)
            if leaving < self._use[site] - 1e-4:
                self._leave(inside, site)
                grew = True
        return grew

    def _leave(self, inside: frozenset[int], site: int) -> None:
        """Demand that the ways out of these sites, which cannot hold the chain, count as much as `site` is used."""
        row = self._row(0.0, INFINITY)
        self._circles.append((inside, row))
        for (source, target, _), column in self._paths.items():
            if source in inside and target not in inside:
                row.constraint.SetCoefficient(column.variable, 1.0)
                column.entries.append((row, 1.0))
        used = self._used[site]
        row.constraint.SetCoefficient(used.variable, -1.0)
        used.entries.append((row, -1.0))


def _joined(flow: dict[int, dict[int, float]], least: float) -> list[frozenset[int]]:
    """Return the sets of sites that ways of at least so much flow join."""
    parent: dict[int, int] = {}

    def root(site: int) -> int:
        while parent.setdefault(site, site) != site:
            site = parent[site]
        return site

    for source, targets in flow.items():
        for target, amount in targets.items():
            if amount >= least:
                parent[root(source)] = root(target)
    groups: dict[int, set[int]] = {}
    for site in parent:
        groups.setdefault(root(site), set()).add(site)
    return [frozenset(group) for group in groups.values()]
