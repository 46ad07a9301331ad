"""What is measured of a swarm: its Compute Units, Node by Node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from inferswarm.resources.types import ComputeUnit, Node, ResourceGraph


class ProbeTarget(NamedTuple):
    """One Compute Unit to measure, with its Node."""

    node: Node
    unit: ComputeUnit
    limit_bytes: int | None
    """What the Node's envelope allows all of its processes together; None without one."""
    memory_bytes: int | None = None
    """The capacity of the Memory Resource nearest to the Compute Unit, where it is known."""
    alone: bool = True
    """Whether it is its Node's only Compute Unit."""
    has_store: bool = False
    """Whether the Node has an artifact store, and a courier that takes memory beside agent and stages."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The logical CPUs that its stages are bound to; none where it states none."""
        return () if isinstance(self.unit.cpus, msgspec.UnsetType) else self.unit.cpus

    @property
    def memory_id(self) -> str:
        """The Memory Resource nearest to it."""
        return self.unit.memory_ids[0]

    @property
    def label(self) -> str:
        """What it is called where progress is shown."""
        return self.node.name if self.alone else f"{self.node.name}, {self.unit.name}"


def targets_of(graph: ResourceGraph, limits: Mapping[str, int], has_stores: bool = False) -> tuple[ProbeTarget, ...]:
    """Return every available Compute Unit of a graph, Node by Node; `limits` are envelopes' sizes by Node name."""
    capacity = {memory.id: memory.capacity_bytes.value for memory in graph.memory_resources}
    found = []
    for node in graph.nodes:
        units = [unit for unit in graph.compute_units if unit.node_id == node.id]
        found += [
            ProbeTarget(
                node, unit, limits.get(node.name), capacity.get(unit.memory_ids[0]), len(units) == 1, has_stores
            )
            for unit in units
            if unit.available
        ]
    return tuple(found)


class NodeTargets(NamedTuple):
    """The Compute Units of one Node: what its processes take is measured of all of them together."""

    targets: tuple[ProbeTarget, ...]

    @property
    def node(self) -> Node:
        """The Node."""
        return self.targets[0].node

    @property
    def first(self) -> ProbeTarget:
        """Where what concerns the Node as a whole is measured: its first CPU."""
        return next((target for target in self.targets if target.unit.kind == "cpu"), self.targets[0])

    @property
    def accelerators(self) -> tuple[ProbeTarget, ...]:
        """Those whose stages take RAM beside their own memory."""
        return tuple(target for target in self.targets if target.unit.kind != "cpu")

    @property
    def threads(self) -> str:
        """The threads of all of its CPUs, as the facts in force state them of the Node."""
        counts = sorted(target.unit.threads for target in self.targets if target.unit.kind == "cpu")
        return "+".join(map(str, counts))

    @property
    def num_empty_stages(self) -> int:
        """How many empty stages the runtime base is measured with: one on a CPU, and one on each accelerator.

        The planner counts an accelerator's participant on the accelerator's own memory; what its process takes of RAM
        is reserved there once and for all.
        """
        return len({self.first.unit.id, *(target.unit.id for target in self.accelerators)})

    def read_as(self, target: ProbeTarget) -> str:
        """Return what records of reading a CPU's memory are about: the Node where it has one, else that memory."""
        alike = {other.memory_id for other in self.targets if other.unit.kind == "cpu"}
        return self.node.id if len(alike) == 1 else target.memory_id

    @property
    def readers(self) -> tuple[tuple[ProbeTarget, int], ...]:
        """Return for each memory of CPUs one of these, and the most threads that one of them has there."""
        most: dict[str, tuple[ProbeTarget, int]] = {}
        for target in self.targets:
            if target.unit.kind == "cpu":
                reader, threads = most.get(target.memory_id, (target, 0))
                most[target.memory_id] = (reader, max(threads, target.unit.threads))
        return tuple(most.values())

    @property
    def further(self) -> ProbeTarget | None:
        """Another Compute Unit on the same Memory Resource as the first one, or as another; None where there is none.

        The one with the most threads: a stage takes more memory with more of them.
        """
        near = Counter(target.memory_id for target in self.targets)
        shared = [target for target in self.targets if near[target.memory_id] > 1 and target != self.first]
        return max(shared, key=lambda target: target.unit.threads, default=None)


def by_node(targets: Sequence[ProbeTarget]) -> tuple[NodeTargets, ...]:
    """Return targets in groups of one Node, in the order of their first ones."""
    groups: dict[str, list[ProbeTarget]] = {}
    for target in targets:
        groups.setdefault(target.node.id, []).append(target)
    return tuple(NodeTargets(tuple(group)) for group in groups.values())
