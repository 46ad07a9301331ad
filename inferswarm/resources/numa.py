"""NUMA nodes and huge pages: how this machine's memory is divided, as the kernel shows it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from inferswarm.documents import Document
from inferswarm.resources.types import Fact, observed, unknown

_MEM_TOTAL = re.compile(r"^Node \d+ MemTotal:\s+(\d+) kB$", re.MULTILINE)
_CHOSEN = re.compile(r"\[(\w+)\]")


class NumaNode(Document, frozen=True, kw_only=True):
    """One NUMA node: its CPUs, its memory, and how far it is from the others (10 is itself), by their order."""

    index: int
    cpus: tuple[int, ...]
    """Logical CPUs; none for a node of memory alone."""
    memory_bytes: Fact[int]
    distances: tuple[int, ...] = ()


class HugePagePool(Document, frozen=True, kw_only=True):
    """The huge pages of one size that were set aside."""

    page_bytes: int
    num_pages: Fact[int]
    num_free: Fact[int]


class HugePages(Document, frozen=True, kw_only=True):
    """What there is of huge pages: the policy for transparent ones, and the pools that were set aside."""

    transparent: Fact[str]
    """`always`, `madvise` or `never`."""
    pools: tuple[HugePagePool, ...] = ()


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPU numbers that a sysfs list names. Raises ValueError for anything else.

    >>> parse_cpu_list("0-2,8,10-11")
    (0, 1, 2, 8, 10, 11)
    """
    numbers: list[int] = []
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def read_numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that the kernel shows, by index; none when it shows none or its files make no sense."""
    found: list[NumaNode] = []
    for directory in (root / "sys/devices/system/node").glob("node[0-9]*"):
        try:
            cpus = parse_cpu_list((directory / "cpulist").read_text())
            index = int(directory.name.removeprefix("node"))
        except (OSError, ValueError):
            continue
        memory_bytes, distances = _memory_of(directory / "meminfo"), _distances(directory / "distance")
        found.append(NumaNode(index=index, cpus=cpus, memory_bytes=memory_bytes, distances=distances))
    return tuple(sorted(found, key=lambda node: node.index))


def usable_numa_nodes(nodes: Iterable[NumaNode], usable: Collection[int]) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that hold at least one of the CPUs that may be run on, each with those CPUs only.

    None at all when the nodes together do not hold every usable CPU: such a picture is not to be trusted.
    """
    wanted = set(usable)
    found = [(node, tuple(cpu for cpu in node.cpus if cpu in wanted)) for node in nodes]
    if sorted(cpu for _, cpus in found for cpu in cpus) != sorted(wanted):
        return ()
    return tuple(msgspec.structs.replace(node, cpus=cpus) for node, cpus in found if cpus)


def _memory_of(path: Path) -> Fact[int]:
    try:
        stated = _MEM_TOTAL.search(path.read_text())
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    if stated is None:
        return unknown(f"{path} states no MemTotal")
    return observed(int(stated.group(1)) * 1024, str(path))


def _distances(path: Path) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in path.read_text().split())
    except (OSError, ValueError):
        return ()


def read_huge_pages(root: Path = Path("/")) -> HugePages:
    """Return the policy for transparent huge pages, and every pool; never raises for what is not there."""
    base = root / "sys/kernel/mm"
    policy = base / "transparent_hugepage/enabled"
    transparent: Fact[str]
    try:
        chosen = _CHOSEN.search(policy.read_text())
        transparent = unknown(f"{policy} marks no choice") if chosen is None else observed(chosen[1], str(policy))
    except OSError as error:
        transparent = unknown(f"{policy}: {error.strerror}")
    pools = []
    for directory in (base / "hugepages").glob("hugepages-*kB"):
        size = directory.name.removeprefix("hugepages-").removesuffix("kB")
        if size.isdigit():
            counts = (_count(directory / name) for name in ("nr_hugepages", "free_hugepages"))
            pools.append(HugePagePool(page_bytes=int(size) * 1024, num_pages=next(counts), num_free=next(counts)))
    return HugePages(transparent=transparent, pools=tuple(sorted(pools, key=lambda pool: pool.page_bytes)))


def _count(path: Path) -> Fact[int]:
    try:
        return observed(int(path.read_text()), str(path))
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    except ValueError:
        return unknown(f"{path} holds no number")
