"""One order on its way: which state it is in, what came of it, and where its bytes go until they are published."""

from __future__ import annotations

import hashlib
import threading
import time

import msgspec

from inferswarm.artifacts.acquisition.orders import (
    ByteKind,
    BytesMoved,
    Failure,
    How,
    OnEvent,
    Order,
    Outcome,
    Side,
    State,
    StateChanged,
    Tampered,
)
from inferswarm.artifacts.acquisition.stopping import Stop, Stopped
from inferswarm.artifacts.store import ContentStore, Partial, partial_identity
from inferswarm.artifacts.store.hashing import digest_of
from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, StoreRefused


class Job:
    """Mutable, and owned by one thread at a time; `close` may come from the thread that waits."""

    def __init__(self, order: Order, store: ContentStore, on_event: OnEvent | None, lock: threading.Lock) -> None:
        self.order = order
        self.id = order.artifact.id
        self.identity = partial_identity(order.artifact)
        recorded = order.artifact.sha256
        self.is_recorded = not isinstance(recorded, msgspec.UnsetType)
        self.sha256: str | None = recorded if isinstance(recorded, str) else None
        self.partial: Partial | None = None
        self.buffer: bytearray | None = None
        self.resumed = 0
        self.transferred = 0
        self.mutex = threading.Lock()
        self.is_publishing = False
        self._store = store
        self._on_event = on_event
        self._lock = lock
        self._state: State = "MISSING"
        self._how: How | None = None
        self._failure: Failure | None = None
        self._kept = 0
        self._began = time.monotonic()
        self._seconds = 0.0
        self._buffer_hash = hashlib.sha256()
        self._is_closed = False

    @property
    def key(self) -> str:
        """Return what two orders for the same bytes have in common."""
        return self.sha256 or self.identity.name

    @property
    def is_over(self) -> bool:
        """Return whether it is known what became of it."""
        return self._how is not None

    @property
    def is_authorized(self) -> bool:
        """Return whether its source may be asked."""
        return self._state != "MISSING"

    @property
    def is_opened(self) -> bool:
        """Return whether there is a place for its bytes."""
        return self.partial is not None or self.buffer is not None

    @property
    def held(self) -> int:
        """Return how many of its bytes are there, kept or published."""
        if self._state == "VERIFIED_AVAILABLE":
            return self.order.artifact.length
        partial, buffer = self.partial, self.buffer  # whoever waits reads this while they come and go
        if partial is not None:
            return partial.length
        return self._kept if buffer is None else len(buffer)

    @property
    def left(self) -> ByteRange:
        """Return which part of the source's object is still to come."""
        place = self.order.place
        return ByteRange(place.start + self.held, place.end)

    def enter(self, state: State) -> None:
        """Go into a state, and say so."""
        if state != self._state:
            before, self._state = self._state, state
            self._say(StateChanged(self.id, before, state, self.order.source))

    def open(self, small_bytes: int, stop: Stop) -> bool:
        """Prepare a place for its bytes; False when another has its partial, or was done with it meanwhile.

        Raises StoreRefused, Stopped.
        """
        if self.is_opened:
            return True
        self._began = time.monotonic()
        self._store.require_writable("a blob", self.identity.length)
        if self.identity.length <= small_bytes and not self._store.held_bytes(self.identity):
            self.buffer = bytearray()
            self.enter("ACQUIRING")
            return True
        partial = self._store.partial(self.identity, stop.check)
        if partial is None:
            return False
        sha256 = None if self.order.fetches_anew or partial.length else self.sha256
        if sha256 is not None and self._store.has_file(sha256) and self._store.holds(sha256, stop.check):
            self._store.discard_partial(partial)  # another published it since it was looked for
            return False
        with self.mutex:
            if self._is_closed:
                partial.close()
                raise Stopped
            self.partial = partial
        self.enter("ACQUIRING")
        self.resumed = partial.resumed_bytes
        if partial.discarded is not None:
            lost = partial.discarded
            self.moved("partial_found", lost.bytes, "")
            self.moved("partial_discarded", lost.bytes, "", detail=f"{lost.code}: {lost.reason}")
        elif self.resumed:
            self.moved("partial_found", self.resumed, "")
        return True

    def write(self, piece: memoryview) -> None:
        """Add bytes that came from the source. Raises StoreRefused, and Stopped when it was closed meanwhile."""
        with self.mutex:
            if self._is_closed:
                raise Stopped
            self.transferred += piece.nbytes
            if self.buffer is not None:
                self.buffer += piece
                self._buffer_hash.update(piece)
            else:
                assert self.partial is not None, "a job is opened before it is written to"
                self.partial.write(piece)

    def claim(self) -> None:
        """Keep everybody from closing it while it is judged or published. Raises Stopped when somebody has."""
        with self.mutex:
            if self._is_closed:
                raise Stopped
            self.is_publishing = True

    def is_right(self) -> bool:
        """Return whether what came has the digest that it must have, else throw it away. Raises Stopped."""
        self.claim()
        try:
            found = digest_of(self._buffer_hash) if self.partial is None else self.partial.sha256
            if self.sha256 is None or self.sha256 == found:
                return True
            self.throw_away()
            place, source = self.order.place, self.order.source
            with_kept = f", of which {self.resumed:,} B were kept from before" if self.resumed else ""
            reason = (
                f"{source} gave {found} for {self.order.uri} {place.start:,} to {place.end:,} ({place.length:,} B"
                f"{with_kept}), needed {self.sha256}"
            )
            self.fail(ArtifactError(INTEGRITY_MISMATCH, self.id, reason), "source")
            return False
        finally:
            self.is_publishing = False

    def throw_away(self) -> None:
        """Discard what came, and count it as altered."""
        if self.partial is not None:
            if self.partial.descriptor >= 0:
                self._store.discard_partial(self.partial)
            self.partial = None
        self.buffer = None
        self._count_received()
        self.moved("integrity_failure", self.transferred, self.order.source)
        self.moved("partial_discarded", self.resumed, "", detail=INTEGRITY_MISMATCH)

    def is_there(self, sha256: str) -> None:
        """Record that it was published."""
        self.sha256 = sha256
        self.partial = self.buffer = None
        self._count_received()
        if self.resumed:
            self.moved("resumed_prefix", self.resumed, "")
            self.moved("resume_transfer", self.transferred, self.order.source)
        else:
            self.moved("acquired", self.transferred, self.order.source)
        self._end("acquired", "VERIFIED_AVAILABLE")

    def was_there(self, sha256: str) -> None:
        """Record that it is in the store already, verified."""
        self.sha256 = sha256
        self.moved("cache_hit", self.order.artifact.length, "")
        self._end("cache-hit", "VERIFIED_AVAILABLE")

    def was_tampered(self, error: ArtifactError) -> None:
        """Say that the store had it, and that it was altered there; it is missing, like any other."""
        self._say(Tampered(self.id, error.subject, error.reason))

    def fail(self, error: ArtifactError, side: Side) -> None:
        """Record why it ended without its bytes; what came of them and is good is kept."""
        if not self.is_over:
            self._keep()
            where: Side = "store" if isinstance(error, StoreRefused) else side
            self._failure = Failure(where, error.code, f"{error.subject}: {error.reason}")
            self._end("failed", "MISSING")

    def give_up(self, how: How) -> None:
        """Record that there was no time for it; what came of it is kept."""
        with self.mutex:
            self._is_closed = True
            is_ours = not (self.is_over or self.is_publishing)
        if is_ours:
            self._keep()
            self._end(how, "MISSING")

    def outcome(self) -> Outcome:
        """Return what became of it."""
        how = self._how or "cancelled"  # published while nobody waited any longer
        return Outcome(
            artifact=self.id,
            state=self._state if self.is_over else "MISSING",
            how=how,
            source="" if how == "cache-hit" else self.order.source,
            sha256=self.sha256,
            hash_known_by="record" if self.is_recorded else "first-fetch-pinned",
            length=self.order.artifact.length,
            resumed_bytes=self.resumed if how == "acquired" else 0,
            transferred_bytes=self.transferred,
            kept_bytes=self._kept,
            seconds=self._seconds,
            failure=self._failure,
        )

    def moved(self, kind: ByteKind, num_bytes: int, source: str, detail: str = "") -> None:
        """Say what was done with bytes of this artifact; nothing is said of none, except where all is there then."""
        if num_bytes or kind in ("acquired", "cache_hit", "resume_transfer"):
            start = self.order.artifact.range.start
            place = ByteRange(start, start + num_bytes)
            if kind in ("received", "resume_transfer", "acquired"):
                place = ByteRange(start + self.resumed, start + self.resumed + num_bytes)
            uri = self.order.artifact.origin.uri
            self._say(BytesMoved(kind, self.id, self.sha256, source, uri, place, num_bytes, detail))

    def _keep(self) -> None:
        """Keep the beginning that came, where it can be continued."""
        partial, buffer = self.partial, self.buffer
        self.partial = self.buffer = None
        if partial is None and buffer is None:
            return
        try:
            if buffer is not None and buffer and self.identity.is_bound:
                partial = self._store.partial(self.identity)
                if partial is not None and partial.length == 0:
                    partial.write(buffer)
            if partial is not None and partial.descriptor >= 0:
                if self.identity.is_bound and partial.length:
                    partial.close()
                    self._kept = partial.length
                else:
                    self._store.discard_partial(partial)
        except StoreRefused:
            if partial is not None:  # the store cannot take more: what is lost is fetched again
                partial.close()
                self._kept = partial.length
        self._count_received()
        self.moved("partial_staging", self.transferred, self.order.source)
        self.moved("partial_discarded", self.resumed + self.transferred - self._kept, "", detail="it was not kept")

    def _count_received(self) -> None:
        self.moved("received", self.transferred, self.order.source)

    def _end(self, how: How, state: State) -> None:
        self._seconds = time.monotonic() - self._began
        self._how = how
        self.enter(state)

    def _say(self, event: BytesMoved | StateChanged | Tampered) -> None:
        if self._on_event is not None:
            with self._lock:
                self._on_event(event)
