"""The CPU Compute Units and the RAM of one host: one of each, or one of each for every NUMA node with usable CPUs.

A host whose usable CPUs all lie in one NUMA node has one Compute Unit, which is bound to no CPU, and one RAM: all
that processes may use. With several, each Compute Unit is bound to the CPUs of its NUMA node, and its RAM is that
node's. Where a CPU quota lets fewer of them be busy than there are, the Compute Units share that many cores.

A limit on processes here (a container's) lies on all RAM together. Where the NUMA nodes have more than that, each
promises its share of the limit, in proportion to its size: together they never promise more than may be used, though
one of them alone could give more while the others are empty. What is unknown stays unknown, and takes no share.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inferswarm.errors import DiscoveryError
from inferswarm.resources import identity
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.numa import NumaNode, usable_numa_nodes
from inferswarm.resources.types import ComputeUnit, CoreSet, Fact, MemoryResource, observed, unknown


class LocalUnits(NamedTuple):
    """CPU Compute Units with their RAM, in the same order, and which RAM is nearest to each NUMA node's slots."""

    units: tuple[ComputeUnit, ...]
    memory: tuple[MemoryResource, ...]
    numa_indexes: tuple[int, ...] = ()
    """The NUMA node of each; empty where there is one RAM for all."""
    core_sets: tuple[CoreSet, ...] | msgspec.UnsetType = msgspec.UNSET
    """The cores that the Compute Units share; unset where each has its own."""

    def memory_ids_near(self, numa_index: int | None) -> tuple[str, ...]:
        """Return all RAM, that of a NUMA node first where it is known which one that is."""
        ids = [memory.id for memory in self.memory]
        if numa_index in self.numa_indexes:
            nearest = ids[self.numa_indexes.index(numa_index)]
            ids.sort(key=lambda item: item != nearest)
        return tuple(ids)

    def cpus_near(self, numa_index: int | None) -> tuple[int, ...] | msgspec.UnsetType:
        """Return the CPUs that a stage near a NUMA node's slots is bound to; unset where that is not known."""
        if numa_index in self.numa_indexes:
            return self.units[self.numa_indexes.index(numa_index)].cpus
        return msgspec.UNSET


def usable_cpu_count(inventory: HostInventory) -> int:
    """Return how many CPUs processes here can keep busy. Raises DiscoveryError when that is unknown."""
    if inventory.cpu.usable_cpus.value is None:
        raise DiscoveryError("cores", inventory.cpu.usable_cpus.detail)
    return inventory.cpu.usable_cpus.value


def local_units(
    inventory: HostInventory, node: str, capabilities: tuple[str, ...], reserved_bytes: Fact[int]
) -> LocalUnits:
    """Return the CPU Compute Units and the RAM of a host that is the Node with the id `node`.

    Each RAM has the same reservation: the processes that must run may be anywhere. A Compute Unit has no more threads
    than a CPU quota lets it keep busy. Raises DiscoveryError when nobody knows how many CPUs may be used.
    """
    most = usable_cpu_count(inventory)
    name = inventory.cpu.model_name.value or "CPU"
    mechanism = "none" if inventory.memory_limit_bytes is None else inventory.memory_mechanism
    places = usable_numa_nodes(inventory.cpu.numa, inventory.allowed_cpus)
    if len(places) < 2:
        ram = _ram(identity.ram_id(node), node, inventory.usable_memory_bytes, reserved_bytes, mechanism)
        cpu = ComputeUnit(
            id=identity.cpu_id(node),
            node_id=node,
            kind="cpu",
            name=name,
            threads=most,
            memory_ids=(ram.id,),
            capabilities=capabilities,
        )
        return LocalUnits((cpu,), (ram,))
    ids = [identity.ram_id(node, place.index) for place in places]
    shared = CoreSet(id=identity.core_set_id(node), num_cores=most)
    is_short = most < sum(len(place.cpus) for place in places)
    sizes = shares_of(inventory.usable_memory_bytes, places)
    units = [
        ComputeUnit(
            id=identity.cpu_id(node, place.index),
            node_id=node,
            kind="cpu",
            name=f"{name} (NUMA node {place.index})",
            threads=min(most, len(place.cpus)),
            memory_ids=_nearest_first(place, places, ids),
            capabilities=capabilities,
            cpus=place.cpus,
            core_set_id=shared.id if is_short else msgspec.UNSET,
        )
        for place in places
    ]
    memory = [_ram(ram, node, size, reserved_bytes, mechanism) for ram, size in zip(ids, sizes, strict=True)]
    indexes = tuple(place.index for place in places)
    return LocalUnits(tuple(units), tuple(memory), indexes, (shared,) if is_short else msgspec.UNSET)


def shares_of(usable_bytes: Fact[int], places: tuple[NumaNode, ...]) -> tuple[Fact[int], ...]:
    """Return what each NUMA node's RAM may promise, when all together may give `usable_bytes`.

    A node whose size is unknown promises nothing; nor does any when the whole is unknown.
    """
    if usable_bytes.value is None:
        reason = f"what may be used of all RAM together is unknown: {usable_bytes.detail}"
        return tuple(unknown(reason) for _ in places)
    together = sum(place.memory_bytes.value or 0 for place in places)
    if together <= usable_bytes.value:
        return tuple(place.memory_bytes for place in places)
    return tuple(
        place.memory_bytes
        if place.memory_bytes.value is None
        else observed(
            usable_bytes.value * place.memory_bytes.value // together,
            f"its share, by size, of the {usable_bytes.value:,} B that may be used of all RAM together "
            f"({usable_bytes.detail}); {place.memory_bytes.detail} states {place.memory_bytes.value:,} B",
        )
        for place in places
    )


def _nearest_first(place: NumaNode, places: tuple[NumaNode, ...], ids: list[str]) -> tuple[str, ...]:
    """Return the ids of all RAM by their distance from a NUMA node, its own first; by index where none is stated."""
    far = max(place.distances, default=0) + 1

    def distance(item: tuple[NumaNode, str]) -> tuple[bool, int, int]:
        other, _ = item
        stated = place.distances[other.index] if other.index < len(place.distances) else far
        return other is not place, stated, other.index

    return tuple(ram for _, ram in sorted(zip(places, ids, strict=True), key=distance))


def _ram(ram: str, node: str, capacity: Fact[int], reserved: Fact[int], mechanism: str) -> MemoryResource:
    return MemoryResource(
        id=ram, node_id=node, kind="ram", capacity_bytes=capacity, reserved_bytes=reserved, enforcement=mechanism
    )
