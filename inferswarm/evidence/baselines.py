"""Accepted reference baselines: what somebody decided that a resource should deliver, held fast.

A baseline holds its own samples and their digest, who accepted them, when and why. It is a document: nothing that is
observed later changes it, and there is no function that moves it. Another value needs another acceptance, which
makes the next version and names the one that it replaces. Accepting says nothing of today: that is an observation,
and comparing the two changes neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Annotated

import msgspec

from inferswarm.documents import Digest, Digits, Document, digest
from inferswarm.errors import EvidenceError, SpecError
from inferswarm.evidence.applicability import MEASURED_CLASSES
from inferswarm.evidence.comparison import Comparison, ComparisonRule, compare, repeat_noise
from inferswarm.evidence.dependencies import DEPENDENCIES, Better, MetricDependencies, dependencies_of
from inferswarm.evidence.drift import check_drift
from inferswarm.evidence.types import ContextItem, Described, Observation, QuestionKey, question_of


class Baseline(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.baseline/1"):
    """One accepted version of what is expected of one subject in one context."""

    subject: str
    metric: str
    unit: str
    context: tuple[ContextItem, ...]
    """What the value holds for, without the keys of single runs."""
    protocol: str
    better: Better
    version: Annotated[int, msgspec.Meta(ge=1)]
    replaces: Digest | None
    """The id of the version before; None for the first."""
    accepted_by: str
    accepted_at_ns: Digits
    reason: str
    observation_ids: tuple[Digest, ...]
    """The records that were accepted, one for each run."""
    runs: tuple[tuple[float, ...], ...]
    """Their samples, in the order of `observation_ids`."""
    samples_digest: Digest

    def __post_init__(self) -> None:
        """Refuse a baseline that nobody accepted, without samples, or with samples that its digest does not name."""
        super().__post_init__()
        if not self.accepted_by.strip() or not self.reason.strip():
            raise ValueError("a baseline says who accepted it and why")
        if not self.context or not self.runs or not all(self.runs) or len(self.runs) != len(self.observation_ids):
            raise ValueError("a baseline has a context, and samples for each record that was accepted")
        if (self.version == 1) != (self.replaces is None):
            raise ValueError(f"version {self.version} replaces {self.replaces}: the first replaces none, others do")
        if digest(self.runs) != self.samples_digest:
            raise ValueError("the baseline's samples are not those that its digest names")

    @property
    def id(self) -> str:
        """Return the digest that identifies this version."""
        return digest(self)

    @property
    def question(self) -> QuestionKey:
        """Return what the baseline answers, as `question_of` does for a record."""
        return self.subject, self.metric, self.context

    @property
    def median(self) -> float:
        """Return the median of all accepted samples."""
        return median(value for samples in self.runs for value in samples)

    @property
    def repeat_noise(self) -> float:
        """Return how far the medians of the accepted runs lie apart, as a share."""
        return repeat_noise(self.runs)


def accept_baseline(
    observations: Sequence[Observation],
    *,
    accepted_by: str,
    accepted_at_ns: str,
    reason: str,
    previous: Baseline | None = None,
    declared: tuple[MetricDependencies, ...] = DEPENDENCIES,
    rule: ComparisonRule | None = None,
) -> Baseline:
    """Return the baseline that accepts these records, or the version after `previous`.

    Raises SpecError for no records, records that answer different questions, a class that was not measured, too few
    samples to compare with, a run that drifted, an acceptance older than its records, or a `previous` of another
    question; MeasurementError for samples that are not positive.
    """
    rule = rule or ComparisonRule()
    if not observations:
        raise SpecError("records to accept", 0, "at least one")
    first = observations[0]
    for record in observations:
        same = question_of(record) == question_of(first)
        if not same or (record.unit, record.protocol) != (first.unit, first.protocol):
            raise SpecError("records to accept", record.id, "records of one question, unit and protocol")
        if record.evidence_class not in MEASURED_CLASSES:
            raise SpecError("class of a record to accept", record.evidence_class, " or ".join(MEASURED_CLASSES))
        report = check_drift(record.samples, rule.drift)
        if report.outcome == "drift":
            raise SpecError("record to accept", record.id, f"samples without drift: {report.detail}")
        if int(record.taken_at_ns) > int(accepted_at_ns):
            raise SpecError("time of acceptance", accepted_at_ns, f"not before the record of {record.taken_at_ns}")
    if len({record.id for record in observations}) < len(observations):
        raise SpecError("records to accept", len(observations), "each record once")
    num_samples = sum(len(record.samples) for record in observations)
    if num_samples < rule.min_samples:
        raise SpecError("samples to accept", num_samples, f"at least {rule.min_samples}")
    if (kind := dependencies_of(first.metric, declared)) is None:
        raise SpecError("metric to accept", first.metric, "a kind of observation that is declared")
    subject, metric, context = question_of(first)
    if previous is not None and previous.question != (subject, metric, context):
        raise SpecError("baseline to replace", previous.id, "one of the same subject, metric and context")
    runs = tuple(record.samples for record in observations)
    repeat_noise(runs)  # refuses what no ratio can be made of
    return Baseline(
        subject=subject,
        metric=metric,
        unit=first.unit,
        context=context,
        protocol=first.protocol,
        better=kind.better,
        version=1 if previous is None else previous.version + 1,
        replaces=None if previous is None else previous.id,
        accepted_by=accepted_by,
        accepted_at_ns=accepted_at_ns,
        reason=reason,
        observation_ids=tuple(record.id for record in observations),
        runs=runs,
        samples_digest=digest(runs),
    )


def baseline_in_force(baselines: Iterable[Baseline], record: Described) -> Baseline | None:
    """Return the newest accepted version for what a record answers; None when nothing was accepted for it.

    Raises EvidenceError when the versions do not follow each other: one is missing, or two claim one place.
    """
    versions = sorted(
        (item for item in set(baselines) if item.question == question_of(record)), key=lambda item: item.version
    )
    previous: Baseline | None = None
    for item in versions:
        wanted = (1, None) if previous is None else (previous.version + 1, previous.id)
        if (item.version, item.replaces) != wanted:
            raise EvidenceError(
                f"baselines of {item.metric} of {item.subject} do not follow each other: found version "
                f"{item.version} that replaces {item.replaces}, needed version {wanted[0]} that replaces {wanted[1]}"
            )
        previous = item
    return previous


def compare_with_baseline(
    baseline: Baseline, observations: Sequence[Observation], rule: ComparisonRule | None = None
) -> Comparison:
    """Compare records with the baseline of their question; neither is changed.

    Raises SpecError for no record, or one of another subject, metric, context, unit, protocol or class: what
    differs in its conditions says nothing about degradation.
    """
    if not observations:
        raise SpecError("records to compare", 0, "at least one")
    for record in observations:
        if difference := _difference(baseline, record):
            raise SpecError("record to compare", record.id, f"one that the baseline holds for: {difference}")
    return compare(baseline.runs, [record.samples for record in observations], baseline.better, rule)


def _difference(baseline: Baseline, record: Observation) -> str:
    """Say what makes a record no answer to the baseline's question, or nothing."""
    found: Mapping[str, str] = {item.key: item.value for item in question_of(record)[2]}
    needed: Mapping[str, str] = {item.key: item.value for item in baseline.context}
    for key in sorted(set(found) | set(needed)):
        if found.get(key) != needed.get(key):
            return f"{key} is {found.get(key)!r}, needed {needed.get(key)!r}"
    for name in ("subject", "metric", "unit", "protocol"):
        if getattr(record, name) != getattr(baseline, name):
            return f"{name} is {getattr(record, name)!r}, needed {getattr(baseline, name)!r}"
    return "" if record.evidence_class in MEASURED_CLASSES else f"class is {record.evidence_class}"
