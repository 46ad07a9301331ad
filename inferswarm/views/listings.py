"""Lists for the terminal: what a machine has, and what `doctor` found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from inferswarm.resources.discovery import HostInventory
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
    cpu = inventory.cpu
    lines = [
        *_fact("host", inventory.name),
        *_fact("identity", inventory.host_id),
        *_fact("CPU", cpu.model_name),
        *_fact("usable CPUs", cpu.usable_cpus),
        *_entry("instruction sets", ", ".join(cpu.isa_names) or "none that decide kernels"),
        *_fact("last-level cache", cpu.last_level_cache_bytes, is_bytes=True),
        *_fact("memory", inventory.ram_total_bytes, is_bytes=True),
        *_fact("memory available", inventory.ram_available_bytes, is_bytes=True),
        *_limit(inventory),
        *_entry("envelopes held by", inventory.memory_mechanism, inventory.memory_mechanism_detail),
        *_fact("torch", inventory.accelerators.torch_version),
    ]
    for accelerator in inventory.accelerators.accelerators:
        lines += _entry("accelerator", f"{accelerator.kind} {accelerator.name}", accelerator.uuid.detail)
    if not inventory.accelerators.accelerators:
        lines += _entry("accelerators", "none that this build of torch can use")
    for interface in inventory.interfaces:
        addresses = ", ".join(address.address for address in interface.addresses) or "no address"
        lines += _entry(f"interface {interface.name}", f"{interface.kind}: {addresses}")
    for disk in inventory.disks:
        lines += _fact("disk, free", disk.free_bytes, is_bytes=True, note=disk.path)
    for named in inventory.platform:
        lines += _fact(named.name, named.fact)
    return "\n".join(lines) + "\n"


def _fact(name: str, fact: Fact[Value], *, is_bytes: bool = False, note: str = "") -> list[str]:
    if fact.value is None:
        return _entry(name, "unknown", fact.detail)
    value = format_bytes(float(fact.value)) if is_bytes else str(fact.value)
    return _entry(name, value, note or fact.detail)


def _limit(inventory: HostInventory) -> list[str]:
    if inventory.memory_limit_bytes is None:
        return _entry("memory limit", "none", "no group that is visible here sets one")
    return _fact("memory limit", inventory.memory_limit_bytes, is_bytes=True)


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
