from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import DocumentError, SpecError
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.topology import MAX_NODES, Topology, load_topology, read_topology
from inferswarm.resources.types import Fact, Link
from tests.unit.resources.topology_samples import CARD, CPU, HEAD, LAN, MEMORY, link, node, topology


def read(*tables: str) -> Topology:
    return read_topology(topology(*tables), "test.toml")


def named_links(found: Topology) -> dict[tuple[str, str], Link]:
    names = {item.id: item.name for item in found.graph.nodes}
    return {(names[item.source], names[item.target]): item for item in found.graph.links}


def facts_in(value: Any) -> list[Fact[Any]]:
    """Return every fact that a document holds, at any depth."""
    if isinstance(value, Fact):
        return [value]
    if isinstance(value, msgspec.Struct):
        return [fact for name in value.__struct_fields__ for fact in facts_in(getattr(value, name))]
    return [fact for item in value for fact in facts_in(item)] if isinstance(value, tuple) else []


def test_every_fact_is_declared_and_none_observed() -> None:
    found = read(node("a", MEMORY, CPU, CARD), node("b"), LAN)
    facts = facts_in(found)
    assert len(facts) > 10
    assert {fact.provenance for fact in facts} == {"declared"}
    assert {fact.detail for fact in facts} == {"declared by topology test"}


def test_what_is_not_declared_is_unknown_with_its_place() -> None:
    bare = '\n[[node.memory]]\nname = "ram"\nkind = "ram"\n'
    found = read(node("a", bare), node("b"), link("a", "b", rate=None, latency=None))
    memory = found.graph.memory_resources[0]
    assert "node 'a': memory 'ram': capacity" in memory.capacity_bytes.detail
    assert "node 'a': memory 'ram': reserved" in memory.reserved_bytes.detail
    (wire,) = found.graph.links
    assert not wire.nominal_bits_per_second.known
    assert "link 'a' → 'b'" in wire.nominal_latency_seconds.detail


def test_a_declared_graph_survives_its_document_and_keeps_its_digest() -> None:
    found = read(node("a", MEMORY, CPU, CARD), node("b"), LAN)
    again = read_document(Topology, write_document(found), "test")
    assert again == found
    assert digest(again.graph) == digest(found.graph)
    assert digest(read(node("a", MEMORY, CPU, CARD), node("b"), LAN).graph) == digest(found.graph)


def test_a_node_holds_several_units_and_memories() -> None:
    found = read(node("a", MEMORY, CPU, CARD))
    swarm = SwarmGraph(found.graph)
    cpu, gpu = (next(unit for unit in found.graph.compute_units if unit.kind == kind) for kind in ("cpu", "cuda"))
    assert [memory.kind for memory in swarm.memory_of(gpu.id)] == ["vram", "ram"]
    assert swarm.memory_of(cpu.id) == (swarm.memory_of(gpu.id)[1],)
    assert gpu.capabilities == ("backend:torch", "representation:bf16", "representation:fp32")
    assert (cpu.threads, gpu.threads) == (4, 1)


def test_figures_stand_beside_the_graph_with_their_resource() -> None:
    found = read(node("a", MEMORY, CPU, CARD))
    gpu = next(unit for unit in found.graph.compute_units if unit.kind == "cuda")

    def value(subject: str, *what: Any) -> float | None:
        figure = found.figure(subject, *what)
        return None if figure is None else figure.value.value

    assert value(gpu.memory_ids[0], "read-bandwidth") == 400e9
    assert value(gpu.id, "arithmetic", "bf16") == 20e12
    assert value(gpu.id, "arithmetic", "int8") is None
    assert value(gpu.id, "unit-overhead") == 80e-6
    assert (value(gpu.id, "copy-into-rate"), value(gpu.id, "copy-out-rate")) == (20e9, 10e9)
    assert value(gpu.id, "copy-latency") == 10e-6
    assert {figure.id.split(":")[0] for figure in found.figures} == {"declared"}
    assert len({figure.id for figure in found.figures}) == len(found.figures)


NUMA = """
[[node]]
name = "two"
[[node.memory]]
name = "near"
kind = "ram"
[[node.memory]]
name = "far"
kind = "ram"
[[node.compute_unit]]
name = "s0"
kind = "cpu"
memory = ["near", "far"]
backends = []
representations = []
[[node.compute_unit]]
name = "s1"
kind = "cpu"
memory = ["far", "near"]
backends = []
representations = []
"""


def test_two_sockets_are_two_units_that_reach_each_others_memory() -> None:
    swarm = SwarmGraph(read(NUMA).graph)
    first, second = swarm.document.compute_units
    assert swarm.memory_of(first.id) == swarm.memory_of(second.id)[::-1]
    path = swarm.path(first.id, second.id)
    assert path is not None
    assert [hop.kind for hop in path] == ["copy"]


def test_copies_are_alike_nodes_with_names_and_identities_of_their_own() -> None:
    found = read(node("pc").replace('"pc"', '"pc"\ncopies = 3'), LAN)
    assert [item.name for item in found.graph.nodes] == ["pc-1", "pc-2", "pc-3"]
    assert len({item.id for item in found.graph.nodes}) == 3
    assert len({item.host_id for item in found.graph.nodes}) == 3
    assert not any(item.virtual for item in found.graph.nodes)
    assert len(found.graph.links) == 6


def test_nodes_of_one_computer_are_virtual_and_fail_together() -> None:
    shared = 'same_computer = "box"\n'
    found = read(node("a", shared, MEMORY, CPU), node("b", shared, MEMORY, CPU), node("box"))
    first, second, alone = found.graph.nodes
    assert first.host_id == second.host_id != alone.host_id
    assert [item.virtual for item in found.graph.nodes] == [True, True, False]


def test_a_way_over_several_nodes_is_its_hops_and_no_link_is_invented() -> None:
    found = read(*map(node, "abc"), link("a", "b", both_ways=True), link("b", "c", both_ways=True))
    swarm = SwarmGraph(found.graph)
    a, _, c = (swarm.node_named(name).id for name in "abc")
    assert swarm.links_between(a, c) == ()
    path = swarm.path(a, c)
    assert path is not None
    assert [hop.kind for hop in path] == ["link", "link"]


def test_a_link_leads_one_way_unless_both_are_declared() -> None:
    found = read(node("a"), node("b"), link("a", "b", rate="100 Mbit/s"))
    swarm = SwarmGraph(found.graph)
    a, b = (swarm.node_named(name).id for name in "ab")
    assert swarm.path(a, b) is not None
    assert swarm.path(b, a) is None


def test_two_directions_may_differ() -> None:
    found = read(
        node("a"), node("b"), link("a", "b", rate="20 Mbit/s"), link("b", "a", rate="200 Mbit/s", latency="9 ms")
    )
    links = named_links(found)
    assert links["a", "b"].nominal_bits_per_second.value == 20_000_000
    assert links["b", "a"].nominal_bits_per_second.value == 200_000_000
    assert links["b", "a"].nominal_latency_seconds.value == 0.009


def test_a_link_that_is_not_available_stays_in_the_graph_and_carries_nothing() -> None:
    found = read(node("a"), node("b"), link("a", "b", available=False))
    swarm = SwarmGraph(found.graph)
    assert len(found.graph.links) == 1
    assert swarm.path(swarm.node_named("a").id, swarm.node_named("b").id) is None


def test_a_switch_shares_each_nodes_port_among_its_own_links_only() -> None:
    found = read(*map(node, "abc"), LAN)
    swarm = SwarmGraph(found.graph)
    links = named_links(found)
    out = {pair: swarm.segments_of(item.id)[0] for pair, item in links.items()}
    into = {pair: swarm.segments_of(item.id)[-1] for pair, item in links.items()}
    assert out["a", "b"] == out["a", "c"] != out["b", "a"]
    assert into["a", "c"] == into["b", "c"] != out["c", "a"]  # both ways at once: full duplex
    assert {len(item.segments) for item in found.graph.links} == {2}
    assert len(swarm.links_over(out["a", "b"].id)) == 2
    assert len(found.graph.segments) == 6


def test_a_switch_with_a_fabric_shares_it_among_all() -> None:
    found = read(*map(node, "abcd"), LAN + 'fabric = "1.5 Gbit/s"\n')
    swarm = SwarmGraph(found.graph)
    shared = next(segment for segment in found.graph.segments if segment.name == "lan:fabric")
    assert len(swarm.links_over(shared.id)) == 12
    assert {len(item.segments) for item in found.graph.links} == {3}


def test_a_port_that_is_different_narrows_its_links_in_its_direction() -> None:
    port = '[[network.port]]\nnodes = ["a"]\nsend = "20 Mbit/s"\nreceive = "200 Mbit/s"\n'
    links = named_links(read(*map(node, "abc"), LAN, port))
    rates = {pair: item.nominal_bits_per_second.value for pair, item in links.items()}
    assert rates["a", "b"] == 20_000_000
    assert rates["b", "a"] == 200_000_000
    assert rates["b", "c"] == 10**9


def test_a_medium_is_one_segment_of_every_link() -> None:
    radio = LAN.replace('"switch"', '"medium"').replace('"ethernet"', '"wireless"')
    found = read(*map(node, "abc"), radio)
    (segment,) = found.graph.segments
    assert {item.segments for item in found.graph.links} == {(segment.id,)}
    assert {item.kind for item in found.graph.links} == {"wireless"}


def island(name: str, nodes: str) -> str:
    return LAN.replace('"lan"', f'"{name}"').replace('"*"', nodes)


BRIDGE = """
[[bridge]]
name = "line"
kind = "other"
between = ["left", "right"]
rate = "50 Mbit/s"
rate_back = "10 Mbit/s"
latency = "5 ms"
"""


def test_a_bridge_joins_two_networks_over_one_stretch_for_each_direction() -> None:
    found = read(*map(node, "abcd"), island("left", '"a", "b"'), island("right", '"c", "d"'), BRIDGE)
    swarm = SwarmGraph(found.graph)
    links = named_links(found)
    assert len(links) == 2 + 2 + 4 + 4
    assert links["a", "c"].nominal_bits_per_second.value == 50_000_000
    assert links["c", "a"].nominal_bits_per_second.value == 10_000_000
    assert links["a", "c"].nominal_latency_seconds.value == pytest.approx(0.0054)
    assert [segment.name for segment in swarm.segments_of(links["a", "c"].id)] == [
        "left:a:send",
        "line:there",
        "right:c:receive",
    ]
    there = next(segment for segment in found.graph.segments if segment.name == "line:there")
    assert len(swarm.links_over(there.id)) == 4


def test_links_that_name_a_segment_share_it_and_are_no_faster() -> None:
    cable = '\n[[segment]]\nname = "cable"\nkind = "ethernet"\nrate = "100 Mbit/s"\n'
    pairs = (("a", "b"), ("a", "c"))
    found = read(*map(node, "abc"), cable, *(link(*pair, segments=["cable"]) for pair in pairs))
    assert {item.nominal_bits_per_second.value for item in found.graph.links} == {100_000_000}
    assert len({item.segments for item in found.graph.links}) == 1


def replaced(old: str, new: str, text: str = topology(node("a", MEMORY, CPU, CARD), node("b"), LAN)) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has the format None"),
        ("not toml at all", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ('name = "a"\nname = "b"\n', "is not TOML"),
        (replaced("topology/1", "topology/2"), "topology/2"),
        (replaced('summary = "A topology for tests."\n', ""), "missing required field `summary`"),
        (replaced("threads = 4", "thread = 4"), r"unknown field `thread` - at `\$.node\[0\].compute_unit\[0\]`"),
        (replaced("rate = ", "speed = "), r"at `\$.network\[0\]`"),
        (replaced("threads = 4", 'threads = "4"'), "compute_unit"),
        (replaced("threads = 4", "threads = 0"), "threads"),
        (replaced("threads = 4", "threads = true"), "threads"),
        (replaced('capacity = "16 GiB"', "capacity = 17179869184"), "capacity"),
        (replaced('latency = "200 us"', "latency = nan"), "latency"),
        (replaced('kind = "cuda"', 'kind = "gpu"'), "'gpu'"),
        (replaced('name = "a"', 'name = "a b"'), "name"),
        (replaced('name = "a"', 'name = ""'), "name"),
        (replaced('memory = ["ram"]', "memory = []"), "memory"),
        (replaced('sharing = "switch"', 'sharing = "bus"'), "'bus'"),
        (HEAD, "missing required field `node`"),
        (HEAD + "node = []\n", "node"),
        (replaced('name = "a"', 'name = "a"\ncopies = 1001'), "copies"),
        (HEAD + "x = " + "[" * 3000 + "]" * 3000, "is not TOML"),
    ],
)
def test_a_text_of_another_form_is_refused_with_the_place(text: str | bytes, says: str) -> None:
    with pytest.raises(DocumentError, match=says) as caught:
        read_topology(text, "my.toml")
    assert caught.value.source == "my.toml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (replaced('"16 GiB"', '"16 gigs"'), "node 'a': memory 'ram': capacity"),
        (replaced('"400 GB/s"', '"400 GB"'), "node 'a': memory 'vram': read_bandwidth"),
        (replaced('"1 TFLOP/s"', '"1 TFLOPS"'), "node 'a': compute unit 'cpu': arithmetic.bf16"),
        (replaced("{ bf16", "{ int8"), "arithmetic.int8"),
        (replaced('"50 us"', '"50"'), "unit_overhead"),
        (replaced('into = "20 GB/s"', 'into = "0 GB/s"'), "copy.into"),
        (replaced('"1 Gbit/s"', '"1 Gb/s"'), "network 'lan': rate"),
        (replaced('memory = ["ram"]', 'memory = ["rom"]'), "found \\['rom'\\]"),
        (replaced('["vram", "ram"]', '["vram", "vram"]'), "each memory once"),
        (replaced('name = "vram"', 'name = "ram"'), "memory names"),
        (replaced('name = "gpu"', 'name = "cpu"'), "compute unit names"),
        (replaced('name = "b"', 'name = "a"'), "node names"),
        (replaced('nodes = ["*"]', 'nodes = ["c*"]'), "network 'lan': nodes"),
        (topology(node("a"), link("a", "b")), "link 'a' → 'b'"),
        (topology(node("a"), link("a", "a")), "two different Nodes"),
        (topology(node("a"), node("b"), link("a", "b"), link("a", "b")), "each pair of Nodes once"),
        (topology(node("a"), node("b"), link("a", "b", segments=["x"])), "segments"),
        (topology(node("a"), LAN, LAN), "network names"),
        (topology(node("a"), node("b"), island("left", '"a"'), BRIDGE), "found \\['right'\\]"),
        (topology(node("a"), island("left", '"a"'), island("right", '"a"'), BRIDGE), "without a Node in common"),
        (topology(node("a"), LAN.replace('"switch"', '"medium"'), 'fabric = "1 Gbit/s"\n'), "ports or a fabric"),
        (topology(*[node("p").replace('"p"', f'"p{index}"\ncopies = 600') for index in (1, 2)]), str(MAX_NODES)),
        (topology(node("p").replace('"p"', '"p"\ncopies = 900'), LAN), "number of Links"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read_topology(text, "my.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no-such"):
        load_topology(tmp_path / "no-such.toml")


def test_identities_come_from_names_and_not_from_places() -> None:
    first = read(node("a"), node("b"), LAN)
    second = read(node("b"), node("a"), LAN)
    assert {item.id for item in first.graph.nodes} == {item.id for item in second.graph.nodes}
    assert {item.id for item in first.graph.links} == {item.id for item in second.graph.links}
    elsewhere = read_topology(topology(node("a"), node("b"), LAN).replace('"test"', '"other"'), "test")
    assert not {item.id for item in elsewhere.graph.nodes} & {item.id for item in first.graph.nodes}


SHIPPED = sorted((Path(__file__).resolve().parents[3] / "experiments" / "topologies").glob("*.toml"))
SIZES = {"campus-200": 200, "home-pair": 2, "mixed-24": 24, "three-unlike": 3, "two-islands": 6, "x1-riser": 2}


def test_the_library_is_complete() -> None:
    assert {path.stem for path in SHIPPED} == set(SIZES)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_topology_is_whole(path: Path) -> None:
    found = load_topology(path)
    assert found.name == path.stem
    assert len(found.graph.nodes) == SIZES[path.stem]
    text = msgspec.json.encode(found)
    assert text.count(b'"provenance":') == text.count(b'"provenance":"declared"') > 10
    assert all(item.capacity_bytes.value > item.reserved_bytes.value for item in found.graph.memory_resources)
    for unit in found.graph.compute_units:
        assert found.figure(unit.memory_ids[0], "read-bandwidth") is not None
        assert found.figure(unit.id, "unit-overhead") is not None
        assert found.figure(unit.id, "arithmetic", "bf16") is not None
    comment = path.read_text(encoding="utf-8").split("format =")[0]
    assert "Where the numbers come from" in comment
    assert len(found.graph.links) == len(found.graph.nodes) * (len(found.graph.nodes) - 1)
