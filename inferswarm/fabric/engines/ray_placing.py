"""Which Ray node an agent belongs on, and whether what runs there can take part. This module does not import Ray.

Ray's own node ids do not outlast a node, and several nodes of one machine report one address; so a Ray node carries
the name of its Node as a label.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferswarm import __version__
from inferswarm.errors import SpecError

NODE_LABEL = "inferswarm-node"
"""The label of a Ray node that holds the name of its Node: `ray start --labels inferswarm-node=NAME`."""


class AgentKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One agent actor: of which Node, on which Ray node."""

    name: str
    ray_node: str


class RayNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of the cluster as Ray has it."""

    name: str
    """Its label; empty when it has none."""
    ray_node: str
    is_alive: bool


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a process runs, and what of."""

    machine: str
    """The kernel's boot and its network: processes with the same can reach each other over loopback."""
    package: str
    """This package's version."""


def own_place() -> Place:
    """Return where this process runs (Linux). Raises OSError where the kernel does not say."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Place(machine=f"{boot} {os.readlink('/proc/self/ns/net')}", package=__version__)


def choose_ray_node(nodes: Sequence[RayNode], name: str, lost_on: Sequence[str] = ()) -> str:
    """Return the id of the live Ray node that carries a Node's name.

    One that its agent was lost on counts only when there is no other: Ray may take it for alive long after it has
    gone. Raises SpecError when there is none, or more than one.
    """
    live = [node for node in nodes if node.is_alive and node.name == name]
    found = [node for node in live if node.ray_node not in lost_on] or live
    if not found:
        known = sorted({node.name for node in nodes if node.is_alive and node.name})
        raise SpecError("node", name, f"the label {NODE_LABEL} of a live Ray node: {known}")
    if len(found) > 1:
        ids = sorted(node.ray_node[:8] for node in found)
        raise SpecError("node", name, f"one live Ray node with that label, not {len(found)}: {ids}")
    return found[0].ray_node


def refuse_elsewhere(name: str, place: Place, own: Place) -> None:
    """Raise SpecError for an actor on another machine than its owner, or of another version of this package."""
    if place.machine != own.machine:
        raise SpecError("node", name, "a Ray node on this machine: Nodes of several machines are not served yet")
    if place.package != own.package:
        raise SpecError("node", name, f"inferswarm {own.package} on its Ray node, not {place.package}")
