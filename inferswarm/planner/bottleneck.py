"""What a plan's figures are made of: which stage or path each second belongs to, and what sets the pace.

The same prices as in the prediction, written part by part. The time to the first token and the time between tokens
are sums; with many sessions at once the slowest stage or path alone decides how often a token comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.planner.cost import Pricing, price_route
from inferswarm.planner.plan import Breakdown, PartOf, Share
from inferswarm.planner.sites import Route

_Part = tuple[str, PartOf, float]
"""Subject, what, seconds."""


def break_down(pricing: Pricing, route: Route) -> Breakdown | None:
    """Return what the route's figures are made of, or None when a curve that it needs is missing.

    The shares of `ttft` add up to the predicted time to the first token, those of `inter_token` to the predicted
    time between tokens; parts that take no time are left out.
    """
    prices = price_route(pricing, route)
    if prices is None:
        return None
    names, num_stages = prices.names, len(prices.stages)
    first: list[_Part] = []
    step: list[_Part] = []
    for index, (name, price) in enumerate(zip(names, prices.passing, strict=True)):
        stage = index < num_stages
        first.append((name, "first-pass" if stage else "path", price.chunk.point))
        first.append((name, "newest-position" if stage else "waking", price.once.point))
        step.append((name, "step" if stage else "path", price.step.point))
    for index, weight in zip(prices.slowest.members, prices.slowest.factors, strict=True):
        seconds = prices.passing[index].chunk.point * weight * pricing.later_chunks
        first.append((names[index], "waiting", seconds))
    if len(route) > 1:
        step.append((f"{names[num_stages - 1]} → stage-0", "feedback", prices.feedback.step.point))
    cadence = list(step)
    for group in prices.shared:
        subject = " and ".join(step[index][0] for index in group.members)
        seconds = sum(step[index][2] * weight for index, weight in zip(group.members, group.factors, strict=True))
        cadence.append((subject, "shared", seconds))
    longest = max(seconds for _, _, seconds in cadence)
    return Breakdown(
        ttft=_shares(first, sum(seconds for _, _, seconds in first)),
        inter_token=_shares(step, sum(seconds for _, _, seconds in step)),
        cadence=_shares(cadence, longest),
    )


def _shares(parts: Sequence[_Part], whole: float) -> tuple[Share, ...]:
    """Return the parts that take time, largest first; equals in the order of the route."""
    return tuple(
        Share(subject=subject, what=what, seconds=seconds, share=seconds / whole)
        for subject, what, seconds in sorted(parts, key=lambda part: -part[2])
        if seconds > 0
    )
