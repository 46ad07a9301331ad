"""What a route must keep and be better than, as weighed sums of its figures: gauges, and what bounds them from below.

A gauge is a weighed sum of the figures with the most that it may be: a limit, the best value, or Lagrange's sum of
the two. What the rest of the chain adds to it at least is known from the instance: each kind of atom is where it is
cheapest, as far as there is room, and there are as many paths as so many atoms need at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from inferswarm.planner.search import SLACK
from inferswarm.planner.solvers.instance import Instance, Part

FACTORS = (0.25, 1.0, 4.0)
"""How much a limit weighs beside the value in Lagrange's gauges, relative to the two amounts."""


class Goal(NamedTuple):
    """What is to be least, and what a route must keep. Limits are seconds, infinite where there is none.

    value = request × (first + later_tokens × Σ step) + cadence × each
    """

    request: float
    later_tokens: float
    cadence: float
    sessions: int
    first_limit: float = math.inf
    request_limit: float = math.inf
    request_tokens: float = 0.0
    """Tokens after the first in the request that is limited."""
    step_limit: float = math.inf
    """Of Σ step."""
    wait_limit: float = math.inf
    """Of sessions × each."""


class Gauge(NamedTuple):
    """Factors of the sums of first and step, of the pace and of the longest step; the most that it may be.

    That is `most + known × best value`; of a limit alone `known` is 0, of a value alone `most`.
    """

    first: float
    step: float
    pace: float
    slowest: float
    most: float
    known: float = 0.0


def gauges_of(instance: Instance, goal: Goal, known: float) -> list[Gauge]:
    """Return the gauges: of the value, of each limit, and of both together; the value's come first.

    `known` is the best value so far. Without one no limit is weighed beside it.
    """
    chunks = instance.later_chunks
    request, cadence = goal.request, goal.cadence
    value = Gauge(request, request * goal.later_tokens + cadence / goal.sessions, request * chunks, 0.0, 0.0, 1.0)
    gauges = [value]
    if cadence:
        gauges.append(value._replace(step=request * goal.later_tokens, slowest=cadence))
    limits = [
        Gauge(1.0, 0.0, chunks, 0.0, goal.first_limit),
        Gauge(1.0, goal.request_tokens, chunks, 0.0, goal.request_limit),
        Gauge(0.0, 1.0, 0.0, 0.0, min(goal.step_limit, goal.wait_limit)),
        Gauge(0.0, 0.0, 0.0, goal.sessions, goal.wait_limit),
    ]
    limits = [gauge._replace(most=gauge.most * (1 + SLACK)) for gauge in limits if math.isfinite(gauge.most)]
    gauges += limits
    for limit in limits if 0 < known < math.inf else ():
        for factor in FACTORS if limit.most > 0 else ():
            scale = factor * known / limit.most
            if scale < math.inf:
                gauges.append(Gauge(*(mine + scale * own for mine, own in zip(value, limit, strict=True))))
    return gauges


def rest_of(
    instance: Instance, gauge: Gauge, sites: Sequence[int], holds: Sequence[tuple[int, list[int]]], most_stages: int
) -> list[float]:
    """Return, by atoms covered, what the rest of the chain adds to a gauge at least; infinite where it has no room.

    It is held by at most so many stages on these sites, and the way back follows. `holds` are `most_of_kinds` of each
    site of the instance.
    """

    def cost(part: Part) -> float:
        return gauge.first * part.seconds + gauge.step * part.step

    least_of_kind = []
    for kind in range(instance.num_kinds):
        offers: dict[int, tuple[float, int]] = {}
        for site in sites:
            part, most = instance.costs[site][kind], holds[site][1][kind]
            if part is not None and most:
                unit = instance.unit_of(site)
                before = offers.get(unit, (math.inf, 0))
                offers[unit] = min(before[0], cost(part)), max(before[1], most)
        each = [price for price, most in sorted(offers.values()) for _ in range(most)]
        wanted = instance.kinds.count(kind)
        least_of_kind.append([0.0, *accumulate([*each, *[math.inf] * wanted][:wanted])])
    stages: dict[int, int] = {}
    for site in sites:
        unit = instance.unit_of(site)
        stages[unit] = max(stages.get(unit, 0), holds[site][0])
    reached = list(accumulate(sorted(stages.values(), reverse=True)))[:most_stages]
    into = [cost(part) for row in instance.hops for site in sites for part in row[site] if part is not None]
    back = [cost(part) for site in sites for part in instance.returns[site] if part is not None]
    hop, way_back = min(into, default=math.inf), min(back, default=math.inf)
    row, counts = [0.0], [0] * instance.num_kinds
    for left, kind in enumerate(reversed(instance.kinds), start=1):
        counts[kind] += 1
        needed = next((place for place, most in enumerate(reached, start=1) if most >= left), math.inf)
        held = sum(least[count] for least, count in zip(least_of_kind, counts, strict=True))
        row.append(math.inf if needed == math.inf else held + needed * hop + way_back)
    return row[::-1]
