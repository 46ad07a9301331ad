"""Times of answers and predictions as samples, and what a cell of several of them comes to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import polars as pl

from inferswarm.arms.questions import spread_ids
from inferswarm.campaigns.arm import Arm
from inferswarm.planner.plan import Interval, Prediction
from inferswarm.planner.problem import Workload
from inferswarm.swarm import Generation, Model, Service

DISTINCT_SHARE = 0.05
"""Predictions that are closer do not say which plan is faster: what a plan must gain by default to be changed to
(`ChangePolicy.min_gain_share`), and about what a cell differs by from itself."""
REST_SECONDS = 0.1
"""Before each answer: what the one before left to do is done by then."""


class Times(NamedTuple):
    """Seconds of one answer: to the first token, the mean between tokens, from the request to the last token."""

    ttft: float
    inter_token: float
    request: float


FIGURES = (("ttft", "ttft-seconds"), ("inter_token", "inter-token-seconds"), ("request", "request-seconds"))
"""Fields of `Times`, with the series that keeps each."""


def times_of(answer: Generation) -> Times:
    """Return the times of an answer of at least two tokens."""
    commits = answer.record.commit_seconds
    return Times(answer.ttft_seconds, statistics.mean(answer.inter_token_seconds), commits[-1])


def ask_timed(service: Service, model: Model, workload: Workload) -> Generation:
    """Ask for exactly the tokens of a workload, after a rest."""
    time.sleep(REST_SECONDS)
    prompt = spread_ids(model, workload.prompt_tokens)
    return service.generate(prompt, max_tokens=workload.output_tokens, ignore_stop=True)


def keep_times(arm: Arm, times: Times, *, condition: str, key: str, block: int, warm_up: bool = False) -> None:
    """Keep an answer's times in the three series of FIGURES."""
    for field, series in FIGURES:
        value = getattr(times, field)
        arm.sample(series, value, "s", condition=condition, key=key, block=block, warm_up=warm_up)


def keep_prediction(arm: Arm, prediction: Prediction, *, condition: str, key: str, block: int) -> None:
    """Keep the three predicted times: `predicted-SERIES`, with `predicted-low-` and `predicted-high-`."""
    for field, series in FIGURES:
        interval: Interval = getattr(prediction, field)
        parts = (("predicted-", interval.point), ("predicted-low-", interval.low), ("predicted-high-", interval.high))
        for prefix, value in parts:
            arm.sample(f"{prefix}{series}", value, "s", condition=condition, key=key, block=block)


class Round(NamedTuple):
    """One cell in one round: what was predicted, and what the counted answers took."""

    prediction: Prediction
    taken: tuple[Times, ...]


class Compared(NamedTuple):
    """One figure of one cell over all rounds, in seconds; shares are of 1."""

    cell: str
    predicted: float
    low: float
    high: float
    measured: float
    error: float
    """|measured / predicted − 1|, both medians."""
    noise: float
    """Median distance of an answer from the cell's median, relative to it."""

    @property
    def is_inside(self) -> bool:
        """Whether the measured median is inside the predicted interval."""
        return self.low <= self.measured <= self.high


def compare(cell: str, rounds: Sequence[Round], field: str) -> Compared:
    """Put one figure's predictions beside what was measured. Raises StatisticsError without a counted answer."""
    taken = [getattr(times, field) for item in rounds for times in item.taken]
    intervals = [getattr(item.prediction, field) for item in rounds]
    measured, predicted = statistics.median(taken), statistics.median(item.point for item in intervals)
    return Compared(
        cell,
        predicted,
        statistics.median(item.low for item in intervals),
        statistics.median(item.high for item in intervals),
        measured,
        abs(measured / predicted - 1),
        statistics.median(abs(value / measured - 1) for value in taken),
    )


def keep_coverage(arm: Arm, cells: Mapping[str, Sequence[Round]]) -> None:
    """Keep for each cell whether its measured medians are inside the predicted intervals: `SERIES-inside`."""
    for cell, rounds in cells.items():
        for field, series in FIGURES:
            arm.truth(f"{series}-inside", compare(cell, rounds, field).is_inside, key=cell)


class Agreement(NamedTuple):
    """Pairs of cells that are predicted to differ, and how many of them are measured to differ the same way."""

    pairs: int
    agreeing: int


def keep_order(arm: Arm, cells: Mapping[str, Sequence[Round]]) -> Agreement:
    """Keep which share of pairs of cells takes longer and shorter as predicted: `order-agreement`, of requests.

    Pairs that are predicted to differ by less than DISTINCT_SHARE are left out; how many are in is `order-pairs`.
    """
    rows = [compare(cell, rounds, "request") for cell, rounds in cells.items()]
    pairs = [
        (one, other) if one.predicted < other.predicted else (other, one)
        for one, other in combinations(rows, 2)
        if abs(one.predicted - other.predicted) > DISTINCT_SHARE * max(one.predicted, other.predicted)
    ]
    found = Agreement(len(pairs), sum(faster.measured < slower.measured for faster, slower in pairs))
    arm.sample("order-pairs", found.pairs, "pairs")
    if found.pairs:
        arm.sample("order-agreement", found.agreeing / found.pairs, "share")
    return found


def table_of(cells: Mapping[str, Sequence[Round]], field: str) -> pl.DataFrame:
    """Return a table of one figure: predicted and measured milliseconds, error and repeat noise in percent."""
    rows = [compare(cell, rounds, field) for cell, rounds in cells.items()]
    return pl.DataFrame(
        {
            "cell": [row.cell for row in rows],
            "predicted ms": [round(row.predicted * 1e3, 2) for row in rows],
            "measured ms": [round(row.measured * 1e3, 2) for row in rows],
            "error %": [round(row.error * 1e2, 1) for row in rows],
            "noise %": [round(row.noise * 1e2, 1) for row in rows],
            "inside": [row.is_inside for row in rows],
        }
    )


def summary_of(cells: Mapping[str, Sequence[Round]], field: str) -> str:
    """Say in a line how far predictions of one figure are off, beside what a cell differs by from itself."""
    rows = [compare(cell, rounds, field) for cell, rounds in cells.items()]
    error, noise = (
        statistics.median(values) for values in zip(*((row.error, row.noise) for row in rows), strict=True)
    )
    inside = sum(row.is_inside for row in rows)
    return (
        f"{field}: median error {error:.1%}, repeat noise {noise:.1%}, "
        f"{inside} of {len(rows)} medians inside their interval"
    )
