"""Expectations of two series, computed from the samples of both sides."""

from __future__ import annotations

import math
import operator
from typing import assert_never

import polars as pl

from inferswarm.campaigns.expectations import OfSides, Pairwise, Ratio, RelativeError
from inferswarm.campaigns.judgement import Judgement, broken, held, named, proven, unlike_unit, unproven
from inferswarm.campaigns.selecting import Pairs, pair, units_of
from inferswarm.campaigns.statistics import center_of, paired_ratio, proportion, ratio_of_two, units_for_interval

SidesExpectation = Pairwise | Ratio | RelativeError
RELATIONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">=": operator.ge, ">": operator.gt}


def judge_sides(wanted: SidesExpectation, left: pl.DataFrame, right: pl.DataFrame) -> Judgement:
    """Judge an expectation by the samples of its two sides (`selecting.sides_of`)."""
    num = min(len(left), len(right))
    if not num:
        side = wanted.right if len(left) else wanted.left
        where = "" if side.condition is None else f" under {side.condition!r}"
        return unproven(f"no sample of {side.series!r}{where}", 0)
    if (unlike := unlike_unit((*left["unit"], *right["unit"]), wanted.unit, num)) is not None:
        return unlike
    match wanted:
        case Pairwise():
            return _pairwise(wanted, left, right, num)
        case RelativeError():
            return _relative_error(wanted, pair(left, right, "key", "median"), num)
        case Ratio(paired_by="none"):
            return _ratio_of_two(wanted, left, right, num)
        case Ratio(paired_by=by):
            return _paired_ratio(wanted, pair(left, right, "block" if by == "block" else "key", wanted.of), num)
        case _ as never:
            assert_never(never)


def _pairwise(wanted: Pairwise, left: pl.DataFrame, right: pl.DataFrame, num: int) -> Judgement:
    if left["key"].n_unique() < len(left) or right["key"].n_unique() < len(right):
        return unproven("a key has several samples on one side", num)
    pairs = pair(left, right, "key", "median")
    holds = RELATIONS[wanted.relation]
    wrong = [
        f"{one:.6g} against {other:.6g} of {name!r}"
        for name, one, other in zip(pairs.names, pairs.left, pairs.right, strict=True)
        if not holds(one, other)
    ]
    if wrong:
        return broken(f"{len(wrong)} of {len(pairs.names)} pairs: {named(wrong)}", num)
    if lacking := _lacking(wanted, pairs.unpaired, num):
        return unproven(lacking, num)
    return proven(f"{len(pairs.names)} of {len(pairs.names)} pairs", num)


def _relative_error(wanted: RelativeError, pairs: Pairs, num: int) -> Judgement:
    if 0 in pairs.right:
        return unproven(f"the right side is 0 for {pairs.names[pairs.right.index(0)]!r}", num)
    errors = [abs(one / other - 1) for one, other in zip(pairs.left, pairs.right, strict=True)]
    if not all(map(math.isfinite, errors)):
        return unproven("an error is too large to be computed with", num)
    worst = max(errors, default=0.0)
    if wanted.share is None and worst > wanted.at_most:
        return broken(f"{worst:.4g} for {pairs.names[errors.index(worst)]!r}, of {len(errors)} keys", num)
    if lacking := _lacking(wanted, pairs.unpaired, num):
        return unproven(lacking, num)
    if wanted.share is None:
        return proven(f"at most {worst:.4g} over {len(errors)} keys", num)
    within = sum(error <= wanted.at_most for error in errors)
    estimate = proportion(within, len(errors), wanted.confidence, "exact")
    judged = held(estimate, wanted.gate, wanted.share, None, num)
    return judged._replace(found=f"{within} of {len(errors)} keys, the worst {worst:.4g}; share {judged.found}")


def _ratio_of_two(wanted: Ratio, left: pl.DataFrame, right: pl.DataFrame, num: int) -> Judgement:
    over, under = (_units(side, wanted) for side in (left, right))
    if lacking := _lacking(wanted, (), num):
        return unproven(lacking, num)
    if center_of(under, wanted.of) == 0:
        return unproven(f"the {wanted.of} of the right side is 0", num)
    estimate = ratio_of_two(over, under, wanted.of, wanted.confidence, wanted.resamples, wanted.seed)
    return held(estimate, wanted.gate, wanted.low, wanted.high, num, _need(wanted))


def _paired_ratio(wanted: Ratio, pairs: Pairs, num: int) -> Judgement:
    if lacking := _lacking(wanted, pairs.unpaired, num):
        return unproven(lacking, num)
    if 0 in pairs.right:
        return unproven(f"the right side is 0 for {pairs.names[pairs.right.index(0)]!r}", num)
    both = tuple(zip(pairs.left, pairs.right, strict=True))
    estimate = paired_ratio(both, wanted.of, wanted.confidence, wanted.resamples, wanted.seed)
    return held(estimate, wanted.gate, wanted.low, wanted.high, num, _need(wanted))


def _units(side: pl.DataFrame, wanted: Ratio) -> tuple[float, ...]:
    """Return what is resampled of a side: whole blocks where there are several, else its samples."""
    if side["block"].n_unique() > 1:
        return tuple(units_of(side, "block", wanted.of).values())
    return tuple(side["value"])


def _need(wanted: Ratio) -> str:
    return f"{units_for_interval(wanted.confidence)} units, and not one value in the middle of all"


def _lacking(wanted: OfSides, unpaired: tuple[str, ...], num: int) -> str:
    if unpaired:
        return f"on one side only: {named(unpaired)}"
    return f"n = {num}, needed at least {wanted.samples_min}" if num < wanted.samples_min else ""
