"""Which addresses may reach each other: of one family and one reach, link-local ones where there are no others."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.resources.address_pairs import address_pairs, pairs_on_one_machine, usable_addresses
from inferswarm.resources.network import NetworkAddress, NetworkInterface, read_interfaces
from tests.unit.resources.resources_samples import make_interface


def interface(name: str, *addresses: tuple[str, str], **changes: object) -> NetworkInterface:
    """Return an interface with these addresses and masks."""
    found = tuple(
        NetworkAddress(family="ipv6" if ":" in text else "ipv4", address=text, mask=mask) for text, mask in addresses
    )
    return msgspec.structs.replace(make_interface(name, "0.0.0.0"), addresses=found, **changes)  # type: ignore[arg-type]


LO = interface("lo", ("127.0.0.1", "255.0.0.0"), ("::1", "ffff:" * 7 + "ffff"))
ETH = interface(
    "eth0", ("10.0.0.5", "255.255.255.0"), ("fd00::5", "ffff:ffff:ffff:ffff::"), ("fe80::5%eth0", "ffff::")
)
LINK_ONLY = interface("eth1", ("fe80::9%eth1", "ffff:ffff:ffff:ffff::"))


@pytest.mark.parametrize(
    ("interfaces", "loopback", "expected"),
    [
        ((LO, ETH), True, ["127.0.0.1", "::1", "10.0.0.5", "fd00::5"]),
        ((LO, ETH), False, ["10.0.0.5", "fd00::5"]),
        ((LO, LINK_ONLY), False, ["fe80::9"]),
        ((ETH, LINK_ONLY), False, ["10.0.0.5", "fd00::5"]),
        ((msgspec.structs.replace(ETH, is_up=False),), False, []),
        ((interface("e", ("0.0.0.0", ""), ("224.0.0.1", ""), ("fe:ff", ""), ("10.0.0.7", "")),), False, ["10.0.0.7"]),
        ((interface("a", ("10.0.0.9", "")), interface("b", ("10.0.0.9", ""))), False, ["10.0.0.9"]),
    ],
)
def test_addresses_of_interfaces_that_are_up_are_usable(
    interfaces: tuple[NetworkInterface, ...], loopback: bool, expected: list[str]
) -> None:
    assert [item.address for item in usable_addresses(interfaces, loopback=loopback)] == expected


def test_an_address_brings_its_interface_and_its_network() -> None:
    four, six = usable_addresses((ETH,), loopback=False)
    assert (four.interface, four.network, four.mtu_bytes.value, four.bits_per_second.value) == (
        "eth0",
        "10.0.0.0/24",
        1500,
        10**9,
    )
    assert six.network == "fd00::/64"


def test_pairs_are_of_one_family_and_reach_and_those_of_one_network_come_first() -> None:
    near = interface("eth0", ("10.0.1.2", "255.255.255.0"), ("10.0.0.6", "255.255.255.0"), ("fd01::6", ""))
    pairs = address_pairs(usable_addresses((LO, ETH), loopback=True), usable_addresses((LO, near), loopback=True))
    assert [pair.addresses for pair in pairs] == [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("10.0.0.5", "10.0.0.6"),
        ("10.0.0.5", "10.0.1.2"),
        ("fd00::5", "fd01::6"),
    ]


def test_a_link_local_target_lies_behind_the_interface_of_the_source() -> None:
    other = usable_addresses((interface("wlan3", ("fe80::1%wlan3", "")),), loopback=False)
    (pair,) = address_pairs(usable_addresses((LINK_ONLY,), loopback=False), other)
    assert pair.addresses == ("fe80::9", "fe80::1")
    assert (pair.source.local, pair.destination, pair.target.local) == (
        "fe80::9%eth1",
        "fe80::1%eth1",
        "fe80::1%wlan3",
    )


def test_nodes_of_one_host_meet_over_all_its_addresses_and_a_node_itself_over_loopback() -> None:
    pairs = pairs_on_one_machine(("b", "a", "b"), read_interfaces())
    assert list(pairs) == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]
    assert ("127.0.0.1", "127.0.0.1") in {pair.addresses for pair in pairs["a", "b"]}
    assert {pair.source.reach for pair in pairs["a", "a"]} == {"loopback"}
