"""The Nodes that were declared, and what follows from them with what was measured: graph, targets, reservations."""

from __future__ import annotations

from typing import NamedTuple, Self

from inferswarm.errors import SpecError
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.store import ObservationStore
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.network import read_interfaces
from inferswarm.resources.types import Envelope, Node, ResourceGraph
from inferswarm.resources.virtual import graph_of_envelopes, graph_of_host
from inferswarm.swarm.known import currency_of
from inferswarm.swarm.reservations import NOTHING_RESERVED, Reservations, reservations_of, with_spares, with_stores
from inferswarm.swarm.targets import ProbeTarget, targets_of

SWARM_ID = "local"
"""What graphs of this machine are called."""


class DeclaredNodes(NamedTuple):
    """Virtual Nodes on one machine; without any, the one Node that the machine is. Immutable."""

    inventory: HostInventory
    envelopes: tuple[Envelope, ...]
    mechanism: str
    """What holds virtual Nodes to their memory; `none` where there are none."""
    store: ObservationStore
    keeps_spares: bool = False
    """Whether each Node keeps one warm, empty stage beside those that work."""
    keeps_stores: bool = False
    """Whether each Node has an artifact store, and the courier that looks after it."""

    @property
    def graph(self) -> ResourceGraph:
        """The resource graph, with each reservation as it was last measured (unknown before that)."""
        return self._graph_with(self.reservations)

    @property
    def bare_graph(self) -> ResourceGraph:
        """The resource graph as it is before anything was measured."""
        return self._graph_with(NOTHING_RESERVED)

    @property
    def reservations(self) -> Reservations:
        """What is taken of each Memory Resource before any state, as far as it was measured and holds now."""
        graph = self.bare_graph
        measured = reservations_of(self.store, self.targets(graph), self.currency(graph), self.mechanism)
        reserved = with_spares(measured) if self.keeps_spares else measured
        return with_stores(reserved) if self.keeps_stores else reserved

    @property
    def limits(self) -> dict[str, int]:
        """The bytes that each virtual Node may use, by name."""
        return {envelope.name: envelope.memory_bytes for envelope in self.envelopes}

    def _graph_with(self, reserved: Reservations) -> ResourceGraph:
        if self.envelopes:
            return graph_of_envelopes(self.inventory, SWARM_ID, self.envelopes, reserved.nodes, self.mechanism)
        base = next(iter(reserved.nodes.values()), None)
        return graph_of_host(
            self.inventory, SWARM_ID, reserved_bytes=base, accelerator_reserved_bytes=reserved.accelerators
        )

    def currency(self, graph: ResourceGraph) -> Currency:
        """Return what records about a graph of these Nodes are held against now."""
        return currency_of(graph, self.mechanism, interfaces=read_interfaces())

    def targets(self, graph: ResourceGraph) -> tuple[ProbeTarget, ...]:
        """Return what is measured of these Nodes."""
        return targets_of(graph, self.limits, self.keeps_stores)

    def launch(self, node: Node) -> NodeLaunch:
        """Return what an engine needs to start the agent of a Node."""
        return NodeLaunch(node.id, node.name, self.limits.get(node.name))

    def node(self, name: str) -> Node:
        """Return the Node of that name. Raises SpecError naming those that there are."""
        nodes = {node.name: node for node in self.bare_graph.nodes}
        if name not in nodes:
            raise SpecError("node", name, f"one of this swarm: {sorted(nodes)}")
        return nodes[name]

    def adding(self, envelope: Envelope) -> Self:
        """Return these Nodes and one more. Raises SpecError for one that is impossible beside them."""
        if not self.envelopes:
            raise SpecError("node", envelope.name, "a swarm of declared Nodes: this one is the machine itself")
        found = self._replace(envelopes=(*self.envelopes, envelope))
        _ = found.bare_graph  # refuses impossible ones
        return found

    def removing(self, name: str) -> Self:
        """Return these Nodes without one. Raises SpecError for an unknown Node and for the only one."""
        node = self.node(name)
        rest = tuple(envelope for envelope in self.envelopes if envelope.name != node.name)
        if not rest:
            raise SpecError("node", name, "a Node beside which there is another one")
        return self._replace(envelopes=rest)
