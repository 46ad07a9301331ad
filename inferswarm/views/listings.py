"""Lists for the terminal: what a machine has, and what `doctor` found."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from inferswarm.resources.accelerators import Accelerator
from inferswarm.resources.address_pairs import usable_addresses
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.network import NetworkInterface
from inferswarm.resources.numa import HugePages
from inferswarm.resources.nvml import NvmlCard
from inferswarm.resources.storage import Disk
from inferswarm.resources.types import Fact, Value
from inferswarm.units import format_bytes
from inferswarm.views.text import WIDTH

_MARKS = {"present": "yes", "missing": "no", "unknown": "?"}
_NAME_WIDTH = 22


def findings_text(findings: Iterable[tuple[str, str, str, str, bool]]) -> str:
    """Return findings (name, state, found, enables, required), what is missing last."""
    lines: list[str] = []
    for name, state, found, enables, required in sorted(findings, key=lambda finding: finding[1] != "present"):
        needed = " (required)" if required and state != "present" else ""
        lines += _entry(f"{_MARKS[state]:4} {name}{needed}", found, f"for {enables}", _NAME_WIDTH + 5)
    return "\n".join(lines) + "\n"


def inventory_text(inventory: HostInventory) -> str:
    """Return everything that was discovered, each value with where it comes from, each unknown with its reason."""
    lines = [
        *_fact("host", inventory.name),
        *_fact("identity", inventory.host_id),
        *_cpu(inventory),
        *_fact("memory", inventory.ram_total_bytes, write=format_bytes),
        *_fact("memory available", inventory.ram_available_bytes, write=format_bytes),
        *_limit("memory limit", inventory.memory_limit_bytes, format_bytes),
        *_entry("envelopes held by", inventory.memory_mechanism, inventory.memory_mechanism_detail),
        *_huge_pages(inventory.huge_pages),
        *_fact("torch", inventory.accelerators.torch_version),
    ]
    for accelerator in inventory.accelerators.accelerators:
        lines += _accelerator(accelerator)
    if not inventory.accelerators.accelerators:
        lines += _entry("accelerators", "none that this build of torch can use")
    lines += _nvml(inventory)
    for interface in inventory.interfaces:
        lines += _interface(interface)
    lines += _addresses(inventory.interfaces)
    for disk in inventory.disks:
        lines += _disk(disk)
    for named in inventory.platform:
        lines += _fact(named.name, named.fact)
    return "\n".join(lines) + "\n"


def _cpu(inventory: HostInventory) -> list[str]:
    cpu = inventory.cpu
    lines = _fact("CPU", cpu.model_name)
    for name, fact in (("sockets", cpu.sockets), ("cores", cpu.cores), ("logical CPUs", cpu.logical_cpus)):
        lines += _fact(name, fact)
    lines += _fact("usable CPUs", cpu.usable_cpus)
    lines += _limit("CPU quota", inventory.cpu_quota, lambda cpus: f"{cpus:g} CPUs")
    names = ", ".join(cpu.isa_names) or "none that decide kernels"
    lines += _entry("instruction sets", names) if cpu.isa.known else _fact("instruction sets", cpu.isa)
    lines += _fact("last-level cache", cpu.last_level_cache_bytes, write=format_bytes)
    lines += _fact("NUMA nodes", cpu.numa_nodes)
    for node in cpu.numa:
        memory = node.memory_bytes
        parts = [
            f"CPUs {_ranges(node.cpus)}" if node.cpus else "no CPUs",
            "memory unknown" if memory.value is None else f"{format_bytes(memory.value)} of memory",
        ]
        parts += [f"distances {', '.join(map(str, node.distances))}"] if len(node.distances) > 1 else []
        lines += _entry(f"  NUMA node {node.index}", "; ".join(parts), "" if memory.known else memory.detail)
    return lines


def _huge_pages(pages: HugePages) -> list[str]:
    lines = _fact("huge pages", pages.transparent, write=lambda policy: f"transparent: {policy}")
    for pool in pages.pools:
        reserved, free = (_value(fact) for fact in (pool.num_pages, pool.num_free))
        lines += _entry(f"  of {format_bytes(pool.page_bytes)}", f"{reserved} set aside, {free} of them free")
    return lines


def _accelerator(accelerator: Accelerator) -> list[str]:
    lines = _entry("accelerator", f"{accelerator.kind} {accelerator.name}")
    lines += _fact("  identity", accelerator.uuid)
    lines += _fact("  memory", accelerator.memory_bytes, write=format_bytes)
    lines += _fact("  architecture", accelerator.architecture)
    lines += _fact("  bus", accelerator.bus)
    lines += _card(accelerator)
    return lines


def _card(card: Accelerator | NvmlCard) -> list[str]:
    pcie = card.pcie
    lines = _pair("  PCIe generation", pcie.generation, pcie.generation_max, str)
    lines += _pair("  PCIe lanes", pcie.width, pcie.width_max, str)
    if pcie.numa_index.known:
        lines += _fact("  slot on NUMA node", pcie.numa_index)
    lines += _fact("  power limit", card.power_limit_watts, write=lambda watts: f"{watts:g} W")
    lines += _pair("  compute clock", card.compute_clock_hertz, card.compute_clock_max_hertz, _megahertz)
    lines += _pair("  memory clock", card.memory_clock_hertz, card.memory_clock_max_hertz, _megahertz)
    return lines


def _nvml(inventory: HostInventory) -> list[str]:
    """Write what NVIDIA's library tells: its driver, and the cards that torch cannot use."""
    lines = _fact("NVIDIA driver", inventory.nvml.driver)
    seen = {item.uuid.value for item in inventory.accelerators.accelerators if item.uuid.known}
    for card in inventory.nvml.cards:
        if card.uuid.value in seen:
            continue
        lines += _fact("card without torch", card.name)
        lines += _fact("  identity", card.uuid)
        lines += _fact("  memory", card.memory_bytes, write=format_bytes)
        lines += _fact("  bus", card.bus)
        lines += _card(card)
    return lines


def _interface(interface: NetworkInterface) -> list[str]:
    addresses = ", ".join(address.address for address in interface.addresses) or "no address"
    state = "up" if interface.is_up else "down"
    lines = _entry(f"interface {interface.name}", f"{interface.kind}, {state}: {addresses}")
    lines += _fact("  speed", interface.bits_per_second, write=lambda bits: f"{bits / 1e6:g} Mbit/s")
    lines += _fact("  MTU", interface.mtu_bytes, write=lambda size: f"{size} B")
    for name, fact in (
        ("duplex", interface.duplex),
        ("carrier", interface.carrier),
        ("behind it", interface.physical),
    ):
        lines += _fact(f"  {name}", fact)
    return lines


def _addresses(interfaces: Sequence[NetworkInterface]) -> list[str]:
    """List the addresses that messages between Nodes may take; which of them do is measured."""
    usable = usable_addresses(interfaces, loopback=True)
    within = "within this computer"
    texts = [f"{item.address} ({within if item.reach == 'loopback' else item.interface})" for item in usable]
    return _entry("addresses for paths", ", ".join(texts) or "none: no interface that is up has one")


def _disk(disk: Disk) -> list[str]:
    lines = _entry("disk of", disk.path)
    for name, size in (("size", disk.total_bytes), ("free", disk.free_bytes)):
        lines += _fact(f"  {name}", size, write=format_bytes)
    for name, fact in (
        ("filesystem", disk.filesystem),
        ("mounted at", disk.mount_point),
        ("block device", disk.block_name),
        ("medium", disk.medium),
        ("model", disk.model),
    ):
        lines += _fact(f"  {name}", fact)
    return lines


def _pair(name: str, now: Fact[int], most: Fact[int], write: Callable[[int], str]) -> list[str]:
    """Write what holds now and the most that can, with where the first is from, or why it is unknown."""
    if now.value is None and most.value is None:
        return _entry(name, "unknown", now.detail)
    values = ["unknown" if fact.value is None else write(fact.value) for fact in (now, most)]
    return _entry(name, f"{values[0]} now, {values[1]} at most", now.detail)


def _value(fact: Fact[int]) -> str:
    return "an unknown number" if fact.value is None else f"{fact.value:,}"


def _megahertz(hertz: int) -> str:
    return f"{hertz / 1e6:,.0f} MHz"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Write ascending numbers as the kernel does.

    >>> _ranges((0, 1, 2, 8))
    '0-2,8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _fact(name: str, fact: Fact[Value], *, write: Callable[[Value], str] = str) -> list[str]:
    if fact.value is None:
        return _entry(name, "unknown", fact.detail)
    return _entry(name, write(fact.value), fact.detail)


def _limit(name: str, limit: Fact[Value] | None, write: Callable[[Value], str]) -> list[str]:
    if limit is None:
        return _entry(name, "none", "no group that is visible here sets one")
    return _fact(name, limit, write=write)


def _entry(name: str, value: str, note: str = "", width: int = _NAME_WIDTH) -> list[str]:
    """Return one entry: name, value, and the note beside it, or beneath it where it does not fit."""
    lead, rest = f"{name:{width}} ", " " * (width + 1)
    beside = f"{lead}{value}  ({note})"
    if note and len(beside) <= WIDTH:
        return [beside]
    lines = textwrap.wrap(value, WIDTH, initial_indent=lead, subsequent_indent=rest)
    if note:
        lines += textwrap.wrap(f"({note})", WIDTH, initial_indent=rest, subsequent_indent=rest)
    return lines
