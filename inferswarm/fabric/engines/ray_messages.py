"""What the Ray engine, its driver process and the agent actors say to each other: starting, watching, stopping.

Nothing here holds a token or a tensor. Between engine and driver the messages travel over an inherited socket pair;
between driver and actor as bytes, so that Ray carries nothing that it could interpret.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalSettings
from inferswarm.fabric.engines.ray_placing import AgentKey, RayNode
from inferswarm.fabric.faults import Fault
from inferswarm.fabric.messages.base import Message


class DriverSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the driver is told at its start: the cluster's address, and the namespace of this swarm's actors."""

    address: str
    namespace: str
    agents: tuple[AgentKey, ...] = ()
    """What an earlier driver has placed."""


class ActorStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an actor is given to start its agent."""

    launch: NodeLaunch
    settings: LocalSettings
    coordinator: str
    pause_seconds: float
    """An agent whose raylet does not run for so long leaves the swarm, and comes back when it does."""
    abandon_seconds: float
    """An actor ends with its agent when no Coordinator could be reached for so long."""


class ListNodes(Message, frozen=True, kw_only=True):
    """List the cluster's nodes."""


class StartAgent(Message, frozen=True, kw_only=True):
    """Place an agent: on the Ray node with its Node's name, other than those it was lost on where there is one."""

    start: ActorStart
    lost_on: tuple[str, ...] = ()


class WatchAgents(Message, frozen=True, kw_only=True):
    """Ask how agents are."""

    agents: tuple[AgentKey, ...]


class StopAgents(Message, frozen=True, kw_only=True):
    """End agents and their actors, and wait until they have gone."""

    agents: tuple[AgentKey, ...]


ToDriver = ListNodes | StartAgent | WatchAgents | StopAgents


class Connected(Message, frozen=True, kw_only=True):
    """The driver is connected."""


class NodeList(Message, frozen=True, kw_only=True):
    """The cluster's nodes."""

    nodes: tuple[RayNode, ...]


class AgentStarted(Message, frozen=True, kw_only=True):
    """An agent's process runs; whether its Node becomes a member is its lease's affair."""

    key: AgentKey
    pid: int


class AgentState(Message, frozen=True, kw_only=True):
    """How an agent is, as its actor says, or, where that says nothing, as Ray says of the actor."""

    state: Literal["running", "paused", "ended", "unknown"]
    """`paused`: it was taken out because its raylet does not run."""
    pid: int | None = None
    """None where nobody says."""
    exit_status: int | None = None
    fault: Fault | None = None
    """What it ended with."""


class AgentStates(Message, frozen=True, kw_only=True):
    """One state for each agent that was asked about, in the same order."""

    states: tuple[AgentState, ...]


class Stopped(Message, frozen=True, kw_only=True):
    """They have gone."""


class Refused(Message, frozen=True, kw_only=True):
    """It could not be done."""

    fault: Fault


FromDriver = Connected | NodeList | AgentStarted | AgentStates | Stopped | Refused
FromActor = AgentState | Refused
