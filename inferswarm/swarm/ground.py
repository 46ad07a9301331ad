"""What the parts of a running swarm's façade stand on: declared Nodes, store, health, processes, a client of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from inferswarm.artifacts.reconciling import ServedLine
from inferswarm.errors import EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client, status_of
from inferswarm.fabric.engines.base import Engine
from inferswarm.fabric.engines.local import LocalEngine, LocalSettings
from inferswarm.fabric.envelope import available_mechanism
from inferswarm.fabric.expecting import expect
from inferswarm.swarm.declared import DeclaredNodes
from inferswarm.swarm.health import HealthKeeper
from inferswarm.swarm.health_watch import HealthWatch
from inferswarm.swarm.starting import Preparation

JOIN_SECONDS = 20.0
"""How long an agent may take to join, and one that was stopped to be no member any more."""
MakeEngine = Callable[[LocalSettings], Engine]


class Ground:
    """The processes of one swarm, and what is known of them. Closed once, with everything that it started."""

    def __init__(self, preparation: Preparation, engine: Engine, make_engine: MakeEngine = LocalEngine) -> None:
        """Start nothing yet; `make_engine` makes one of the same kind for another scope."""
        self.settings = preparation.settings
        self.hash_policy = preparation.hash_policy
        self.source_policy = preparation.source_policy
        self.has_stores = bool(preparation.settings.stores_directory)
        self.make_engine = make_engine
        self.engine = engine
        self.store = preparation.store
        self.state_directory = self.store.directory.parent
        self.keeper = HealthKeeper(self.state_directory, self.store)
        mechanism = _mechanism(self.settings.mechanism) if preparation.envelopes else "none"
        spares = preparation.settings.keep_spares
        self.nodes = DeclaredNodes(
            preparation.inventory, preparation.envelopes, mechanism, self.store, spares, self.has_stores
        )
        self.ledger = Path(self.settings.ledger)
        self._discard = preparation.discard
        self._client: Client | None = None
        self._watch: HealthWatch | None = None

    def start(self) -> None:
        """Start the Coordinator and an agent for each Node, and wait until all have joined."""
        graph = self.nodes.bare_graph
        self._client = Client(self.engine.start_coordinator(), self.settings.token, self.engine.check)
        for node in graph.nodes:
            self.engine.start_agent(self.nodes.launch(node))
        self.wait_for({node.name for node in graph.nodes})
        self._watch = HealthWatch(self.keeper, self._client, lambda: self.nodes.bare_graph)
        self._watch.observe()

    @property
    def is_closed(self) -> bool:
        """Whether there is nobody to ask."""
        return self._client is None

    @property
    def client(self) -> Client:
        """A client of the Coordinator. Raises EngineError when the swarm is closed."""
        if self._client is None:
            raise EngineError("swarm", "is closed")
        return self._client

    @property
    def watch(self) -> HealthWatch:
        """What watches the swarm's health. Raises EngineError when the swarm is closed."""
        if self._watch is None:
            raise EngineError("swarm", "is closed")
        return self._watch

    def status(self) -> m.SwarmStatus:
        """Return members, leases, epoch and refusals, as the Coordinator sees them."""
        return status_of(self.client)

    def served(self) -> tuple[ServedLine, ...]:
        """Return what Nodes say that they gave to peers. Raises SpecError for one without a store."""
        found: list[ServedLine] = []
        for node in self.status().nodes:
            question = m.OnNode(node_id=node.node_id, command=m.OnCourier(command=m.ReportServed()))
            found += expect(m.ServedReported, self.client.ask(question), "what a courier gave").lines
        return tuple(found)

    def wait_for(self, names: set[str]) -> None:
        """Wait until these Nodes are members. Raises EngineError when they do not join in time."""
        wait_until_joined(self.client, self.engine, names)

    def wait_until_gone(self, node_id: str) -> None:
        """Wait until a Node is no member any more. Raises EngineError when it still is after a while."""
        deadline = time.monotonic() + JOIN_SECONDS
        while any(node.node_id == node_id for node in self.status().nodes):
            if time.monotonic() > deadline:
                raise EngineError("Coordinator", f"{node_id} is still a member after {JOIN_SECONDS:.0f} s")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop every process, and remove what was temporary. Does nothing the second time."""
        self._watch = None
        if self._client is not None:
            if self.has_stores and self.settings.remove_directory is not None:
                with contextlib.suppress(InferSwarmError):  # nobody goes on with it: what it kept in stores may go
                    self._client.ask(m.Retire())
            self._client.close()
            self._client = None
        self.engine.stop()
        self._discard()


def wait_until_joined(client: Client, engine: Engine, names: set[str]) -> None:
    """Wait until Nodes are members. Raises what an agent ended with, or EngineError when they do not join in time."""
    deadline = time.monotonic() + JOIN_SECONDS
    while missing := names - {node.name for node in status_of(client).nodes}:
        ended = {process.role for process in engine.processes() if process.state == "ended"}
        if ended & {f"agent {name}" for name in missing}:
            engine.check_agents()
        if time.monotonic() > deadline:
            raise EngineError("agents", f"{sorted(missing)} did not join within {JOIN_SECONDS:.0f} s")
        time.sleep(0.02)


def _mechanism(wanted: str) -> str:
    return available_mechanism()[0] if wanted == "auto" else wanted
