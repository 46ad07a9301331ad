"""Which addresses of two Nodes may reach each other: pure lists, made of what the interfaces state.

An address pair is a source and a target of one family (IPv4, IPv6) and one reach. A loopback address reaches its own
computer only, so loopback pairs exist between Nodes of one host and nowhere else. A link-local address is used only
where a Node has no other, because it means nothing without the interface that it is seen from. Whether a pair really
connects, nobody knows until it is tried.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Literal, NamedTuple

from inferswarm.resources.network import AddressFamily, NetworkInterface
from inferswarm.resources.types import Fact

Reach = Literal["loopback", "wide", "link"]
_REACHES: tuple[Reach, ...] = ("loopback", "wide", "link")


class PathAddress(NamedTuple):
    """One address that messages may come from and go to, with its interface."""

    address: str
    """Without the zone of a link-local address."""
    family: AddressFamily
    reach: Reach
    network: str
    """The network that the mask tells (`192.0.2.0/24`); empty where the system states no mask."""
    interface: str
    mtu_bytes: Fact[int]
    bits_per_second: Fact[int]

    @property
    def local(self) -> str:
        """Return the address as its own computer writes it: a link-local one names its interface."""
        return f"{self.address}%{self.interface}" if self.reach == "link" else self.address


class AddressPair(NamedTuple):
    """One way between two Nodes: from an address of the first to an address of the second."""

    source: PathAddress
    target: PathAddress

    @property
    def addresses(self) -> tuple[str, str]:
        """Return both addresses, without zones: what records and people name the pair by."""
        return self.source.address, self.target.address

    @property
    def destination(self) -> str:
        """Return the target as the source writes it: a link-local one lies behind the source's interface."""
        return (
            f"{self.target.address}%{self.source.interface}" if self.target.reach == "link" else self.target.address
        )


def usable_addresses(interfaces: Iterable[NetworkInterface], *, loopback: bool) -> tuple[PathAddress, ...]:
    """Return the addresses of the interfaces that are up, loopback ones only when asked for.

    Sorted by reach, family and number. What is no address, and multicast and unspecified ones, are left out; of one
    address on two interfaces the first counts.
    """
    found: dict[str, PathAddress] = {}
    for interface in interfaces:
        for item in interface.addresses if interface.is_up else ():
            if item.family == "hardware":
                continue
            text = item.address.partition("%")[0]
            try:
                number = ipaddress.ip_address(text)
            except ValueError:
                continue
            if number.is_multicast or number.is_unspecified or str(number) in found:
                continue
            reach: Reach = "loopback" if number.is_loopback else "link" if number.is_link_local else "wide"
            found[str(number)] = PathAddress(
                address=str(number),
                family=item.family,
                reach=reach,
                network=_network(text, item.mask),
                interface=interface.name,
                mtu_bytes=interface.mtu_bytes,
                bits_per_second=interface.bits_per_second,
            )
    beyond: Reach = "wide" if any(item.reach == "wide" for item in found.values()) else "link"
    kept = {beyond, "loopback"} if loopback else {beyond}
    return tuple(sorted((item for item in found.values() if item.reach in kept), key=_order))


def address_pairs(sources: Sequence[PathAddress], targets: Sequence[PathAddress]) -> tuple[AddressPair, ...]:
    """Return every pair of one family and one reach; those of one network first, then in the order given."""
    pairs = [
        AddressPair(source, target)
        for source in sources
        for target in targets
        if (source.family, source.reach) == (target.family, target.reach)
    ]
    return tuple(
        sorted(pairs, key=lambda pair: not (pair.source.network and pair.source.network == pair.target.network))
    )


def _network(address: str, mask: str) -> str:
    """Return the network of an address; an IPv6 mask comes as an address, of which the leading ones count."""
    try:
        prefix = int(ipaddress.ip_address(mask)).bit_count()
        return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))
    except ValueError:
        return ""


def _order(item: PathAddress) -> tuple[int, str, int]:
    return _REACHES.index(item.reach), item.family, int(ipaddress.ip_address(item.address))


def pairs_on_one_machine(
    node_ids: Iterable[str], interfaces: Sequence[NetworkInterface]
) -> dict[tuple[str, str], tuple[AddressPair, ...]]:
    """Return the address pairs of every directed pair of Nodes that are all on the computer with these interfaces.

    A Node is paired with itself too, over loopback addresses alone: several of its Compute Units may take part.
    """
    addresses = usable_addresses(interfaces, loopback=True)
    pairs = address_pairs(addresses, addresses)
    within = tuple(pair for pair in pairs if pair.source.reach == "loopback")
    nodes = sorted(set(node_ids))
    return {(source, target): within if source == target else pairs for source, target in product(nodes, nodes)}
