"""The exact search for many sites: one constraint program over subset, order and cuts at once (OR-Tools CP-SAT).

A circle runs through the sites that are used: paths forward from neighbor to neighbor, and exactly one way back, from
the last stage to the first. A site holds a number of atoms of each kind. Where what a site holds follows from these
numbers alone (`Counted.exact`), positions in the chain are left out; otherwise each site has a begin and an end, and
paths join them. Without positions such a chain gives a *relaxation*: a site holds nearly its share of each kind, as
every range does, wherever the others are.

The program takes whole numbers. Seconds and steps are rounded to the nearest multiple of a small unit; `rounding`
bounds how far that may be off for any one route, and the proved bound is reduced by it. Bytes are not rounded.
A limit on steps is widened by its rounding error, so no legal route is lost, and what comes out is checked exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

from inferswarm.planner.solvers.bounds import cheapest_part, most_of_kinds
from inferswarm.planner.solvers.counted import count_chain
from inferswarm.planner.solvers.instance import Instance, Part, Steps, equal_sites, evaluate, longest_ranges
from inferswarm.planner.solvers.relaxation import Relaxed
from inferswarm.planner.solvers.solution import SolverStatus

RESOLUTION = 10**7
"""The best known value is about so many units."""


class Outcome(NamedTuple):
    """What the program found among routes over two or more sites. `bound` is proved, rounding already taken off."""

    status: SolverStatus
    steps: Steps | None
    value: float | None
    bound: float
    rounding: float


def solve_program(
    instance: Instance,
    relaxed: Relaxed,
    best_known: float,
    hint: Steps | None,
    seconds: float,
    num_threads: int,
    seed: int,
    positions: bool = True,
    at_least: float = 0.0,
) -> Outcome:
    """Search the routes over two or more sites that `relaxed` leaves and that are no worse than `best_known`.

    With status INFEASIBLE there is none. `hint` is a route to start from. `best_known` may be infinite. No route has
    a value below `at_least`. Without `positions`, a chain that needs them is relaxed: then only `bound` and the order
    of `steps` mean something, and `value` is None.
    """
    from ortools.sat.python import cp_model

    program = _Program(instance, relaxed, best_known, cp_model, positions)
    program.raise_bound(at_least)
    if hint is not None and len(hint) > 1:
        program.hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.05, seconds)
    solver.parameters.num_workers = num_threads
    solver.parameters.random_seed = seed
    solver.parameters.linearization_level = 2
    status = solver.solve(program.model)
    rounding = program.rounding
    if status == cp_model.INFEASIBLE:
        return Outcome("INFEASIBLE", None, None, math.inf, rounding)
    bound = max(0.0, solver.best_objective_bound * program.unit - rounding)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome("UNKNOWN", None, None, bound, rounding)
    steps = program.steps(solver)
    if program.counts_only:
        return Outcome("FEASIBLE", steps, None, bound, rounding)
    value = evaluate(instance, steps)
    if value is None:
        return Outcome("UNKNOWN", None, None, bound, rounding)
    return Outcome("OPTIMAL" if status == cp_model.OPTIMAL else "FEASIBLE", steps, value, bound, rounding)


class _Site(NamedTuple):
    """Variables of one site: is it used, first, last, and how many atoms it holds of each entry of `run_kinds`."""

    used: Any
    first: Any
    last: Any
    held: list[Any]
    begin: Any
    """Atoms before its range; None where positions do not matter."""


class _Program:
    """The model and the way back from its variables to a route."""

    def __init__(
        self, instance: Instance, relaxed: Relaxed, best_known: float, cp_model: Any, positions: bool
    ) -> None:
        self.instance = instance
        self.model = cp_model.CpModel()
        self._cp = cp_model
        longest = longest_ranges(instance)
        counted = count_chain(instance, longest)
        self.counted = counted if counted is not None and counted.exact else None
        self.sites = sorted(relaxed.sites)
        kinds = instance.kinds
        if self.counted is not None:
            # First atom, atoms between, last atom: also where they are all of one kind.
            lengths = [(kinds[0], 1), (kinds[-1], 1)]
            if counted is not None and counted.num_between:
                lengths.insert(1, (kinds[1], counted.num_between))
        else:
            lengths = sorted(Counter(kinds).items())
        self.positions = self.counted is None and positions
        self.counts_only = self.counted is None and not positions
        self._most = [most_of_kinds(instance, reach) for reach in longest]
        self._walks = [[0, *accumulate(int(other == kind) for other in kinds)] for kind in range(instance.num_kinds)]
        self._spans = [_span(instance, kind) for kind in range(instance.num_kinds)]
        self.run_kinds = [kind for kind, _ in lengths]
        self.run_lengths = [length for _, length in lengths]
        self._scale(best_known)
        self._variables = {site: self._site(site) for site in self.sites}
        self._forward = {pair: self.model.new_bool_var("") for pair in sorted(relaxed.forward)}
        self._ways: dict[tuple[int, int], list[tuple[Part, Any]]] = {}
        self._back = {pair: self.model.new_bool_var("") for pair in sorted(relaxed.back)}
        self._connect()
        self._cover()
        self._limit_memory()
        self._limit_steps()
        self._choose_modes()
        self._order_equals()
        self._objective(best_known)

    def _scale(self, best_known: float) -> None:
        instance = self.instance
        parts = [part for costs in instance.costs for part in costs if part is not None]
        paths = [part for row in instance.hops for by in row for part in by if part is not None]
        paths += [part for row in instance.returns for part in row if part is not None]
        highest = best_known
        if not 0 < highest < math.inf:
            highest = sum(max(map(instance.linear, group), default=0.0) for group in (parts, paths))
            highest += max(map(instance.peaked, (*parts, *paths)), default=0.0)
            highest = (highest or 1.0) * instance.num_atoms
        self.unit = highest / RESOLUTION
        terms = instance.num_atoms + instance.most_stages + 1
        # Each atom and path is off by at most half a unit, in the sum of seconds and in that of steps; and so is each
        # atom of the slowest stage in units of the pace, which are units over the pace's weight.
        most = terms * ((instance.request_weight > 0) + (instance.cadence_weight > 0))
        most += instance.num_atoms if instance.pace_weight > 0 else 0
        self.rounding = 0.5 * self.unit * (most or 1) * (1 + 1e-6)

    def _whole(self, amount: float) -> int:
        return round(amount / self.unit)

    def _site(self, site: int) -> _Site:
        model, instance = self.model, self.instance
        used, first, last = (model.new_bool_var("") for _ in range(3))
        model.add_implication(first, used)
        model.add_implication(last, used)
        model.add_bool_or(~first, ~last)
        if self.counted is not None:
            none, with_first, with_last, _ = self.counted.most[site]
            held: list[Any] = [first, last]
            if self.counted.num_between:
                between = model.new_int_var(0, max(0, none, with_first, with_last), "")
                if self.counted.between[site] is None:
                    model.add(between == 0)
                model.add(between + first + last >= used)
                model.add(between <= none * used + (with_first - none) * first + (with_last - none) * last)
                held.insert(1, between)
            else:
                model.add(first + last >= used)
            if with_first < 0 or self.counted.first[site] is None:
                model.add(first == 0)
            if with_last < 0 or self.counted.last[site] is None:
                model.add(last == 0)
            return _Site(used, first, last, held, None)
        most_atoms, most = self._most[site]
        held = [model.new_int_var(0, most[kind], "") for kind in self.run_kinds]
        model.add(sum(held) >= used)
        model.add(sum(held) <= most_atoms * used)
        for end, kind in ((first, instance.kinds[0]), (last, instance.kinds[-1])):
            at = self.run_kinds.index(kind)
            model.add(held[at] == end if self.run_lengths[at] == 1 else held[at] >= end)
        self._keep_in_span(used, held)
        if not self.positions:
            return _Site(used, first, last, held, None)
        begin = model.new_int_var(0, instance.num_atoms, "")
        finish = model.new_int_var(0, instance.num_atoms, "")
        model.add(finish - begin == sum(held))
        # What is not used stands at the chain's beginning: one way to be absent.
        model.add(begin <= instance.num_atoms * used)
        model.add(begin == 0).only_enforce_if(first)
        model.add(finish == instance.num_atoms).only_enforce_if(last)
        for kind, length, count in zip(self.run_kinds, self.run_lengths, held, strict=True):
            before, after = (model.new_int_var(0, length, "") for _ in range(2))
            model.add_element(begin, self._walks[kind], before)
            model.add_element(finish, self._walks[kind], after)
            model.add(count == after - before)
        return _Site(used, first, last, held, begin)

    def _keep_in_span(self, used: Any, held: list[Any]) -> None:
        """Of each kind, hold as many as some range of that length does: nearly its share of the chain."""
        total = sum(held)
        for kind, (share, low, high) in enumerate(self._spans):
            of_kind = sum(count for at, count in zip(self.run_kinds, held, strict=True) if at == kind)
            excess = self.instance.num_atoms * of_kind - share * total
            self.model.add(excess >= low * used)
            self.model.add(excess <= high * used)

    def _connect(self) -> None:
        """Make one circle of the used sites, with one way back, and join positions where they matter."""
        model, instance = self.model, self.instance
        arcs = []
        into: dict[int, list[Any]] = {site: [] for site in self.sites}
        out: dict[int, list[Any]] = {site: [] for site in self.sites}
        classes = sorted(set(instance.payloads[1:]))
        pairs = sorted({*self._forward, *self._back})
        place = {site: index for index, site in enumerate(self.sites)}
        for source, target in pairs:
            forward, back = self._forward.get((source, target)), self._back.get((source, target))
            both = forward if back is None else back
            if forward is not None and back is not None:
                both = model.new_bool_var("")
                model.add(both == forward + back)
            arcs.append((place[source], place[target], both))
            if back is not None:
                into[target].append(back)
                out[source].append(back)
            if forward is not None:
                self._ways[source, target] = self._by_payload(source, target, forward, classes)
                if self.positions:
                    before, after = self._variables[source], self._variables[target]
                    model.add(after.begin == before.begin + sum(before.held)).only_enforce_if(forward)
        for site, variables in self._variables.items():
            arcs.append((place[site], place[site], ~variables.used))
            model.add(variables.first == sum(into[site]))
            model.add(variables.last == sum(out[site]))
        if arcs:
            model.add_circuit(arcs)
        model.add_exactly_one([*self._back.values(), model.new_constant(0)])
        used = sum(variables.used for variables in self._variables.values())
        model.add(used >= 2)
        model.add(used <= instance.most_stages)

    def _by_payload(self, source: int, target: int, forward: Any, classes: list[int]) -> list[tuple[Part, Any]]:
        parts = self.instance.hops[source][target]
        cheapest = cheapest_part(parts, classes)
        if cheapest is not None and (self.counts_only or len(classes) == 1):
            return [(cheapest, forward)]
        model, ways = self.model, []
        for payload in classes:
            part = parts[payload]
            if part is None:
                continue
            way = model.new_bool_var("")
            starts = [atom for atom, given in enumerate(self.instance.payloads) if atom and given == payload]
            model.add_linear_expression_in_domain(
                self._variables[target].begin, self._cp.Domain.from_values(starts)
            ).only_enforce_if(way)
            ways.append((part, way))
        model.add(sum(way for _, way in ways) == forward)
        return ways

    def _cover(self) -> None:
        for run, length in enumerate(self.run_lengths):
            self.model.add(sum(variables.held[run] for variables in self._variables.values()) == length)

    def _limit_memory(self) -> None:
        """Keep the peaks on every Memory Resource within its room; peaks on one add up."""
        model, instance = self.model, self.instance
        peaks: dict[int, list[Any]] = {}
        for site, variables in self._variables.items():
            for memory, at in instance.holds[site]:
                profile = instance.profiles[at]
                peak = profile.fixed_bytes * variables.used
                for kind, count in zip(self.run_kinds, variables.held, strict=True):
                    peak += profile.own_bytes[kind] * count
                for item in profile.common:
                    touching = {instance.kinds[atom] for atom in item.atoms}
                    touched = model.new_bool_var("")
                    for kind, length, count in zip(self.run_kinds, self.run_lengths, variables.held, strict=True):
                        if kind in touching:
                            model.add(count <= length * touched)
                    peak += item.bytes * touched
                peaks.setdefault(memory, []).append(peak)
        for memory, parts in peaks.items():
            model.add(sum(parts) <= instance.room_together(memory))

    def _choose_modes(self) -> None:
        """Use each Compute Unit in one way at most, and compute in two forms at least where a route must."""
        model, instance = self.model, self.instance
        for group in instance.rivals():
            used = [self._variables[site].used for site in group if site in self._variables]
            if len(used) > 1:
                model.add_at_most_one(used)
        for form in set(instance.forms):
            others = [item.used for site, item in self._variables.items() if instance.forms[site] != form]
            model.add(sum(others) >= 1) if others else model.add_bool_or([])

    def _limit_steps(self) -> None:
        self._limit_each_step()
        limit = self.instance.step_limit
        if limit is None:
            return
        if limit <= 0:
            self.model.add_bool_or([])
            return
        unit = limit / RESOLUTION
        slack = self.instance.num_atoms + self.instance.most_stages + 1
        most = RESOLUTION + slack
        total = self._weighed(lambda part: round(min(part.step / unit, most + 1)))  # more is too much all the same
        self.model.add(total <= most)

    def _limit_each_step(self) -> None:
        """Keep each stage within the limit on one part's step; slower paths are not there."""
        limit = self.instance.part_limit
        if limit is None:
            return
        unit = max(limit, 1e-300) / RESOLUTION
        for site, variables in self._variables.items():
            total = self._held(site, variables, lambda part: round(part.step / unit))
            self.model.add(sum(total) <= RESOLUTION + self.instance.num_atoms)

    def _held(self, site: int, variables: _Site, whole: Callable[[Part], int]) -> list[Any]:
        """Return a whole number for each atom that a site holds, as terms of a sum."""
        costs = self.instance.costs[site]
        return [
            whole(part) * count
            for kind, count in zip(self.run_kinds, variables.held, strict=True)
            if (part := costs[kind]) is not None
        ]

    def _weighed(self, whole: Callable[[Part], int]) -> Any:
        """Return the sum over all parts of a whole number each."""
        instance, terms = self.instance, []
        for site, variables in self._variables.items():
            terms += self._held(site, variables, whole)
        for ways in self._ways.values():
            terms += [whole(part) * way for part, way in ways]
        for (source, target), way in self._back.items():
            part = instance.returns[source][target]
            if part is not None:
                terms.append(whole(part) * way)
        return sum(terms)

    def _order_equals(self) -> None:
        """Let sites that may be exchanged hold ever fewer atoms: one of many equal routes is enough."""
        for group in equal_sites(self.instance):
            present = [self._variables[site] for site in group if site in self._variables]
            for before, after in pairwise(present):
                self.model.add(sum(before.held) >= sum(after.held))

    def _objective(self, best_known: float) -> None:
        model, instance = self.model, self.instance
        limit = 4 * RESOLUTION * (instance.num_atoms + 4) if best_known == math.inf else 2 * RESOLUTION
        weight, cadence = instance.request_weight, instance.cadence_weight
        addends: list[Any] = []
        if weight > 0:
            addends.append(self._weighed(lambda part: self._whole(weight * part.seconds)))
        if instance.pace_weight > 0:
            slowest = model.new_int_var(0, limit, "")
            self._bound_slowest(slowest, lambda part: self._whole(instance.pace_weight * part.pace))
            addends.append(slowest)
        if cadence > 0:
            token = model.new_int_var(0, limit, "")
            model.add(token >= self._weighed(lambda part: self._whole(cadence * part.step / instance.sessions)))
            self._bound_slowest(token, lambda part: self._whole(cadence * part.step))
            addends.append(token)
        self.total = sum(addends)
        if best_known < math.inf:
            model.add(self.total <= math.ceil(best_known / self.unit + self.rounding / self.unit) + 1)
        model.minimize(self.total)

    def raise_bound(self, at_least: float) -> None:
        """Tell the program that no route has a value below this."""
        lowest = math.floor((at_least - self.rounding) / self.unit) - 1
        if lowest > 0:
            self.model.add(self.total >= lowest)

    def _bound_slowest(self, slowest: Any, whole: Callable[[Part], int]) -> None:
        """Keep a variable at or above what every stage and every path that is taken has."""
        instance = self.instance
        for site, variables in self._variables.items():
            terms = self._held(site, variables, whole)
            if terms:
                self.model.add(slowest >= sum(terms))
        for part, way in chain.from_iterable(self._ways.values()):
            if amount := whole(part):
                self.model.add(slowest >= amount).only_enforce_if(way)
        for (source, target), way in self._back.items():
            closing = instance.returns[source][target]
            if closing is not None and (amount := whole(closing)):
                self.model.add(slowest >= amount).only_enforce_if(way)

    def hint(self, steps: Steps) -> None:
        """Give the program a route to start from."""
        order = [site for site, _ in steps]
        if any(site not in self._variables for site in order):
            return
        starts = (0, *(end for _, end in steps))
        ranges: Mapping[int, tuple[int, int]] = {
            site: (start, end) for start, (site, end) in zip(starts, steps, strict=False)
        }
        for site, variables in self._variables.items():
            first, end = ranges.get(site, (0, 0))
            self.model.add_hint(variables.used, site in ranges)
            self.model.add_hint(variables.first, site == order[0])
            self.model.add_hint(variables.last, site == order[-1])
            if self.counted is None:
                for kind, count in zip(self.run_kinds, variables.held, strict=True):
                    self.model.add_hint(count, self._walks[kind][end] - self._walks[kind][first])
            elif self.counted.num_between:
                self.model.add_hint(variables.held[1], end - first - (site == order[0]) - (site == order[-1]))
            if variables.begin is not None:
                self.model.add_hint(variables.begin, first)
        neighbors = set(pairwise(order))
        for pair, way in self._forward.items():
            self.model.add_hint(way, pair in neighbors)
        for pair, way in self._back.items():
            self.model.add_hint(way, pair == (order[-1], order[0]))

    def steps(self, solver: Any) -> Steps:
        """Return the route that the solver's values amount to."""
        follows = {source: target for (source, target), way in self._forward.items() if solver.value(way)}
        ((_, site),) = [pair for pair, way in self._back.items() if solver.value(way)]
        steps: list[tuple[int, int]] = []
        end = 0
        while True:
            end += sum(solver.value(count) for count in self._variables[site].held)
            steps.append((site, end))
            if site not in follows:
                return tuple(steps)
            site = follows[site]


def _span(instance: Instance, kind: int) -> tuple[int, int, int]:
    """Return N_kind and the least and most of N × (atoms of the kind) - N_kind × (atoms) over all ranges.

    N is the length of the chain: the difference is how far a range is from holding its share of the kind.
    """
    share = instance.kinds.count(kind)
    walk = [0]
    for other in instance.kinds:
        walk.append(walk[-1] + (instance.num_atoms if other == kind else 0) - share)
    low = high = 0
    most, least = walk[0], walk[0]
    for place in walk[1:]:
        low, high = min(low, place - most), max(high, place - least)
        most, least = max(most, place), min(least, place)
    return share, low, high
