"""Graphs of one host: as the one Node that it is, or cut into virtual Nodes by declared envelopes.

Virtual Nodes make one machine a small swarm, and say so: they share a `host_id`, that is, a failure domain, memory
bandwidth, and a network that is none. Their threads may add up to more than the host has cores, because stages of
one route take turns, as may those of one Node's Compute Units; their memory may not add up to more than the host may
use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

import msgspec

from inferswarm.errors import DiscoveryError, SpecError
from inferswarm.resources import identity
from inferswarm.resources.accelerators import Accelerator
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.local_units import local_units, usable_cpu_count
from inferswarm.resources.types import (
    ComputeUnit,
    CoreSet,
    Envelope,
    Fact,
    Link,
    MemoryResource,
    NamedFact,
    Node,
    ResourceGraph,
    declared,
    observed,
    unknown,
)

UNMEASURED_BASE = "the memory base of the processes that must run here has not been measured"


def backends_here() -> tuple[str, ...]:
    """Return the backends whose libraries this interpreter has (`null` needs none), without importing any."""
    if find_spec("torch") is None:
        return ("null",)
    return ("null", "torch") if find_spec("transformers") is None else ("null", "torch", "transformers")


def capabilities(inventory: HostInventory, backends: Sequence[str]) -> tuple[str, ...]:
    """Return a CPU's tags: its backends, the representations that those execute, its decisive instruction sets."""
    tags = [f"backend:{name}" for name in backends]
    tags += ["representation:bf16", "representation:fp32"]
    tags += [f"isa:{name}" for name in inventory.cpu.isa_names]
    return tuple(sorted(tags))


def _host(inventory: HostInventory) -> str:
    if inventory.host_id.value is None:
        raise DiscoveryError("host identity", inventory.host_id.detail)
    return inventory.host_id.value


def _facts(inventory: HostInventory) -> tuple[NamedFact, ...]:
    return (
        NamedFact(name="cpu", fact=inventory.cpu.model_name),
        NamedFact(name="torch", fact=inventory.accelerators.torch_version),
        *inventory.platform,
    )


def graph_of_host(
    inventory: HostInventory,
    swarm_id: str,
    *,
    name: str | None = None,
    reserved_bytes: Fact[int] | None = None,
    accelerator_reserved_bytes: Mapping[str, Fact[int]] | None = None,
    backends: Sequence[str] | None = None,
) -> ResourceGraph:
    """Return the graph of one Node that is this host: its CPUs and its RAM (see `local_units`), its accelerators.

    What RAM promises is what processes may use (total, or the limit that already lies on them); unknown stays
    unknown. `reserved_bytes` is the reservation of RAM, `accelerator_reserved_bytes` that of accelerators' memory by
    its id; what is not given is unknown. An accelerator without a UUID has no identity to keep; it is left out and
    the Node's facts say why. Raises DiscoveryError when the host's identity or its cores are unknown.
    """
    backends = backends_here() if backends is None else backends
    node = identity.node_id(_host(inventory))
    reserved = unknown(UNMEASURED_BASE) if reserved_bytes is None else reserved_bytes
    cpus = local_units(inventory, node, capabilities(inventory, backends), reserved)
    units, memory, facts = list(cpus.units), list(cpus.memory), list(_facts(inventory))
    for index, accelerator in enumerate(inventory.accelerators.accelerators):
        if accelerator.uuid.value is None:
            left_out: Fact[str] = unknown(f"left out, it cannot be told from another: {accelerator.uuid.detail}")
            facts.append(NamedFact(name=f"{accelerator.kind} {index} ({accelerator.name})", fact=left_out))
            continue
        place = accelerator.pcie.numa_index.value
        unit, vram = _accelerator(accelerator, accelerator.uuid.value, node, cpus.memory_ids_near(place), backends)
        unit = msgspec.structs.replace(unit, cpus=cpus.cpus_near(place))
        if accelerator_reserved_bytes is not None and vram.id in accelerator_reserved_bytes:
            vram = msgspec.structs.replace(vram, reserved_bytes=accelerator_reserved_bytes[vram.id])
        units.append(unit)
        memory.append(vram)
    return ResourceGraph(
        swarm_id=swarm_id,
        nodes=(
            Node(
                id=node,
                name=name or inventory.name.value or identity.short(node),
                host_id=_host(inventory),
                facts=tuple(facts),
            ),
        ),
        compute_units=tuple(units),
        memory_resources=tuple(memory),
        links=(),
        core_sets=cpus.core_sets,
    )


def _accelerator(
    accelerator: Accelerator, uuid: str, node: str, ram: tuple[str, ...], backends: Sequence[str]
) -> tuple[ComputeUnit, MemoryResource]:
    unit = identity.accelerator_id(accelerator.kind, uuid)
    vram = MemoryResource(
        id=identity.vram_id(unit),
        node_id=node,
        kind="vram",
        capacity_bytes=accelerator.memory_bytes,
        reserved_bytes=unknown(UNMEASURED_BASE),
        enforcement="none",
    )
    architecture = (f"isa:{accelerator.architecture.value}",) if accelerator.architecture.value else ()
    tags = [f"backend:{backend}" for backend in backends if backend not in ("null", "transformers")]  # on CPUs only
    return ComputeUnit(
        id=unit,
        node_id=node,
        kind=accelerator.kind,
        name=accelerator.name,
        threads=1,
        memory_ids=(vram.id, *ram),
        capabilities=tuple(sorted([*tags, *architecture, "representation:bf16", "representation:fp32"])),
    ), vram


def graph_of_envelopes(
    inventory: HostInventory,
    swarm_id: str,
    envelopes: Sequence[Envelope],
    reserved_bytes: Mapping[str, Fact[int]],
    enforcement: str,
    *,
    backends: Sequence[str] | None = None,
) -> ResourceGraph:
    """Return the graph of virtual Nodes on this host, with loopback Links both ways between every two.

    `reserved_bytes` maps a Node's name to its measured base; a Node that is not in it has an unknown one.
    `enforcement` is the mechanism that holds each to its memory. Raises SpecError when there is no envelope, names
    repeat, a Node declares more threads than the host has cores, the memory adds up to more than the host may use,
    or `reserved_bytes` names a Node that is not declared; DiscoveryError when the host's identity, cores or memory
    are unknown.
    """
    backends = backends_here() if backends is None else backends
    _refuse_impossible(inventory, envelopes, reserved_bytes)
    host = _host(inventory)
    nodes: list[Node] = []
    units: list[ComputeUnit] = []
    memory: list[MemoryResource] = []
    for envelope in envelopes:
        node = identity.node_id(host, envelope.name)
        ram = MemoryResource(
            id=identity.ram_id(node),
            node_id=node,
            kind="ram",
            capacity_bytes=declared(envelope.memory_bytes),
            reserved_bytes=reserved_bytes.get(envelope.name, unknown(UNMEASURED_BASE)),
            enforcement=enforcement,
        )
        units += _declared_units(inventory, envelope, node, ram.id, capabilities(inventory, backends))
        nodes.append(Node(id=node, name=envelope.name, host_id=host, virtual=True, facts=_facts(inventory)))
        memory.append(ram)
    return ResourceGraph(
        swarm_id=swarm_id,
        nodes=tuple(nodes),
        compute_units=tuple(units),
        memory_resources=tuple(memory),
        links=tuple(_loopback(source.id, target.id) for source in nodes for target in nodes if source is not target),
        core_sets=(CoreSet(id=identity.core_set_id(host), num_cores=usable_cpu_count(inventory)),),
    )


def _declared_units(
    inventory: HostInventory, envelope: Envelope, node: str, ram: str, tags: tuple[str, ...]
) -> Iterator[ComputeUnit]:
    """Make the CPU Compute Units of a virtual Node: the first keeps its identity, however many there are."""
    counts = envelope.unit_threads
    for place, threads in enumerate(counts):
        what = "1 thread" if threads == 1 else f"{threads} threads"
        which = "" if len(counts) == 1 else f", {place + 1} of {len(counts)}"
        yield ComputeUnit(
            id=identity.further_cpu_id(node, place) if place else identity.cpu_id(node),
            node_id=node,
            kind="cpu",
            name=f"{inventory.cpu.model_name.value or 'CPU'} ({what}{which})",
            threads=threads,
            memory_ids=(ram,),
            capabilities=tags,
            core_set_id=identity.core_set_id(_host(inventory)),
        )


def _loopback(source: str, target: str) -> Link:
    return Link(
        id=identity.link_id(source, target, "loopback"),
        source=source,
        target=target,
        kind="loopback",
        nominal_bits_per_second=unknown("two Nodes of one host have no network between them, so no nominal rate"),
    )


def _refuse_impossible(
    inventory: HostInventory, envelopes: Sequence[Envelope], reserved_bytes: Mapping[str, Fact[int]]
) -> None:
    names = [envelope.name for envelope in envelopes]
    if not names:
        raise SpecError("envelopes", names, "at least one Node")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError("node names", repeated, "each name once")
    if strangers := sorted(set(reserved_bytes) - set(names)):
        raise SpecError("reserved memory", strangers, f"names among {names}")
    cores = usable_cpu_count(inventory)
    for envelope in envelopes:
        if (threads := max(envelope.unit_threads)) > cores:
            raise SpecError(f"node {envelope.name}: threads", threads, f"at most {cores}, the host's cores")
    usable = inventory.usable_memory_bytes
    if usable.value is None:
        raise DiscoveryError("memory", usable.detail)
    total = sum(envelope.memory_bytes for envelope in envelopes)
    if total > usable.value:
        raise SpecError(
            "memory of all nodes together", f"{total:,} B", f"at most {usable.value:,} B ({usable.detail})"
        )


def with_reserved(graph: ResourceGraph, reserved_bytes: Mapping[str, int], detail: str) -> ResourceGraph:
    """Return the graph with measured reservations in place; keys are names of Nodes, values bytes of their RAM.

    Raises SpecError for a name that is not in the graph.
    """
    by_name = {node.name: node.id for node in graph.nodes}
    if strangers := sorted(set(reserved_bytes) - set(by_name)):
        raise SpecError("reserved memory", strangers, f"names among {sorted(by_name)}")
    bases = {by_name[name]: size for name, size in reserved_bytes.items()}
    return ResourceGraph(
        swarm_id=graph.swarm_id,
        nodes=graph.nodes,
        compute_units=graph.compute_units,
        memory_resources=tuple(
            MemoryResource(
                id=memory.id,
                node_id=memory.node_id,
                kind=memory.kind,
                capacity_bytes=memory.capacity_bytes,
                reserved_bytes=observed(bases[memory.node_id], detail),
                enforcement=memory.enforcement,
            )
            if memory.kind == "ram" and memory.node_id in bases
            else memory
            for memory in graph.memory_resources
        ),
        links=graph.links,
        segments=graph.segments,
        core_sets=graph.core_sets,
    )
