"""What a policy takes out of the search before it begins: Compute Units, memory that stays free, and Links.

Everything here is named in the policy, resolved against one snapshot, and refused when it is unknown. What is taken
out stays technically possible: the gates judge it first, on the whole snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import msgspec

from inferswarm.errors import SpecError
from inferswarm.planner.economics import PathCurve
from inferswarm.planner.problem import Policy, Reservation
from inferswarm.planner.sites import GraphView, Withheld
from inferswarm.resources.types import LinkKind, ResourceGraph
from inferswarm.units import format_bytes


def given(names: tuple[str, ...] | msgspec.UnsetType) -> tuple[str, ...] | None:
    """Return what an optional field of a policy holds, or None when it was left out."""
    return None if isinstance(names, msgspec.UnsetType) else names


def closed_by(policy: Policy, view: GraphView) -> dict[str, str]:
    """Return the Compute Units that may not be used, by id, each with the first demand that says so.

    Raises SpecError for an unknown name, with the known ones.
    """
    excluded = {view.node(name, "policy excluded_nodes").id for name in policy.excluded_nodes}
    nodes = given(policy.approved_nodes)
    approved = None if nodes is None else {view.node(name, "policy approved_nodes").id for name in nodes}
    units = [site.id for site in view.sites]
    excluded_units = _known(given(policy.excluded_compute_units) or (), units, "policy excluded_compute_units")
    names = given(policy.approved_compute_units)
    approved_units = None if names is None else _known(names, units, "policy approved_compute_units")
    names = given(policy.approved_machines)
    all_machines = {node.host_id for node in view.graph.nodes}
    machines = None if names is None else _known(names, all_machines, "policy approved_machines")
    closed: dict[str, str] = {}
    for site in view.sites:
        node, unit = site.node, f"Compute Unit {site.id} on {site.node.name}"
        if node.id in excluded:
            closed[site.id] = f"Node {node.name} is excluded"
        elif approved is not None and node.id not in approved:
            closed[site.id] = f"Node {node.name} is not among the approved ones: {', '.join(nodes or ())}"
        elif machines is not None and node.host_id not in machines:
            closed[site.id] = f"Node {node.name} is on the machine {node.host_id}, not on an approved one"
        elif site.id in excluded_units:
            closed[site.id] = f"{unit} is excluded"
        elif approved_units is not None and site.id not in approved_units:
            closed[site.id] = f"{unit} is not among the approved ones"
    return closed


def withheld_by(policy: Policy, view: GraphView, paths: Iterable[PathCurve] = ()) -> tuple[Withheld, tuple[str, ...]]:
    """Return the memory and the Links that plans have to leave alone, and the same in words.

    `paths` are the curves that plans are priced with. Raises SpecError for an unknown name, with the known ones.
    """
    kept: dict[str, int] = {}
    words: list[str] = []
    for item in () if isinstance(policy.reservations, msgspec.UnsetType) else policy.reservations:
        memory_id, where = _memory(item, view)
        kept[memory_id] = kept.get(memory_id, 0) + item.bytes
        words.append(f"{format_bytes(item.bytes)} kept free on {where}")
    barred, said = barred_links(policy, view.graph)
    taken = {(path.source, path.target): given(path.link_ids) or () for path in paths} if said else {}
    return Withheld(kept, barred, taken), (*words, *said)


def barred_links(policy: Policy, graph: ResourceGraph) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the Links that a policy bars, by id, each with the demand that says so, and the demands in words.

    Raises SpecError for an unknown kind or segment, with the known ones.
    """
    words: list[str] = []
    kinds = _known(given(policy.excluded_link_kinds) or (), get_args(LinkKind), "policy excluded_link_kinds")
    segments = {item.id: item for item in graph.segments}
    known = [name for item in segments.values() for name in (item.id, item.name)]
    named = _known(given(policy.excluded_segments) or (), known, "policy excluded_segments")
    shut = {item.id for item in segments.values() if item.id in named or item.name in named}
    barred: dict[str, str] = {}
    for link in graph.links:
        passed = (segments[item].kind for item in link.segments if item in segments)
        over = [kind for kind in (link.kind, *passed) if kind in kinds]
        through = [segments[item].name for item in link.segments if item in shut]
        if over:
            barred[link.id] = f"policy: it goes over {over[0]}, which is excluded"
        elif through:
            barred[link.id] = f"policy: it goes over the segment {through[0]}, which is excluded"
    if kinds:
        words.append(f"no Links of the kind {', '.join(sorted(kinds))}")
    if shut:
        words.append(f"no Links over {', '.join(sorted(segments[item].name for item in shut))}")
    return barred, tuple(words)


def _memory(item: Reservation, view: GraphView) -> tuple[str, str]:
    """Return the Memory Resource that a reservation means, and how to call it."""
    memories = {memory.id: memory for memory in view.graph.memory_resources}
    names = {node.id: node.name for node in view.graph.nodes}
    if item.node in memories:
        return item.node, f"{names[memories[item.node].node_id]} ({item.node})"
    name, slash, kind = item.node.rpartition("/")
    node = view.node(name if slash else item.node, "policy reservations")
    own = [memory for memory in memories.values() if memory.node_id == node.id and (not slash or memory.kind == kind)]
    if len(own) != 1:
        there = sorted(
            f"{node.name}/{memory.kind} ({memory.id})" for memory in memories.values() if memory.node_id == node.id
        )
        raise SpecError("policy reservations", item.node, f"one of its Memory Resources: {', '.join(there)}")
    return own[0].id, item.node if slash else node.name


def _known(names: Iterable[str], known: Iterable[str], field: str) -> frozenset[str]:
    """Return the names. Raises SpecError for one that is not known."""
    there = sorted(set(known))
    for name in names:
        if name not in there:
            raise SpecError(field, name, f"one of {there}")
    return frozenset(names)
