"""From raw samples to cost curves: robust fits with residuals. The samples themselves are never changed.

Service time of one unit, for `n` positions behind a context of `c` positions:

    seconds = base + per_position × n + per_context × n × (c + n / 2)

Time of one message over a path:

    seconds = latency + per_byte × bytes

Both are fitted to the median of each point, by non-negative least squares on relative errors: each equation is
divided by its median, so that a fast point counts as much as a slow one. Coefficients below zero would make more
work cheaper and cannot come out. `low` and `high` are the 10th and 90th percentile of sample / prediction over all
samples (each point weighing the same), held to at most and at least 1: they contain the noise of the samples and
the error of the formula alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from inferswarm.errors import MeasurementError

MIN_SAMPLES = 5
"""Fewer samples over all points than this are no measurement."""
_LOW_PERCENTILE, _HIGH_PERCENTILE = 10.0, 90.0


class ServicePoint(NamedTuple):
    """Samples (seconds) of one unit with `positions` new positions behind `context_positions` earlier ones."""

    positions: int
    context_positions: int
    samples: tuple[float, ...]


class PathPoint(NamedTuple):
    """Samples (seconds) of one message of `payload_bytes`, one way."""

    payload_bytes: int
    samples: tuple[float, ...]


class Residual(NamedTuple):
    """What one point says and what the fit says of it, in seconds; `relative` is (median - predicted) / median."""

    point: str
    median_seconds: float
    predicted_seconds: float
    relative: float


class ServiceFit(NamedTuple):
    """Coefficients of the service formula, the spread around it, and how each point lies."""

    base_seconds: float
    seconds_per_position: float
    seconds_per_position_context: float
    low: float
    high: float
    num_samples: int
    residuals: tuple[Residual, ...]


class PathFit(NamedTuple):
    """Coefficients of the path formula, the spread around it, and how each point lies."""

    latency_seconds: float
    seconds_per_byte: float
    low: float
    high: float
    num_samples: int
    residuals: tuple[Residual, ...]


def fit_service(points: Sequence[ServicePoint], min_samples: int = MIN_SAMPLES) -> ServiceFit:
    """Fit the service formula to samples of one unit in one phase.

    A coefficient is fitted only where the points can tell it: `per_position` needs two different `positions`,
    `per_context` two different values of `c + n / 2` that `positions` alone does not explain; otherwise it is 0 and
    `base` carries what was seen. Raises MeasurementError for fewer than `min_samples` samples, or a sample that is
    not a positive finite number, or when the formula predicts no time for a point.
    """
    _refuse_unusable([point.samples for point in points], min_samples)
    columns = [[1.0] * len(points)]
    names = ["base"]
    candidates = (
        ("position", [float(point.positions) for point in points]),
        ("context", [point.positions * (point.context_positions + point.positions / 2) for point in points]),
    )
    for name, column in candidates:
        if _adds_rank(columns, column):
            columns.append(column)
            names.append(name)
    fitted = dict(zip(names, _solve(columns, [median(point.samples) for point in points]), strict=True))
    base, position, context = fitted["base"], fitted.get("position", 0.0), fitted.get("context", 0.0)
    predicted = [
        base + position * n + context * n * (c + n / 2)
        for n, c in ((p.positions, p.context_positions) for p in points)
    ]
    labels = [f"{point.positions} positions behind {point.context_positions}" for point in points]
    low, high = _spread([point.samples for point in points], predicted)
    return ServiceFit(
        base,
        position,
        context,
        low,
        high,
        sum(len(point.samples) for point in points),
        _residuals(labels, [point.samples for point in points], predicted),
    )


def fit_path(points: Sequence[PathPoint], min_samples: int = MIN_SAMPLES) -> PathFit:
    """Fit the path formula to samples of one directed path.

    Raises MeasurementError for fewer than `min_samples` samples, for one payload size only (a rate cannot be told
    from a latency then), or a sample that is not a positive finite number.
    """
    _refuse_unusable([point.samples for point in points], min_samples)
    sizes = {point.payload_bytes for point in points}
    if len(sizes) < 2:
        raise MeasurementError(f"a path needs messages of at least two sizes, has {sorted(sizes)} B")
    columns = [[1.0] * len(points), [float(point.payload_bytes) for point in points]]
    latency, per_byte = _solve(columns, [median(point.samples) for point in points])
    predicted = [latency + per_byte * point.payload_bytes for point in points]
    low, high = _spread([point.samples for point in points], predicted)
    return PathFit(
        latency,
        per_byte,
        low,
        high,
        sum(len(point.samples) for point in points),
        _residuals([f"{point.payload_bytes} B" for point in points], [point.samples for point in points], predicted),
    )


def _refuse_unusable(groups: Sequence[Sequence[float]], min_samples: int) -> None:
    num_samples = sum(len(samples) for samples in groups)
    if num_samples < min_samples or not all(groups):
        raise MeasurementError(f"a fit needs at least {min_samples} samples and none empty, has {num_samples}")
    bad = [sample for samples in groups for sample in samples if not (math.isfinite(sample) and sample > 0)]
    if bad:
        raise MeasurementError(f"a time is a positive finite number of seconds, not {bad[0]}")


def _adds_rank(columns: list[list[float]], column: list[float]) -> bool:
    import numpy as np  # here, so that only fitting loads numpy and scipy

    matrix = np.array([*columns, column], dtype=np.float64)
    scales = np.abs(matrix).max(axis=1, keepdims=True)
    return bool((scales > 0).all()) and int(np.linalg.matrix_rank(matrix / scales, tol=1e-6)) == len(matrix)


def _solve(columns: list[list[float]], medians: list[float]) -> list[float]:
    """Solve min Σ (prediction / median - 1)² over coefficients of at least 0; columns are scaled alike first."""
    import numpy as np
    from scipy.optimize import nnls

    matrix = np.array(columns, dtype=np.float64).T / np.array(medians)[:, None]
    scales = matrix.max(axis=0)
    solution, _ = nnls(matrix / scales, np.ones(len(medians)))
    return [float(value) for value in solution / scales]


def _spread(groups: Sequence[Sequence[float]], predicted: Sequence[float]) -> tuple[float, float]:
    """Return the factors that hold the middle 80 % of sample / prediction, each point weighing the same."""
    if not all(expected > 0 for expected in predicted):
        raise MeasurementError(f"the formula does not describe these samples: it predicts {min(predicted)} s")
    weighted = sorted(
        (sample / expected, 1 / (len(samples) * len(groups)))
        for samples, expected in zip(groups, predicted, strict=True)
        for sample in samples
    )
    return min(1.0, _quantile(weighted, _LOW_PERCENTILE)), max(1.0, _quantile(weighted, _HIGH_PERCENTILE))


def _quantile(weighted: Sequence[tuple[float, float]], percentile: float) -> float:
    """Return the smallest value below which lies at least the given share of the weight."""
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= percentile / 100 - 1e-12:
            return value
    return weighted[-1][0]


def _residuals(
    labels: Sequence[str], groups: Sequence[Sequence[float]], predicted: Sequence[float]
) -> tuple[Residual, ...]:
    return tuple(
        Residual(label, median(samples), expected, (median(samples) - expected) / median(samples))
        for label, samples, expected in zip(labels, groups, predicted, strict=True)
    )
