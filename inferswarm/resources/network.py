"""Network interfaces with every address, and what the driver says of speed, MTU, duplex and carrier."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

import psutil

from inferswarm.documents import Document
from inferswarm.resources.types import Fact, observed, unknown

AddressFamily = Literal["ipv4", "ipv6", "hardware"]
InterfaceKind = Literal["loopback", "ethernet", "wireless", "other"]
_STATS = "psutil.net_if_stats"


class NetworkAddress(Document, frozen=True, kw_only=True):
    """One address of an interface; `mask` is empty when the system states none."""

    family: AddressFamily
    address: str
    mask: str = ""


class NetworkInterface(Document, frozen=True, kw_only=True):
    """One network interface with all its addresses. Its name is for people: identities never use it."""

    name: str
    kind: InterfaceKind
    is_up: bool
    """Whether it is switched on; `carrier` says whether anything is at the other end."""
    bits_per_second: Fact[int]
    mtu_bytes: Fact[int]
    duplex: Fact[str] = unknown("not asked")
    """`full` or `half`."""
    carrier: Fact[str] = unknown("not asked")
    """`present` or `absent`: whether the cable or the radio is connected."""
    physical: Fact[str] = unknown("not asked")
    """`adapter` where hardware is behind it, `software` for bridges, tunnels and the like."""
    addresses: tuple[NetworkAddress, ...]


def read_interfaces(root: Path = Path("/")) -> tuple[NetworkInterface, ...]:
    """Return the network interfaces, sorted by name. What a driver does not state is unknown."""
    families: dict[int, AddressFamily] = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6", psutil.AF_LINK: "hardware"}
    found: list[NetworkInterface] = []
    stats = psutil.net_if_stats()
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state = stats.get(name)
        speed, mtu = (0, 0) if state is None else (state.speed, state.mtu)
        directory = root / "sys/class/net" / name
        found.append(
            NetworkInterface(
                name=name,
                kind=_kind("" if state is None else state.flags, directory),
                is_up=state is not None and state.isup,
                bits_per_second=observed(speed * 10**6, _STATS) if speed else unknown("the driver states no speed"),
                mtu_bytes=observed(mtu, _STATS) if mtu else unknown("the driver states no MTU"),
                duplex=read_duplex(directory),
                carrier=read_carrier(directory),
                physical=read_backing(directory),
                addresses=tuple(
                    NetworkAddress(family=families[item.family], address=item.address, mask=item.netmask or "")
                    for item in addresses
                    if item.family in families
                ),
            )
        )
    return tuple(found)


def _kind(flags: str, directory: Path) -> InterfaceKind:
    if "loopback" in flags.split(","):
        return "loopback"
    if (directory / "wireless").exists() or (directory / "phy80211").exists():
        return "wireless"
    try:
        # 1 is ARPHRD_ETHER: cables, and what virtual machines and containers present as one.
        return "ethernet" if (directory / "type").read_text().strip() == "1" else "other"
    except OSError:
        return "other"


def read_duplex(directory: Path) -> Fact[str]:
    """Return `full` or `half` from an interface's sysfs directory; unknown where the driver states neither."""
    path = directory / "duplex"
    try:
        text = path.read_text().strip()
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    return observed(text, str(path)) if text in ("full", "half") else unknown(f"the driver states {text!r}")


def read_carrier(directory: Path) -> Fact[str]:
    """Return `present` or `absent` from an interface's sysfs directory; unknown while it is switched off."""
    path = directory / "carrier"
    try:
        text = path.read_text().strip()
    except OSError as error:  # the kernel refuses to answer for an interface that is down
        return unknown(f"{path}: {error.strerror}")
    words = {"0": "absent", "1": "present"}
    return observed(words[text], str(path)) if text in words else unknown(f"{path} holds {text!r}")


def read_backing(directory: Path) -> Fact[str]:
    """Return `adapter` where the kernel knows hardware behind an interface, `software` where it knows none."""
    if not directory.is_dir():
        return unknown(f"{directory} is not there")
    return observed("adapter" if (directory / "device").exists() else "software", str(directory))
