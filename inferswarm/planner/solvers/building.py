"""From a case to an instance: units to atoms, curves to parts, modes to sites, Memory Resources to room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeVar

from inferswarm.planner.assemble import Case
from inferswarm.planner.cost import SHORTEST_SECONDS
from inferswarm.planner.modes import modes_of
from inferswarm.planner.objective import Shares, shares_of
from inferswarm.planner.problem import PlanningProblem, bytes_in
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView, Leg, Mode, Route, Site
from inferswarm.planner.solvers.instance import Common, Hold, Instance, Part, Profile, Steps
from inferswarm.planner.spreads import Price
from inferswarm.resources.types import MemoryResource

NOTHING = Part(0.0)
Held = Literal["all", "states", "rest"]
"""Which of a participant's memory is on one Memory Resource."""
Row = TypeVar("Row")
_Look = tuple[int, Held]
"""A profile: which of the case's parts, and which share of its memory."""


class Built(NamedTuple):
    """An instance, and the Compute Units and modes that its sites mean."""

    instance: Instance
    sites: tuple[Site, ...]
    modes: tuple[Mode, ...]

    def route(self, steps: Steps) -> Route:
        """Return the route that a solver's steps amount to."""
        starts = (0, *(self.instance.ends[end - 1] for _, end in steps))
        return tuple(
            Leg(self.sites[site], start, self.instance.ends[end - 1], self.modes[site])
            for start, (site, end) in zip(starts, steps, strict=False)
        )


def build_instance(
    case: Case,
    view: GraphView,
    sites: tuple[Site, ...],
    min_tokens_per_second: float | None = None,
    most_sites: int | None = None,
    priced: bool = True,
    figures: bool = False,
) -> Built:
    """Build the instance of a case over sites that passed the technical gates (capacities are known).

    A route's value is that of the objective, in seconds. Without `priced` everything costs nothing: what remains is
    whether it fits and is connected. With `figures` a part's seconds are what it adds to the first token alone, and
    no limit on steps is kept: as `search_all` takes it, whose goal says what counts.
    """
    seats = [(unit, site, mode) for unit, site in enumerate(sites) for mode in modes_of(case, site)]
    several = len(seats) > len(sites)
    atoms = _atoms(case)
    profiles, resources, holds = _holds(case, seats)
    memory = [_memory(case, look, atoms) for look in profiles]
    looks: dict[object, int] = {}
    kinds, own_bytes, members = [], [], []
    for atom, (first, end) in enumerate(atoms):
        units = case.problem.units[first:end]
        taken = tuple((item.own[atom], item.touched[atom]) for item in memory)
        look = (tuple((unit.cost_class, unit.only_last_position) for unit in units), taken)
        if look not in looks:
            looks[look] = len(looks)
            own_bytes.append([item.own[atom] for item in memory])
            members.append(units)
        kinds.append(looks[look])

    shares = shares_of(case.workload) if priced and not figures else Shares(1.0, 0.0)
    later_tokens = 0 if figures else case.pricing.later_tokens

    def cost(site: Site, mode: Mode, kind: int) -> Part | None:
        total = NOTHING
        for unit in members[kind] if priced else ():
            price = case.pricing.unit(site, unit, mode)
            if price is None:
                return None
            total = total.plus(part_of(price))
        return total

    def part_of(price: Price) -> Part:
        """Return what a price adds; where only steps count, nothing else is there to tell routes apart."""
        step = price.step.point
        if shares.request <= 0:
            return Part(0.0, 0.0, step)
        pace = price.chunk.point if case.pricing.later_chunks else 0.0
        return Part(price.chunk.point + price.once.point + later_tokens * step, pace, step)

    limited = priced and not figures
    part_limit = _part_limit(case) if limited else None
    hops, returns = _paths(case, view, sites, part_of, atoms, priced, part_limit)
    instance = Instance(
        kinds=tuple(kinds),
        ends=tuple(end for _, end in atoms),
        profiles=tuple(
            Profile(tuple(own[at] for own in own_bytes), item.common, item.fixed) for at, item in enumerate(memory)
        ),
        payloads=(0, *_payload_classes(case, atoms)[1]),
        costs=tuple(tuple(cost(site, mode, kind) for kind in range(len(looks))) for _, site, mode in seats),
        holds=holds,
        room=tuple(_room(resource) for resource in resources),
        hops=_spread(hops, seats) if several else hops,
        returns=_spread(returns, seats) if several else returns,
        later_chunks=float(case.pricing.later_chunks) if priced else 0.0,
        units=tuple(unit for unit, _, _ in seats) if several else (),
        forms=_forms(case, seats),
        request_weight=shares.request,
        cadence_weight=shares.cadence,
        sessions=case.workload.concurrency,
        step_limit=_step_limit(case, min_tokens_per_second) if limited else None,
        part_limit=part_limit,
        most_sites=most_sites,
    )
    return Built(instance, tuple(site for _, site, _ in seats), tuple(mode for _, _, mode in seats))


Seats = list[tuple[int, Site, Mode]]
"""Each way to use a Compute Unit: which of the sites, the site, and its mode."""


def _holds(case: Case, seats: Seats) -> tuple[list[_Look], list[MemoryResource], tuple[tuple[Hold, ...], ...]]:
    """Return the profiles and Memory Resources that come up, and what each seat holds where."""
    profiles: dict[_Look, int] = {}
    resources: dict[str, tuple[int, MemoryResource]] = {}
    names = [part.representation for part in case.parts]

    def hold(resource: MemoryResource, look: _Look) -> Hold:
        place = resources.setdefault(resource.id, (len(resources), resource))[0]
        return Hold(place, profiles.setdefault(look, len(profiles)))

    holds: list[tuple[Hold, ...]] = []
    for _, site, mode in seats:
        assert site.memory is not None, "sites without a Memory Resource do not reach a solver"
        part = names.index(mode.representation) if mode.representation else 0
        apart = Leg(site, 0, 0, mode).states_memory
        if apart is None:
            holds.append((hold(site.memory, (part, "all")),))
        else:
            holds.append((hold(site.memory, (part, "rest")), hold(apart, (part, "states"))))
    if not profiles:
        profiles[0, "all"] = 0
    return list(profiles), [resource for _, resource in resources.values()], tuple(holds)


def _room(resource: MemoryResource) -> int:
    capacity, reserved = resource.capacity_bytes.value, resource.reserved_bytes.value
    assert capacity is not None, "sites of unknown capacity do not reach a solver"
    assert reserved is not None, "sites of unknown capacity do not reach a solver"
    return capacity - reserved


def _forms(case: Case, seats: Seats) -> tuple[int, ...]:
    """Return what each seat computes in, where a plan must mix."""
    if len(case.parts) < 2:
        return ()
    names = [part.representation for part in case.parts]
    return tuple(names.index(mode.representation) for _, _, mode in seats)


def _step_limit(case: Case, min_tokens_per_second: float | None) -> float | None:
    """Return the most that all steps of a route may take together: by the least rate, and by the longest wait."""
    limits = [] if min_tokens_per_second is None else [1 / min_tokens_per_second]
    wait = case.workload.max_inter_token_seconds
    limits += [] if wait is None or shares_of(case.workload).request <= 0 else [wait]
    # No step is that short, and solvers divide by the limit.
    return (1 + SLACK) * max(min(limits), SHORTEST_SECONDS / 2) if limits else None


def _part_limit(case: Case) -> float | None:
    """Return the most that the step of one part may take, so that no session waits longer than a mix allows.

    Where throughput alone is the objective the best plan has the least wait: there is nothing to keep.
    """
    wait = case.workload.max_inter_token_seconds
    if wait is None or shares_of(case.workload).request <= 0:
        return None
    return (1 + SLACK) * wait / case.workload.concurrency


_Hops = tuple[tuple[tuple[Part | None, ...], ...], ...]
_Returns = tuple[tuple[Part | None, ...], ...]


def _spread(table: tuple[tuple[Row, ...], ...], seats: Seats) -> tuple[tuple[Row, ...], ...]:
    rows = [tuple(row[unit] for unit, _, _ in seats) for row in table]
    return tuple(rows[unit] for unit, _, _ in seats)


def _payload_classes(case: Case, atoms: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the payload sizes that come up at cuts, and which of them each cut has."""
    payload_bytes = [case.pricing.payload_bytes(first) for first, _ in atoms[1:]]
    classes = sorted(set(payload_bytes))
    return classes, [classes.index(amount) for amount in payload_bytes]


def _paths(
    case: Case,
    view: GraphView,
    sites: tuple[Site, ...],
    part_of: Callable[[Price], Part],
    atoms: list[tuple[int, int]],
    priced: bool,
    part_limit: float | None,
) -> tuple[_Hops, _Returns]:
    """Return what the path from each site to each other one costs, forward by payload class, and as the way back."""
    classes, at = _payload_classes(case, atoms)
    example = [atoms[1 + at.index(payload)][0] for payload in range(len(classes))]
    between: dict[tuple[str, str], tuple[tuple[Part | None, ...], Part | None]] = {}

    def part(price: Price | None) -> Part | None:
        if price is None or (part_limit is not None and price.step.point > part_limit):
            return None
        return part_of(price)

    def path(source: Site, target: Site) -> tuple[tuple[Part | None, ...], Part | None]:
        key = (source.node.id, target.node.id)
        if key not in between:
            linked = view.linked(source.node, target.node)
            if linked and not priced:
                between[key] = ((NOTHING,) * len(classes), NOTHING)
            elif linked:
                forward = tuple(part(case.pricing.hop(source.node, target.node, first)) for first in example)
                between[key] = (forward, part(case.pricing.feedback(source.node, target.node)))
            else:
                between[key] = ((None,) * len(classes), None)
        return between[key]

    hops = tuple(tuple(path(source, target)[0] for target in sites) for source in sites)
    return hops, tuple(tuple(path(last, first)[1] for first in sites) for last in sites)


def _atoms(case: Case) -> list[tuple[int, int]]:
    """Return the ranges of units between legal cuts."""
    ends = [index + 1 for index, boundary in enumerate(case.problem.boundaries) if boundary.legal]
    ends.append(len(case.problem.units))
    return list(zip((0, *ends), ends, strict=False))


class _Taken(NamedTuple):
    """What one profile takes: of each atom its own and the commons it touches, the commons, and what is fixed."""

    own: list[int]
    touched: list[frozenset[int]]
    common: tuple[Common, ...]
    fixed: int


def _memory(case: Case, look: _Look, atoms: list[tuple[int, int]]) -> _Taken:
    """Split the peak of a range into what is each atom's own, what several atoms share, and what every stage takes.

    Atoms of one kind touch the same commons.
    """
    at, share = look
    problem, representation, memory = case.problem, case.parts[at].representation, case.memories[at]
    atom_of = {unit: atom for atom, (first, end) in enumerate(atoms) for unit in range(first, end)}
    sessions = memory.max_positions * memory.sessions
    own = [0] * len(atoms)
    shared: dict[frozenset[int], int] = {}

    def add(amount: int, holders: frozenset[int]) -> None:
        if len(holders) == 1:
            own[next(iter(holders))] += amount
        elif holders and amount:
            shared[holders] = shared.get(holders, 0) + amount

    users: dict[str, set[int]] = {}
    for index, unit in enumerate(problem.units):
        if unit.mutable_bytes_per_position and share != "states":
            own[atom_of[index]] += bytes_in(unit.mutable_bytes_per_position, representation) * sessions
        for state in unit.states:
            users.setdefault(state, set()).add(atom_of[index])
    for item in problem.states if share != "rest" else ():
        add(bytes_in(item.sizes, representation), frozenset(users.get(item.id, ())))
    fixed = 0
    for cost_classes, amount in _transients(problem, representation) if share != "states" else ():
        if not cost_classes:
            fixed += amount
        else:
            add(
                amount,
                frozenset(atom_of[at] for at, unit in enumerate(problem.units) if unit.cost_class in cost_classes),
            )
    everywhere = frozenset(range(len(atoms)))
    if len(atoms) > 1:
        fixed += shared.pop(everywhere, 0)
    ordered = sorted(shared.items(), key=lambda entry: sorted(entry[0]))
    common = tuple(Common(amount, holders) for holders, amount in ordered)
    touched = [frozenset(at for at, group in enumerate(common) if atom in group.atoms) for atom in range(len(atoms))]
    return _Taken(own, touched, common, fixed)


def _transients(problem: PlanningProblem, representation: str) -> Iterator[tuple[frozenset[str], int]]:
    """Yield the cost classes that bring each short-lived memory, none meaning all, and its peak."""
    for term in problem.transients:
        if term.representation == representation:
            amount = term.fixed_bytes + term.bytes_per_step_position * problem.chunk_positions
            yield frozenset(term.cost_classes), amount
