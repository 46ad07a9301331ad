"""Nodes that are alike: the same hardware, joined to every other Node in the same way. For showing large graphs.

Alike Nodes are interchangeable as far as a graph says. Which of them is meant never matters to what they can do
together with others; it still matters to who fails together, and what a measurement finds.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from inferswarm.resources.types import Link, Node, ResourceGraph

Look = tuple[Hashable, ...]


def alike_nodes(graph: ResourceGraph) -> tuple[tuple[Node, ...], ...]:
    """Return the Nodes in groups of alike ones, in the order of their first Node in the graph."""
    hardware = _hardware(graph)
    between: dict[tuple[str, str], list[Look]] = {}
    for link in graph.links:
        between.setdefault((link.source, link.target), []).append(_link_look(link))
    ways = {ends: tuple(sorted(looks, key=repr)) for ends, looks in between.items()}
    everybody = [node.id for node in graph.nodes]

    def twins(first: str, second: str) -> bool:
        if ways.get((first, second)) != ways.get((second, first)):
            return False
        return all(
            ways.get((first, other)) == ways.get((second, other))
            and ways.get((other, first)) == ways.get((other, second))
            for other in everybody
            if other not in (first, second)
        )

    groups: list[list[Node]] = []
    for node in graph.nodes:
        for group in groups:
            if hardware[group[0].id] == hardware[node.id] and twins(group[0].id, node.id):
                group.append(node)
                break
        else:
            groups.append([node])
    return tuple(tuple(group) for group in groups)


def condensed(graph: ResourceGraph) -> ResourceGraph:
    """Return the graph with one Node for each group of alike ones, named for how many it stands for.

    For people to look at, not to plan for: it holds less than there is. Links within a group are left out.
    """
    groups = alike_nodes(graph)
    names = {
        group[0].id: group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1} alike"
        for group in groups
    }
    return msgspec.structs.replace(
        graph,
        nodes=tuple(msgspec.structs.replace(group[0], name=names[group[0].id]) for group in groups),
        compute_units=tuple(unit for unit in graph.compute_units if unit.node_id in names),
        memory_resources=tuple(memory for memory in graph.memory_resources if memory.node_id in names),
        links=tuple(link for link in graph.links if link.source in names and link.target in names),
    )


def _hardware(graph: ResourceGraph) -> dict[str, Look]:
    """Return what each Node is made of, without identities."""
    places: dict[str, int] = {}
    parts: dict[str, list[Look]] = {node.id: [(node.virtual,)] for node in graph.nodes}
    for memory in graph.memory_resources:
        places[memory.id] = len(parts[memory.node_id])
        sizes = (memory.capacity_bytes.value, memory.reserved_bytes.value)
        parts[memory.node_id].append((memory.kind, *sizes, memory.enforcement))
    for unit in graph.compute_units:
        addressed = tuple(places[identity] for identity in unit.memory_ids)
        look = (unit.kind, unit.name, unit.threads, addressed, unit.capabilities, unit.available)
        parts[unit.node_id].append(look)
    return {node: tuple(looks) for node, looks in parts.items()}


def _link_look(link: Link) -> Look:
    rate, latency = link.nominal_bits_per_second.value, link.nominal_latency_seconds.value
    return (link.kind, rate, latency, link.available)
