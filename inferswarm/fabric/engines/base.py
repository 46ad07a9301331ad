"""What every engine does: start a Coordinator and agents, list Nodes, notice the end of processes, stop them.

An engine starts and watches; it decides nothing. Whether a Node is a member is its lease's affair, which is the same
on every engine, and no token and no tensor passes through one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol


class NodeLaunch(NamedTuple):
    """One Node to start an agent for. `limit_bytes` None: no envelope was declared."""

    node_id: str
    name: str
    limit_bytes: int | None


class NodePlace(NamedTuple):
    """A place that an agent runs in, or could: its Node's name, and what the engine itself knows it by."""

    name: str
    engine_id: str
    is_alive: bool
    """As the engine has it, which may be late. A member of the swarm is who holds a lease."""


class ProcessInfo(NamedTuple):
    """One process that an engine has started."""

    role: str
    """`coordinator`, or `agent NAME`."""
    pid: int
    exit_status: int | None
    """None while it runs, and where nobody saw how it ended."""
    state: Literal["running", "ended", "unknown"]
    """`unknown`: whoever watches it does not answer."""


class Engine(Protocol):
    """Starts and watches processes; takes no part in what they say to each other."""

    def start_coordinator(self) -> str:
        """Start the Coordinator and return its endpoint. Raises EngineError or what it ended with.

        After the end of one it starts another, which agents and clients reach at the same endpoint.
        """

    def nodes(self) -> tuple[NodePlace, ...]:
        """Return the places that the engine knows: of its cluster, or those that it has started agents for."""

    def start_agent(self, launch: NodeLaunch) -> int:
        """Start the agent of a Node; returns its process id. What is left of an earlier one is ended first."""

    def stop_agent(self, name: str) -> None:
        """End the agent of a Node with its stages, wait until it has gone; nothing when none was started."""

    def processes(self) -> tuple[ProcessInfo, ...]:
        """Return everything that was started and not yet stopped."""

    def check(self) -> None:
        """Raise EngineError when the Coordinator has ended."""

    def check_agents(self) -> None:
        """Raise what an agent ended with, when one has ended."""

    def stop(self) -> None:
        """End everything, wait until it has gone, and leave nothing behind."""
