"""Which records answer one question of the planner, and what a step costs a participant beside its units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import NamedTuple

from inferswarm.errors import MeasurementError
from inferswarm.evidence.applicability import Selection, select
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.types import Observation
from inferswarm.planner.economics import Phase
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.types import ComputeUnit
from inferswarm.strategies.dense.description import EMBEDDING, HEAD

SERVICE_METRIC = "unit-seconds"
OVERHEAD_METRIC = "step-overhead-seconds"
OPENING_METRIC = "request-opening-seconds"
TOKEN_METRIC = "token-serving-seconds"
SECONDS = "s"
_ON_TORCH = ("torch", "transformers")
"""Primitives whose records hold for one version of torch."""


class Records:
    """What was observed, and what it is held against."""

    def __init__(self, observations: Iterable[Observation], currency: Currency | None) -> None:
        self._currency = currency
        self._of_metric: dict[str, list[Observation]] = {}
        self._of_subject: dict[tuple[str, str], list[Observation]] = {}
        for item in observations:
            self._of_metric.setdefault(item.metric, []).append(item)
            self._of_subject.setdefault((item.metric, item.subject), []).append(item)

    def select(self, subject: str, metric: str, required: Mapping[str, str], unit: str = SECONDS) -> Selection:
        """Return which records apply. Those of other subjects are looked at where this one has none."""
        among = self._of_subject.get((metric, subject)) or self._of_metric.get(metric, [])
        return select(among, subject, metric, required, unit=unit, currency=self._currency)

    def is_present(self, subject: str) -> bool:
        """Return whether a subject is there now, as far as anybody says what is."""
        return self._currency is None or self._currency.facts.of(subject) is not None

    def subjects(self, metric: str) -> tuple[str, ...]:
        """Return what there are records of this metric about, sorted."""
        return tuple(sorted(subject for kind, subject in self._of_subject if kind == metric))


class Overhead(NamedTuple):
    """Seconds that a step takes a participant beside its units, and the records that tell it."""

    samples: tuple[float, ...]
    evidence_ids: tuple[str, ...]

    def added_to(self, samples: Sequence[float]) -> tuple[float, ...]:
        """Return as many sums as the longer of the two has samples, each of one sample of both."""
        if not self.samples:
            return tuple(samples)
        num = max(len(samples), len(self.samples))
        return tuple(a + b for a, b, _ in zip(cycle(samples), cycle(self.samples), range(num), strict=False))


class Question(NamedTuple):
    """One service curve that is wanted."""

    swarm: SwarmGraph
    unit: ComputeUnit
    primitive: str
    representation: str
    cost_class: str
    phase: Phase
    shape: str

    def __str__(self) -> str:
        """Name what is wanted, for people."""
        return f"{SERVICE_METRIC} of {self.cost_class} {self.where}"

    @property
    def where(self) -> str:
        """Name representation, phase and Compute Unit, for people."""
        node = self.swarm.node(self.unit.node_id).name
        return f"in {self.representation}, {self.phase}, on {node} ({self.unit.id})"

    @property
    def context(self) -> dict[str, str]:
        """Return what a record must state to answer it."""
        required = {
            "backend": self.primitive,
            "representation": self.representation,
            "phase": self.phase,
            "threads": str(self.unit.threads),
            "model.shape": self.shape,
        }
        stated = {named.name: named.fact.value for named in self.swarm.node(self.unit.node_id).facts}
        for key, matters in (("torch", self.primitive in _ON_TORCH), ("cpu", self.unit.kind == "cpu")):
            value = stated.get(key)
            if matters and value is not None:
                required[key] = value
        if self.cost_class:
            required["cost.class"] = self.cost_class
        return required


def serving_of(question: Question, metric: str, records: Records) -> Overhead:
    """Return what the swarm itself adds to each request or each token whose first participant is on this Node."""
    found = records.select(question.unit.node_id, metric, {})
    refuse_mixture(found, ())
    return Overhead(found.samples, ids_of(found))


def overhead_of(question: Question, records: Records) -> Overhead:
    """Return what a step of blocks costs a participant beside them, one step after the other."""
    found = back_to_back(_of_blocks(records.select(question.unit.id, OVERHEAD_METRIC, question.context)))
    refuse_mixture(found, ("torch", "cpu"))
    return Overhead(found.samples, ids_of(found))


def waking_of(question: Question, records: Records) -> Overhead:
    """Return what a step after a pause costs a participant beside what its units take without one.

    The step is the shortest that was measured both ways; one that was faster after the pause cost nothing.
    """
    overheads = _of_blocks(records.select(question.unit.id, OVERHEAD_METRIC, question.context))
    units = _of_blocks(records.select(question.unit.id, SERVICE_METRIC, question.context))
    refuse_mixture(overheads, ("torch", "cpu"))
    if not any(_pause(record) for record in overheads.applicable):
        raise MeasurementError("no record of a step after a pause applies")
    usual = points_of(back_to_back(units))
    samples: list[float] = []
    used: set[str] = set()
    for beside in overheads.applicable:
        if not _pause(beside):
            continue
        key = _point(beside)
        within = next(
            (
                item
                for item in units.applicable
                if (_pause(item), item.taken_at_ns, _point(item)) == (_pause(beside), beside.taken_at_ns, key)
            ),
            None,
        )
        if within is None or key not in usual or len(within.samples) != len(beside.samples):
            raise MeasurementError(f"record {beside.id} has no record of its units beside it")
        num_units = count_of(beside, "num.units", 1)
        expected = num_units * median(usual[key])
        samples += (
            max(0.0, num_units * unit + rest - expected)
            for unit, rest in zip(within.samples, beside.samples, strict=True)
        )
        used |= {beside.id, within.id}
    return Overhead(tuple(samples), tuple(sorted({*used, *ids_of(back_to_back(units))})))


def _of_blocks(found: Selection) -> Selection:
    """Leave out the units at the two ends of the chain: a participant of blocks only is what tells its overhead."""
    kept = tuple(item for item in found.applicable if item.context_value("cost.class") not in (EMBEDDING, HEAD))
    return found._replace(applicable=kept)


def back_to_back(found: Selection) -> Selection:
    """Leave out what was measured after a pause. Raises MeasurementError for a pause that is no time."""
    return found._replace(applicable=tuple(item for item in found.applicable if not _pause(item)))


def _pause(record: Observation) -> float:
    """Return how long the process slept before each step; a record that does not say knew no pause."""
    text = record.context_value("pause.seconds") or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 60:
        raise MeasurementError(f"record {record.id} states pause.seconds as {text!r}, needed 0 to 60")
    return seconds


_PointKey = tuple[str, int, int]
"""Cost class, positions, positions before them."""


def _point(record: Observation) -> _PointKey:
    before = count_of(record, "context.positions", 0)
    return record.context_value("cost.class") or "", count_of(record, "positions", 1), before


def points_of(found: Selection) -> dict[_PointKey, tuple[float, ...]]:
    """Return all samples by point: cost class, positions, positions before them. Raises MeasurementError."""
    points: dict[_PointKey, tuple[float, ...]] = {}
    for record in found.applicable:
        key = _point(record)
        points[key] = points.get(key, ()) + record.samples
    return points


def refuse_mixture(found: Selection, keys: Sequence[str]) -> None:
    """Raise MeasurementError when nothing applies, or when what applies is of several kinds."""
    if not found.applicable:
        raise MeasurementError(found.unknown_reason or f"{found.subject}: no record of {found.metric} of this kind")
    for key in keys:
        values = sorted({record.context_value(key) or "(not stated)" for record in found.applicable})
        if len(values) > 1:
            raise MeasurementError(f"records differ in {key} ({', '.join(values)}) and nothing says which holds here")


def count_of(record: Observation, key: str, at_least: int) -> int:
    """Return a count that a record states in its context. Raises MeasurementError when it states none."""
    text = record.context_value(key)
    if text is None or not (text.isascii() and text.isdigit()) or int(text) < at_least:
        raise MeasurementError(f"record {record.id} states {key} as {text!r}, needed a count of at least {at_least}")
    return int(text)


def ids_of(found: Selection) -> tuple[str, ...]:
    """Return the ids of the records that apply, sorted."""
    return tuple(sorted({record.id for record in found.applicable}))
