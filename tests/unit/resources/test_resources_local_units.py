"""One host's Compute Units and RAM: one of each, or one of each for every NUMA node that has usable CPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm.resources import identity
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.numa import NumaNode, read_numa_nodes, usable_numa_nodes
from inferswarm.resources.pcie import unknown_pcie
from inferswarm.resources.types import CoreSet, Envelope, Fact, ResourceGraph, observed, unknown
from inferswarm.resources.virtual import graph_of_envelopes, graph_of_host
from tests.unit.resources.resources_samples import make_accelerator, make_inventory, write_file

GB = 10**9
SOCKETS = ((0, "0-3", 6 * GB), (1, "4-7", 10 * GB))


def write_numa(root: Path, nodes: tuple[tuple[int, str, int], ...] = SOCKETS) -> Path:
    for index, cpus, size in nodes:
        directory = f"sys/devices/system/node/node{index}"
        write_file(root, f"{directory}/cpulist", cpus)
        write_file(root, f"{directory}/meminfo", f"Node {index} MemTotal: {size // 1024} kB\n" if size else "")
        write_file(root, f"{directory}/distance", " ".join("10" if other == index else "21" for other in range(2)))
    return root


def host(
    root: Path,
    *,
    allowed: tuple[int, ...] = tuple(range(8)),
    usable: int | None = None,
    limit: Fact[int] | None = None,
    total: Fact[int] | None = None,
    slot: int | None = None,
) -> HostInventory:
    """Return a host with the NUMA nodes written under `root`; `slot` is the NUMA node of an accelerator."""
    cards = ()
    if slot is not None:
        pcie = msgspec.structs.replace(unknown_pcie("test"), numa_index=observed(slot, "test"))
        cards = (msgspec.structs.replace(make_accelerator("aa"), pcie=pcie),)
    inventory = make_inventory(
        limit=limit,
        total=total,
        accelerators=cards,
        cpus=observed(len(allowed) if usable is None else usable, "test"),
    )
    cpu = msgspec.structs.replace(inventory.cpu, numa=read_numa_nodes(root))
    return msgspec.structs.replace(inventory, cpu=cpu, allowed_cpus=allowed)


def graph_of(inventory: HostInventory) -> ResourceGraph:
    graph = graph_of_host(inventory, "swarm-1", backends=("torch",))
    SwarmGraph(graph)
    return graph


def test_each_numa_node_is_a_compute_unit_bound_to_its_cpus_with_its_own_ram(tmp_path: Path) -> None:
    graph = graph_of(host(write_numa(tmp_path)))
    first, second = graph.compute_units
    assert [(unit.threads, unit.cpus) for unit in (first, second)] == [(4, (0, 1, 2, 3)), (4, (4, 5, 6, 7))]
    rams = tuple(memory.id for memory in graph.memory_resources)
    assert (first.memory_ids, second.memory_ids) == (rams, rams[::-1])  # nearest first, and all can be addressed
    sizes = [memory.capacity_bytes.value for memory in graph.memory_resources]
    assert sizes == [size // 1024 * 1024 for _, _, size in SOCKETS]
    assert isinstance(graph.core_sets, msgspec.UnsetType)


@pytest.mark.parametrize(
    ("allowed", "nodes"),
    [
        (tuple(range(8)), ((0, "0-7", 16 * GB),)),
        ((4, 5), SOCKETS),  # an affinity within one of the two
        ((0, 1, 9), SOCKETS),  # a CPU that no NUMA node holds: the picture is not to be trusted
        ((), SOCKETS),
    ],
)
def test_usable_cpus_in_one_numa_node_are_one_unit_with_the_identity_of_the_whole(
    tmp_path: Path, allowed: tuple[int, ...], nodes: tuple[tuple[int, str, int], ...]
) -> None:
    inventory = host(write_numa(tmp_path, nodes), allowed=allowed, usable=max(1, len(allowed)))
    graph = graph_of(inventory)
    (cpu,), (ram,) = graph.compute_units, graph.memory_resources
    node = graph.nodes[0].id
    assert (cpu.id, ram.id) == (identity.cpu_id(node), identity.ram_id(node))
    assert isinstance(cpu.cpus, msgspec.UnsetType)
    assert ram.capacity_bytes == inventory.usable_memory_bytes


def test_a_memory_without_usable_cpus_is_no_nearest_memory(tmp_path: Path) -> None:
    nodes = (*SOCKETS, (2, "", 9 * GB))
    assert len(graph_of(host(write_numa(tmp_path, nodes))).memory_resources) == 2


@pytest.mark.parametrize(
    ("limit", "total", "sizes"),
    [
        (observed(8 * GB, "memory.max"), 16 * GB, [3 * GB, 5 * GB]),  # shares, by size
        (observed(15 * GB, "memory.max"), 16 * GB, [15 * GB * 6 // 16, 15 * GB * 10 // 16]),
        (unknown("hidden"), 16 * GB, [None, None]),
        (None, 12 * GB, [12 * GB * 6 // 16, 12 * GB * 10 // 16]),  # less than the NUMA nodes say
    ],
)
def test_ram_never_promises_more_together_than_may_be_used(
    tmp_path: Path, limit: Fact[int] | None, total: int, sizes: list[int | None]
) -> None:
    inventory = host(write_numa(tmp_path), limit=limit, total=observed(total, "test"))
    found = [memory.capacity_bytes for memory in graph_of(inventory).memory_resources]
    assert [fact.value for fact in found] == [size and pytest.approx(size, abs=4096) for size in sizes]
    if found[0].value is not None:
        assert sum(fact.value or 0 for fact in found) <= (inventory.usable_memory_bytes.value or 0)
        assert "its share, by size" in found[0].detail
    else:
        assert "what may be used of all RAM together is unknown: hidden" in found[0].detail


def test_a_numa_node_of_unknown_size_promises_nothing(tmp_path: Path) -> None:
    found = graph_of(host(write_numa(tmp_path, ((0, "0-3", 0), SOCKETS[1])))).memory_resources
    assert [memory.capacity_bytes.known for memory in found] == [False, True]


def test_a_quota_below_the_cpus_limits_every_unit_and_is_shared_by_them(tmp_path: Path) -> None:
    graph = graph_of(host(write_numa(tmp_path), usable=3))
    assert [unit.threads for unit in graph.compute_units] == [3, 3]
    assert isinstance(graph.core_sets, tuple)
    assert graph.core_sets == (CoreSet(id=graph.core_sets[0].id, num_cores=3),)
    assert {unit.core_set_id for unit in graph.compute_units} == {graph.core_sets[0].id}


@pytest.mark.parametrize(("slot", "nearest", "cpus"), [(0, 0, (0, 1, 2, 3)), (1, 1, (4, 5, 6, 7)), (7, 0, None)])
def test_an_accelerator_is_near_the_ram_of_its_slot_and_addresses_all(
    tmp_path: Path, slot: int, nearest: int, cpus: tuple[int, ...] | None
) -> None:
    graph = graph_of(host(write_numa(tmp_path), slot=slot))
    card = graph.compute_units[-1]
    rams = [memory.id for memory in graph.memory_resources if memory.kind == "ram"]
    vram = next(memory.id for memory in graph.memory_resources if memory.kind == "vram")
    assert card.memory_ids == (vram, rams[nearest], rams[1 - nearest])
    assert (card.cpus == cpus) if cpus else isinstance(card.cpus, msgspec.UnsetType)


def test_the_measured_reservation_of_an_accelerator_is_put_in_place(tmp_path: Path) -> None:
    inventory = host(write_numa(tmp_path), slot=0)
    vram = identity.vram_id(graph_of(inventory).compute_units[-1].id)
    graph = graph_of_host(inventory, "swarm-1", accelerator_reserved_bytes={vram: observed(7, "test")})
    assert {memory.id: memory.reserved_bytes.value for memory in graph.memory_resources if memory.id == vram} == {
        vram: 7
    }


def test_numa_nodes_are_left_with_the_cpus_that_may_be_used(tmp_path: Path) -> None:
    nodes = read_numa_nodes(write_numa(tmp_path))
    assert [node.cpus for node in usable_numa_nodes(nodes, (1, 6, 7))] == [(1,), (6, 7)]
    twice = NumaNode(index=3, cpus=(1,), memory_bytes=unknown("test"))
    assert usable_numa_nodes((*nodes, twice), (1, 6, 7)) == ()  # one CPU in two nodes


def test_an_envelope_declares_several_units_that_share_its_memory() -> None:
    graph = graph_of_envelopes(
        make_inventory(), "swarm-1", (Envelope.parse("oak:threads=1+2,memory=1GB"),), {}, "none"
    )
    SwarmGraph(graph)
    (ram,) = graph.memory_resources
    assert [(unit.threads, unit.memory_ids) for unit in graph.compute_units] == [(1, (ram.id,)), (2, (ram.id,))]
    alone = graph_of_envelopes(make_inventory(), "swarm-1", (Envelope.parse("oak:threads=1,memory=1GB"),), {}, "none")
    assert graph.compute_units[0].id == alone.compute_units[0].id
    assert len({unit.name for unit in graph.compute_units}) == 2
