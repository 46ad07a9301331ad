"""The PCIe link of a card, from sysfs: generation and width, now and at most. For cards of every maker.

A card that does nothing may have its link slowed down to save power: what holds now is no measure of what it gives
under load, and the most that card and slot agree on is no measure of what arrives. Copies are measured, not derived.
"""

from __future__ import annotations

import re
from pathlib import Path

from inferswarm.documents import Document
from inferswarm.resources.types import Fact, observed, unknown

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Generation by transfers per second and lane, in units of 10^9."""
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s")
_BUS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


class PcieLink(Document, frozen=True, kw_only=True):
    """Generation and width (lanes) of a card's PCIe link, now and the most that card and slot can do together."""

    generation: Fact[int]
    generation_max: Fact[int]
    width: Fact[int]
    width_max: Fact[int]
    numa_index: Fact[int]
    """The NUMA node that its slot belongs to."""


def unknown_pcie(reason: str) -> PcieLink:
    """Return a link of which nothing is known, and why."""
    nothing: Fact[int] = unknown(reason)
    return PcieLink(generation=nothing, generation_max=nothing, width=nothing, width_max=nothing, numa_index=nothing)


def sysfs_bus(bus: str) -> str | None:
    """Return a bus address as sysfs writes it, or None for what is no address.

    >>> sysfs_bus("00000000:3B:00.0"), sysfs_bus("3b:00")
    ('0000:3b:00.0', None)
    """
    match = _BUS.fullmatch(bus)
    if match is None:
        return None
    domain, *rest = (part.lower() for part in match.groups())
    return f"{int(domain, 16):04x}:{rest[0]}:{rest[1]}.{rest[2]}"


def parse_generation(text: str) -> int | None:
    """Return the PCIe generation of a speed as sysfs writes it, or None for one that is none.

    >>> parse_generation("8.0 GT/s PCIe"), parse_generation("Unknown")
    (3, None)
    """
    match = _SPEED.search(text)
    return None if match is None else _GENERATIONS.get(float(match[1]))


def read_pcie_link(bus: str, root: Path = Path("/")) -> PcieLink:
    """Return the PCIe link of the card at a bus address. Never raises: what cannot be read is unknown."""
    address = sysfs_bus(bus)
    if address is None:
        return unknown_pcie(f"{bus!r} is no PCI address")
    directory = root / "sys/bus/pci/devices" / address
    return PcieLink(
        generation=_generation(directory / "current_link_speed"),
        generation_max=_generation(directory / "max_link_speed"),
        width=_number(directory / "current_link_width", 1),
        width_max=_number(directory / "max_link_width", 1),
        numa_index=_number(directory / "numa_node", 0),
    )


def _generation(path: Path) -> Fact[int]:
    try:
        text = path.read_text().strip()
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    generation = parse_generation(text)
    return unknown(f"{path} holds {text[:40]!r}") if generation is None else observed(generation, str(path))


def _number(path: Path, at_least: int) -> Fact[int]:
    """Read a number; sysfs writes what it does not know as 0 lanes, 255 lanes, or node -1."""
    try:
        text = path.read_text().strip()
        number = int(text)
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    except ValueError:
        return unknown(f"{path} holds no number")
    if not at_least <= number < 255:
        return unknown(f"{path} holds {number}, the kernel's word for not known")
    return observed(number, str(path))
