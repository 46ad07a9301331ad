"""The Ray engine: agents on the nodes of a Ray cluster, the Coordinator as a child process of this one.

Ray is asked who is there, where an agent is placed, and to start and end it. Everything else is as on the local
engine: agents and stages speak to the Coordinator and to each other over their own sockets, and whether a Node is a
member is decided by its lease. This module does not import Ray; the driver process does (`ray_main`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import time
from typing import TypeVar

import msgspec

from inferswarm.errors import EngineError, SpecError, WireError
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.engines.base import NodeLaunch, NodePlace, ProcessInfo
from inferswarm.fabric.engines.local import STOP_SECONDS, Child, LocalEngine, LocalSettings
from inferswarm.fabric.engines.ray_messages import (
    ActorStart,
    AgentStarted,
    AgentState,
    AgentStates,
    Connected,
    DriverSpec,
    FromDriver,
    ListNodes,
    NodeList,
    Refused,
    StartAgent,
    StopAgents,
    Stopped,
    ToDriver,
    WatchAgents,
)
from inferswarm.fabric.engines.ray_placing import AgentKey
from inferswarm.fabric.faults import to_error
from inferswarm.fabric.transport import parse_endpoint

REACH_SECONDS = 5.0
"""How long a cluster's port may take to accept a connection. Ray itself would try for more than a minute."""
CONNECT_SECONDS = 120.0
"""How long connecting to a cluster may take: the driver loads Ray first, and Ray then waits a minute for answers."""
ANSWER_SECONDS = 120.0
"""How long the driver may take for an answer: longer than what it waits for itself."""
ABANDON_SECONDS = 60.0
"""After so long without a Coordinator an agent and its actor end: longer than a Coordinator needs to come back."""

Expected = TypeVar("Expected", bound=msgspec.Struct)


class RayEngine(LocalEngine):
    """Implements `Engine`: the Coordinator as on the local engine, an agent actor on each Ray node with a name."""

    def __init__(self, settings: LocalSettings, address: str, *, abandon_seconds: float = ABANDON_SECONDS) -> None:
        """Start nothing yet. Raises SpecError where Ray is not installed, or for an address that is not HOST:PORT."""
        if importlib.util.find_spec("ray") is None:
            raise SpecError("engine", "ray", "Ray, which is not installed: pip install 'inferswarm[ray]'")
        try:
            self._listener = parse_endpoint(f"tcp://{address}")
        except WireError as error:
            raise SpecError("engine", address, "the address of a Ray cluster as HOST:PORT") from error
        super().__init__(settings)
        self._address = address
        self._abandon_seconds = abandon_seconds
        self._driver: Child | None = None
        self._channel: Channel[FromDriver] | None = None
        self._socket: socket.socket | None = None
        self._placed: dict[str, AgentKey] = {}
        self._states: dict[str, AgentState] = {}
        self._lost_on: dict[str, tuple[str, ...]] = {}

    def nodes(self) -> tuple[NodePlace, ...]:
        """Return the cluster's nodes that carry a name, as Ray has them; see `Engine`."""
        listed = self._ask(ListNodes(), NodeList)
        return tuple(NodePlace(node.name, node.ray_node, node.is_alive) for node in listed.nodes if node.name)

    def start_agent(self, launch: NodeLaunch) -> int:
        """Start an agent through the actor of its Ray node; see `Engine`.

        Raises SpecError when no live Ray node carries the Node's name, or several do, or one of another machine or
        with another version of this package; EngineError when the actor cannot be placed.
        """
        earlier = self._placed.pop(launch.name, None)
        if earlier is not None:
            self._lost_on[launch.name] = (*self._lost_on.get(launch.name, ()), earlier.ray_node)
        start = ActorStart(
            launch=launch,
            settings=self._settings,
            coordinator=self._endpoint,
            pause_seconds=self._settings.lease_seconds,
            abandon_seconds=self._abandon_seconds,
        )
        lost_on = self._lost_on.get(launch.name, ())
        started = self._ask(StartAgent(start=start, lost_on=lost_on), AgentStarted)
        self._placed[launch.name] = started.key
        self._states[launch.name] = AgentState(state="running", pid=started.pid)
        return started.pid

    def stop_agent(self, name: str) -> None:
        """End a Node's agent and its actor; see `Engine`."""
        key = self._placed.pop(name, None)
        self._states.pop(name, None)
        if key is not None:
            self._ask(StopAgents(agents=(key,)), Stopped)

    def processes(self) -> tuple[ProcessInfo, ...]:
        """Return Coordinator, agents and the driver; see `Engine`. A paused agent has ended, for now."""
        agents = tuple(_info(name, state) for name, state in self._watch().items())
        driver = () if self._driver is None else (self._driver.info(),)
        return (*super().processes(), *agents, *driver)

    def check_agents(self) -> None:
        """Raise what an agent ended with; see `Engine`. One of which nobody knows raises nothing."""
        for state in self._watch().values():
            if state.state == "ended" and state.fault is not None:
                raise to_error(state.fault)

    def stop(self) -> None:
        """End agents and actors, then the driver and the Coordinator; see `Engine`."""
        if self._placed:
            with contextlib.suppress(EngineError):  # no cluster to ask: the agents end without a Coordinator
                self._ask(StopAgents(agents=tuple(self._placed.values())), Stopped)
        self._placed = {}
        self._disconnect(time.monotonic() + STOP_SECONDS)
        super().stop()

    def _watch(self) -> dict[str, AgentState]:
        """Return how the agents are; of one that nobody says anything about the process id is the last known."""
        if not self._placed:
            return {}
        answer = self._ask(WatchAgents(agents=tuple(self._placed.values())), AgentStates)
        for name, state in zip(self._placed, answer.states, strict=True):
            pid = self._states[name].pid if state.pid is None else state.pid
            self._states[name] = msgspec.structs.replace(state, pid=pid)
        return {name: self._states[name] for name in self._placed}

    # -- the driver --

    def _connect(self) -> None:
        """Start a driver and wait until it is connected. Raises EngineError when there is no cluster."""
        try:
            socket.create_connection(self._listener, REACH_SECONDS).close()
        except OSError as error:
            raise EngineError(f"Ray cluster {self._address}", f"cannot be reached: {error}") from error
        ours, theirs = socket.socketpair()
        spec = DriverSpec(
            address=self._address,
            namespace=f"inferswarm-{self._settings.scope}",
            agents=tuple(self._placed.values()),
        )
        with theirs:
            self._driver = Child(
                "ray driver",
                "inferswarm.fabric.engines.ray_main",
                msgspec.json.encode(spec),
                arguments=["--channel-fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        self._socket = ours
        self._channel = Channel(ours, FromDriver)  # type: ignore[arg-type]
        self._receive(Connected, CONNECT_SECONDS)

    def _disconnect(self, deadline: float) -> None:
        if self._socket is not None:
            self._socket.close()  # the driver ends at the end of its channel
            self._socket = self._channel = None
        if self._driver is not None:
            self._driver.let_go()
            self._driver.wait_until_gone(deadline)
            self._driver = None

    def _ask(self, command: ToDriver, expected: type[Expected]) -> Expected:
        """Ask the driver; another one takes over where it has ended, for example with its own raylet."""
        if self._channel is not None:
            try:
                return self._exchange(command, expected)
            except _DriverEnded:
                self._disconnect(time.monotonic())
        self._connect()
        return self._exchange(command, expected)

    def _exchange(self, command: ToDriver, expected: type[Expected]) -> Expected:
        assert self._channel is not None
        try:
            self._channel.send(command)
        except OSError as error:
            raise self._ended() from error
        return self._receive(expected, ANSWER_SECONDS)

    def _receive(self, expected: type[Expected], seconds: float) -> Expected:
        assert self._channel is not None
        assert self._socket is not None
        self._socket.settimeout(seconds)
        try:
            answer = self._channel.receive()
        except ConnectionError as error:  # it ended with a question unread
            raise self._ended() from error
        except TimeoutError as error:
            self._disconnect(time.monotonic())
            raise EngineError("ray driver", f"did not answer within {seconds:.0f} s") from error
        except (OSError, WireError) as error:
            self._disconnect(time.monotonic())
            raise EngineError("ray driver", f"its answer cannot be read: {error}") from error
        if answer is None:
            raise self._ended()
        if isinstance(answer, Refused):
            raise to_error(answer.fault)
        if not isinstance(answer, expected):
            raise EngineError("ray driver", f"answered with {type(answer).__name__}")
        return answer

    def _ended(self) -> _DriverEnded:
        assert self._driver is not None
        self._driver.process.wait()
        return _DriverEnded("ray driver", str(self._driver.ended_with()))


class _DriverEnded(EngineError):
    """The driver has ended by itself."""


def _info(name: str, state: AgentState) -> ProcessInfo:
    known = "ended" if state.state == "paused" else state.state
    return ProcessInfo(f"agent {name}", state.pid or 0, state.exit_status, known)
