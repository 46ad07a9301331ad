"""The log of every byte that moved for an artifact, by class, which checks its own sums.

Three laws hold, for each participant and artifact, and are checked:

* What came over the wire is explained: for each source, received = acquired + resume_transfer + partial_staging
  + integrity_failure + unrelated. `received` is what the transport counted; the others say what became of it.
* A kept beginning is used once: resumed_prefix and partial_discarded never exceed, at any moment, what partial_found
  said last and partial_staging added since.
* What is required, or kept though it is not, is there once: required + optional_retained = cache_hit + acquired
  + resumed_prefix + resume_transfer.

So a content that came whole in one attempt is *acquired*; one that came in several was *partial_staging* each time it
was cut off, and is *resumed_prefix* and *resume_transfer* when the last attempt ended well. Events are only added.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from inferswarm.artifacts.acquisition.orders import ByteKind, BytesMoved
from inferswarm.artifacts.taxonomy import RECONCILIATION_MISMATCH
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import Digest, Digits, Document
from inferswarm.errors import ArtifactError

if TYPE_CHECKING:
    import polars

ByteClass = Literal[
    ByteKind,
    "required",
    "optional_retained",
    "materialized",
    "boundary",
    "unexplained_full_object",
    "coordinator_observed",
]
"""What an entry counts.

- required: a plan needs it here. cache_hit: it was there, verified.
- received: the transport's own count. What became of it: acquired, resume_transfer, partial_staging,
  integrity_failure (bytes of a content with another digest), unrelated (bytes of no artifact of the participant).
- partial_found: a beginning that was in the store when an attempt began. resumed_prefix: what of it went on.
  partial_discarded: a kept beginning that was thrown away.
- optional_retained: kept though no plan needs it: results of transforms. materialized: made into states. boundary:
  payloads between stages.
- unexplained_full_object: all of an object came without a declaration.
- coordinator_observed: model bytes that the Coordinator saw; whoever guards it says so also when it is 0.
"""

_OUTCOMES: Final = ("acquired", "resume_transfer", "partial_staging", "integrity_failure", "unrelated")
_FROM_SOURCES: Final = frozenset({"received", *_OUTCOMES})


class LedgerEvent(Document, frozen=True, kw_only=True):
    """One entry. `artifact` is UNSET where bytes belong to none, `source` is empty where nothing moved.

    What is received says which bytes of which object it is, in the object's own places also when a peer gave them.
    """

    kind: ByteClass
    participant: str
    source: str = ""
    artifact: Digest | msgspec.UnsetType = msgspec.UNSET
    """The artifact's id."""
    content: Digest | msgspec.UnsetType = msgspec.UNSET
    """The digest of the artifact's bytes, where it is known."""
    object: str | msgspec.UnsetType = msgspec.UNSET
    """Where the object was described that the bytes are of."""
    range: ByteRange | msgspec.UnsetType = msgspec.UNSET
    bytes: int
    at_ns: Digits

    def __post_init__(self) -> None:
        """Refuse negative bytes, a transfer without a source, and received bytes that say not what they are."""
        super().__post_init__()
        if self.bytes < 0:
            raise ValueError(f"{self.kind}: {self.bytes} B")
        if self.kind in _FROM_SOURCES and not self.source:
            raise ValueError(f"{self.kind} of {self.bytes:,} B names no source")
        if self.kind == "received":
            if isinstance(self.object, msgspec.UnsetType) or isinstance(self.range, msgspec.UnsetType):
                raise ValueError(f"received {self.bytes:,} B, and not said of which object and range")
            if self.range.length != self.bytes:
                raise ValueError(f"received {self.bytes:,} B of a range of {self.range.length:,} B")


def event_of(participant: str, moved: BytesMoved, at_ns: int) -> LedgerEvent:
    """Return the entry for what an acquisition of a participant said of its bytes, at a time since 1970."""
    return LedgerEvent(
        kind=moved.kind,
        participant=participant,
        source=moved.source,
        artifact=msgspec.UNSET if moved.artifact is None else moved.artifact,
        content=msgspec.UNSET if moved.sha256 is None else moved.sha256,
        object=moved.uri,
        range=moved.range,
        bytes=moved.bytes,
        at_ns=str(at_ns),
    )


class ByteLedger:
    """Events in their order. Several threads may append."""

    def __init__(self, events: Iterable[LedgerEvent] = ()) -> None:
        """Begin with events that were kept; each is checked as when it is appended."""
        self._lock = threading.Lock()
        self._events: list[LedgerEvent] = []
        self._staged: Counter[tuple[str, object]] = Counter()
        for event in events:
            self.append(event)

    @property
    def events(self) -> tuple[LedgerEvent, ...]:
        """Return all events, oldest first."""
        return tuple(self._events)

    def append(self, event: LedgerEvent) -> None:
        """Add an event.

        Raises ArtifactError `RECONCILIATION_MISMATCH`, and adds nothing, when more of a kept beginning would be used
        or thrown away than was kept.
        """
        key = (event.participant, event.artifact)
        with self._lock:
            if event.kind == "partial_found":
                self._staged[key] = event.bytes
            elif event.kind == "partial_staging":
                self._staged[key] += event.bytes
            elif event.kind in ("resumed_prefix", "partial_discarded"):
                if event.bytes > (kept := self._staged[key]):
                    raise ArtifactError(
                        RECONCILIATION_MISMATCH,
                        event.participant,
                        f"{event.kind} of {event.bytes:,} B of {event.artifact}, of which {kept:,} B were kept",
                    )
                self._staged[key] -= event.bytes
            self._events.append(event)

    def total(self, kind: ByteClass, *, participant: str | None = None, source: str | None = None) -> int:
        """Return the bytes of one class, of all participants and sources or of one."""
        return sum(
            event.bytes
            for event in self._events
            if event.kind == kind and participant in (None, event.participant) and source in (None, event.source)
        )

    def unexplained(self) -> dict[tuple[str, object, str], int]:
        """Return (participant, artifact, source) → received bytes less those whose end is known; no zeros."""
        left: Counter[tuple[str, object, str]] = Counter()
        for event in self._events:
            key = (event.participant, event.artifact, event.source)
            if event.kind == "received":
                left[key] += event.bytes
            elif event.kind in _OUTCOMES:
                left[key] -= event.bytes
        return {key: count for key, count in left.items() if count}

    def check_conservation(self) -> None:
        """Check that what was received is explained. Raises ArtifactError `RECONCILIATION_MISMATCH`."""
        for (participant, artifact, source), count in self.unexplained().items():
            what = "received without a known end" if count > 0 else "accounted for without having been received"
            raise ArtifactError(
                RECONCILIATION_MISMATCH, participant, f"{abs(count):,} B of {artifact} from {source} were {what}"
            )

    def check_complete(self) -> None:
        """Check that everything required is there, once. Raises ArtifactError `RECONCILIATION_MISMATCH`."""
        required: Counter[tuple[str, object]] = Counter()
        there: Counter[tuple[str, object]] = Counter()
        for event in self._events:
            if event.kind in ("required", "optional_retained"):
                required[event.participant, event.artifact] += event.bytes
            elif event.kind in ("cache_hit", "acquired", "resumed_prefix", "resume_transfer"):
                there[event.participant, event.artifact] += event.bytes
        for participant, artifact in [*required, *there]:
            needed, found = required[participant, artifact], there[participant, artifact]
            if needed != found:
                raise ArtifactError(
                    RECONCILIATION_MISMATCH,
                    participant,
                    f"requires {needed:,} B of {artifact}, and {found:,} B of it came or were there",
                )

    def table(self) -> polars.DataFrame:
        """Return events and bytes by class and source, sorted; a class without events has no row.

        A row's absence is no zero: `zero_invariants` says which zeros are known, and by what.
        """
        import polars  # here: a third of a second, which transfers need not pay

        events: Counter[tuple[str, str]] = Counter()
        sums: Counter[tuple[str, str]] = Counter()
        for event in self._events:
            events[event.kind, event.source] += 1
            sums[event.kind, event.source] += event.bytes
        rows = sorted(events)
        return polars.DataFrame(
            {
                "class": [kind for kind, _ in rows],
                "source": [source for _, source in rows],
                "events": [events[row] for row in rows],
                "bytes": [sums[row] for row in rows],
            },
            schema={"class": polars.String, "source": polars.String, "events": polars.Int64, "bytes": polars.Int64},
        )
