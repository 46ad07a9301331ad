"""What comes of an expectation, and how an estimate with bounds is held against thresholds.

What is seen to be wrong is BROKEN, however much is missing beside it. What is missing, or too little for its claim,
is UNPROVEN. Only what is all there and inside its thresholds is PROVEN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferswarm.campaigns.expectations import Gate
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.statistics import Estimate

MOST_NAMED = 3
"""Of many things that are wrong so many are named."""


class Judgement(NamedTuple):
    """What came of one expectation: in words, and as a number where there is one."""

    state: State
    found: str
    num_samples: int
    """Judged samples (of the smaller side), or answers that could be compared."""
    estimate: Estimate | None = None


def unproven(found: str, num_samples: int) -> Judgement:
    """Return that something is missing or too little."""
    return Judgement(State.UNPROVEN, found, num_samples)


def broken(found: str, num_samples: int) -> Judgement:
    """Return that something was seen to be wrong."""
    return Judgement(State.BROKEN, found, num_samples)


def proven(found: str, num_samples: int, estimate: Estimate | None = None) -> Judgement:
    """Return that all is there and as it was expected."""
    return Judgement(State.PROVEN, found, num_samples, estimate)


def finite(judged: Judgement) -> Judgement:
    """Return a judgement as it is; one whose numbers no document can hold is UNPROVEN, without them."""
    if judged.estimate is None or all(number is None or math.isfinite(number) for number in judged.estimate):
        return judged
    return unproven(f"a number that is too large to be computed with: {judged.found}", judged.num_samples)


def unlike_unit(units: Iterable[str], needed: str, num_samples: int) -> Judgement | None:
    """Return that samples are in another unit than is expected; None where all are in that one."""
    if others := sorted(set(units) - {needed}):
        return broken(f"samples in {', '.join(map(repr, others))}, needed {needed!r}", num_samples)
    return None


def held(
    estimate: Estimate, gate: Gate, at_least: float | None, at_most: float | None, num_samples: int, need: str = ""
) -> Judgement:
    """Hold the bounds of an estimate against thresholds, where they are not None. `need` says what a bound takes.

    An interval wholly outside is BROKEN, one that straddles a threshold UNPROVEN, and so is a missing bound. At the
    correctness gate an estimate that itself misses is BROKEN too.
    """
    value, low, high, _ = estimate
    found = f"{value:.6g} ({_bound(low)} to {_bound(high)}); n = {num_samples}"
    below = at_least is not None and high is not None and high < at_least
    above = at_most is not None and low is not None and low > at_most
    if below or above or (gate == "correctness" and is_outside(value, None, at_least, at_most)):
        return Judgement(State.BROKEN, found, num_samples, estimate)
    if (at_least is not None and low is None) or (at_most is not None and high is None):
        lacks = f"too few for a bound{need and f', which needs {need}'}"
        return Judgement(State.UNPROVEN, f"{found}: {lacks}", num_samples, estimate)
    inside = (at_least is None or (low is not None and low >= at_least)) and (
        at_most is None or (high is not None and high <= at_most)
    )
    if not inside:
        return Judgement(State.UNPROVEN, f"{found}: a threshold lies between the bounds", num_samples, estimate)
    return Judgement(State.PROVEN, found, num_samples, estimate)


def is_outside(value: float, equals: float | None, at_least: float | None, at_most: float | None) -> bool:
    """Return whether a number misses any of the bounds that there are."""
    return (
        (equals is not None and value != equals)
        or (at_least is not None and value < at_least)
        or (at_most is not None and value > at_most)
    )


def named(items: Sequence[str]) -> str:
    """Name the first few of many things."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more


def _bound(bound: float | None) -> str:
    return "unknown" if bound is None else f"{bound:.6g}"
