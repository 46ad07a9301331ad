"""Whether new samples are worse than reference samples: the ratio of medians, with its bootstrap interval.

    ratio = median(new) / median(reference)        1.2 = a fifth more; whether that is worse, the metric says

The interval comes from resampling both sides independently (percentile bootstrap, a fixed seed). With a limit of
1 + `min_change`, the change is `degraded` when the whole interval lies beyond the limit on the bad side, `improved`
when it lies beyond it on the good side, `none` when it lies within, and `insufficient` when it reaches across: then
the samples do not tell, and nothing is concluded. One outlier moves a median by one place and decides nothing.

The bootstrap takes samples for independent. Samples of one run share what that run met, so a run that shows drift is
`insufficient`, and the limit is never below the spread that repeated reference runs showed (`repeat_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from inferswarm.documents import Document
from inferswarm.errors import MeasurementError
from inferswarm.evidence.dependencies import Better
from inferswarm.evidence.drift import DriftRule, check_drift

Outcome = Literal["none", "degraded", "improved", "insufficient"]


class ComparisonRule(Document, frozen=True, kw_only=True):
    """How strictly samples are compared. Every parameter is part of the result."""

    min_change: float = 0.10
    """The smallest relative change that matters."""
    confidence: float = 0.99
    num_resamples: int = 2000
    min_samples: int = 8
    """On each side."""
    seed: int = 0
    drift: DriftRule = DriftRule()

    def __post_init__(self) -> None:
        """Refuse a rule that would always or never conclude."""
        super().__post_init__()
        if self.min_change <= 0 or not 0.5 <= self.confidence < 1 or self.num_resamples < 200 or self.min_samples < 5:
            raise ValueError(
                "a comparison needs a change above 0, a confidence of 0.5 to 1, 200 resamples and 5 samples: "
                f"{self.min_change}, {self.confidence}, {self.num_resamples}, {self.min_samples}"
            )


class Comparison(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.comparison/1"):
    """What a comparison found. `ratio`, `low` and `high` are None where there are too few samples for them."""

    outcome: Outcome
    better: Better
    ratio: float | None
    low: float | None
    high: float | None
    limit: float
    """The factor that a change must exceed: 1 + the larger of `min_change` and the repeat noise."""
    num_reference: int
    num_new: int
    rule: ComparisonRule
    detail: str


def repeat_noise(runs: Sequence[Sequence[float]]) -> float:
    """Return how far the medians of repeated runs lie apart, as a share: the largest over the smallest, less 1.

    0 for one run, which shows nothing about repeats. Raises MeasurementError for samples that are not positive.
    """
    medians = [median(_positive(samples)) for samples in runs]
    return max(medians) / min(medians) - 1 if medians else 0.0


def compare(
    reference: Sequence[Sequence[float]],
    new: Sequence[Sequence[float]],
    better: Better,
    rule: ComparisonRule | None = None,
) -> Comparison:
    """Compare new runs with reference runs; each run is its samples in the order in which they were taken.

    Equal input gives an equal result. Raises MeasurementError for a sample that is not a positive finite number.
    """
    rule = rule or ComparisonRule()
    pooled_reference = [value for samples in reference for value in _positive(samples)]
    pooled_new = [value for samples in new for value in _positive(samples)]
    limit = 1 + max(rule.min_change, repeat_noise(reference))

    def result(outcome: Outcome, detail: str, *interval: float) -> Comparison:
        ratio, low, high = interval or (None, None, None)
        return Comparison(
            outcome=outcome,
            better=better,
            ratio=ratio,
            low=low,
            high=high,
            limit=limit,
            num_reference=len(pooled_reference),
            num_new=len(pooled_new),
            rule=rule,
            detail=detail,
        )

    for side, pooled in (("reference", pooled_reference), ("new", pooled_new)):
        if len(pooled) < rule.min_samples:
            return result("insufficient", f"{len(pooled)} {side} samples, needed {rule.min_samples}")
    for number, samples in enumerate(new, start=1):
        report = check_drift(samples, rule.drift)
        if report.outcome == "drift":
            return result("insufficient", f"new run {number} of {len(new)} is not steady: {report.detail}")
    interval = _interval(pooled_reference, pooled_new, rule)
    outcome = _outcome(*interval[1:], limit, better)
    ratio, low, high = interval
    detail = f"the median is {ratio:.3f} times the reference's ({low:.3f} to {high:.3f}, limit {limit:.3f})"
    if outcome == "insufficient":
        detail += ": more samples are needed to tell"
    return result(outcome, detail, *interval)


def _outcome(low: float, high: float, limit: float, better: Better) -> Outcome:
    """Say where the interval of the ratio lies."""
    if better == "higher":  # a lower rate is a higher cost
        low, high = 1 / high, 1 / low
    if low > limit:
        return "degraded"
    if high < 1 / limit:
        return "improved"
    return "none" if 1 / limit <= low and high <= limit else "insufficient"


def _positive(samples: Sequence[float]) -> Sequence[float]:
    bad = [sample for sample in samples if not (math.isfinite(sample) and sample > 0)]
    if bad or not samples:
        raise MeasurementError(f"samples to compare are positive finite numbers, not {bad[:1] or 'none at all'}")
    return samples


def _interval(reference: list[float], new: list[float], rule: ComparisonRule) -> tuple[float, float, float]:
    """Return the ratio of medians and the ends of its bootstrap interval."""
    import numpy as np  # here, so that only comparing loads numpy and scipy
    from scipy.stats import bootstrap

    def ratio_of_medians(new_values: Any, reference_values: Any, axis: int = -1) -> Any:
        return np.median(new_values, axis=axis) / np.median(reference_values, axis=axis)

    found = bootstrap(
        (np.array(new), np.array(reference)),
        ratio_of_medians,
        n_resamples=rule.num_resamples,
        vectorized=True,
        confidence_level=rule.confidence,
        method="percentile",
        random_state=np.random.default_rng(rule.seed),
    )
    interval = found.confidence_interval
    return float(median(new) / median(reference)), float(interval.low), float(interval.high)
