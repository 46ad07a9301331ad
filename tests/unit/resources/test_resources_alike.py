from __future__ import annotations

from inferswarm.resources.alike import alike_nodes, condensed
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.topology import Topology, read_topology
from tests.unit.resources.topology_samples import CARD, CPU, LAN, MEMORY, link, node, topology


def read(*tables: str) -> Topology:
    return read_topology(topology(*tables), "test")


def groups(found: Topology) -> list[list[str]]:
    return [[item.name for item in group] for group in alike_nodes(found.graph)]


def test_the_same_hardware_on_one_switch_is_alike() -> None:
    found = read(node("a"), node("b", MEMORY, CPU, CARD), node("c"), node("d"), LAN)
    assert groups(found) == [["a", "c", "d"], ["b"]]


def test_another_size_model_or_port_is_not_alike() -> None:
    more = MEMORY.replace("16 GiB", "32 GiB")
    other = CPU.replace("threads = 4", "threads = 8")
    port = '[[network.port]]\nnodes = ["d"]\nsend = "1 Mbit/s"\nreceive = "1 Gbit/s"\n'
    found = read(node("a"), node("b", more, CPU), node("c", MEMORY, other), node("d"), LAN, port)
    assert groups(found) == [["a"], ["b"], ["c"], ["d"]]


def test_the_same_hardware_on_two_islands_is_not_alike() -> None:
    left, right = (LAN.replace('"lan"', f'"{name}"').replace('"*"', nodes) for name, nodes in _ISLANDS)
    assert groups(read(*map(node, "abcd"), left, right)) == [["a", "b"], ["c", "d"]]


_ISLANDS = (("left", '"a", "b"'), ("right", '"c", "d"'))


def test_ends_of_a_one_way_link_are_not_alike() -> None:
    assert groups(read(node("a"), node("b"), link("a", "b"))) == [["a"], ["b"]]


def test_a_condensed_graph_is_sound_and_says_how_many_it_stands_for() -> None:
    found = read(node("a"), node("b", MEMORY, CPU, CARD), node("c"), LAN)
    small = SwarmGraph(condensed(found.graph)).document
    assert [item.name for item in small.nodes] == ["a and 1 alike", "b"]
    assert (len(small.compute_units), len(small.memory_resources), len(small.links)) == (3, 3, 2)


def test_a_graph_without_alike_nodes_stays_as_it_is() -> None:
    found = read(node("a"), node("b", MEMORY, CPU, CARD), LAN)
    assert condensed(found.graph) == found.graph
