"""The Links of a declared topology: those written one by one, networks of many, and bridges between networks.

Every Link names the shared segments that it goes over, so that two Links over one port, one radio channel or one
cable between buildings can be told from two that do not disturb each other. A Link's nominal rate is that of its
narrowest segment. Nothing is invented: Nodes that no table joins have no Link, and data between them has to hop.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inferswarm.errors import SpecError
from inferswarm.resources import quantities
from inferswarm.resources.identity import declared_id
from inferswarm.resources.topology_file import BridgeEntry, LinkEntry, NetworkEntry, TopologyFile
from inferswarm.resources.types import Fact, Link, LinkKind, Segment, declared, unknown

MAX_LINKS = 150_000
"""A file that asks for more Links is a mistake, or an attack."""


class _Ways(NamedTuple):
    """How a Node of a network sends and receives: the segments on the way out and on the way in."""

    out: tuple[str, ...]
    into: tuple[str, ...]


class _Network(NamedTuple):
    """A network that is built: its Nodes with their ways, and the latency between two of them."""

    ways: dict[str, _Ways]
    latency_seconds: float


class Wiring:
    """Builds the Links and segments of one file; `nodes` maps the names of its Nodes to their ids."""

    def __init__(self, file: TopologyFile, nodes: Mapping[str, str], detail: str) -> None:
        self._file = file
        self._nodes = nodes
        self._detail = detail
        self._segments: dict[str, Segment] = {}
        self._links: dict[str, Link] = {}
        self._networks: dict[str, _Network] = {}

    def build(self) -> tuple[tuple[Link, ...], tuple[Segment, ...]]:
        """Return all Links and segments.

        Raises SpecError, naming the table, for names that repeat or are not there, patterns that match no Node,
        quantities that are none, and more Links than MAX_LINKS.
        """
        for segment in self._file.segment:
            rate = quantities.bits_per_second(segment.rate, f"segment {segment.name!r}: rate")
            self._add_segment(f"segment {segment.name!r}", segment.name, segment.kind, rate)
        for link in self._file.link:
            self._add_declared(link)
        for network in self._file.network:
            if network.name in self._networks:
                raise SpecError("topology: network names", network.name, "each name once")
            self._networks[network.name] = self._add_network(network)
        for bridge in self._file.bridge:
            self._add_bridge(bridge)
        return tuple(self._links.values()), tuple(self._segments.values())

    def _add_segment(self, where: str, name: str, kind: LinkKind, rate: int) -> str:
        identity = declared_id("segment", self._file.name, name)
        if identity in self._segments:
            raise SpecError(where, name, "a name that no other segment has")
        self._segments[identity] = Segment(
            id=identity, name=name, kind=kind, nominal_bits_per_second=declared(rate, self._detail)
        )
        return identity

    def _make_room(self, where: str, more: int) -> None:
        """Refuse too many Links before the first of them is made."""
        total = len(self._links) + more
        if total > MAX_LINKS:
            raise SpecError("topology: number of Links", f"{total:,} with {where}", f"at most {MAX_LINKS:,}")

    def _add_link(
        self,
        where: str,
        ends: tuple[str, str],
        kind: LinkKind,
        rate: Fact[int],
        latency: Fact[float],
        segments: tuple[str, ...],
        available: bool = True,
    ) -> None:
        identity = declared_id("link", self._file.name, where, *ends)
        if identity in self._links:
            raise SpecError(where, f"{ends[0]} → {ends[1]}", "each pair of Nodes once in a table")
        self._links[identity] = Link(
            id=identity,
            source=self._nodes[ends[0]],
            target=self._nodes[ends[1]],
            kind=kind,
            nominal_bits_per_second=rate,
            nominal_latency_seconds=latency,
            segments=segments,
            available=available,
        )

    def _add_declared(self, entry: LinkEntry) -> None:
        where = f"link {entry.source!r} → {entry.target!r}"
        for name in (entry.source, entry.target):
            if name not in self._nodes:
                raise SpecError(where, name, f"a Node of this topology, such as {_examples(self._nodes)}")
        if entry.source == entry.target:
            raise SpecError(where, entry.source, "two different Nodes")
        segments = tuple(declared_id("segment", self._file.name, name) for name in entry.segments)
        if strangers := [
            name for name, identity in zip(entry.segments, segments, strict=True) if identity not in self._segments
        ]:
            raise SpecError(f"{where}: segments", strangers, "names of [[segment]] tables")
        rates = [self._rate(identity) for identity in segments]
        if entry.rate is not None:
            rates.append(quantities.bits_per_second(entry.rate, f"{where}: rate"))
        missing = f"topology {self._file.name} does not declare it ({where})"
        rate: Fact[int] = declared(min(rates), self._detail) if rates else unknown(missing)
        latency: Fact[float] = unknown(missing)
        if entry.latency is not None:
            latency = declared(quantities.seconds(entry.latency, f"{where}: latency"), self._detail)
        self._make_room(where, 1 + entry.both_ways)
        ways = [(entry.source, entry.target)]
        if entry.both_ways:
            ways.append((entry.target, entry.source))
        for ends in ways:
            order = segments if ends == ways[0] else segments[::-1]
            self._add_link("link", ends, entry.kind, rate, latency, order, entry.available)

    def _add_network(self, entry: NetworkEntry) -> _Network:
        where = f"network {entry.name!r}"
        members = self._matching(entry.nodes, tuple(self._nodes), f"{where}: nodes")
        rate = quantities.bits_per_second(entry.rate, f"{where}: rate")
        latency = quantities.seconds(entry.latency, f"{where}: latency")
        network = _Network(self._ways(entry, where, members, rate), latency)
        self._make_room(where, len(members) * (len(members) - 1))
        for source, target in itertools.permutations(members, 2):
            passed = _joined(network.ways[source].out, network.ways[target].into)
            self._add_over(where, (source, target), entry.kind, latency, passed)
        return network

    def _ways(self, entry: NetworkEntry, where: str, members: tuple[str, ...], rate: int) -> dict[str, _Ways]:
        if entry.sharing == "medium":
            if entry.port or entry.fabric is not None:
                raise SpecError(where, "ports or a fabric", 'neither with sharing = "medium", which has none')
            medium = (self._add_segment(where, entry.name, entry.kind, rate),)
            return dict.fromkeys(members, _Ways(medium, medium))
        rates = dict.fromkeys(members, (rate, rate))
        for index, port in enumerate(entry.port):
            field = f"{where}: port {index}"
            sends = quantities.bits_per_second(port.send, f"{field}: send")
            receives = quantities.bits_per_second(port.receive, f"{field}: receive")
            rates |= dict.fromkeys(self._matching(port.nodes, members, f"{field}: nodes"), (sends, receives))
        fabric: tuple[str, ...] = ()
        if entry.fabric is not None:
            carries = quantities.bits_per_second(entry.fabric, f"{where}: fabric")
            fabric = (self._add_segment(where, f"{entry.name}:fabric", entry.kind, carries),)
        ways: dict[str, _Ways] = {}
        for name, (sends, receives) in rates.items():
            out = self._add_segment(where, f"{entry.name}:{name}:send", entry.kind, sends)
            into = self._add_segment(where, f"{entry.name}:{name}:receive", entry.kind, receives)
            ways[name] = _Ways((out, *fabric), (*fabric, into))
        return ways

    def _add_bridge(self, entry: BridgeEntry) -> None:
        where = f"bridge {entry.name!r}"
        if strangers := [name for name in entry.between if name not in self._networks]:
            raise SpecError(f"{where}: between", strangers, f"networks among {sorted(self._networks)}")
        first, second = (self._networks[name] for name in entry.between)
        if common := sorted(set(first.ways) & set(second.ways)):
            raise SpecError(f"{where}: between", common, "two networks without a Node in common")
        rate = quantities.bits_per_second(entry.rate, f"{where}: rate")
        back = rate if entry.rate_back is None else quantities.bits_per_second(entry.rate_back, f"{where}: rate_back")
        latency = quantities.seconds(entry.latency, f"{where}: latency")
        latency += first.latency_seconds + second.latency_seconds
        self._make_room(where, 2 * len(first.ways) * len(second.ways))
        for name, sending, receiving, carries in (("there", first, second, rate), ("back", second, first, back)):
            stretch = self._add_segment(where, f"{entry.name}:{name}", entry.kind, carries)
            for source, target in itertools.product(sending.ways, receiving.ways):
                passed = _joined(sending.ways[source].out, (stretch,), receiving.ways[target].into)
                self._add_over(where, (source, target), entry.kind, latency, passed)

    def _add_over(
        self, where: str, ends: tuple[str, str], kind: LinkKind, latency: float, segments: tuple[str, ...]
    ) -> None:
        narrowest = min(self._rate(identity) for identity in segments)
        rate, wait = declared(narrowest, self._detail), declared(latency, self._detail)
        self._add_link(where, ends, kind, rate, wait, segments)

    def _rate(self, segment: str) -> int:
        rate = self._segments[segment].nominal_bits_per_second.value
        assert rate is not None  # segments are declared with one
        return rate

    def _matching(self, patterns: Sequence[str], names: Sequence[str], field: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for pattern in patterns:
            matching = (
                fnmatch.filter(names, pattern) if "*" in pattern else [name for name in names if name == pattern]
            )
            if not matching:
                raise SpecError(field, pattern, f"Nodes such as {_examples(names)}")
            found |= dict.fromkeys(matching)
        return tuple(found)


def _joined(*parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the segments in the order of passing, each once: a switch's fabric is passed once by a message."""
    return tuple(dict.fromkeys(itertools.chain(*parts)))


def _examples(names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(itertools.islice(sorted(names), 5))
