from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.resources.graph import Hop, SwarmGraph
from inferswarm.resources.types import ComputeUnit, Link, MemoryResource, Node, ResourceGraph, observed, unknown


def node(name: str, host: str = "h") -> Node:
    return Node(id=f"node-{name}", name=name, host_id=host)


def memory(name: str, owner: str, kind: str = "ram") -> MemoryResource:
    return MemoryResource(
        id=name,
        node_id=f"node-{owner}",
        kind=kind,  # type: ignore[arg-type]
        capacity_bytes=observed(100, "test"),
        reserved_bytes=unknown("test"),
        enforcement="none",
    )


def unit(name: str, owner: str, *memories: str, **changes: Any) -> ComputeUnit:
    fields = {"kind": "cpu", "name": name, "threads": 1} | changes
    return ComputeUnit(id=name, node_id=f"node-{owner}", memory_ids=memories, **fields)


def link(source: str, target: str, **changes: Any) -> Link:
    fields = {"id": f"link-{source}-{target}", "kind": "ethernet", "nominal_bits_per_second": unknown("test")}
    return Link(source=f"node-{source}", target=f"node-{target}", **(fields | changes))


def graph(**changes: Any) -> ResourceGraph:
    """Two Nodes: `a` with a CPU and two cards, `b` with a CPU; a Link from a to b only."""
    fields: dict[str, Any] = {
        "swarm_id": "test",
        "nodes": (node("a", "h1"), node("b", "h2")),
        "compute_units": (
            unit("cpu-a", "a", "ram-a"),
            unit("card-0", "a", "vram-0", "ram-a", kind="cuda"),
            unit("card-1", "a", "vram-1", "ram-a", kind="cuda"),
            unit("cpu-b", "b", "ram-b"),
        ),
        "memory_resources": (
            memory("ram-a", "a"),
            memory("vram-0", "a", "vram"),
            memory("vram-1", "a", "vram"),
            memory("ram-b", "b"),
        ),
        "links": (link("a", "b"),),
    }
    return ResourceGraph(**(fields | changes))


def test_what_belongs_to_a_node() -> None:
    swarm = SwarmGraph(graph())
    assert [item.id for item in swarm.compute_units_of("node-a")] == ["card-0", "card-1", "cpu-a"]
    assert [item.id for item in swarm.memory_on("node-a")] == ["ram-a", "vram-0", "vram-1"]
    assert [item.id for item in swarm.memory_of("card-1")] == ["vram-1", "ram-a"]
    assert swarm.node_named("b") == swarm.node("node-b") == graph().nodes[1]
    assert [item.name for item in swarm.nodes_of_host("h2")] == ["b"]
    assert swarm.compute_unit("cpu-b").node_id == "node-b"
    assert swarm.memory("ram-b").node_id == "node-b"


def test_links_are_directed() -> None:
    swarm = SwarmGraph(graph())
    assert [item.id for item in swarm.links_between("node-a", "node-b")] == ["link-a-b"]
    assert swarm.links_between("node-b", "node-a") == ()


@pytest.mark.parametrize("ask", ["node", "node_named", "compute_unit", "memory", "compute_units_of", "memory_on"])
def test_asking_for_what_is_not_there_is_refused(ask: str) -> None:
    with pytest.raises(SpecError, match="'nobody'"):
        getattr(SwarmGraph(graph()), ask)("nobody")


@pytest.mark.parametrize(
    ("source", "target", "hops"),
    [
        ("card-0", "card-0", []),
        ("vram-0", "ram-a", [("vram-0", "ram-a", "copy", "card-0")]),
        ("card-0", "card-1", [("vram-0", "ram-a", "copy", "card-0"), ("ram-a", "vram-1", "copy", "card-1")]),
        ("node-a", "node-b", [("ram-a", "ram-b", "link", "link-a-b")]),
        ("card-1", "cpu-b", [("vram-1", "ram-a", "copy", "card-1"), ("ram-a", "ram-b", "link", "link-a-b")]),
        ("node-b", "node-a", None),
        ("ram-b", "vram-0", None),
    ],
)
def test_paths_are_the_hops_that_are_there(
    source: str, target: str, hops: list[tuple[str, str, str, str]] | None
) -> None:
    expected = None if hops is None else tuple(Hop(*hop) for hop in hops)  # type: ignore[arg-type]
    assert SwarmGraph(graph()).path(source, target) == expected


def test_nothing_moves_over_what_is_not_available() -> None:
    off = graph(
        links=(link("a", "b", available=False),),
        compute_units=(
            unit("cpu-a", "a", "ram-a"),
            unit("card-0", "a", "vram-0", "ram-a", kind="cuda", available=False),
            unit("card-1", "a", "vram-1", "ram-a", kind="cuda"),
            unit("cpu-b", "b", "ram-b"),
        ),
    )
    swarm = SwarmGraph(off)
    assert swarm.path("node-a", "node-b") is None
    assert swarm.path("vram-0", "ram-a") is None
    assert [item.available for item in swarm.links_between("node-a", "node-b")] == [False]


def test_a_path_needs_places_that_are_there() -> None:
    with pytest.raises(SpecError, match="node id"):
        SwarmGraph(graph()).path("node-a", "nobody")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": (node("a"), node("b"), node("a"))}, r"resource ids: found \['node-a'\]"),
        (
            {"nodes": (node("a"), node("b"), Node(id="node-c", name="a", host_id="h"))},
            r"node names: found \['a'\]",
        ),
        ({"nodes": (node("a"),)}, "'node-b', needed a Node of this graph"),
        ({"links": (link("a", "c"),)}, r"ends of link-a-c: found \['node-c'\]"),
        ({"links": (link("a", "a"),)}, "two different Nodes"),
        ({"links": (link("a", "b"), link("b", "a", id="link-a-b"))}, r"resource ids: found \['link-a-b'\]"),
        ({"compute_units": (unit("cpu-a", "a", "ram-x"),)}, r"memory of cpu-a: found \['ram-x'\]"),
        ({"compute_units": (unit("cpu-a", "a"),)}, "at least one on its own Node"),
        ({"compute_units": (unit("cpu-a", "a", "ram-b"),)}, "at least one on its own Node"),
        ({"compute_units": (unit("ram-a", "a", "ram-a"),)}, r"resource ids: found \['ram-a'\]"),
        ({"compute_units": (unit("cpu-a", "a", "ram-a", threads=0),)}, "threads of cpu-a"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SwarmGraph(graph(**changes))


def test_the_document_is_kept_as_it_was_with_its_digest() -> None:
    swarm = SwarmGraph(graph())
    again = read_document(ResourceGraph, write_document(swarm.document), "test")
    assert again == graph()
    assert SwarmGraph(again).digest == swarm.digest == digest(graph())


def test_a_changed_fact_changes_the_digest() -> None:
    assert SwarmGraph(graph()).digest != SwarmGraph(graph(links=())).digest


def test_the_picture_is_a_copy() -> None:
    swarm = SwarmGraph(graph())
    swarm.networkx.clear()
    assert sorted(swarm.networkx.edges(keys=True)) == [("node-a", "node-b", "link-a-b")]
    assert swarm.networkx.nodes["node-a"]["record"] == swarm.node("node-a")


@given(st.data())
def test_answers_do_not_depend_on_the_order_of_the_document(data: st.DataObject) -> None:
    document = graph(links=(link("a", "b"), link("b", "a"), link("a", "b", id="link-other")))
    shuffled = msgspec.structs.replace(
        document,
        **{
            field: tuple(data.draw(st.permutations(getattr(document, field))))
            for field in ("nodes", "compute_units", "memory_resources", "links")
        },
    )
    one, other = SwarmGraph(document), SwarmGraph(shuffled)
    assert one.nodes() == other.nodes()
    assert one.links_between("node-a", "node-b") == other.links_between("node-a", "node-b")
    places = ["node-a", "node-b", "cpu-a", "card-0", "card-1", "cpu-b", "vram-1"]
    for source in places:
        for target in places:
            assert one.path(source, target) == other.path(source, target)
