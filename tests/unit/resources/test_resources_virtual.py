from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import DiscoveryError, SpecError
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.types import Envelope, ResourceGraph, observed, unknown
from inferswarm.resources.virtual import UNMEASURED_BASE, graph_of_envelopes, graph_of_host, with_reserved
from tests.unit.resources.resources_samples import make_accelerator, make_inventory

BIRCH = Envelope(name="birch", threads=1, memory_bytes=400_000_000)
OAK = Envelope(name="oak", threads=2, memory_bytes=500_000_000)
TORCH = ("null", "torch")


def test_a_host_is_one_node_with_all_its_cores_and_memory() -> None:
    graph = graph_of_host(make_inventory(), "swarm-1", backends=TORCH)
    SwarmGraph(graph)
    assert [(node.name, node.virtual, node.host_id) for node in graph.nodes] == [
        ("elm", False, "host-00000000000000aa")
    ]
    (cpu,), (ram,) = graph.compute_units, graph.memory_resources
    assert (cpu.threads, cpu.kind) == (4, "cpu")
    assert cpu.capabilities == (
        "backend:null",
        "backend:torch",
        "isa:avx2",
        "isa:avx512f",
        "representation:bf16",
        "representation:fp32",
    )
    assert ram.capacity_bytes.value == 16_000_000_000
    assert (ram.reserved_bytes.value, ram.reserved_bytes.detail) == (None, UNMEASURED_BASE)
    assert ram.enforcement == "none"


def test_a_limit_on_the_host_is_its_capacity_and_is_enforced() -> None:
    graph = graph_of_host(make_inventory(limit=observed(2_000_000_000, "test")), "swarm-1")
    (ram,) = graph.memory_resources
    assert (ram.capacity_bytes.value, ram.enforcement) == (2_000_000_000, "cgroup-v2")


def test_unknown_memory_stays_unknown() -> None:
    graph = graph_of_host(make_inventory(total=unknown("not told")), "swarm-1")
    assert graph.memory_resources[0].capacity_bytes == unknown("not told")


def test_an_accelerator_is_a_unit_with_its_own_memory_beside_ram() -> None:
    swarm = SwarmGraph(
        graph_of_host(make_inventory(accelerators=(make_accelerator("aa"),)), "swarm-1", backends=TORCH)
    )
    card = next(unit for unit in swarm.document.compute_units if unit.kind == "cuda")
    assert [memory.kind for memory in swarm.memory_of(card.id)] == ["vram", "ram"]
    assert swarm.memory_of(card.id)[0].capacity_bytes.value == 8_000_000_000
    assert "isa:sm_86" in card.capabilities
    assert "backend:null" not in card.capabilities


def test_an_accelerator_without_identity_is_left_out_and_the_node_says_so() -> None:
    graph = graph_of_host(make_inventory(accelerators=(make_accelerator(None),)), "swarm-1")
    assert [unit.kind for unit in graph.compute_units] == ["cpu"]
    assert "left out" in graph.nodes[0].facts[-1].fact.detail


def test_without_torch_no_unit_has_its_tag() -> None:
    graph = graph_of_host(make_inventory(), "swarm-1", backends=("null",))
    assert "backend:torch" not in graph.compute_units[0].capabilities


def test_envelopes_are_virtual_nodes_of_one_host_with_links_both_ways() -> None:
    reserved = {"birch": observed(180_000_000, "measured")}
    graph = graph_of_envelopes(make_inventory(), "swarm-1", (BIRCH, OAK), reserved, "cgroup-v1", backends=TORCH)
    swarm = SwarmGraph(graph)
    assert [(node.name, node.virtual) for node in graph.nodes] == [("birch", True), ("oak", True)]
    assert len(swarm.nodes_of_host("host-00000000000000aa")) == 2
    assert [unit.threads for unit in graph.compute_units] == [1, 2]
    birch, oak = graph.memory_resources
    assert (birch.capacity_bytes.value, birch.capacity_bytes.provenance) == (400_000_000, "declared")
    assert (birch.reserved_bytes.value, oak.reserved_bytes.value) == (180_000_000, None)
    assert birch.enforcement == "cgroup-v1"
    ids = [node.id for node in graph.nodes]
    assert sorted((link.source, link.target) for link in graph.links) == sorted([(ids[0], ids[1]), (ids[1], ids[0])])
    assert all(link.kind == "loopback" and not link.nominal_bits_per_second.known for link in graph.links)


def test_an_envelope_keeps_its_identity_whatever_else_is_declared() -> None:
    alone = graph_of_envelopes(make_inventory(), "swarm-1", (BIRCH,), {}, "none")
    larger = msgspec.structs.replace(BIRCH, memory_bytes=10**9, threads=4)
    among = graph_of_envelopes(make_inventory(), "swarm-1", (OAK, larger), {}, "none")
    assert alone.nodes[0].id == among.nodes[1].id
    assert alone.compute_units[0].id == among.compute_units[1].id


@pytest.mark.parametrize(
    ("envelopes", "message"),
    [
        ((), "at least one Node"),
        ((BIRCH, BIRCH), r"node names: found \['birch'\], needed each name once"),
        ((Envelope(name="oak", threads=5, memory_bytes=10),), "node oak: threads: found 5, needed at most 4"),
        (
            (BIRCH, Envelope(name="oak", threads=1, memory_bytes=15_700_000_000)),
            "found '16,100,000,000 B', needed at most 16,000,000,000 B",
        ),
    ],
)
def test_envelopes_that_cannot_be_are_refused(envelopes: tuple[Envelope, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        graph_of_envelopes(make_inventory(), "swarm-1", envelopes, {}, "none")


def test_threads_may_add_up_to_more_than_the_cores() -> None:
    envelopes = (OAK, Envelope(name="elm", threads=4, memory_bytes=10))
    assert len(graph_of_envelopes(make_inventory(), "swarm-1", envelopes, {}, "none").nodes) == 2


def test_a_reservation_for_nobody_is_refused() -> None:
    with pytest.raises(SpecError, match=r"reserved memory: found \['elm'\]"):
        graph_of_envelopes(make_inventory(), "swarm-1", (BIRCH,), {"elm": observed(1, "test")}, "none")


@pytest.mark.parametrize(
    ("changes", "probe"),
    [
        ({"host": unknown("x")}, "host identity"),
        ({"cpus": unknown("x")}, "cores"),
        ({"total": unknown("x")}, "memory"),
    ],
)
def test_nothing_is_declared_on_a_host_that_is_not_known(changes: dict[str, object], probe: str) -> None:
    with pytest.raises(DiscoveryError, match=probe):
        graph_of_envelopes(make_inventory(**changes), "swarm-1", (BIRCH,), {}, "none")  # type: ignore[arg-type]


def test_measured_reservations_are_put_in_place() -> None:
    graph = graph_of_envelopes(make_inventory(), "swarm-1", (BIRCH, OAK), {}, "none")
    with_base = with_reserved(graph, {"oak": 123}, "measured in this test")
    assert [memory.reserved_bytes.value for memory in with_base.memory_resources] == [None, 123]
    assert with_base.memory_resources[1].reserved_bytes.provenance == "observed"
    assert with_reserved(graph, {}, "nothing") == graph
    with pytest.raises(SpecError, match="reserved memory"):
        with_reserved(graph, {"elm": 1}, "nobody")


NAMES = st.lists(st.text("abcdefghij", min_size=1, max_size=6), min_size=1, max_size=5, unique=True)


@given(names=NAMES, threads=st.integers(1, 4), size=st.integers(1, 3_000_000_000))
def test_any_declared_swarm_is_a_sound_graph_that_survives_its_document(
    names: list[str], threads: int, size: int
) -> None:
    envelopes = [Envelope(name=name, threads=threads, memory_bytes=size) for name in names]
    graph = graph_of_envelopes(make_inventory(), "swarm-1", envelopes, {}, "none")
    SwarmGraph(graph)
    assert len(graph.links) == len(names) * (len(names) - 1)
    assert digest(read_document(ResourceGraph, write_document(graph), "test")) == digest(graph)
