"""Seconds with their bounds: what one part of a route costs, and what parts cost that share something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Seconds: a point estimate between its bounds, cheap to add up."""

    low: float
    point: float
    high: float

    def plus(self, other: Spread) -> Spread:
        """Return the sum, bound by bound."""
        return Spread(self.low + other.low, self.point + other.point, self.high + other.high)

    def times(self, factor: float) -> Spread:
        """Return the spread scaled by a factor of at least 0."""
        return Spread(self.low * factor, self.point * factor, self.high * factor)


NOTHING = Spread(0.0, 0.0, 0.0)


def total(spreads: Iterable[Spread]) -> Spread:
    """Return the sum of spreads, bound by bound."""
    result = NOTHING
    for spread in spreads:
        result = result.plus(spread)
    return result


class Price(NamedTuple):
    """What a unit or a path adds: to each chunk, once per prompt, to each step; and the records behind it."""

    chunk: Spread
    once: Spread
    step: Spread
    evidence_ids: tuple[str, ...]
    declared: bool = False
    """Whether a curve behind it is declared, not measured."""


class Together(NamedTuple):
    """Parts of a route that share something: when all are at work, they take the weighed sum of their times.

    `members` are indexes of `RoutePrices.passing`, and its length for the way back. Paths over one segment weigh 1,
    stages on one set of cores as `core_sharing` says: at least, to expect, and at most.
    """

    members: tuple[int, ...]
    least: tuple[float, ...]
    factors: tuple[float, ...]
    most: tuple[float, ...]

    def of(self, spreads: Sequence[Spread]) -> Spread:
        """Return what the members take together, given what each part takes."""
        return total(
            Spread(spreads[index].low * least, spreads[index].point * weight, spreads[index].high * most)
            for index, least, weight, most in zip(*self, strict=True)
        )


def alike(members: tuple[int, ...]) -> Together:
    """Return parts that take the sum of their times."""
    ones = (1.0,) * len(members)
    return Together(members, ones, ones, ones)
