"""Whether samples drifted while they were taken: the first third against the last, and what a run says of itself.

Samples in their order are cut into thirds (what does not divide stays in the middle). `drift` needs both a rank
test (Mann-Whitney, two-sided; exact for few samples without ties) below `alpha` and medians further apart than
`min_change`: a difference too small to matter is no drift, and one that chance explains is none either. Fewer samples
than the test could ever decide with are `insufficient`. A slow ramp and a step are found; a disturbance in the
middle, which comes and goes, is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from inferswarm.documents import Document
from inferswarm.errors import MeasurementError, SpecError
from inferswarm.evidence.types import RUN_PREFIX, ContextItem, Described, Observation

DriftOutcome = Literal["none", "drift", "insufficient"]
Interleaving = Literal["turns", "blocks", "alone"]
"""`turns`: cells measured one sample each in turn; `blocks`: one after another; `alone`: there was but one cell."""
DRIFT_KEY = f"{RUN_PREFIX}drift"
RATIO_KEY = f"{RUN_PREFIX}drift.ratio"
UNUSABLE_RATIO = 1.5
"""Beyond it, either way, samples are of two states of the machine, and their median is of neither."""


class DriftRule(Document, frozen=True, kw_only=True):
    """When samples count as drifted."""

    alpha: float = 0.01
    min_change: float = 0.05

    def __post_init__(self) -> None:
        """Refuse a rule that would always or never find drift."""
        super().__post_init__()
        if not 1e-6 <= self.alpha < 0.5 or self.min_change < 0:
            raise ValueError(f"alpha is {self.alpha}, needed 1e-6 to 0.5; min_change is {self.min_change}")

    @property
    def min_samples(self) -> int:
        """Return the fewest samples with which the test can go below `alpha`: with k a side, p ≥ 2 / C(2k, k)."""
        side = next(k for k in range(2, 20) if 2 / math.comb(2 * k, k) < self.alpha)
        return 3 * side


class DriftReport(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.drift/1"):
    """What the check found; `ratio` is median(last third) / median(first third)."""

    outcome: DriftOutcome
    num_samples: int
    ratio: float | None
    p_value: float | None
    rule: DriftRule
    detail: str


def check_drift(samples: Sequence[float], rule: DriftRule | None = None) -> DriftReport:
    """Return whether samples, in the order in which they were taken, show drift.

    Raises MeasurementError for a sample that is not a positive finite number.
    """
    rule = rule or DriftRule()
    if bad := [sample for sample in samples if not (math.isfinite(sample) and sample > 0)]:
        raise MeasurementError(f"drift is told from positive finite samples, not {bad[0]}")
    if len(samples) < rule.min_samples:
        detail = f"{len(samples)} samples, needed {rule.min_samples}"
        return DriftReport(
            outcome="insufficient", num_samples=len(samples), ratio=None, p_value=None, rule=rule, detail=detail
        )
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    ratio = median(last) / median(first)
    p_value = _p_value(first, last)
    drifts = p_value < rule.alpha and max(ratio, 1 / ratio) > 1 + rule.min_change
    return DriftReport(
        outcome="drift" if drifts else "none",
        num_samples=len(samples),
        ratio=ratio,
        p_value=p_value,
        rule=rule,
        detail=f"the last third's median is {ratio:.3f} times the first's (p {p_value:.2g})",
    )


def _p_value(first: Sequence[float], last: Sequence[float]) -> float:
    if len(set(first) | set(last)) == 1:
        return 1.0  # all alike: the test has no variance to work with
    from scipy.stats import mannwhitneyu  # here, so that only testing loads scipy

    return float(mannwhitneyu(first, last, alternative="two-sided").pvalue)


def record_run(
    observation: Observation,
    *,
    num_warm_up: int,
    interleaving: Interleaving,
    rule: DriftRule | None = None,
    **conditions: str | int | float,
) -> Observation:
    """Return the observation with how its run went in its context, under keys that begin with `run.`.

    Those are the warm-up samples left out, how cells were interleaved, whether the samples drifted, and further
    conditions (`clocks_mhz=1800` becomes `run.clocks.mhz`). The samples stay as they are, drift or not, and what the
    record answers stays the same. Raises SpecError when the record says already how its run went, MeasurementError
    for samples that drift cannot be told from.
    """
    if observation.context_value(DRIFT_KEY) is not None:
        raise SpecError("observation", observation.metric, f"a context that does not state {DRIFT_KEY} yet")
    if num_warm_up < 0:
        raise SpecError("warm-up samples", num_warm_up, "0 or more")
    report = check_drift(observation.samples, rule)
    run = {
        "warm.up": str(num_warm_up),
        "interleaving": interleaving,
        "drift": report.outcome,
        "drift.ratio": "unknown" if report.ratio is None else f"{report.ratio:.4f}",
        "drift.p": "unknown" if report.p_value is None else f"{report.p_value:.3g}",
    }
    stated = {name.replace("_", "."): str(value) for name, value in conditions.items()}
    if repeated := sorted(set(run) & set(stated)):
        raise SpecError("conditions of the run", repeated, "names that the run does not state itself")
    added = [ContextItem(RUN_PREFIX + key, value) for key, value in (run | stated).items()]
    return msgspec.structs.replace(observation, context=tuple(sorted([*observation.context, *added])))


def unusable_drift(record: Described) -> str | None:
    """Return why a record is to be measured again and not used: its run drifted by more than `UNUSABLE_RATIO`.

    None for a run that was steady, that drifted by less, or that says nothing of drift. A drift whose size cannot be
    read counts as too large.
    """
    if record.context_value(DRIFT_KEY) != "drift":
        return None
    stated = record.context_value(RATIO_KEY)
    try:
        ratio = float(stated) if stated is not None else math.inf
    except ValueError:
        ratio = math.inf
    if ratio > 0 and max(ratio, 1 / ratio) <= UNUSABLE_RATIO:
        return None
    return f"drifted while it was measured: the last third's median is {stated} times the first's"
