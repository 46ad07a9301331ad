"""From a case to an instance: units to atoms, curves to parts, Memory Resources to room."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.planner.assemble import Case
from inferswarm.planner.cost import Price
from inferswarm.planner.problem import bytes_in
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView, Leg, Route, Site
from inferswarm.planner.solvers.instance import Common, Instance, Part, Steps

NOTHING = Part(0.0)


class Built(NamedTuple):
    """An instance and the sites that its indexes mean."""

    instance: Instance
    sites: tuple[Site, ...]

    def route(self, steps: Steps) -> Route:
        """Return the route that a solver's steps amount to."""
        starts = (0, *(self.instance.ends[end - 1] for _, end in steps))
        return tuple(
            Leg(self.sites[site], start, self.instance.ends[end - 1])
            for start, (site, end) in zip(starts, steps, strict=False)
        )


def build_instance(
    case: Case,
    view: GraphView,
    sites: tuple[Site, ...],
    min_tokens_per_second: float | None = None,
    most_sites: int | None = None,
    priced: bool = True,
) -> Built:
    """Build the instance of a case over sites that passed the technical gates (capacities are known).

    A route's value is its request time, or where throughput is the objective, the time for each token: its inverse.
    Without `priced` everything costs nothing: what remains is whether it fits and is connected.
    """
    atoms = _atoms(case)
    kind_of, own, common, fixed = _memory(case, atoms)
    looks: dict[object, int] = {}
    kinds, own_bytes, members = [], [], []
    for atom, (first, end) in enumerate(atoms):
        units = case.problem.units[first:end]
        look = (tuple((unit.cost_class, unit.only_last_position) for unit in units), own[atom], kind_of[atom])
        if look not in looks:
            looks[look] = len(looks)
            own_bytes.append(own[atom])
            members.append(units)
        kinds.append(looks[look])
    memories = list(dict.fromkeys(site.memory.id for site in sites if site.memory is not None))
    room = {site.memory.id: site.available_bytes for site in sites if site.memory is not None}

    def cost(site: Site, kind: int) -> Part | None:
        total = NOTHING
        for unit in members[kind] if priced else ():
            price = case.pricing.unit(site, unit)
            if price is None:
                return None
            total = total.plus(_part(case, price))
        return total

    representation = case.implementation.representation
    starts = [first for first, _ in atoms[1:]]
    payload_bytes = [
        bytes_in(case.problem.boundaries[first - 1].payload_bytes_per_position, representation) for first in starts
    ]
    classes = sorted(set(payload_bytes))
    example = [starts[payload_bytes.index(amount)] for amount in classes]
    between: dict[tuple[str, str], tuple[tuple[Part | None, ...], Part | None]] = {}

    def path(source: Site, target: Site) -> tuple[tuple[Part | None, ...], Part | None]:
        key = (source.node.id, target.node.id)
        if key not in between:
            linked = view.linked(source.node, target.node)
            if linked and not priced:
                between[key] = ((NOTHING,) * len(classes), NOTHING)
            elif linked:
                prices = [case.pricing.hop(source.node, target.node, first) for first in example]
                back = case.pricing.feedback(source.node, target.node)
                between[key] = (
                    tuple(None if price is None else _part(case, price) for price in prices),
                    None if back is None else _part(case, back),
                )
            else:
                between[key] = ((None,) * len(classes), None)
        return between[key]

    pace_weight = float(case.pricing.later_chunks) if case.workload.throughput is None else 1.0
    instance = Instance(
        kinds=tuple(kinds),
        ends=tuple(end for _, end in atoms),
        own_bytes=tuple(own_bytes),
        common=common,
        fixed_bytes=fixed,
        payloads=(0, *(classes.index(amount) for amount in payload_bytes)),
        costs=tuple(tuple(cost(site, kind) for kind in range(len(looks))) for site in sites),
        memory_of=tuple(memories.index(site.memory.id) if site.memory is not None else -1 for site in sites),
        room=tuple(amount for memory in memories if (amount := room[memory]) is not None),
        hops=tuple(tuple(path(source, target)[0] for target in sites) for source in sites),
        returns=tuple(tuple(path(last, first)[1] for first in sites) for last in sites),
        pace_weight=pace_weight if priced else 0.0,
        combine="sum" if case.workload.throughput is None or not priced else "max",
        step_limit=None if min_tokens_per_second is None else (1 + SLACK) / min_tokens_per_second,
        most_sites=most_sites,
    )
    assert len(instance.room) == len(memories), "sites of unknown capacity do not reach a solver"
    assert min(instance.memory_of, default=0) >= 0, "sites without a Memory Resource do not reach a solver"
    return Built(instance, sites)


def _part(case: Case, price: Price) -> Part:
    pricing, step = case.pricing, price.step.point
    if case.workload.throughput is not None:
        return Part(step / case.workload.concurrency, step, step)
    return Part(
        price.chunk.point + price.once.point + pricing.later_tokens * price.step.point,
        price.chunk.point if pricing.later_chunks else 0.0,
        price.step.point,
    )


def _atoms(case: Case) -> list[tuple[int, int]]:
    """Return the ranges of units between legal cuts."""
    ends = [index + 1 for index, boundary in enumerate(case.problem.boundaries) if boundary.legal]
    ends.append(len(case.problem.units))
    return list(zip((0, *ends), ends, strict=False))


def _memory(
    case: Case, atoms: list[tuple[int, int]]
) -> tuple[list[frozenset[int]], list[int], tuple[Common, ...], int]:
    """Split the peak of a range into what is each atom's own, what several atoms share, and what every stage takes.

    The first item names, for each atom, the commons it touches: atoms of one kind touch the same.
    """
    problem, representation = case.problem, case.implementation.representation
    atom_of = {unit: atom for atom, (first, end) in enumerate(atoms) for unit in range(first, end)}
    sessions = case.memory.max_positions * case.memory.sessions
    own = [0] * len(atoms)
    shared: dict[frozenset[int], int] = {}

    def add(amount: int, holders: frozenset[int]) -> None:
        if len(holders) == 1:
            own[next(iter(holders))] += amount
        elif holders and amount:
            shared[holders] = shared.get(holders, 0) + amount

    users: dict[str, set[int]] = {}
    for index, unit in enumerate(problem.units):
        if unit.mutable_bytes_per_position:
            own[atom_of[index]] += bytes_in(unit.mutable_bytes_per_position, representation) * sessions
        for state in unit.states:
            users.setdefault(state, set()).add(atom_of[index])
    for item in problem.states:
        add(bytes_in(item.sizes, representation), frozenset(users.get(item.id, ())))
    fixed = 0
    for term in problem.transients:
        if term.representation != representation:
            continue
        amount = term.fixed_bytes + term.bytes_per_step_position * problem.chunk_positions
        if not term.cost_classes:
            fixed += amount
        else:
            wanted = set(term.cost_classes)
            add(amount, frozenset(atom_of[at] for at, unit in enumerate(problem.units) if unit.cost_class in wanted))
    everywhere = frozenset(range(len(atoms)))
    if len(atoms) > 1:
        fixed += shared.pop(everywhere, 0)
    ordered = sorted(shared.items(), key=lambda entry: sorted(entry[0]))
    common = tuple(Common(amount, holders) for holders, amount in ordered)
    touched = [frozenset(at for at, group in enumerate(common) if atom in group.atoms) for atom in range(len(atoms))]
    return touched, own, common, fixed
