"""What declared figures let one expect: cost curves by a roofline, for planning without hardware. Never measurements.

For a Compute Unit with read bandwidth B (of the memory nearest to it), arithmetic F (in the representation) and
overhead o per unit of work, a unit of the chain with w weights that take W bytes, and k bytes of kept state per
position, is expected to take::

    step        max(W / B', 2 w / F') + o   + (k / B') × context
    first pass  W / B' + o + (2 w / F') × n + (4 h / F') × n × (context + n / 2)

for n positions, with h the width of what crosses a cut (4 h operations for one position looking at another), where
B' and F' are the shares of B and F that `Assumptions` expect. A unit that looks up one row for each position reads
that row and computes nothing. A message of b bytes from Node to Node is expected to take::

    latency of the Link + software + b × 8 / rate'  + copies between accelerator and RAM at both ends

Where a Compute Unit can compute with states that are in another memory than the nearest, W and looked-up rows come at
the rate of its copies from RAM, after their latency; kept state stays in the nearest memory.

Where several Links join two Nodes, the one that carries a message of 64 KiB fastest counts, of those that may be
used. Opening a request is expected to take the software of two messages, the prompt's and the first token's: nothing
says where the Coordinator is. Bounds come from the best and the worst shares, and, in a first pass, from reading and
computing at once.

Not covered: kernels that are slow for other reasons, caches, the scratch of kernels, contention on shared segments,
memory bandwidth that virtual Nodes share, and which Compute Unit of a Node a path starts from: the slowest to copy
counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from inferswarm.documents import Document
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.modes import ADDRESSABLE
from inferswarm.planner.problem import Implementation, PlanningProblem, bytes_in
from inferswarm.resources.quantities import READ_BANDWIDTH
from inferswarm.resources.topology import Quantity, Topology
from inferswarm.resources.types import ComputeUnit, Link
from inferswarm.strategies.chain import Description, state_tensors, unit_states
from inferswarm.strategies.economics import phases_of

REFERENCE_MESSAGE_BYTES = 64 * 1024
"""The message that decides between several Links of one pair of Nodes."""
OPENING_MESSAGES = 2
"""What brings a prompt to its first participant, and the first token back."""


class Shares(Document, frozen=True, kw_only=True):
    """Which shares of nominal figures are reached, above 0 and at most 1; and the seconds of software per message."""

    read: float
    arithmetic: float
    network: float
    copy: float
    message_seconds: float

    def __post_init__(self) -> None:
        """Raise ValueError for a share that is none."""
        super().__post_init__()
        for name in ("read", "arithmetic", "network", "copy"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"share {name} is {getattr(self, name)}, needed more than 0 and at most 1")
        if self.message_seconds <= 0:
            raise ValueError(f"message_seconds is {self.message_seconds}, needed more than 0")


class Assumptions(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.assumptions/1"):
    """How much of nominal figures is believed: at best, as expected, at worst. Assumed, not measured."""

    best: Shares = Shares(read=1.0, arithmetic=1.0, network=1.0, copy=1.0, message_seconds=30e-6)
    expected: Shares = Shares(read=0.7, arithmetic=0.4, network=0.9, copy=0.8, message_seconds=120e-6)
    worst: Shares = Shares(read=0.35, arithmetic=0.1, network=0.5, copy=0.4, message_seconds=500e-6)

    def __post_init__(self) -> None:
        """Raise ValueError where the expected share is not between worst and best."""
        super().__post_init__()
        for name in ("read", "arithmetic", "network", "copy"):
            worst, expected, best = (getattr(shares, name) for shares in (self.worst, self.expected, self.best))
            if not worst <= expected <= best:
                raise ValueError(
                    f"share {name} is out of order: {worst} at worst, {expected} expected, {best} at best"
                )
        if not self.best.message_seconds <= self.expected.message_seconds <= self.worst.message_seconds:
            raise ValueError("message_seconds are out of order: best, expected, worst")


class UnitWork(NamedTuple):
    """What one unit of the chain reads and computes, in one representation."""

    weight_bytes: int
    """Read once for each step, however many positions it carries."""
    row_bytes: int
    """Read for each position."""
    weights: int
    """Multiplied and added once for each position."""
    kept_bytes_per_position: int
    looks_back_operations: int
    """Operations for each pair of a new position and an earlier one."""


class _Missing(Exception):
    """A figure that the topology does not declare; the text says which."""


def work_of(description: Description, problem: PlanningProblem, index: int, representation: str) -> UnitWork:
    """Return the work of unit `index` of a problem that was stated for `description`.

    Raises SpecError for a representation in which the problem states no sizes.
    """
    tensors, unit = state_tensors(description), problem.units[index]
    names = unit_states(description, index)
    weights = sum(math.prod(shape) for state in names for shape in tensors[state].values())
    sizes = {state.id: state.sizes for state in problem.states}
    weight_bytes = sum(bytes_in(sizes[state], representation) for state in names)
    if index == 0:  # a look-up: one row of the table for each position
        return UnitWork(0, round(description.hidden_size * weight_bytes / weights), 0, 0, 0)
    kept = bytes_in(unit.mutable_bytes_per_position, representation) if unit.mutable_bytes_per_position else 0
    return UnitWork(weight_bytes, 0, weights, kept, 4 * description.hidden_size if kept else 0)


def estimate_economics(
    topology: Topology,
    description: Description,
    problem: PlanningProblem,
    assumptions: Assumptions | None = None,
    *,
    barred: Collection[str] = (),
) -> Economics:
    """Return the curves that the declared figures let one expect for a model's problem, and what is missing.

    `barred` are the ids of Links that no message may go over; a pair of Nodes without another one has no curve.

    Curves are marked as declared and name the figures that they rest on, `declared:…`, and no record of evidence: the
    planner leaves them aside unless it is asked for an estimate. Whatever a topology does not
    declare has no curve; the reasons are in `missing`, each with the Compute Unit's id or the Nodes' names.
    """
    estimator = _Estimator(topology, description, problem, assumptions or Assumptions(), frozenset(barred))
    return estimator.economics()


class _Coefficients(NamedTuple):
    """A curve's coefficients under one set of shares."""

    base: float
    per_position: float
    per_context: float


class _Estimator:
    """Turns figures into curves for one problem."""

    def __init__(
        self,
        topology: Topology,
        description: Description,
        problem: PlanningProblem,
        assumptions: Assumptions,
        barred: frozenset[str],
    ) -> None:
        self._graph = topology.graph
        self._links = [link for link in topology.graph.links if link.available and link.id not in barred]
        self._figures = {(item.subject, item.quantity, item.representation): item for item in topology.figures}
        self._description = description
        self._problem = problem
        self._shares = (assumptions.best, assumptions.expected, assumptions.worst)
        self._names = {node.id: node.name for node in topology.graph.nodes}
        self._memory_kinds = {memory.id: memory.kind for memory in topology.graph.memory_resources}
        self._missing: dict[str, None] = {}
        self._works: dict[tuple[int, str], UnitWork] = {}
        self._copies: dict[tuple[str, Quantity], _Copying] = {}
        self._path_costs: dict[
            tuple[tuple[float, float], _Copying, _Copying, bool], tuple[_Coefficients, float, float]
        ] = {}

    def economics(self) -> Economics:
        """Return all curves and what is missing."""
        services = tuple(self._services())
        return Economics(services=services, paths=tuple(self._paths()), missing=tuple(self._missing))

    def _figure(self, subject: str, quantity: Quantity, what: str, representation: str = "") -> tuple[float, str]:
        figure = self._figures.get((subject, quantity, representation))
        if figure is None or figure.value.value is None:
            raise _Missing(f"the topology declares no {quantity} of {what}")
        return figure.value.value, figure.id

    def _services(self) -> Iterable[ServiceCurve]:
        phases = phases_of(self._problem)
        first: dict[str, int] = {}
        for index, piece in enumerate(self._problem.units):
            first.setdefault(piece.cost_class, index)
        for unit in sorted(self._graph.compute_units, key=lambda unit: unit.id):
            for implementation in self._problem.implementations:
                if not _executes(unit, implementation):
                    continue
                cases = itertools.product(sorted(first.items()), _places(unit))
                for (cost_class, index), apart in cases:
                    for phase in phases[cost_class]:
                        try:
                            yield self._service(unit, implementation.representation, index, phase, apart)
                        except _Missing as missing:
                            what = f"{cost_class} in {implementation.representation}, {phase}"
                            what += ", states apart" if apart else ""
                            where = f"{self._names[unit.node_id]} ({unit.id})"
                            self._missing[f"estimate of {what}, on {where}: {missing}"] = None

    def _service(self, unit: ComputeUnit, representation: str, index: int, phase: Phase, apart: bool) -> ServiceCurve:
        piece = self._problem.units[index]
        if phase == "opening":
            return self._opening(unit, representation, piece.cost_class, apart)
        if (index, representation) not in self._works:  # the same on every Compute Unit
            self._works[index, representation] = work_of(self._description, self._problem, index, representation)
        work = self._works[index, representation]
        bandwidth, read_id = self._figure(unit.memory_ids[0], READ_BANDWIDTH, f"the memory nearest to {unit.name}")
        overhead, overhead_id = self._figure(unit.id, "unit-overhead", unit.name)
        ids = [read_id, overhead_id]
        arithmetic = math.inf
        if work.weights:
            arithmetic, arithmetic_id = self._figure(
                unit.id, "arithmetic", f"{unit.name} in {representation}", representation
            )
            ids.append(arithmetic_id)

        copied, waiting = math.inf, 0.0
        if apart:
            copied, into_id = self._figure(unit.id, "copy-into-rate", unit.name)
            waiting, latency_id = self._figure(unit.id, "copy-latency", unit.name)
            ids += [into_id, latency_id]

        def under(shares: Shares, overlap: float) -> _Coefficients:
            reads, computes = shares.read * bandwidth, shares.arithmetic * arithmetic
            from_states = shares.copy * copied if apart else reads
            reading, computing = work.weight_bytes / from_states, 2 * work.weights / computes
            row = work.row_bytes / from_states
            if phase == "step":
                each = max(reading, computing) + row + waiting + overhead
                return _Coefficients(each, 0.0, work.kept_bytes_per_position / reads)
            looking = work.looks_back_operations / computes
            return _Coefficients(
                overlap * reading + waiting + overhead, overlap * (row + computing), overlap * looking
            )

        best, expected, worst = self._shares
        point = under(expected, 1.0)
        # max(a, b) is at least (a + b) / 2: the best case may read and compute at the same time.
        low, high = _bounds(point, under(best, 0.5), under(worst, 1.0))
        return ServiceCurve(
            compute_unit_id=unit.id,
            cost_class=piece.cost_class,
            representation=representation,
            phase=phase,
            base_seconds=point.base,
            seconds_per_position=point.per_position,
            seconds_per_position_context=point.per_context,
            low=low,
            high=high,
            evidence_ids=tuple(sorted(ids)),
            basis="declared",
            states="apart" if apart else msgspec.UNSET,
        )

    def _opening(self, unit: ComputeUnit, representation: str, cost_class: str, apart: bool) -> ServiceCurve:
        """Return the curve of opening a request, which rests on the assumed shares and on no declared figure."""
        best, expected, worst = (shares.message_seconds for shares in self._shares)
        return ServiceCurve(
            compute_unit_id=unit.id,
            cost_class=cost_class,
            representation=representation,
            phase="opening",
            base_seconds=OPENING_MESSAGES * expected,
            low=best / expected,
            high=worst / expected,
            basis="declared",
            states="apart" if apart else msgspec.UNSET,
        )

    def _paths(self) -> Iterable[PathCurve]:
        links: dict[tuple[str, str], list[Link]] = {}
        for link in self._links:
            links.setdefault((link.source, link.target), []).append(link)
        units: dict[str, list[ComputeUnit]] = {}
        for unit in self._graph.compute_units:
            if unit.available:
                units.setdefault(unit.node_id, []).append(unit)
        for node in sorted(self._graph.nodes, key=lambda node: node.id):
            if len(units.get(node.id, ())) > 1:
                links[node.id, node.id] = []
        for (source, target), parallel in sorted(links.items()):
            try:
                yield self._path(source, target, parallel, (units.get(source, []), units.get(target, [])))
            except _Missing as missing:
                self._missing[f"estimate of {self._names[source]} → {self._names[target]}: {missing}"] = None

    def _path(
        self, source: str, target: str, parallel: Sequence[Link], units: tuple[list[ComputeUnit], list[ComputeUnit]]
    ) -> PathCurve:
        leaving = self._copying(source, units[0], "copy-out-rate")
        arriving = self._copying(target, units[1], "copy-into-rate")
        wire, fastest = ((0.0, math.inf), ()) if source == target else self._wire(parallel)

        key = (wire, leaving, arriving, source == target)
        if key not in self._path_costs:  # of networks, most paths are alike
            self._path_costs[key] = self._path_cost(*key)
        point, low, high = self._path_costs[key]
        return PathCurve(
            source=source,
            target=target,
            latency_seconds=point.base,
            seconds_per_byte=point.per_position,
            low=low,
            high=high,
            evidence_ids=tuple(sorted({*(f"declared:{link}" for link in fastest), *leaving.ids, *arriving.ids})),
            basis="declared",
            link_ids=fastest or msgspec.UNSET,
        )

    def _path_cost(
        self, wire: tuple[float, float], leaving: _Copying, arriving: _Copying, within: bool
    ) -> tuple[_Coefficients, float, float]:
        """Return what a path is expected to cost, and the factors down to the best and up to the worst."""

        def under(shares: Shares, copies: bool) -> _Coefficients:
            latency = wire[0] + shares.message_seconds
            per_byte = 8 / (shares.network * wire[1])
            if copies:
                latency += leaving.latency + arriving.latency
                per_byte += (leaving.seconds_per_byte + arriving.seconds_per_byte) / shares.copy
            return _Coefficients(latency, per_byte, 0.0)

        best, expected, worst = self._shares
        point = under(expected, True)
        low, high = _bounds(point, under(best, within), under(worst, True))
        return point, low, high

    def _wire(self, parallel: Sequence[Link]) -> tuple[tuple[float, float], tuple[str, ...]]:
        """Return latency and bits per second of the Link that carries the reference message fastest, and its id."""
        known: list[tuple[float, float, float, str]] = []
        for link in parallel:
            rate, latency = link.nominal_bits_per_second.value, link.nominal_latency_seconds.value
            if rate is not None and latency is not None:
                known.append((latency + REFERENCE_MESSAGE_BYTES * 8 / rate, latency, float(rate), link.id))
        if not known:
            raise _Missing("no Link between them declares both rate and latency")
        _, least, fastest, identity = min(known)
        return (least, fastest), (identity,)

    def _copying(self, node: str, units: list[ComputeUnit], quantity: Quantity) -> _Copying:
        """Return the slowest way between a Node's RAM and the memory of one of its Compute Units."""
        if (node, quantity) in self._copies:
            return self._copies[node, quantity]
        slowest = _Copying(0.0, 0.0, ())
        for unit in units:
            if self._memory_kinds[unit.memory_ids[0]] == "ram":
                continue
            rate, rate_id = self._figure(unit.id, quantity, unit.name)
            latency, latency_id = self._figure(unit.id, "copy-latency", unit.name)
            slowest = max(slowest, _Copying(1 / rate, latency, (latency_id, rate_id)))
        self._copies[node, quantity] = slowest
        return slowest


class _Copying(NamedTuple):
    """A copy between accelerator and RAM; compared by its time for a byte first."""

    seconds_per_byte: float
    latency: float
    ids: tuple[str, ...]


def _bounds(point: _Coefficients, best: _Coefficients, worst: _Coefficients) -> tuple[float, float]:
    """Return the factors that enclose every sum of the terms: those of the term that differs most."""
    below = [good / middle for good, middle in zip(best, point, strict=True) if middle > 0]
    above = [bad / middle for bad, middle in zip(worst, point, strict=True) if middle > 0]
    return min([1.0, *below]), max([1.0, *above])


def _places(unit: ComputeUnit) -> tuple[bool, ...]:
    """Return whether states may be in the nearest memory (False) and in another one (True)."""
    return (False, True) if ADDRESSABLE in unit.capabilities and len(unit.memory_ids) > 1 else (False,)


def _executes(unit: ComputeUnit, implementation: Implementation) -> bool:
    return unit.available and set(implementation.required_capabilities) <= set(unit.capabilities)
