"""What is to be acquired and from whom, what became of it, and what is said meanwhile: frozen records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from inferswarm.artifacts.identity import Artifact, UpstreamObject
from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.artifacts.types import ByteRange

State = Literal["MISSING", "AUTHORIZED", "ACQUIRING", "VERIFIED_AVAILABLE"]
"""Of one artifact on one Node: not there; one source may be asked for it; bytes are on the way; published."""
How = Literal["cache-hit", "acquired", "failed", "cancelled", "late"]
Side = Literal["order", "source", "store"]
"""What a failure speaks of: the order itself, the source (another may help), or this Node's store (none will)."""
ByteKind = Literal[
    "cache_hit",
    "received",
    "acquired",
    "resumed_prefix",
    "resume_transfer",
    "partial_staging",
    "partial_found",
    "partial_discarded",
    "integrity_failure",
    "unrelated",
]
"""Those that acquiring counts. `partial_found` is a beginning that was in the store when the attempt began; what of
it went on is `resumed_prefix` too, what did not, `partial_discarded`."""


class Order(NamedTuple):
    """One artifact, and the one source that it may come from."""

    artifact: Artifact
    source: str
    """`origin`, or the id of a peer Node."""
    uri: str
    """Which object of the source holds it; whoever opens sources knows what it means."""
    place: ByteRange
    """Where in that object."""
    fetches_anew: bool = False
    """Whether the source is asked although the store has the bytes: what comes is judged and published as ever."""

    @classmethod
    def from_origin(cls, artifact: Artifact) -> Order:
        """Order an artifact from where it was described."""
        return cls(artifact, ORIGIN, artifact.origin.uri, artifact.range)

    @classmethod
    def from_peer(cls, artifact: Artifact, node_id: str, uri: str) -> Order:
        """Order an artifact from a peer, which has it as an object of its own."""
        return cls(artifact, node_id, uri, ByteRange(0, artifact.length))

    @property
    def is_of_upstream(self) -> bool:
        """Return whether the object is the one that the artifact's record describes."""
        return self.uri == self.artifact.origin.uri


OpenSource = Callable[[str, str], Origin]
"""From a source and one of its objects to the opened object. Called once for each pair. Raises ArtifactError."""
Authorize = Callable[[Order], None]
"""Called for what is not in the store, before its source is asked. Raises ArtifactError `SOURCE_UNAUTHORIZED`."""


class Limits(NamedTuple):
    """How much at once.

    Memory is bounded by `connections` × (1 MiB + `small_bytes` + `batch_bytes`) + `publishing` × (256 KiB +
    `small_bytes`).
    """

    connections: int = 8
    connections_per_source: int = 4
    request_bytes: int = 64 * 2**20
    """Neighbors are asked for together up to so much; a longer artifact is one request by itself."""
    gap_bytes: int = 0
    """Bytes between two neighbors that are read through, and counted as unrelated, rather than asked around: what a
    round trip costs × the rate. 0: none that nobody needs."""
    small_bytes: int = 256 * 2**10
    """Up to so much is kept in memory until it is published with others; a partial costs milliseconds of syncs."""
    batch_bytes: int = 4 * 2**20
    batch_blobs: int = 64
    publishing: int = 8
    """So many whole artifacts are synced and read back at a time, beside what is received: a disk that takes
    milliseconds for a sync takes hardly more for several."""


class Failure(NamedTuple):
    """Why an attempt ended without its artifact."""

    side: Side
    code: str
    reason: str


class Outcome(NamedTuple):
    """What became of one order."""

    artifact: str
    """The artifact's id."""
    state: State
    how: How
    source: str
    """Who gave the bytes, or was asked; empty for what was there."""
    sha256: str | None
    """The digest of the content, once it is known."""
    hash_known_by: Literal["record", "first-fetch-pinned"]
    """Whether the artifact's record says the digest, or whoever fetched first."""
    length: int
    resumed_bytes: int
    """A kept beginning that was used."""
    transferred_bytes: int
    """What came from the source, whatever became of it."""
    kept_bytes: int
    """The beginning that a next attempt will find."""
    seconds: float
    failure: Failure | None = None


class SourceTraffic(NamedTuple):
    """What one opened object gave, by its own count: at least what the artifacts received."""

    source: str
    uri: str
    bytes_read: int
    seen: UpstreamObject
    """What it said that it is, when it was opened."""


class Acquired(NamedTuple):
    """The result: one outcome for each order, in their order."""

    outcomes: tuple[Outcome, ...]
    traffic: tuple[SourceTraffic, ...]
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Return whether every artifact is there, verified."""
        return all(outcome.state == "VERIFIED_AVAILABLE" for outcome in self.outcomes)

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Return the outcomes whose artifacts are not there."""
        return tuple(outcome for outcome in self.outcomes if outcome.state != "VERIFIED_AVAILABLE")


class BytesMoved(NamedTuple):
    """Bytes of one class, as a ledger counts them."""

    kind: ByteKind
    artifact: str | None
    """The artifact's id; None for bytes that belong to none."""
    sha256: str | None
    source: str
    """Empty where nothing moved."""
    uri: str
    """The object as its publisher keeps it, also when a peer gave the bytes."""
    range: ByteRange
    """Which of its bytes; of a transform, counted from the start of what it was made from."""
    bytes: int
    detail: str = ""


class StateChanged(NamedTuple):
    """One artifact is in another state."""

    artifact: str
    before: State
    after: State
    source: str


class Tampered(NamedTuple):
    """The store had an artifact's bytes, and they were altered there. They are in quarantine."""

    artifact: str
    sha256: str
    reason: str


class Progress(NamedTuple):
    """How far it is. Rate and time left are None until bytes have moved for long enough to tell."""

    done_bytes: int
    total_bytes: int
    bytes_per_second: float | None
    seconds_left: float | None


OnEvent = Callable[[BytesMoved | StateChanged | Tampered], None]
"""Called from any thread, one call at a time."""
OnProgress = Callable[[Progress], None]
"""Called from the thread that acquires."""
