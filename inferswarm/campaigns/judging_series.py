"""Expectations of one series, computed from its samples."""

from __future__ import annotations

from typing import assert_never

import polars as pl

from inferswarm.campaigns.expectations import AllTrue, Counted, EveryValue, Median, Proportion, Quantile, Zero
from inferswarm.campaigns.judgement import Judgement, broken, held, is_outside, named, proven, unlike_unit, unproven
from inferswarm.campaigns.statistics import Estimate, median, proportion, quantile, samples_for_quantile

SeriesExpectation = AllTrue | Zero | Counted | EveryValue | Proportion | Quantile | Median


def judge_series(wanted: SeriesExpectation, rows: pl.DataFrame) -> Judgement:
    """Judge an expectation by the samples that it is about (`selecting.select`)."""
    num, values = len(rows), rows["value"].to_list()
    if not num:
        return unproven(f"no sample of {wanted.series!r}", 0)
    if (unlike := unlike_unit(rows["unit"], wanted.unit, num)) is not None:
        return unlike
    if wrong := _seen_wrong(wanted, rows["key"].to_list(), values):
        return broken(f"{wrong}; n = {num}", num)
    if num < wanted.samples_min:
        return unproven(f"n = {num}, needed at least {wanted.samples_min}", num)
    match wanted:
        case AllTrue():
            return proven(f"{num} of {num} true", num)
        case Zero():
            return proven(f"0; n = {num}", num, Estimate(0.0, 0.0, 0.0, num))
        case Counted():
            return proven(f"n = {num}", num)
        case EveryValue():
            return proven(f"{min(values):.6g} to {max(values):.6g}; n = {num}", num)
        case Proportion():
            estimate = proportion(sum(map(int, values)), num, wanted.confidence, wanted.method)
            return held(estimate, wanted.gate, wanted.at_least, None, num)
        case Quantile():
            estimate = quantile(values, wanted.q, wanted.confidence)
            need = f"n = {samples_for_quantile(wanted.q, wanted.confidence)}"
            return held(estimate, wanted.gate, None, wanted.at_most, num, need)
        case Median():
            need = f"n = {samples_for_quantile(0.5, wanted.confidence)}"
            return held(median(values, wanted.confidence), wanted.gate, wanted.at_least, wanted.at_most, num, need)
        case _ as never:
            assert_never(never)


def _seen_wrong(wanted: SeriesExpectation, keys: list[str], values: list[float]) -> str:
    """Return what no further sample could mend, or nothing."""
    match wanted:
        case AllTrue():
            false = [repr(key) for key, value in zip(keys, values, strict=True) if value != 1]
            return f"{len(false)} not true: {named(false)}" if false else ""
        case Proportion():
            others = [f"{value:.6g}" for value in values if value not in (0, 1)]
            return f"neither true nor false: {named(others)}" if others else ""
        case Zero():
            if min(values) < 0:
                return f"a sample of {min(values):.6g}, below 0"
            return f"the sum is {sum(values):.6g}" if sum(values) else ""
        case Counted():
            outside = is_outside(len(values), wanted.equals, wanted.at_least, wanted.at_most)
            return "another count" if outside else ""
        case EveryValue():
            outside_ones = [
                f"{value:.6g} of {key!r}"
                for key, value in zip(keys, values, strict=True)
                if is_outside(value, wanted.equals, wanted.at_least, wanted.at_most)
            ]
            return f"{len(outside_ones)} outside: {named(outside_ones)}" if outside_ones else ""
        case _:
            return ""
