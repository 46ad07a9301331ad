"""Which samples and answers an expectation is about: by series, condition and key.

Warm-ups are left out at the performance gate only: what is wrong in a warm-up is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import polars as pl

from inferswarm.campaigns.expectations import Gate, OfSeries, OfSides, Side
from inferswarm.campaigns.samples import Output
from inferswarm.campaigns.statistics import Center, center_of


class Pairs(NamedTuple):
    """Numbers of two sides by what pairs them, and what only one side has."""

    names: tuple[str, ...]
    left: tuple[float, ...]
    right: tuple[float, ...]
    unpaired: tuple[str, ...]


def select(samples: pl.DataFrame, of: OfSeries | Side, gate: Gate) -> pl.DataFrame:
    """Return the samples of a series that are judged at a gate, in the order in which they were taken."""
    wanted = pl.col("series") == of.series
    if gate == "performance":
        wanted &= ~pl.col("warm_up")
    if of.condition is not None:
        wanted &= pl.col("condition") == of.condition
    if of.key is not None:
        wanted &= pl.col("key") == of.key
    return samples.filter(wanted)


def sides_of(samples: pl.DataFrame, expectation: OfSides) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the judged samples of both sides."""
    gate = expectation.gate
    return select(samples, expectation.left, gate), select(samples, expectation.right, gate)


def pair(left: pl.DataFrame, right: pl.DataFrame, by: Literal["key", "block"], center: Center) -> Pairs:
    """Pair two sides; several samples of one key or block are summed up by their median or mean."""
    over, under = units_of(left, by, center), units_of(right, by, center)
    both = [name for name in over if name in under]
    return Pairs(
        tuple(map(str, both)),
        tuple(over[name] for name in both),
        tuple(under[name] for name in both),
        tuple(sorted(map(str, over.keys() ^ under.keys()))),
    )


def units_of(frame: pl.DataFrame, by: str, center: Center) -> dict[object, float]:
    """Return one number for each key or block, in the order in which they first came."""
    groups = frame.group_by(by, maintain_order=True).agg(pl.col("value"))
    return {name: center_of(values, center) for name, values in groups.rows()}


def by_key(outputs: Sequence[Output], condition: str) -> dict[str, Output]:
    """Return the answers of one condition by their key."""
    return {output.key: output for output in outputs if output.condition == condition}
