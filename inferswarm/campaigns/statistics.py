"""Estimates with bounds: what raw samples say, how sure that is, and how many it takes to say it at all.

Each function returns the estimate with a lower and an upper bound. A bound is None where the sample is too small to
have one at the confidence that was asked for: that is never a reason to assume one.

Samples are taken as independent of each other. Where they are not (the steps of one answer), the units of a ratio
are whole blocks; other statistics want one sample for each block.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from inferswarm.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Center = Literal["median", "mean"]
"""What a group of samples is summed up by."""

_BATCH_NUMBERS = 1_000_000
"""How many resampled numbers are held at a time: 8 MB."""


class Estimate(NamedTuple):
    """A number, the bounds within which it lies, and from how many units it was computed.

    `low` and `high` each hold with the confidence that was asked for, one-sided, except for ratios, where both
    together do. None: the sample supports no such bound.
    """

    value: float
    low: float | None
    high: float | None
    num_units: int


def proportion(num_true: int, num_all: int, confidence: float, method: Literal["exact", "wilson"]) -> Estimate:
    """Return the share of successes with one-sided bounds: `exact` (Clopper and Pearson) or `wilson` (of the score).

    The exact bounds cover at least as often as stated; Wilson's do so on average over the shares. Raises SpecError
    for no trials and for a confidence outside (0, 1).
    """
    _check(num_all, confidence)
    from scipy.stats import binomtest

    low = binomtest(num_true, num_all, alternative="greater").proportion_ci(confidence, method).low
    high = binomtest(num_true, num_all, alternative="less").proportion_ci(confidence, method).high
    return Estimate(num_true / num_all, float(low), float(high), num_all)


def quantile(values: Sequence[float], share: float, confidence: float) -> Estimate:
    """Return the smallest sample that a `share` of all does not exceed, with one-sided bounds that are samples too.

    The bounds are order statistics (Conover, Practical Nonparametric Statistics, 3rd edition, chapter 3.2): nothing
    is assumed of the distribution. Raises SpecError for no samples, and for a share or confidence outside (0, 1).
    """
    _check(len(values), confidence)
    if not 0 < share < 1:
        raise SpecError("share of a quantile", share, "a number between 0 and 1, without both")
    from scipy.stats import quantile_test

    ordered = sorted(values)
    value = ordered[max(math.ceil(round(share * len(ordered), 9)) - 1, 0)]
    low = quantile_test(ordered, p=share, alternative="greater").confidence_interval(confidence).low
    high = quantile_test(ordered, p=share, alternative="less").confidence_interval(confidence).high
    return Estimate(value, _finite(low), _finite(high), len(ordered))


def median(values: Sequence[float], confidence: float) -> Estimate:
    """Return the median (of an even number of samples the mean of both in the middle) with the bounds of `quantile`.

    Raises SpecError for no samples and for a confidence outside (0, 1).
    """
    import statistics

    return quantile(values, 0.5, confidence)._replace(value=float(statistics.median(values)))


def samples_for_quantile(share: float, confidence: float, num_above: int = 0) -> int:
    """Return how many samples a quantile's upper bound needs, when so many of them may lie above the bound.

    The smallest n at which so few above the true quantile would be seen with a chance of at most 1 − confidence:
    the binomial odds of MLPerf Inference's early stopping.

    >>> samples_for_quantile(0.99, 0.99), samples_for_quantile(0.99, 0.95), samples_for_quantile(0.99, 0.99, 1)
    (459, 299, 662)
    """
    from scipy.stats import binom

    high = 1
    while binom.cdf(num_above, high, 1 - share) > 1 - confidence:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if binom.cdf(num_above, middle, 1 - share) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def units_for_interval(confidence: float) -> int:
    """Return from how many units a two-sided interval of a median can be had at all: 2 · 0.5^n ≤ 1 − confidence.

    No resampling makes fewer units say more; a bootstrap of them would only look narrow.

    >>> units_for_interval(0.95), units_for_interval(0.99)
    (6, 8)
    """
    return math.ceil(1 - math.log2(1 - confidence))


def center_of(values: Sequence[float], center: Center) -> float:
    """Return the median or the mean of at least one number; not a finite one where doubles cannot hold it."""
    import statistics

    try:
        return float(statistics.median(values) if center == "median" else statistics.fmean(values))
    except OverflowError:
        return math.inf


def paired_ratio(
    pairs: Sequence[tuple[float, float]], center: Center, confidence: float, resamples: int, seed: int
) -> Estimate:
    """Return the median or mean of left / right over pairs, with a two-sided interval by resampling whole pairs.

    Raises SpecError for no pairs, a right side of 0, a confidence outside (0, 1), or no resamples.
    """
    ratios = [_ratio(left, right) for left, right in pairs]
    _check(len(ratios), confidence)
    bounds = _bootstrap((ratios,), _along(center), confidence, resamples, seed)
    return Estimate(center_of(ratios, center), *bounds, len(ratios))


def ratio_of_two(
    left: Sequence[float], right: Sequence[float], center: Center, confidence: float, resamples: int, seed: int
) -> Estimate:
    """Return the ratio of two medians or means, with a two-sided interval by resampling each side for itself.

    The number of units is that of the smaller side. Raises SpecError as `paired_ratio` does.
    """
    num_units = min(len(left), len(right))
    _check(num_units, confidence)
    value = _ratio(center_of(left, center), center_of(right, center))
    along = _along(center)

    def statistic(over: Any, under: Any, axis: int) -> Any:
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):  # a resample may be all zeros: that leaves no interval
            return along(over, axis) / along(under, axis)

    return Estimate(value, *_bootstrap((left, right), statistic, confidence, resamples, seed), num_units)


def _bootstrap(
    data: Sequence[Sequence[float]], statistic: Callable[..., Any], confidence: float, resamples: int, seed: int
) -> tuple[float | None, float | None]:
    """Return a BCa interval (Efron, 1987), or no bounds where units are too few.

    There are none either where leaving out any one unit changes nothing (all are alike, or those in the middle are):
    then the interval's acceleration is not defined.
    """
    if resamples < 1:
        raise SpecError("resamples", resamples, "at least 1")
    num_units = min(map(len, data))
    if num_units < units_for_interval(confidence):
        return None, None
    import numpy as np
    from scipy.stats import bootstrap

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the interval is NaN then, and NaN is no bound
        found = bootstrap(
            [np.asarray(side, dtype=np.float64) for side in data],
            statistic,
            n_resamples=resamples,
            batch=max(1, _BATCH_NUMBERS // max(map(len, data))),
            vectorized=True,
            confidence_level=confidence,
            method="BCa",
            rng=np.random.Generator(np.random.PCG64(seed)),
        ).confidence_interval
    return _finite(found.low), _finite(found.high)


def _along(center: Center) -> Callable[[Any, int], npt.NDArray[np.float64]]:
    import numpy as np

    function: Callable[..., Any] = np.median if center == "median" else np.mean
    return lambda values, axis: function(values, axis=axis)


def _ratio(left: float, right: float) -> float:
    if right == 0:
        raise SpecError("right side of a ratio", right, "a number other than 0")
    return left / right


def _finite(bound: Any) -> float | None:
    return float(bound) if math.isfinite(bound) else None


def _check(num_units: int, confidence: float) -> None:
    if num_units < 1:
        raise SpecError("samples", num_units, "at least 1")
    if not 0 < confidence < 1:
        raise SpecError("confidence", confidence, "a number between 0 and 1, without both")
