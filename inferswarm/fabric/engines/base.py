"""What every engine does: start a Coordinator and agents, list them, notice their end, stop them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class NodeLaunch(NamedTuple):
    """One Node to start an agent for. `limit_bytes` None: no envelope was declared."""

    node_id: str
    name: str
    limit_bytes: int | None


class ProcessInfo(NamedTuple):
    """One process that an engine has started."""

    role: str
    """`coordinator`, or `agent NAME`."""
    pid: int
    exit_status: int | None
    """None while it runs."""


class Engine(Protocol):
    """Starts and watches processes; takes no part in what they say to each other."""

    def start_coordinator(self) -> str:
        """Start the Coordinator and return its endpoint. Raises EngineError or what it ended with.

        After the end of one it starts another, which agents and clients reach at the same endpoint.
        """

    def start_agent(self, launch: NodeLaunch) -> int:
        """Start the agent of a Node; returns its process id."""

    def processes(self) -> tuple[ProcessInfo, ...]:
        """Return everything that was started and not yet stopped."""

    def check(self) -> None:
        """Raise EngineError when the Coordinator has ended."""

    def stop(self) -> None:
        """End everything, wait until it has gone, and leave nothing behind."""
