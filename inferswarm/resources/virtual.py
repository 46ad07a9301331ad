"""Graphs of one host: as the one Node that it is, or cut into virtual Nodes by declared envelopes.

Virtual Nodes make one machine a small swarm, and say so: they share a `host_id`, that is, a failure domain, memory
bandwidth, and a network that is none. Their threads may add up to more than the host has cores, because stages of
one route take turns; their memory may not add up to more than the host may use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from inferswarm.errors import DiscoveryError, SpecError
from inferswarm.resources import identity
from inferswarm.resources.accelerators import Accelerator
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.types import (
    ComputeUnit,
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


def _cores(inventory: HostInventory) -> int:
    if inventory.cpu.usable_cpus.value is None:
        raise DiscoveryError("cores", inventory.cpu.usable_cpus.detail)
    return inventory.cpu.usable_cpus.value


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
    backends: Sequence[str] | None = None,
) -> ResourceGraph:
    """Return the graph of one Node that is this host: its CPU with all usable cores, its RAM, its accelerators.

    The RAM's capacity is what processes may use (total, or the limit that already lies on them); unknown stays
    unknown. An accelerator without a UUID has no identity to keep; it is left out and the Node's facts say why.
    Raises DiscoveryError when the host's identity or its cores are unknown.
    """
    backends = backends_here() if backends is None else backends
    node = identity.node_id(_host(inventory))
    ram = MemoryResource(
        id=identity.ram_id(node),
        node_id=node,
        kind="ram",
        capacity_bytes=inventory.usable_memory_bytes,
        reserved_bytes=unknown(UNMEASURED_BASE) if reserved_bytes is None else reserved_bytes,
        enforcement="none" if inventory.memory_limit_bytes is None else inventory.memory_mechanism,
    )
    cpu = ComputeUnit(
        id=identity.cpu_id(node),
        node_id=node,
        kind="cpu",
        name=inventory.cpu.model_name.value or "CPU",
        threads=_cores(inventory),
        memory_ids=(ram.id,),
        capabilities=capabilities(inventory, backends),
    )
    units, memory, facts = [cpu], [ram], list(_facts(inventory))
    for index, accelerator in enumerate(inventory.accelerators.accelerators):
        if accelerator.uuid.value is None:
            left_out: Fact[str] = unknown(f"left out, it cannot be told from another: {accelerator.uuid.detail}")
            facts.append(NamedFact(name=f"{accelerator.kind} {index} ({accelerator.name})", fact=left_out))
            continue
        unit, vram = _accelerator(accelerator, accelerator.uuid.value, node, ram.id, backends)
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
    )


def _accelerator(
    accelerator: Accelerator, uuid: str, node: str, ram: str, backends: Sequence[str]
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
        memory_ids=(vram.id, ram),
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
        threads = "1 thread" if envelope.threads == 1 else f"{envelope.threads} threads"
        unit = ComputeUnit(
            id=identity.cpu_id(node),
            node_id=node,
            kind="cpu",
            name=f"{inventory.cpu.model_name.value or 'CPU'} ({threads})",
            threads=envelope.threads,
            memory_ids=(ram.id,),
            capabilities=capabilities(inventory, backends),
        )
        nodes.append(Node(id=node, name=envelope.name, host_id=host, virtual=True, facts=_facts(inventory)))
        memory.append(ram)
        units.append(unit)
    return ResourceGraph(
        swarm_id=swarm_id,
        nodes=tuple(nodes),
        compute_units=tuple(units),
        memory_resources=tuple(memory),
        links=tuple(_loopback(source.id, target.id) for source in nodes for target in nodes if source is not target),
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
    cores = _cores(inventory)
    for envelope in envelopes:
        if envelope.threads > cores:
            raise SpecError(f"node {envelope.name}: threads", envelope.threads, f"at most {cores}, the host's cores")
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
    )
