"""The resource graph with typed questions: what belongs to a Node, and over which hops data can move.

`SwarmGraph` wraps one frozen `ResourceGraph`; networkx stays inside. Making one refuses a document that
contradicts itself. Answers never depend on the order of the document's tuples.

Data moves in hops of two kinds. Over a *Link* it goes from the RAM of one Node to the RAM of another. By a *copy* a
Compute Unit moves it between two Memory Resources that it addresses directly. Two accelerators without a direct
connection therefore have a path of two copies through RAM, and nothing here invents a shorter one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

import msgspec
import networkx as nx

from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.resources.types import ComputeUnit, Link, MemoryResource, Node, ResourceGraph, Segment

Record = Node | ComputeUnit | MemoryResource | Link | Segment
RecordType = TypeVar("RecordType", Node, ComputeUnit, MemoryResource, Link, Segment)


class Hop(NamedTuple):
    """One movement of data: from, to, and what carries it (the id of a Link or of a Compute Unit)."""

    source: str
    target: str
    kind: Literal["link", "copy"]
    carrier: str


class SwarmGraph:
    """Nodes, Compute Units, Memory Resources, Links and shared segments of one snapshot.

    Raises SpecError, naming the records, for ids or Node names that repeat, references to what is not there, a
    Link from a Node to itself, and a Compute Unit that addresses no memory of its own Node.
    """

    def __init__(self, document: ResourceGraph) -> None:
        _refuse_contradictions(document)
        self._document = document
        self._nodes = {node.id: node for node in document.nodes}
        self._units = {unit.id: unit for unit in document.compute_units}
        self._memory = {memory.id: memory for memory in document.memory_resources}
        self._links = {link.id: link for link in document.links}
        self._segments = {segment.id: segment for segment in document.segments}
        self._memory_on: dict[str, tuple[MemoryResource, ...]] = {}
        for memory in _sorted(document.memory_resources):
            self._memory_on[memory.node_id] = (*self._memory_on.get(memory.node_id, ()), memory)
        self._moves = self._movement_graph()

    @property
    def document(self) -> ResourceGraph:
        """Return the document that this was made of, unchanged."""
        return self._document

    @property
    def digest(self) -> str:
        """Return the digest of the document."""
        return digest(self._document)

    @property
    def networkx(self) -> nx.MultiDiGraph:
        """Return a copy of Nodes and Links for drawing: vertices carry `record`, edges are keyed by Link id."""
        picture = nx.MultiDiGraph()
        for node in _sorted(self._nodes.values()):
            picture.add_node(node.id, record=node)
        for link in _sorted(self._links.values()):
            picture.add_edge(link.source, link.target, key=link.id, record=link)
        return picture

    def nodes(self) -> tuple[Node, ...]:
        """Return all Nodes, by id."""
        return _sorted(self._nodes.values())

    def node(self, identity: str) -> Node:
        """Return the Node with this id. Raises SpecError when there is none."""
        return _get(self._nodes, identity, "node id")

    def node_named(self, name: str) -> Node:
        """Return the Node with this name. Raises SpecError when there is none."""
        return _get({node.name: node for node in self._nodes.values()}, name, "node name")

    def compute_unit(self, identity: str) -> ComputeUnit:
        """Return the Compute Unit with this id. Raises SpecError when there is none."""
        return _get(self._units, identity, "compute unit id")

    def memory(self, identity: str) -> MemoryResource:
        """Return the Memory Resource with this id. Raises SpecError when there is none."""
        return _get(self._memory, identity, "memory id")

    def compute_units_of(self, node: str) -> tuple[ComputeUnit, ...]:
        """Return the Compute Units of a Node, by id. Raises SpecError when the Node is not there."""
        owner = self.node(node).id
        return _sorted(unit for unit in self._units.values() if unit.node_id == owner)

    def memory_of(self, compute_unit: str) -> tuple[MemoryResource, ...]:
        """Return the Memory Resources that a Compute Unit addresses, nearest first."""
        return tuple(self._memory[identity] for identity in self.compute_unit(compute_unit).memory_ids)

    def memory_on(self, node: str) -> tuple[MemoryResource, ...]:
        """Return the Memory Resources of a Node, by id. Raises SpecError when the Node is not there."""
        owner = self.node(node).id
        return self._memory_on.get(owner, ())

    def links_between(self, source: str, target: str) -> tuple[Link, ...]:
        """Return the Links from one Node straight to another, by id; available or not."""
        ends = (self.node(source).id, self.node(target).id)
        return _sorted(link for link in self._links.values() if (link.source, link.target) == ends)

    def segments_of(self, link: str) -> tuple[Segment, ...]:
        """Return the shared segments that a Link goes over, in the order of passing. Raises SpecError for no Link."""
        return tuple(self._segments[identity] for identity in _get(self._links, link, "link id").segments)

    def links_over(self, segment: str) -> tuple[Link, ...]:
        """Return the Links that share a segment, by id. Raises SpecError when it is not there."""
        shared = _get(self._segments, segment, "segment id").id
        return _sorted(link for link in self._links.values() if shared in link.segments)

    def nodes_of_host(self, host: str) -> tuple[Node, ...]:
        """Return the Nodes that share one host: one failure domain, one memory bandwidth. By id."""
        return _sorted(node for node in self._nodes.values() if node.host_id == host)

    def path(self, source: str, target: str) -> tuple[Hop, ...] | None:
        """Return the fewest hops that move data from one place to another; None when there are none.

        Each end is the id of a Memory Resource, of a Compute Unit (its nearest memory), or of a Node (its RAM).
        Only Links and Compute Units that are available carry data. Ties go to the ids that sort first. Raises
        SpecError for an id that is not there.
        """
        starts, ends = self._places(source), self._places(target)
        if set(starts) & set(ends):
            return ()
        found = [steps for start in sorted(starts) if (steps := self._fewest(start, frozenset(ends)))]
        if not found:
            return None
        steps = min(found, key=lambda places: (len(places), places))
        return tuple(self._hop(first, second) for first, second in pairwise(steps))

    def _fewest(self, start: str, ends: frozenset[str]) -> list[str] | None:
        """Search breadth first in the order of ids, so that the first way found is the one that sorts first."""
        came_from: dict[str, str | None] = {start: None}
        waiting = deque([start])
        while waiting:
            place = waiting.popleft()
            if place in ends:
                way = [place]
                while (before := came_from[way[-1]]) is not None:
                    way.append(before)
                return way[::-1]
            for neighbor in sorted(self._moves[place]):
                if neighbor not in came_from:
                    came_from[neighbor] = place
                    waiting.append(neighbor)
        return None

    def _hop(self, source: str, target: str) -> Hop:
        key = min(self._moves[source][target])
        return Hop(source, target, *key)

    def _places(self, identity: str) -> tuple[str, ...]:
        if identity in self._memory:
            return (identity,)
        if identity in self._units:
            return self._units[identity].memory_ids[:1]
        return tuple(memory.id for memory in self.memory_on(identity) if memory.kind == "ram")

    def _movement_graph(self) -> nx.MultiDiGraph:
        """Make the graph whose vertices are Memory Resources and whose edges are hops, keyed (kind, carrier)."""
        moves = nx.MultiDiGraph()
        moves.add_nodes_from(sorted(self._memory))
        for unit in _sorted(self._units.values()):
            for source in unit.memory_ids if unit.available else ():
                for target in unit.memory_ids:
                    if source != target:
                        moves.add_edge(source, target, key=("copy", unit.id))
        for link in _sorted(self._links.values()):
            for source in self._places(link.source) if link.available else ():
                for target in self._places(link.target):
                    moves.add_edge(source, target, key=("link", link.id))
        return moves


def _sorted(records: Iterable[RecordType]) -> tuple[RecordType, ...]:
    return tuple(sorted(records, key=lambda record: record.id))


def _get(table: dict[str, RecordType], key: str, field: str) -> RecordType:
    if key not in table:
        raise SpecError(field, key, f"one of {sorted(table)}")
    return table[key]


def _repeated(values: Iterable[str]) -> list[str]:
    return sorted(value for value, num in Counter(values).items() if num > 1)


def _refuse_contradictions(document: ResourceGraph) -> None:
    records: tuple[Record, ...] = (
        *document.nodes,
        *document.compute_units,
        *document.memory_resources,
        *document.links,
        *document.segments,
    )
    if repeated := _repeated(record.id for record in records):
        raise SpecError("resource ids", repeated, "each id once")
    if repeated := _repeated(node.name for node in document.nodes):
        raise SpecError("node names", repeated, "each name once")
    nodes = {node.id for node in document.nodes}
    owners = {memory.id: memory.node_id for memory in document.memory_resources}
    all_owned: tuple[ComputeUnit | MemoryResource, ...] = (*document.compute_units, *document.memory_resources)
    for owned in all_owned:
        if owned.node_id not in nodes:
            raise SpecError(f"node of {owned.id}", owned.node_id, "a Node of this graph")
    _refuse_contradictory_cores(document)
    for unit in document.compute_units:
        if absent := [identity for identity in unit.memory_ids if identity not in owners]:
            raise SpecError(f"memory of {unit.id}", absent, "Memory Resources of this graph")
        if not any(owners[identity] == unit.node_id for identity in unit.memory_ids):
            raise SpecError(f"memory of {unit.id}", list(unit.memory_ids), "at least one on its own Node")
        if unit.threads < 1:
            raise SpecError(f"threads of {unit.id}", unit.threads, "at least 1")
    segments = {segment.id for segment in document.segments}
    for link in document.links:
        if absent := [identity for identity in link.segments if identity not in segments]:
            raise SpecError(f"segments of {link.id}", absent, "segments of this graph")
        if repeated := _repeated(link.segments):
            raise SpecError(f"segments of {link.id}", repeated, "each segment once")
        if absent := [end for end in (link.source, link.target) if end not in nodes]:
            raise SpecError(f"ends of {link.id}", absent, "Nodes of this graph")
        if link.source == link.target:
            raise SpecError(f"ends of {link.id}", link.source, "two different Nodes")


def _refuse_contradictory_cores(document: ResourceGraph) -> None:
    core_sets = () if isinstance(document.core_sets, msgspec.UnsetType) else document.core_sets
    num_cores = {item.id: item.num_cores for item in core_sets}
    if len(num_cores) < len(core_sets):
        raise SpecError("core set ids", _repeated(item.id for item in core_sets), "each id once")
    for identity, count in num_cores.items():
        if count < 1:
            raise SpecError(f"cores of {identity}", count, "at least 1")
    for unit in document.compute_units:
        shared = unit.core_set_id
        if not isinstance(shared, msgspec.UnsetType) and shared not in num_cores:
            raise SpecError(f"cores of {unit.id}", shared, "a core set of this graph")
