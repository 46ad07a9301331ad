"""Declared topologies: swarms that somebody describes in a TOML file, to plan for without having them.

A topology becomes the same `ResourceGraph` that discovery gives, and every fact in it says that it was declared. How
fast things are is not a fact of the graph: nominal *figures* stand beside it, each with its resource, and are never
measurements. What a file does not say is unknown, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.resources import quantities
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.identity import declared_id
from inferswarm.resources.topology_file import MemoryEntry, NodeEntry, TopologyFile, UnitEntry, parse_topology
from inferswarm.resources.topology_links import Wiring
from inferswarm.resources.types import (
    ComputeUnit,
    Fact,
    MemoryResource,
    NamedFact,
    Node,
    ResourceGraph,
    declared,
    unknown,
)

MAX_NODES = 1000
"""More than the planner can search; a file that asks for more is a mistake."""
Quantity = Literal["read-bandwidth", "arithmetic", "unit-overhead", "copy-into-rate", "copy-out-rate", "copy-latency"]


class Figure(Document, frozen=True, kw_only=True):
    """One nominal figure of a resource: declared, not measured. Rates are bytes/s or FLOP/s, times are seconds."""

    subject: str
    """The id of a Memory Resource (`read-bandwidth`) or a Compute Unit (all others)."""
    quantity: Quantity
    representation: str = ""
    """For `arithmetic`; empty for the others."""
    value: Fact[float]

    @property
    def id(self) -> str:
        """Return what the figure is called where a decision names what it rests on; starts with `declared:`."""
        return ":".join(("declared", self.subject, self.quantity, *filter(None, (self.representation,))))


class Topology(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.declared-topology/1"):
    """A declared swarm: its graph, and the nominal figures of its resources."""

    name: str
    summary: str
    figures_from: str
    graph: ResourceGraph
    figures: tuple[Figure, ...]

    def figure(self, subject: str, quantity: Quantity, representation: str = "") -> Figure | None:
        """Return a figure, or None when the topology declares none."""
        wanted = (subject, quantity, representation)
        for figure in self.figures:
            if (figure.subject, figure.quantity, figure.representation) == wanted:
                return figure
        return None


def load_topology(path: str | Path) -> Topology:
    """Read a topology file. Raises SpecError for a file that cannot be read, and what `read_topology` raises."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise SpecError("topology", str(path), f"a file that can be read ({error.strerror})") from error
    return read_topology(text, str(path))


def read_topology(text: str | bytes, source: str) -> Topology:
    """Return the topology that a text declares.

    Raises DocumentError naming `source` for a text of another form; SpecError, naming the table, for quantities that
    are none, names that repeat or are not there, and a graph that contradicts itself.
    """
    return build_topology(parse_topology(text, source))


def build_topology(file: TopologyFile) -> Topology:
    """Turn what a file says into a graph and its figures. Raises SpecError as `read_topology` does."""
    builder = _Builder(file)
    topology = Topology(
        name=file.name,
        summary=file.summary,
        figures_from=file.figures_from,
        graph=builder.graph(),
        figures=tuple(builder.figures),
    )
    SwarmGraph(topology.graph)
    return topology


class _Builder:
    """Goes through a file once."""

    def __init__(self, file: TopologyFile) -> None:
        self._file = file
        self._detail = f"declared by topology {file.name}"
        self.figures: list[Figure] = []
        self._units: list[ComputeUnit] = []
        self._memory: list[MemoryResource] = []

    def graph(self) -> ResourceGraph:
        """Return the whole graph."""
        nodes: dict[str, Node] = {}
        for name, entry in self._named_nodes():
            if name in nodes:
                raise SpecError("topology: node names", name, "each name once")
            nodes[name] = self._node(name, entry)
        wiring = Wiring(self._file, {name: node.id for name, node in nodes.items()}, self._detail)
        links, segments = wiring.build()
        return ResourceGraph(
            swarm_id=self._file.name,
            nodes=tuple(nodes.values()),
            compute_units=tuple(self._units),
            memory_resources=tuple(self._memory),
            links=links,
            segments=segments,
        )

    def _named_nodes(self) -> Iterator[tuple[str, NodeEntry]]:
        total = sum(entry.copies or 1 for entry in self._file.node)
        if total > MAX_NODES:
            raise SpecError("topology: number of Nodes", total, f"at most {MAX_NODES}")
        for entry in self._file.node:
            if entry.copies is None:
                yield entry.name, entry
            else:
                yield from ((f"{entry.name}-{index}", entry) for index in range(1, entry.copies + 1))

    def _node(self, name: str, entry: NodeEntry) -> Node:
        node = declared_id("node", self._file.name, name)
        where = f"node {name!r}"
        memories: dict[str, str] = {}
        for memory in entry.memory:
            if memory.name in memories:
                raise SpecError(f"{where}: memory names", memory.name, "each name once")
            memories[memory.name] = self._add_memory(name, node, memory)
        units = [unit.name for unit in entry.compute_unit]
        if repeated := sorted({unit for unit in units if units.count(unit) > 1}):
            raise SpecError(f"{where}: compute unit names", repeated, "each name once")
        for unit in entry.compute_unit:
            self._add_unit(name, node, unit, memories)
        return Node(
            id=node,
            name=name,
            host_id=declared_id("host", self._file.name, *self._computer(name, entry)),
            virtual=entry.same_computer is not None,
            facts=tuple(
                NamedFact(name=key, fact=declared(value, self._detail)) for key, value in sorted(entry.facts.items())
            ),
        )

    def _computer(self, name: str, entry: NodeEntry) -> tuple[str, str]:
        return ("alone", name) if entry.same_computer is None else ("shared", entry.same_computer)

    def _add_memory(self, node_name: str, node: str, entry: MemoryEntry) -> str:
        where = f"node {node_name!r}: memory {entry.name!r}"
        memory = declared_id(entry.kind, self._file.name, node_name, entry.name)
        self._memory.append(
            MemoryResource(
                id=memory,
                node_id=node,
                kind=entry.kind,
                capacity_bytes=self._size(entry.capacity, f"{where}: capacity"),
                reserved_bytes=self._size(entry.reserved, f"{where}: reserved"),
                enforcement="none",
            )
        )
        if entry.read_bandwidth is not None:
            rate = quantities.bytes_per_second(entry.read_bandwidth, f"{where}: read_bandwidth")
            self._add_figure(memory, quantities.READ_BANDWIDTH, rate)
        return memory

    def _size(self, text: str | None, field: str) -> Fact[int]:
        if text is None:
            return unknown(f"topology {self._file.name} does not declare it ({field})")
        return declared(quantities.size_bytes(text, field), self._detail)

    def _add_unit(self, node_name: str, node: str, entry: UnitEntry, memories: dict[str, str]) -> None:
        where = f"node {node_name!r}: compute unit {entry.name!r}"
        if strangers := [name for name in entry.memory if name not in memories]:
            raise SpecError(f"{where}: memory", strangers, f"names among {sorted(memories)}")
        if len(set(entry.memory)) != len(entry.memory):
            raise SpecError(f"{where}: memory", list(entry.memory), "each memory once")
        unit = declared_id(entry.kind, self._file.name, node_name, entry.name)
        tags = {f"backend:{name}" for name in entry.backends}
        tags |= {f"representation:{name}" for name in entry.representations}
        tags |= {f"isa:{name}" for name in entry.instruction_sets}
        tags |= {"states:addressable"} if entry.states_addressable else set()
        self._units.append(
            ComputeUnit(
                id=unit,
                node_id=node,
                kind=entry.kind,
                name=entry.model or entry.name,
                threads=entry.threads,
                memory_ids=tuple(memories[name] for name in entry.memory),
                capabilities=tuple(sorted(tags)),
                available=entry.available,
            )
        )
        for representation, text in sorted(entry.arithmetic.items()):
            field = f"{where}: arithmetic.{representation}"
            if representation not in entry.representations:
                raise SpecError(field, text, f"one of its representations {list(entry.representations)}")
            self._add_figure(unit, "arithmetic", quantities.flops_per_second(text, field), representation)
        if entry.unit_overhead is not None:
            overhead = quantities.seconds(entry.unit_overhead, f"{where}: unit_overhead")
            self._add_figure(unit, "unit-overhead", overhead)
        if entry.copy is not None:
            into = quantities.bytes_per_second(entry.copy.into, f"{where}: copy.into")
            out = quantities.bytes_per_second(entry.copy.out, f"{where}: copy.out")
            self._add_figure(unit, "copy-into-rate", into)
            self._add_figure(unit, "copy-out-rate", out)
            self._add_figure(unit, "copy-latency", quantities.seconds(entry.copy.latency, f"{where}: copy.latency"))

    def _add_figure(self, subject: str, quantity: Quantity, value: float, representation: str = "") -> None:
        fact = declared(value, self._detail)
        self.figures.append(Figure(subject=subject, quantity=quantity, representation=representation, value=fact))
