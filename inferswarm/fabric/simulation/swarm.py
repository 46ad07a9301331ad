"""A whole simulated swarm, and what can happen to it: Nodes, links, Coordinators, clients, faults, time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from inferswarm.fabric.authority import SessionState
from inferswarm.fabric.simulation.authority import Hooks
from inferswarm.fabric.simulation.changes import Choices
from inferswarm.fabric.simulation.coordinator import SimulatedCoordinator
from inferswarm.fabric.simulation.ledger import SimulatedLedger
from inferswarm.fabric.simulation.network import Network
from inferswarm.fabric.simulation.nodes import Agent

ENDING_SECONDS = 120.0
"""Within this, a swarm whose faults are over has answered or failed whatever it was asked."""


class SimulatedSwarm:
    """Nodes `n1`, `n2`, …, a ledger, and Coordinators that want its lease. All times are virtual seconds."""

    def __init__(
        self,
        num_nodes: int = 3,
        choices: Choices | None = None,
        *,
        seed: int = 0,
        hooks: Hooks | None = None,
    ) -> None:
        """Start a Coordinator and the agents of all Nodes. `seed` chooses which bits are corrupted."""
        self.network = Network(seed)
        self.ledger = SimulatedLedger("simulated")
        self.nodes = tuple(f"n{number}" for number in range(1, num_nodes + 1))
        self.choices = choices or Choices()
        self._hooks = hooks or Hooks()
        self._names = (f"coordinator-{number}" for number in count(1))
        self.coordinators: list[SimulatedCoordinator] = []
        self.agents = {node: Agent(self.network, node) for node in self.nodes}
        self.start_coordinator()

    @property
    def coordinator(self) -> SimulatedCoordinator:
        """The one that holds the lease, or else the one that was started last and has not ended."""
        running = [item for item in self.coordinators if not item.ended]
        return next((item for item in running if item.name == self.ledger.lease.holder), running[-1])

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.network.run(seconds)

    # -- what happens on purpose --

    def start_coordinator(self) -> None:
        """Start another Coordinator; it waits for the lease."""
        coordinator = SimulatedCoordinator(
            self.network, self.ledger, next(self._names), self.nodes, self.choices, self._hooks
        )
        self.coordinators.append(coordinator)

    def submit(self, prompt_tokens: int, max_tokens: int) -> None:
        """A client asks."""
        self.coordinator.wanted.append((prompt_tokens, max_tokens))

    def cancel(self, session: int) -> None:
        """A client leaves."""
        self.coordinator.cancel(session)

    def drain(self, node: str) -> None:
        """Move what a Node has elsewhere, and use it no more."""
        self.coordinator.draining.add(node)

    # -- faults --

    def kill_coordinator(self) -> None:
        """End the Coordinator at once and start another, which waits until the lease has run out."""
        killed = self.coordinator
        killed.ended = True
        self.start_coordinator()
        self.coordinator.wanted += killed.wanted

    def pause_coordinator(self, seconds: float) -> None:
        """Stop the Coordinator for a while, and start another beside it."""
        self.coordinator.paused_until = self.network.now + seconds
        self.start_coordinator()

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Cut one direction of a link for a while."""
        self.network.cut[source, target] = self.network.now + seconds

    def cut_off(self, node: str, seconds: float) -> None:
        """Cut a Node off from everybody, both ways, for a while."""
        for other in self.network.receivers:
            if other != node:
                self.cut(node, other, seconds)
                self.cut(other, node, seconds)

    def disturb(self, source: str, target: str, faults: Sequence[str]) -> None:
        """Duplicate, reorder or corrupt the next frames of one direction; an empty name leaves one alone."""
        self.network.frame_faults.setdefault((source, target), []).extend(faults)

    # -- the end --

    def heal(self) -> None:
        """End every fault: all Nodes are up, all links whole, and a Coordinator runs."""
        self.network.cut.clear()
        self.network.delay.clear()
        self.network.frame_faults.clear()
        for agent in self.agents.values():
            agent.restart()
        chosen = self.coordinator
        for coordinator in self.coordinators:
            coordinator.draining.clear()
            coordinator.paused_until = -1.0
            if coordinator is not chosen and not coordinator.ended:
                coordinator.ended = True
                chosen.wanted += coordinator.wanted

    def finish(self) -> None:
        """Heal, and run until every session has ended and nothing is being changed.

        Raises TimeoutError when that takes more than ENDING_SECONDS.
        """
        self.heal()
        until = self.network.now + ENDING_SECONDS
        while not self.is_quiet():
            if self.network.now > until:
                raise TimeoutError(f"after {ENDING_SECONDS:g} s: {self.coordinator.state}")
            self.run(1.0)

    def is_quiet(self) -> bool:
        """Whether nobody waits for anything, and nothing but what serves has a stage."""
        coordinator = self.coordinator
        state, active = coordinator.state, coordinator.state.active_epoch()
        serving = set() if active is None else {active.realization_id}
        return (
            not coordinator.wanted
            and not state.sessions
            and state.transition is None
            and {item.realization_id for item in state.epochs} == serving
            and {item.id for item in state.realizations} == serving
            and {key[0] for agent in self.agents.values() for key in agent.stages} <= serving
            and all(log.state is not SessionState.OPEN for log in self.ledger.sessions.values())
        )
