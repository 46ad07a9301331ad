from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.resources import cpuinfo
from inferswarm.resources.numa import read_huge_pages, read_numa_nodes
from tests.unit.resources.resources_samples import X86_CPUINFO, write_file

NODES = "sys/devices/system/node"
MEMINFO = "Node {0} MemTotal:       {1} kB\nNode {0} MemFree:        77 kB\n"


def two_sockets(root: Path) -> Path:
    """Write two NUMA nodes with CPUs and memory, and a third of memory alone."""
    for index, (cpus, kilobytes) in enumerate((("0-7,16-23", 2000), ("8-15,24-31", 4000), ("", 9000))):
        write_file(root, f"{NODES}/node{index}/cpulist", cpus + "\n")
        write_file(root, f"{NODES}/node{index}/meminfo", MEMINFO.format(index, kilobytes))
        write_file(root, f"{NODES}/node{index}/distance", ("10 21 28", "21 10 28", "28 28 10")[index])
    return root


def test_each_numa_node_has_its_cpus_its_memory_and_its_distances(tmp_path: Path) -> None:
    first, second, third = read_numa_nodes(two_sockets(tmp_path))
    assert first.cpus == (*range(8), *range(16, 24))
    assert [node.memory_bytes.value for node in (first, second, third)] == [2_048_000, 4_096_000, 9_216_000]
    assert second.distances == (21, 10, 28)
    assert third.cpus == ()  # memory without a CPU is still memory


def test_ten_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for index in range(11):
        write_file(tmp_path, f"{NODES}/node{index}/cpulist", str(index))
    found = read_numa_nodes(tmp_path)
    assert [node.index for node in found] == list(range(11))
    assert "meminfo" in found[0].memory_bytes.detail


@pytest.mark.parametrize("text", ["", "Node 0 MemFree: 5 kB\n", "Node 0 MemTotal: many kB\n"])
def test_memory_that_is_not_stated_is_unknown(tmp_path: Path, text: str) -> None:
    write_file(tmp_path, f"{NODES}/node0/cpulist", "0")
    write_file(tmp_path, f"{NODES}/node0/meminfo", text)
    (node,) = read_numa_nodes(tmp_path)
    assert "states no MemTotal" in node.memory_bytes.detail


def test_a_cpu_list_that_makes_no_sense_leaves_the_node_out(tmp_path: Path) -> None:
    write_file(tmp_path, f"{NODES}/node0/cpulist", "zero to seven")
    assert read_numa_nodes(tmp_path) == ()


def test_the_cpu_facts_hold_the_numa_nodes_and_threads_per_core(tmp_path: Path) -> None:
    write_file(two_sockets(tmp_path), "proc/cpuinfo", X86_CPUINFO)
    facts = cpuinfo.read_cpu(tmp_path)
    assert (facts.numa_nodes.value, len(facts.numa)) == (3, 3)
    assert facts.threads_per_core.value == 1


@pytest.mark.parametrize(("cores", "logical", "each"), [((0, 0, 1, 1), 4, 2), ((0, 0, 1), 3, None)])
def test_threads_per_core_are_known_only_where_all_cores_have_as_many(
    cores: tuple[int, ...], logical: int, each: int | None
) -> None:
    text = "".join(f"processor : {cpu}\nflags : avx2\n\n" for cpu in range(logical))
    facts = cpuinfo.describe_cpu(
        text,
        topology={cpu: (0, core) for cpu, core in enumerate(cores)},
        caches=(),
        numa_nodes=cpuinfo.count_numa_nodes(()),
        usable_cpus=cpuinfo.usable_cpus(None, logical),
    )
    assert facts.threads_per_core.value == each


def test_huge_pages_are_read_with_policy_and_pools(tmp_path: Path) -> None:
    write_file(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    for size, total, free in (("1048576", "4", "1"), ("2048", "512", "510")):
        base = f"sys/kernel/mm/hugepages/hugepages-{size}kB"
        write_file(tmp_path, f"{base}/nr_hugepages", total + "\n")
        write_file(tmp_path, f"{base}/free_hugepages", free + "\n")
    found = read_huge_pages(tmp_path)
    assert found.transparent.value == "madvise"
    assert [(pool.page_bytes, pool.num_pages.value, pool.num_free.value) for pool in found.pools] == [
        (2 * 2**20, 512, 510),
        (2**30, 4, 1),
    ]


def test_a_kernel_without_huge_pages_gives_unknowns(tmp_path: Path) -> None:
    found = read_huge_pages(tmp_path)
    assert not found.transparent.known
    assert found.pools == ()
    write_file(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise never\n")
    write_file(tmp_path, "sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "many")
    found = read_huge_pages(tmp_path)
    assert "marks no choice" in found.transparent.detail
    assert "holds no number" in found.pools[0].num_pages.detail
    assert "free_hugepages" in found.pools[0].num_free.detail
