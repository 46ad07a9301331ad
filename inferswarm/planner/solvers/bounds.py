"""What no route can exceed or undercut, read off an instance at once: ranges, paths, and a first lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferswarm.planner.solvers.instance import Instance, Part


def most_of_kinds(instance: Instance, reach: Sequence[int]) -> tuple[int, list[int]]:
    """Return how many atoms, in all and of each kind, one range on a site may hold at most.

    `reach` is the site's row of `longest_ranges`.
    """
    num_kinds = instance.num_kinds
    before = [[0] * num_kinds]
    for kind in instance.kinds:
        before.append([count + (at == kind) for at, count in enumerate(before[-1])])
    most = [
        max(before[end][kind] - before[first][kind] for first, end in enumerate(reach)) for kind in range(num_kinds)
    ]
    return max(end - first for first, end in enumerate(reach)), most


def quick_bound(instance: Instance, limits: list[tuple[int, list[int]]]) -> float:
    """Bound all routes over two or more sites from below at once: each kind where it is cheapest, with few paths.

    What every part adds at least is counted, not what sets pace and cadence.

    `limits` are `most_of_kinds` of each site. Infinite when the sites together cannot hold the chain.
    """
    seconds, left = 0.0, instance.num_atoms
    stages = 0
    for most in sorted((most for most, _ in limits), reverse=True):
        if left > 0:
            left, stages = left - most, stages + 1
    if left > 0:
        return math.inf
    for kind in range(instance.num_kinds):
        wanted = instance.kinds.count(kind)
        offers = [
            (instance.linear(part), most[kind])
            for costs, (_, most) in zip(instance.costs, limits, strict=True)
            if (part := costs[kind]) is not None
        ]
        for price, most in sorted(offers):
            seconds += price * min(wanted, most)
            wanted -= min(wanted, most)
        if wanted:
            return math.inf
    hops = [instance.linear(part) for row in instance.hops for by in row for part in by if part is not None]
    returns = [instance.linear(part) for row in instance.returns for part in row if part is not None]
    if not hops or not returns:
        return math.inf
    return seconds + (max(2, stages) - 1) * min(hops) + min(returns)


def cheapest_part(by_payload: Sequence[Part | None], classes: Sequence[int]) -> Part | None:
    """Return a part that is no dearer in any term than the path is for any of these payload classes."""
    known = [part for payload in classes if (part := by_payload[payload]) is not None]
    return Part(*map(min, zip(*known, strict=True))) if known else None
