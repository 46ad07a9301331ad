"""What was observed: one measurement with its raw samples and the context it holds in.

`metric` names what was measured, `samples` are the raw values in the order they were taken (warm-up excluded
by the protocol, outliers never). Context is a sorted tuple of key/value pairs; a record applies only where every
key that the asker requires is there with an equal value. Keys that begin with `run.` say how a run went (warm-up,
drift, clocks, load); they are no part of the question that a record answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar

from inferswarm.documents import Digits, Document, digest

EvidenceClass = Literal["nominal", "discovered", "measured", "runtime", "baseline", "estimate"]


class ContextItem(Document, frozen=True, order=True):
    """One key and value of a record's context."""

    key: str
    value: str


def make_context(**items: str | int | float) -> tuple[ContextItem, ...]:
    """Return a sorted context; underscores in names become dots (`model_shape` is `model.shape`)."""
    return tuple(sorted(ContextItem(key.replace("_", "."), str(value)) for key, value in items.items()))


class Observation(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.observation/1"):
    """One measurement of one subject (a Compute Unit, a Memory Resource, a directed pair of Nodes)."""

    subject: str
    metric: str
    unit: str
    samples: tuple[float, ...]
    context: tuple[ContextItem, ...]
    protocol: str
    """How it was taken: name and version, such as `decode-block/1`."""
    evidence_class: EvidenceClass = "measured"
    taken_at_ns: Digits
    """Nanoseconds since 1970, as digits."""
    producer: str
    """Package version that took it."""

    def __post_init__(self) -> None:
        """Refuse a record without samples or without context: a number without either says nothing."""
        super().__post_init__()
        if not self.samples:
            raise ValueError(f"observation of {self.metric} has no samples")
        if not self.context:
            raise ValueError(f"observation of {self.metric} has no context")
        if list(self.context) != sorted(self.context):
            raise ValueError("context is not sorted")

    @property
    def id(self) -> str:
        """Return the digest that identifies this record."""
        return digest(self)

    def context_value(self, key: str) -> str | None:
        """Return the value for `key`, or None when the record does not state it."""
        return next((item.value for item in self.context if item.key == key), None)


RUN_PREFIX = "run."
"""Begins the keys of a context that say how a run went and not what was asked."""

QuestionKey = tuple[str, str, tuple[ContextItem, ...]]
"""What a record answers: subject, metric, and its context without the keys of the run."""


class RecordHeader(NamedTuple):
    """A kept record without its samples, which its `id` alone stands for until they are read."""

    id: str
    subject: str
    metric: str
    unit: str
    context: tuple[ContextItem, ...]
    protocol: str
    evidence_class: EvidenceClass
    taken_at_ns: str
    producer: str

    def context_value(self, key: str) -> str | None:
        """Return the value for `key`, or None when the record does not state it."""
        return next((item.value for item in self.context if item.key == key), None)


Described = Observation | RecordHeader
"""What says everything of a record but its samples."""
AnyRecord = TypeVar("AnyRecord", Observation, RecordHeader)


def question_of(record: Described) -> QuestionKey:
    """Return what a record answers; two records with equal keys are measurements of the same thing."""
    context = tuple(item for item in record.context if not item.key.startswith(RUN_PREFIX))
    return record.subject, record.metric, context


def newest_of_each(records: Iterable[AnyRecord], count: int = 1) -> tuple[AnyRecord, ...]:
    """Keep, of records that answer the same question, the `count` taken last; of equal times those given last.

    Questions come in the order in which they appear, the records of each newest first.
    """
    questions: dict[QuestionKey, list[AnyRecord]] = {}
    for record in records:
        questions.setdefault(question_of(record), []).append(record)
    kept = []
    for answers in questions.values():
        in_order = sorted(answers, key=lambda record: int(record.taken_at_ns))  # stable: the last given comes last
        kept += in_order[: -count - 1 : -1]
    return tuple(kept)


def now_ns() -> str:
    """Return the current time as the digits that `Observation.taken_at_ns` holds."""
    return str(time.time_ns())
