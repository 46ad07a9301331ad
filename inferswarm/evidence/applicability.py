"""Whether a record may be used for a question: every reason why not, and an explicit unknown when none may.

A record applies when its subject, metric, unit and class are those asked for, every key of the required context is
there with an equal value, and it is young enough. Nothing is interpolated, and missing is never equal. A nominal
value never answers a question for measured evidence. Given what records depend on (`currency`), one that does not
hold any more is refused with what changed and what to measure. Applicability says nothing of health, trust or
performance.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from inferswarm.errors import MeasurementError
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.types import ContextItem, Described, EvidenceClass, Observation
from inferswarm.resources.types import Fact, observed, unknown

MEASURED_CLASSES: tuple[EvidenceClass, ...] = ("measured", "runtime")
"""What a question for measured evidence accepts: probes, and what was seen while serving."""


class Applicability(NamedTuple):
    """Whether one record applies, and every reason why not."""

    applies: bool
    reasons: tuple[str, ...]


class Rejection(NamedTuple):
    """A record that was looked at and not used, with all reasons."""

    observation: Observation
    reasons: tuple[str, ...]


class Selection(NamedTuple):
    """What applies to one question, and what does not and why."""

    subject: str
    metric: str
    applicable: tuple[Observation, ...]
    rejected: tuple[Rejection, ...]

    @property
    def unknown_reason(self) -> str | None:
        """Return why the answer is unknown, or None when there is one."""
        if self.applicable:
            return None
        if not self.rejected:
            return f"no record of {self.metric} exists"
        # The records that miss by least say best what is missing.
        nearest = min(self.rejected, key=lambda rejection: (len(rejection.reasons), rejection.reasons))
        others = len(self.rejected) - 1
        tail = f" (and {others} more that apply no better)" if others else ""
        return f"no record of {self.metric} applies: {'; '.join(nearest.reasons)}{tail}"

    @property
    def samples(self) -> tuple[float, ...]:
        """Return all raw samples of the applicable records. Raises MeasurementError when there are none."""
        if not self.applicable:
            raise MeasurementError(f"{self.subject}: {self.unknown_reason}")
        return tuple(sample for observation in self.applicable for sample in observation.samples)

    @property
    def median(self) -> Fact[float]:
        """Return the median of all applicable samples, or an unknown with its reason; never a zero in its place."""
        if not self.applicable:
            return unknown(self.unknown_reason or "")
        num = len(self.samples)
        return observed(statistics.median(self.samples), f"{num} samples of {len(self.applicable)} records")


def assess(
    observation: Described,
    required_context: Mapping[str, str] | Sequence[ContextItem],
    *,
    unit: str | None = None,
    classes: Sequence[EvidenceClass] = MEASURED_CLASSES,
    max_age_seconds: float | None = None,
    now_ns: int | None = None,
    currency: Currency | None = None,
) -> Applicability:
    """Return whether a record, or a header of one, may be used where `required_context` holds.

    `unit`, when given, must be the record's own. `max_age_seconds` bounds its age at `now_ns` (the present when
    None); a record from the future is as bad as an old one. `currency` holds the record against the facts in force
    and the largest age of its kind.
    """
    reasons: list[str] = []
    if observation.evidence_class not in classes:
        reasons.append(f"class is {observation.evidence_class}, needed {' or '.join(classes)}")
    if unit is not None and observation.unit != unit:
        reasons.append(f"unit is {observation.unit!r}, needed {unit!r}")
    for key, value in sorted(_pairs(required_context)):
        stated = observation.context_value(key)
        if stated is None:
            reasons.append(f"does not state {key}, needed {value!r}")
        elif stated != value:
            reasons.append(f"{key} is {stated!r}, needed {value!r}")
    if max_age_seconds is not None:
        now = time.time_ns() if now_ns is None else now_ns
        age_seconds = (now - int(observation.taken_at_ns)) / 1e9
        if not 0 <= age_seconds <= max_age_seconds:
            reasons.append(f"is {age_seconds:.0f} s old, needed 0 to {max_age_seconds:g} s")
    if currency is not None:
        reasons += currency.refusals(observation)
    return Applicability(not reasons, tuple(reasons))


def _pairs(context: Mapping[str, str] | Sequence[ContextItem]) -> list[tuple[str, str]]:
    if isinstance(context, Mapping):
        return list(context.items())
    return [(item.key, item.value) for item in context]


def select(
    observations: Iterable[Observation],
    subject: str,
    metric: str,
    required_context: Mapping[str, str] | Sequence[ContextItem],
    classes: Sequence[EvidenceClass] = MEASURED_CLASSES,
    *,
    unit: str | None = None,
    max_age_seconds: float | None = None,
    now_ns: int | None = None,
    currency: Currency | None = None,
) -> Selection:
    """Return which records of `metric` apply to `subject`, oldest first, and why the others do not.

    Records of other metrics are not looked at; a record of another subject is rejected by name. The order of
    `observations` changes nothing.
    """
    applicable: list[Observation] = []
    rejected: list[Rejection] = []
    for observation in observations:
        if observation.metric != metric:
            continue
        verdict = assess(
            observation,
            required_context,
            unit=unit,
            classes=classes,
            max_age_seconds=max_age_seconds,
            now_ns=now_ns,
            currency=currency,
        )
        reasons = verdict.reasons
        if observation.subject != subject:
            reasons = (f"subject is {observation.subject!r}, needed {subject!r}", *reasons)
        if reasons:
            rejected.append(Rejection(observation, reasons))
        else:
            applicable.append(observation)
    applicable.sort(key=_age_order)
    rejected.sort(key=lambda rejection: (_age_order(rejection.observation), rejection.reasons))
    return Selection(subject, metric, tuple(applicable), tuple(rejected))


def _age_order(observation: Observation) -> tuple[object, ...]:
    """Order records by age and, within one instant, by what they hold; cheaper than their digests."""
    return (
        int(observation.taken_at_ns),
        observation.subject,
        observation.context,
        observation.samples,
        observation.evidence_class,
        observation.protocol,
        observation.producer,
        observation.unit,
    )
