"""Curves as if they had been measured: what plans are decided by where measuring would take minutes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

from inferswarm.planner import Economics, PathCurve, PlanningProblem, ServiceCurve
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.economics import phases_of


def priced(
    fastest: str | None,
    store: object,
    shape: str,
    problem: PlanningProblem,
    graph: ResourceGraph,
    *_: object,
    **__: object,
) -> Economics:
    """Return curves by which one Node is the best for everything (None: all are alike); the rest is what is asked."""
    names = {node.id: node.name for node in graph.nodes}
    services = tuple(
        ServiceCurve(
            compute_unit_id=unit.id,
            cost_class=cost_class,
            representation=item.representation,
            phase=phase,
            base_seconds=0.0,
            seconds_per_position=0.001 if fastest in (None, names[unit.node_id]) else 0.01,
        )
        for unit in graph.compute_units
        for item in problem.implementations
        for cost_class, phases in phases_of(problem).items()
        for phase in phases
    )
    return Economics(services=services, paths=paths_at(names, 0.0))


def paths_at(nodes: Iterable[str], seconds_per_byte: float) -> tuple[PathCurve, ...]:
    """Return a path between each two Nodes, by their ids."""
    return tuple(
        PathCurve(source=source, target=target, latency_seconds=1e-3, seconds_per_byte=seconds_per_byte)
        for source, target in permutations(nodes, 2)
    )
