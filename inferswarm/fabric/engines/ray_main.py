"""Entry point of the Ray engine's driver: `python -m inferswarm.fabric.engines.ray_main`. A process boundary.

The only module that imports Ray. A driver ends with the raylet that it is connected through, and Ray installs its own
handlers and writes to standard output; so it is a process of its own, and the one that the user sees stays as it was.
It keeps nothing that cannot be found again by name: another driver goes on where this one ended. When its owner goes,
it ends the agents.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from inferswarm.errors import EngineError, InferSwarmError
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.engines.local import GROUPS_SECONDS, STOP_SECONDS
from inferswarm.fabric.engines.ray_agent import AgentActor
from inferswarm.fabric.engines.ray_messages import (
    AgentStarted,
    AgentState,
    AgentStates,
    Connected,
    DriverSpec,
    FromActor,
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
from inferswarm.fabric.engines.ray_placing import (
    NODE_LABEL,
    AgentKey,
    Place,
    RayNode,
    choose_ray_node,
    own_place,
    refuse_elsewhere,
)
from inferswarm.fabric.faults import to_error, to_fault

PLACE_SECONDS = 45.0
"""How long an actor may take to be there: its interpreter loads Ray and this package."""
WATCH_SECONDS = 2.0
"""How long an actor may take to answer; one that does not is unknown, neither running nor ended."""


class Driver:
    """A connection to a cluster, and what is asked of it."""

    def __init__(self, spec: DriverSpec) -> None:
        """Connect. Raises EngineError when there is no cluster, or it refuses this process."""
        self._spec = spec
        self._actor_class: Any = ray.remote(AgentActor)
        self._actors: dict[AgentKey, Any] = {}
        try:
            ray.init(
                address=spec.address,
                namespace=spec.namespace,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise EngineError(f"Ray cluster {spec.address}", _short(error)) from error

    def answer(self, command: ToDriver) -> FromDriver:
        """Do what is asked. Raises the package's own errors."""
        match command:
            case ListNodes():
                return NodeList(nodes=self._nodes())
            case StartAgent():
                return self._start(command)
            case WatchAgents():
                return AgentStates(states=self._watch(command.agents))
            case StopAgents():
                self.stop(command.agents)
                return Stopped()

    def _nodes(self) -> tuple[RayNode, ...]:
        return tuple(
            RayNode(
                name=node["Labels"].get(NODE_LABEL, ""),
                ray_node=node["NodeID"],
                is_alive=bool(node["Alive"]),
            )
            for node in ray.nodes()
        )

    def _start(self, command: StartAgent) -> AgentStarted:
        name = command.start.launch.name
        key = AgentKey(name=name, ray_node=choose_ray_node(self._nodes(), name, command.lost_on))
        self._end_lost(tuple(AgentKey(name=name, ray_node=node) for node in command.lost_on if node != key.ray_node))
        self._forget_ended(key)
        actor = self._place(key)
        try:
            place = msgspec.json.decode(self._get(actor.place.remote(), PLACE_SECONDS, key), type=Place)
            refuse_elsewhere(name, place, own_place())
            given = msgspec.json.encode(command.start)
            answer = msgspec.json.decode(self._get(actor.start.remote(given), PLACE_SECONDS, key), type=FromActor)
            if isinstance(answer, Refused):
                raise to_error(answer.fault)
            if answer.pid is None:
                raise EngineError(f"agent {name}", "its actor has started nothing")
        except InferSwarmError:
            self._kill(key, actor)
            raise
        return AgentStarted(key=key, pid=answer.pid)

    def _place(self, key: AgentKey) -> Any:
        """Return the actor of an agent, a new one unless it is there."""
        strategy = NodeAffinitySchedulingStrategy(key.ray_node, soft=False)
        options = self._actor_class.options(
            name=_actor_name(key),
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=strategy,
        )
        self._actors[key] = options.remote()
        return self._actors[key]

    def _forget_ended(self, key: AgentKey) -> None:
        """Wait until Ray has noticed that an actor ended, where it is one that has: its name is free then."""
        for state in self._watch((key,)):
            if state.state == "unknown":
                raise EngineError(f"agent {key.name}", "its actor on the same Ray node does not answer")

    def _find(self, key: AgentKey) -> Any | None:
        """Return an actor that this driver or an earlier one has placed, unless Ray knows that it has ended."""
        if key not in self._actors:
            try:
                self._actors[key] = ray.get_actor(_actor_name(key))
            except ValueError:
                return None
        return self._actors[key]

    def _get(self, reference: Any, seconds: float, key: AgentKey) -> bytes:
        try:
            answer: bytes = ray.get(reference, timeout=seconds)
        except ray.exceptions.RayError as error:
            raise EngineError(
                f"agent {key.name}", f"its actor on Ray node {key.ray_node[:8]}: {_short(error)}"
            ) from error
        return answer

    def _watch(self, keys: tuple[AgentKey, ...]) -> tuple[AgentState, ...]:
        """Ask all actors at once, and wait for all together."""
        actors = {key: self._find(key) for key in keys}
        asked = {key: actor.state.remote() for key, actor in actors.items() if actor is not None}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=WATCH_SECONDS)
        return tuple(self._state(key, asked.get(key)) for key in keys)

    def _state(self, key: AgentKey, reference: Any | None) -> AgentState:
        if reference is None:
            return AgentState(state="ended", fault=_lost(key, "its actor has ended"))
        try:
            return msgspec.json.decode(ray.get(reference, timeout=0), type=AgentState)
        except ray.exceptions.ActorDiedError as error:
            self._actors.pop(key, None)
            return AgentState(state="ended", fault=_lost(key, _short(error)))
        except ray.exceptions.RayError as error:
            return AgentState(state="unknown", fault=_lost(key, _short(error)))

    def stop(self, keys: tuple[AgentKey, ...]) -> None:
        """End agents and actors; one that does not answer is ended by Ray alone, and its agent with it."""
        actors = {key: actor for key in keys if (actor := self._find(key)) is not None}
        asked = [actor.stop.remote() for actor in actors.values()]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=STOP_SECONDS + GROUPS_SECONDS)
        for key, actor in actors.items():
            self._kill(key, actor)

    def _end_lost(self, keys: tuple[AgentKey, ...]) -> None:
        """End what may be left of agents that were lost; those that do not answer are not waited for."""
        states = zip(keys, self._watch(keys), strict=True)
        silent = {key for key, state in states if state.state == "unknown"}
        for key in silent:
            self._kill(key, self._actors[key])
        self.stop(tuple(key for key in keys if key not in silent))

    def _kill(self, key: AgentKey, actor: Any) -> None:
        ray.kill(actor)
        self._actors.pop(key, None)

    def stop_all(self) -> None:
        """End every actor that this driver knows of, and those that an earlier one had placed."""
        self.stop(tuple({*self._spec.agents, *self._actors}))


def _actor_name(key: AgentKey) -> str:
    return f"agent-{key.name}-{key.ray_node}"


def _lost(key: AgentKey, reason: str) -> Any:
    return to_fault(EngineError(f"agent {key.name}", reason))


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def _serve(driver: Driver, channel: Channel[ToDriver]) -> None:
    while (command := channel.receive()) is not None:
        try:
            answer = driver.answer(command)
        except InferSwarmError as error:
            answer = Refused(fault=to_fault(error))
        channel.send(answer)


def main() -> int:
    """Run the driver until its owner closes the channel. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="inferswarm-ray")
    parser.add_argument("--lifeline-fd", type=int, required=True)
    parser.add_argument("--channel-fd", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that the user sees
    os.dup2(2, 1)  # nobody reads what Ray prints
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=DriverSpec)
    channel: Channel[ToDriver] = Channel(socket.socket(fileno=arguments.channel_fd), ToDriver)  # type: ignore[arg-type]
    try:
        driver = Driver(spec)
    except InferSwarmError as error:
        channel.send(Refused(fault=to_fault(error)))
        return 1
    channel.send(Connected())
    with contextlib.suppress(OSError):  # the owner has gone in the middle of an answer
        _serve(driver, channel)
    driver.stop_all()
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
