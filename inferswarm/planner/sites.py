"""The resource graph as the planner asks of it: sites, links and names. Pure look-ups over one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from inferswarm.errors import SpecError
from inferswarm.planner.standing import Closed, Standing
from inferswarm.resources.types import ComputeUnit, CoreSet, Fact, MemoryResource, Node, ResourceGraph


class Site(NamedTuple):
    """A Compute Unit with its Node and the Memory Resource nearest to it (None when the graph has none)."""

    compute_unit: ComputeUnit
    node: Node
    memory: MemoryResource | None
    closed: tuple[Closed, ...] = ()
    """What its health speaks against; see `standing`."""
    further: tuple[MemoryResource, ...] = ()
    """The other Memory Resources of its Node that it addresses and that nothing speaks against, nearest first."""

    @property
    def id(self) -> str:
        """Return the Compute Unit's id."""
        return self.compute_unit.id

    @property
    def available_bytes(self) -> int | None:
        """Return capacity less reservation, or None when either is unknown."""
        if self.memory is None:
            return None
        capacity, reserved = self.memory.capacity_bytes.value, self.memory.reserved_bytes.value
        return None if capacity is None or reserved is None else capacity - reserved


class Mode(NamedTuple):
    """How a participant works: what it computes in, and which Memory Resource holds its immutable states."""

    representation: str = ""
    """Empty: that of the plan."""
    states_place: int = 0
    """0: the nearest Memory Resource, which holds everything else. From 1: that one of `Site.further`."""

    @property
    def apart(self) -> bool:
        """Whether states are elsewhere than what they are computed with."""
        return self.states_place > 0


NEAR = Mode()
"""Everything in the nearest Memory Resource, in the plan's representation."""


class Leg(NamedTuple):
    """One participant of a route: units [first_unit, end_unit) of the chain on one site, and how it works there."""

    site: Site
    first_unit: int
    end_unit: int
    mode: Mode = NEAR

    @property
    def states_memory(self) -> MemoryResource | None:
        """Return the Memory Resource that holds its states, where that is another than the nearest one."""
        return self.site.further[self.mode.states_place - 1] if self.mode.apart else None


PRICED_OVER_A_BARRED_ONE = "the price is not that of messages over that one alone"
LINK_UNKNOWN = "nothing says over which of them the messages went that were priced"
"""Why a pair of Nodes is shut although one of its Links is allowed."""


def unit_range(first_unit: int, end_unit: int) -> str:
    """Write a range of units for people.

    >>> unit_range(0, 3), unit_range(3, 4)
    ('units 0–2', 'unit 3')
    """
    return f"units {first_unit}–{end_unit - 1}" if end_unit - first_unit > 1 else f"unit {first_unit}"


Route = tuple[Leg, ...]
"""Participants in the order in which work passes through them; they cover the chain without gap or overlap."""


class Withheld(NamedTuple):
    """What an operator withholds from plans: bytes by Memory Resource, and Links, each id with the reason."""

    kept: Mapping[str, int]
    barred: Mapping[str, str]
    taken: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({})
    """Which Links the messages of a directed pair of Nodes go over, where they have a price; none: nobody knows."""


class GraphView:
    """Sites, links and names of one snapshot. Sites are sorted by id, so the order of the input does not matter."""

    def __init__(
        self, graph: ResourceGraph, standing: Standing | None = None, withheld: Withheld | None = None
    ) -> None:
        """Index the snapshot; `standing` closes sites and paths by their health, `withheld` counts as not there.

        Raises SpecError when a Compute Unit names a Node or a memory that is not there.
        """
        self.graph = graph
        self.standing = standing
        withheld = withheld or Withheld({}, {})
        self._nodes = {node.id: node for node in graph.nodes}
        memories = {memory.id: _keeping(memory, withheld.kept.get(memory.id, 0)) for memory in graph.memory_resources}
        sites: list[Site] = []
        for unit in sorted(graph.compute_units, key=lambda unit: unit.id):
            if unit.node_id not in self._nodes:
                raise SpecError(f"Compute Unit {unit.id}: node", unit.node_id, f"one of {sorted(self._nodes)}")
            if unit.memory_ids and unit.memory_ids[0] not in memories:
                raise SpecError(f"Compute Unit {unit.id}: memory", unit.memory_ids[0], f"one of {sorted(memories)}")
            memory = memories[unit.memory_ids[0]] if unit.memory_ids else None
            closed = standing.site(unit.node_id, unit.id, None if memory is None else memory.id) if standing else ()
            others = [memories[name] for name in dict.fromkeys(unit.memory_ids[1:]) if name in memories]
            further = tuple(
                other
                for other in others
                if other != memory
                and other.node_id == unit.node_id
                and not (standing and standing.memory_resource(other.id))
            )
            sites.append(Site(unit, self._nodes[unit.node_id], memory, closed, further))
        if len({site.id for site in sites}) != len(sites):
            raise SpecError("Compute Unit ids", [site.id for site in sites], "all different")
        self.sites = tuple(sites)
        sets = () if isinstance(graph.core_sets, msgspec.UnsetType) else graph.core_sets
        self._core_sets = {item.id: item for item in sets}
        self._segments: dict[tuple[str, str], frozenset[str]] = {}
        self._shut: dict[tuple[str, str], str] = {}
        barred: set[tuple[str, str]] = set()
        allowed: dict[tuple[str, str], set[str]] = {}
        for link in graph.links:
            pair, segments = (link.source, link.target), frozenset(link.segments)
            if shut := standing.path(*pair) if standing else ():
                self._shut[pair] = shut[0].reason
            elif link.id in withheld.barred:
                self._shut[pair] = withheld.barred[link.id]
                if link.available:
                    barred.add(pair)
            elif link.available:
                self._segments[pair] = self._segments.get(pair, segments) & segments
                allowed.setdefault(pair, set()).add(link.id)
        for pair in barred & allowed.keys():
            # Where messages have no price the pair stays open: no plan over it is chosen.
            taken = withheld.taken.get(pair)
            if taken is not None and not (taken and allowed[pair].issuperset(taken)):
                del self._segments[pair]
                which = PRICED_OVER_A_BARRED_ONE if taken else LINK_UNKNOWN
                self._shut[pair] += f"; another Link joins them, and {which}"

    def withholding(self, withheld: Withheld) -> GraphView:
        """Return the same snapshot as a plan may use it that leaves alone what is withheld."""
        return GraphView(self.graph, self.standing, withheld) if withheld.kept or withheld.barred else self

    def same_sites(self, sites: Iterable[Site]) -> tuple[Site, ...]:
        """Return this view's own sites for those of another view of the snapshot, in the same order."""
        own = {site.id: site for site in self.sites}
        return tuple(own[site.id] for site in sites)

    def linked(self, source: Node, target: Node) -> bool:
        """Return whether data can go from `source` to `target`: within a Node, or over an available Link."""
        return source.id == target.id or (source.id, target.id) in self._segments

    def segments(self, source: Node, target: Node) -> frozenset[str]:
        """Return the shared segments that every way from `source` to `target` goes over: those of all its Links."""
        return self._segments.get((source.id, target.id), frozenset())

    def cores(self, site: Site) -> CoreSet | None:
        """Return the cores that a site shares with others, or None when it has its own."""
        shared = site.compute_unit.core_set_id
        return None if isinstance(shared, msgspec.UnsetType) else self._core_sets.get(shared)

    def missing_links(self, sites: Iterable[Site]) -> tuple[str, ...]:
        """Name every directed pair of the sites' Nodes that no available Link connects, and a way around it."""
        nodes = sorted({site.node.id: site.node for site in sites}.values(), key=lambda node: node.id)
        lacking = []
        for source in nodes:
            for target in nodes:
                if not self.linked(source, target):
                    around = " → ".join(node.name for node in self.way(source, target)[1:-1])
                    hint = f" (there is a way over {around}, which nothing relays)" if around else ""
                    if reason := self._shut.get((source.id, target.id)):
                        hint = f" ({reason})"
                    lacking.append(f"{source.name} → {target.name}{hint}")
        return tuple(lacking)

    def way(self, source: Node, target: Node) -> tuple[Node, ...]:
        """Return the Nodes of a shortest way over available Links, both ends included; nothing where there is none.

        A way of several Links is no Link: participants next to each other in a route need one of their own. Of ways
        of one length the one with the smaller ids is returned.
        """
        ways: dict[str, tuple[str, ...]] = {source.id: (source.id,)}
        frontier = [source.id]
        while frontier and target.id not in ways:
            grown: dict[str, tuple[str, ...]] = {}
            for before, after in sorted(self._segments):
                if before in frontier and after not in ways and after in self._nodes:
                    way = (*ways[before], after)
                    grown[after] = min(grown.get(after, way), way)
            ways |= grown
            frontier = list(grown)
        return tuple(self._nodes[node] for node in ways.get(target.id, ()))

    def node(self, name: str, field: str) -> Node:
        """Return the Node with that id or name. Raises SpecError, naming the known ones, for none or several."""
        if name in self._nodes:
            return self._nodes[name]
        named = [node for node in self._nodes.values() if node.name == name]
        if len(named) != 1:
            known = sorted(node.name for node in self._nodes.values())
            problem = "one of the Nodes" if not named else "an id, because several Nodes have that name:"
            raise SpecError(field, name, f"{problem} {known}")
        return named[0]

    def sites_of(self, node: Node) -> tuple[Site, ...]:
        """Return the sites on one Node."""
        return tuple(site for site in self.sites if site.node.id == node.id)

    def site(self, name: str, field: str) -> Site:
        """Return the site that `name` means: a Compute Unit id, or a Node's id or name if it has exactly one.

        Raises SpecError naming the candidates otherwise.
        """
        for site in self.sites:
            if site.id == name:
                return site
        here = self.sites_of(self.node(name, field))
        if len(here) != 1:
            raise SpecError(field, name, f"one Compute Unit; this Node has {[site.id for site in here]}")
        return here[0]


def _keeping(memory: MemoryResource, kept_bytes: int) -> MemoryResource:
    """Return a Memory Resource with more of it reserved; what is unknown stays unknown."""
    reserved = memory.reserved_bytes
    if not kept_bytes or reserved.value is None:
        return memory
    detail = f"{reserved.detail}; and {kept_bytes:,} B that the policy keeps free".lstrip("; ")
    more = Fact(value=reserved.value + kept_bytes, provenance=reserved.provenance, detail=detail)
    return msgspec.structs.replace(memory, reserved_bytes=more)
