"""What the scalings of rotary positions that configurations state come to: a factor a pair, and a magnitude.

The formulas are those of the functions in transformers' `modeling_rope_utils` (linear, llama3, yarn, longrope).
Pair i of an unscaled rope turns by `position / base^(2i / rotated_size)`; a scaled one by that divided by its factor.
A *dynamic* scaling changes nothing within the positions that a model was trained for, and sessions are never longer:
it has no function here.
"""

from __future__ import annotations

import math

from inferswarm.strategies.dense.description import Rope

BETA_FAST = 32.0
BETA_SLOW = 1.0
"""Turns within the trained positions beyond which yarn leaves a pair alone, and below which it scales it fully."""


def linear_rope(base: float, rotated_size: int, factor: float) -> Rope:
    """Return a rope whose pairs all turn `factor` times slower. Raises ValueError as `Rope`."""
    if factor == 1.0:
        return Rope(base=base, rotated_size=rotated_size)
    return Rope(base=base, rotated_size=rotated_size, factors=(factor,) * (rotated_size // 2))


def llama3_rope(
    base: float, rotated_size: int, *, factor: float, low: float, high: float, original_positions: int
) -> Rope:
    """Return a rope whose slow pairs turn `factor` times slower, its fast ones as before, those between in between.

    A pair is slow below `low` turns within `original_positions` and fast above `high`. Raises ValueError when `low`
    is not below `high`.
    """
    if low >= high:
        raise ValueError(f"low_freq_factor is {low}, needed less than high_freq_factor, {high}")
    factors = []
    for pair in range(rotated_size // 2):
        turns = original_positions / (2 * math.pi * base ** (2 * pair / rotated_size))
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            share = (turns - low) / (high - low)
            factors.append(1.0 / ((1.0 - share) / factor + share))
    return Rope(base=base, rotated_size=rotated_size, factors=tuple(factors))


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return what yarn multiplies cosines and sines by: 1 for a factor of at most 1."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def yarn_rope(
    base: float,
    rotated_size: int,
    *,
    factor: float,
    original_positions: int,
    magnitude: float,
    beta_fast: float = BETA_FAST,
    beta_slow: float = BETA_SLOW,
    truncate: bool = True,
) -> Rope:
    """Return a rope whose pairs go over from unscaled to `factor` times slower along a ramp of pairs.

    The ramp runs between the pairs that make `beta_fast` and `beta_slow` turns within `original_positions`, to whole
    pairs when `truncate`. Raises ValueError for a base or betas from which no ramp follows.
    """
    if base <= 1.0 or beta_fast <= beta_slow:
        raise ValueError(f"yarn needs a base above 1 and beta_fast above beta_slow: {base}, {beta_fast}, {beta_slow}")

    def pair_of(turns: float) -> float:
        return rotated_size * math.log(original_positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated_size - 1)
    width = (high - low) or 0.001
    factors = []
    for pair in range(rotated_size // 2):
        scaled = min(max((pair - low) / width, 0.0), 1.0)
        factors.append(1.0 / (scaled / factor + (1.0 - scaled)))
    return Rope(base=base, rotated_size=rotated_size, factors=tuple(factors), magnitude=magnitude)


def longrope_magnitude(factor: float, original_positions: int) -> float:
    """Return what longrope multiplies cosines and sines by: 1 for a factor of at most 1.

    Raises ValueError for fewer than two original positions.
    """
    if original_positions < 2:
        raise ValueError(f"original positions are {original_positions}, needed at least 2")
    return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original_positions))


def longrope_note(original_positions: int) -> str:
    """Return the sentence that says which sessions turn by the long factors."""
    return (
        f"longrope: a session that may become longer than {original_positions:,} positions turns by the long factors "
        "from its start; transformers changes over while it grows."
    )


def longrope_rope(
    base: float,
    rotated_size: int,
    *,
    short: tuple[float, ...],
    long: tuple[float, ...],
    original_positions: int,
    magnitude: float,
) -> Rope:
    """Return a rope with listed factors: `short` for sessions within `original_positions`, `long` beyond.

    Raises ValueError when a list has not one number for each pair.
    """
    return Rope(
        base=base,
        rotated_size=rotated_size,
        factors=short,
        long_factors=long,
        original_positions=original_positions,
        magnitude=magnitude,
    )
