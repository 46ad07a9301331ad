"""What was observed: one measurement with its raw samples and the context it holds in.

`metric` names what was measured, `samples` are the raw values in the order they were taken (warm-up excluded
by the protocol, outliers never). Context is a sorted tuple of key/value pairs; a record applies only where every
key that the asker requires is there with an equal value.
"""

from __future__ import annotations

import time
from typing import Literal

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


def now_ns() -> str:
    """Return the current time as the digits that `Observation.taken_at_ns` holds."""
    return str(time.time_ns())
