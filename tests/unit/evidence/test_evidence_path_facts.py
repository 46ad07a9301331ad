"""Facts of address pairs: what changes at one interface makes stale the records of its pairs and no others."""

from __future__ import annotations

import msgspec

from inferswarm.evidence.currency import Currency, find_stale, with_facts
from inferswarm.evidence.facts import facts_of, path_subject
from inferswarm.evidence.path_facts import with_address_pairs
from inferswarm.evidence.types import Observation, make_context
from inferswarm.resources.address_pairs import pairs_on_one_machine
from inferswarm.resources.network import NetworkInterface
from inferswarm.resources.types import Envelope, ResourceGraph, observed, unknown
from inferswarm.resources.virtual import graph_of_envelopes
from tests.unit.evidence.evidence_samples import NOW
from tests.unit.resources.resources_samples import make_interface, make_inventory

ENVELOPES = tuple(Envelope(name=name, threads=1, memory_bytes=10**9) for name in ("birch", "oak"))
GRAPH = graph_of_envelopes(make_inventory(), "swarm", ENVELOPES, {}, "none", backends=("torch",))
NETWORKED = msgspec.structs.replace(
    GRAPH, links=tuple(msgspec.structs.replace(link, kind="ethernet") for link in GRAPH.links)
)
SOURCE, TARGET = (node.id for node in GRAPH.nodes)
FIRST, SECOND = make_interface("eth0", "10.0.0.1"), make_interface("eth1", "10.9.0.1")


def currency(*interfaces: NetworkInterface, graph: ResourceGraph = GRAPH) -> Currency:
    pairs = pairs_on_one_machine((SOURCE, TARGET), interfaces)
    return Currency(with_address_pairs(facts_of(graph), pairs), NOW + 10**9, undetermined_applies=True)


def records(*interfaces: NetworkInterface, graph: ResourceGraph = GRAPH) -> list[Observation]:
    """Return one record for each address pair of one direction, with every fact that was in force."""
    return [
        with_facts(
            Observation(
                subject=path_subject(SOURCE, TARGET, pair.addresses),
                metric="message-seconds",
                unit="s",
                samples=(1e-4,),
                context=make_context(payload_bytes=4096),
                protocol="message-seconds/3",
                taken_at_ns=str(NOW),
                producer="test",
            ),
            currency(*interfaces, graph=graph).facts,
        )
        for pair in pairs_on_one_machine((SOURCE, TARGET), interfaces)[SOURCE, TARGET]
    ]


def stale_pairs(before: list[Observation], now: Currency) -> dict[str, list[str]]:
    """Return the stale records by their addresses, with the facts that changed."""
    return {
        item.subject.partition(" over ")[2]: [finding.key for finding in item.findings]
        for item in find_stale(before, now)
    }


def test_a_record_states_its_addresses_their_mtu_and_that_no_network_lies_between() -> None:
    (record,) = records(FIRST)
    stated = {item.key: item.value for item in record.context}
    assert stated["addresses"] == "10.0.0.1>10.0.0.1"
    assert stated["mtu"] == "1500>1500"
    assert stated["link.kind"] == "loopback"
    assert "link.rate" not in stated


def test_another_mtu_makes_stale_the_pairs_of_that_interface_alone() -> None:
    wider = msgspec.structs.replace(SECOND, mtu_bytes=observed(9000, "test"))
    assert stale_pairs(records(FIRST, SECOND), currency(FIRST, wider)) == {
        "10.9.0.1->10.9.0.1": ["mtu"],
        "10.0.0.1->10.9.0.1": ["mtu"],
        "10.9.0.1->10.0.0.1": ["mtu"],
    }


def test_an_address_that_is_gone_takes_its_pairs_with_it() -> None:
    moved = make_interface("eth1", "10.9.0.2")
    assert stale_pairs(records(FIRST, SECOND), currency(FIRST, moved)) == {
        "10.9.0.1->10.9.0.1": ["subject"],
        "10.0.0.1->10.9.0.1": ["subject"],
        "10.9.0.1->10.0.0.1": ["subject"],
    }
    assert stale_pairs(records(FIRST, SECOND), currency(SECOND, FIRST)) == {}


def test_another_speed_matters_where_a_network_lies_between_and_not_within_one_host() -> None:
    slower = msgspec.structs.replace(FIRST, bits_per_second=observed(10**8, "test"))
    assert stale_pairs(records(FIRST, graph=NETWORKED), currency(slower, graph=NETWORKED)) == {
        "10.0.0.1->10.0.0.1": ["link.rate"]
    }
    assert stale_pairs(records(FIRST), currency(slower)) == {}


def test_an_mtu_that_is_not_stated_makes_nothing_stale() -> None:
    silent = msgspec.structs.replace(FIRST, mtu_bytes=unknown("the driver states no MTU"))
    assert stale_pairs(records(FIRST), currency(silent)) == {}
    (finding,) = currency(silent).standing(records(FIRST)[0]).findings
    assert finding.detail == "mtu is unknown now: MTU at the source: the driver states no MTU"
