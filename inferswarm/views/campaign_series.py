"""What a run observed, series by series, for people: counts, medians with their bounds, the samples themselves."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from inferswarm.campaigns.samples import TRUTH_UNIT
from inferswarm.campaigns.statistics import Estimate, median
from inferswarm.units import format_bytes, format_seconds

CONFIDENCE = 0.95
"""Of the bounds that are shown beside medians. They describe; what is claimed has its own in the expectations."""


class SeriesShown(NamedTuple):
    """One series under one condition. The numbers leave warm-ups out; the samples do not."""

    series: str
    condition: str
    unit: str
    values: tuple[float, ...]
    """All samples in the order in which they were taken."""
    warm_up: tuple[bool, ...]
    judged: tuple[float, ...]
    """Those that are no warm-ups."""
    middle: Estimate | None
    """The median; None for truths, and where all samples are warm-ups."""

    @property
    def is_truth(self) -> bool:
        """Whether the samples are true or false."""
        return self.unit == TRUTH_UNIT

    @property
    def name(self) -> str:
        """The series, with its condition where it has one."""
        return f"{self.series} · {self.condition}" if self.condition else self.series

    @property
    def range_text(self) -> str:
        """Least and greatest sample, or how many are true."""
        if not self.judged:
            return "only warm-ups"
        if self.is_truth:
            return f"{sum(map(int, self.judged))} of {len(self.judged)} true"
        return f"{format_value(min(self.judged), self.unit)} – {format_value(max(self.judged), self.unit)}"

    @property
    def middle_text(self) -> str:
        """The median with its bounds."""
        return "" if self.middle is None else estimate_text(self.middle, self.unit)


def series_of(samples: pl.DataFrame) -> tuple[SeriesShown, ...]:
    """Return every series under each of its conditions, in the order in which they first came."""
    shown = []
    for (series, condition), rows in samples.group_by("series", "condition", maintain_order=True):
        values, warm_up = tuple(rows["value"]), tuple(rows["warm_up"])
        judged = tuple(value for value, is_warm_up in zip(values, warm_up, strict=True) if not is_warm_up)
        unit = rows["unit"][0]
        middle = median(judged, CONFIDENCE) if judged and unit != TRUTH_UNIT else None
        shown.append(SeriesShown(str(series), str(condition), unit, values, warm_up, judged, middle))
    return tuple(shown)


def format_value(value: float, unit: str) -> str:
    """Write a sample with its unit: seconds and bytes as people do, other units behind the number."""
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(round(value))
    return f"{value:,.6g} {unit}".rstrip()


def estimate_text(estimate: Estimate, unit: str) -> str:
    """Write an estimate with its bounds; a bound that the sample does not support is called unknown."""
    low, high = ("unknown" if bound is None else format_value(bound, unit) for bound in (estimate.low, estimate.high))
    return f"{format_value(estimate.value, unit)} ({low} – {high})"
