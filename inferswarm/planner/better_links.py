"""One Node's connections made better: a question with faster paths, or less latency, or Links where none are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import msgspec

from inferswarm.planner.economics import PathCurve
from inferswarm.planner.resolving import Inputs
from inferswarm.resources.types import Link, Node, declared


def with_links(inputs: Inputs, node: Node, bits_per_second: float, latency_seconds: float) -> Inputs:
    """Return the question with every path to and from `node` at least that fast and of at most that latency.

    What is better already stays as it is: a rate of 0 and an infinite latency change nothing of a path that is
    known. Where there is no Link, or no curve, there is one now: with this rate, and the least latency of all known
    paths if none is given. A rate of 0 makes no new path. What is supposed counts as declared, and is allowed.
    """
    per_byte = 8 / bits_per_second if bits_per_second else math.inf
    curves = {(curve.source, curve.target): curve for curve in inputs.curves.paths}
    least = min((curve.latency_seconds for curve in curves.values()), default=0.0)
    latency = min(latency_seconds, least) if math.isinf(latency_seconds) else latency_seconds
    links = {(link.source, link.target): link for link in inputs.graph.links if link.available}
    others = [other.id for other in inputs.graph.nodes if other.id != node.id]
    added: list[Link] = []
    for source, target in chain(((node.id, other) for other in others), ((other, node.id) for other in others)):
        known = curves.get((source, target))
        linked = (source, target) in links
        if known is not None and linked:
            curves[source, target] = msgspec.structs.replace(
                known,
                latency_seconds=min(known.latency_seconds, latency_seconds),
                seconds_per_byte=min(known.seconds_per_byte, per_byte),
                basis="declared",
            )
        elif math.isfinite(per_byte):
            curves[source, target] = PathCurve(
                source=source,
                target=target,
                latency_seconds=latency,
                seconds_per_byte=per_byte,
                basis="declared",
                opening_seconds=_opening(inputs.curves.paths, target),
            )
            if not linked:
                added.append(_link(source, target))
    economics = msgspec.structs.replace(inputs.curves, paths=tuple(curves.values()))
    graph = msgspec.structs.replace(inputs.graph, links=(*inputs.graph.links, *added))
    return inputs._replace(graph=graph, economics=economics, allow_estimates=True)


def _opening(paths: Sequence[PathCurve], target: str) -> float | msgspec.UnsetType:
    """Return what a request takes once over a path to a Node: the same over each that is known."""
    found = [
        path.opening_seconds
        for path in paths
        if path.target == target and not isinstance(path.opening_seconds, msgspec.UnsetType)
    ]
    return min(found, default=msgspec.UNSET)


def _link(source: str, target: str) -> Link:
    return Link(
        id=f"supposed:{source}:{target}",
        source=source,
        target=target,
        kind="other",
        nominal_bits_per_second=declared(1, "supposed, to see what it would change"),
    )
