"""`result.json`: what an arm's samples say, summed up for people. A convenience, which a verifier computes again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import polars as pl

from inferswarm.campaigns.expectations import Expectation, Gate, Ratio
from inferswarm.campaigns.judging import judgement_of
from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.layout import RESULT
from inferswarm.campaigns.records import SCHEMA
from inferswarm.campaigns.samples import Output
from inferswarm.documents import Document, read_document
from inferswarm.errors import DocumentError

LAW = "summaries-recomputed"
NUMBER_TOLERANCE = 1e-9
"""Relative: sums of doubles may end otherwise in their last bits on another processor."""
BOUND_TOLERANCE = 0.1
"""Of an interval's width: another version of numpy may draw other resamples. Two bounds from 9,999 resamples differ
by 1 % of the width (standard deviation), from 999 by 3 %."""


class SeriesSummary(Document, frozen=True, kw_only=True):
    """One series under one condition: how many samples, and the least, middle and greatest of those no warm-up."""

    series: str
    condition: str
    unit: str
    num_samples: int
    num_warm_up: int
    least: float | None
    median: float | None
    greatest: float | None


class ExpectationResult(Document, frozen=True, kw_only=True):
    """What came of one expectation; the numbers are None where there are none."""

    id: str
    gate: Gate
    state: Literal["PROVEN", "BROKEN", "UNPROVEN"]
    num_samples: int
    value: float | None
    low: float | None
    high: float | None


class Result(Document, frozen=True, kw_only=True):
    """All of an arm's samples and expectations, summed up."""

    schema: int
    run_id: str
    series: tuple[SeriesSummary, ...]
    expectations: tuple[ExpectationResult, ...]


def make_result(
    run_id: str, expectations: Sequence[Expectation], samples: pl.DataFrame | None, outputs: Sequence[Output] | None
) -> Result:
    """Sum up a run: every series, then every expectation in the order of their file."""
    rows = []
    for item in expectations:
        judged = judgement_of(item, samples, outputs)
        value, low, high = (None, None, None) if judged.estimate is None else judged.estimate[:3]
        rows.append(
            ExpectationResult(
                id=item.id,
                gate=item.gate,
                state=judged.state.value,
                num_samples=judged.num_samples,
                value=value,
                low=low,
                high=high,
            )
        )
    series = () if samples is None else summarize_series(samples)
    return Result(schema=SCHEMA, run_id=run_id, series=series, expectations=tuple(rows))


def summarize_series(samples: pl.DataFrame) -> tuple[SeriesSummary, ...]:
    """Return each series under each condition, in the order in which they first came."""
    judged = pl.col("value").filter(~pl.col("warm_up"))
    table = samples.group_by("series", "condition", maintain_order=True).agg(
        pl.col("unit").first(),
        pl.len().alias("num_samples"),
        pl.col("warm_up").sum().alias("num_warm_up"),
        judged.min().alias("least"),
        judged.median().alias("median"),
        judged.max().alias("greatest"),
    )
    # The middle of two numbers that are very large may be an infinity, which no document can hold.
    held = table.with_columns(median=pl.when(pl.col("median").is_finite()).then("median"))
    return tuple(SeriesSummary(**row) for row in held.iter_rows(named=True))


def check_result(
    data: bytes | None,
    run_id: str,
    expectations: Sequence[Expectation],
    samples: pl.DataFrame | None,
    outputs: Sequence[Output] | None,
) -> Finding:
    """Hold a `result.json` (None: it is missing) against what its samples and answers say."""
    wanted = "every number as computed again from samples.parquet and outputs.jsonl"
    if data is None:
        return _finding(State.UNPROVEN, wanted, "the file is missing")
    if samples is None or outputs is None:
        return _finding(State.UNPROVEN, wanted, "there is nothing to compute it from")
    try:
        recorded = read_document(Result, data, RESULT)
    except DocumentError as error:
        return _finding(State.BROKEN, wanted, error.reason)
    computed = make_result(run_id, expectations, samples, outputs)
    differences = compare_results(recorded, computed, expectations)
    if differences:
        return _finding(State.BROKEN, wanted, "; ".join(differences))
    num = len(recorded.series) + len(recorded.expectations)
    return _finding(State.PROVEN, wanted, f"{num} summaries agree")


def compare_results(recorded: Result, computed: Result, expectations: Sequence[Expectation]) -> tuple[str, ...]:
    """Return in words where a recorded result is not the computed one; nothing where it is."""
    differences = [
        f"{name} is {getattr(recorded, name)!r}, computed {getattr(computed, name)!r}"
        for name in ("schema", "run_id")
        if getattr(recorded, name) != getattr(computed, name)
    ]
    resampled = frozenset(item.id for item in expectations if isinstance(item, Ratio))
    names = [(item.series, item.condition) for item in computed.series]
    if [(item.series, item.condition) for item in recorded.series] != names:
        differences.append("other series")
    else:
        for old, new in zip(recorded.series, computed.series, strict=True):
            differences += _fields(f"{new.series} {new.condition}".rstrip(), old, new, 0.0)
    if [item.id for item in recorded.expectations] != [item.id for item in computed.expectations]:
        differences.append("other expectations")
    else:
        for before, after in zip(recorded.expectations, computed.expectations, strict=True):
            wide = after.id in resampled and after.low is not None and after.high is not None
            slack = BOUND_TOLERANCE * (after.high - after.low) if wide else 0.0  # type: ignore[operator]
            differences += _fields(after.id, before, after, slack)
    return tuple(differences)


def _fields(name: str, old: Document, new: Document, slack: float) -> list[str]:
    """Compare two documents of one kind; only bounds may differ by `slack`."""
    found = []
    for field in new.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        allowed = slack if field in ("low", "high") else 0.0
        if not _same(before, after, allowed):
            found.append(f"{name}: {field} is {before!r}, computed {after!r}")
    return found


def _same(before: object, after: object, slack: float) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=NUMBER_TOLERANCE, abs_tol=slack)
    return before == after


def _finding(state: State, expected: str, found: str) -> Finding:
    return Finding(law=LAW, state=state, path=RESULT, expected=expected, found=found)
