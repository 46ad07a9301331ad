"""The content store of one Node: verified bytes under their digests, and what is on its way to become such.

What is promised: what is listed was hashed after it was read back from the disk; nothing is published in part; a
process that dies at any moment leaves a store that the next one opens as if it had not been there, and a beginning
that can be resumed; what somebody requires or keeps as a replica is never evicted. Several processes may use one
store. What is not promised: that nobody with the rights of the owner alters files and their times together (`verify`
finds that, `trust="always"` notices it at once), and order between processes.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from inferswarm.artifacts.store.index import Index, Stamp
from inferswarm.artifacts.store.layout import Layout, hex_of, prove_empty_root, refusal
from inferswarm.artifacts.store.partials import Partial, held_bytes, open_partial
from inferswarm.artifacts.store.publication import (
    Incoming,
    Publisher,
    Ready,
    read_back,
    require_digest,
    stage,
    unstage,
)
from inferswarm.artifacts.store.reading import VerifiedBlob, open_regular
from inferswarm.artifacts.store.records import (
    Collection,
    EmptyRoot,
    Inventory,
    PartialIdentity,
    Pin,
    StoreCounts,
    Trust,
    Use,
    UseKind,
    Verification,
)
from inferswarm.artifacts.store.room import Room
from inferswarm.artifacts.store.upkeep import Examined, examine_opened, mend, quarantine, verify_all
from inferswarm.artifacts.taxonomy import CACHE_TAMPERED, SOURCE_UNAVAILABLE, UNVERIFIED_PUBLICATION
from inferswarm.errors import ArtifactError, SpecError, StoreRefused


class Proved(NamedTuple):
    """A complete partial that was read back from the disk, and what it is to be named as."""

    partial: Partial
    ready: Ready


_TOUCH_SECONDS: Final = 30.0
"""How long uses are remembered before the index is told: they only order evictions, and telling it costs a sync."""
_NS: Final = 10**9


class ContentStore:
    """One store, shared by the threads of a process. A context manager; closing it twice is harmless.

    `quota_bytes` bounds blobs and partials together. A root that cannot be written is read as it is, and every blob
    hashed at its first use. Without `upkeep` a store that another process keeps is opened for its blobs alone, at
    once: nothing is made or mended, and their uses are not recorded; what is found altered goes into quarantine all
    the same. Raises SpecError for a quota below 0 and, with `create` or `upkeep` False, for a root that is no store;
    ArtifactError `PROVENANCE_IDENTITY_MISMATCH` for one that is, or holds, a symbolic link in a directory's place;
    StoreRefused when it cannot be made or read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        quota_bytes: int | None = None,
        trust: Trust = "until-changed",
        *,
        create: bool = True,
        upkeep: bool = True,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.root = Path(root).absolute()
        self.quota_bytes = quota_bytes
        self.trust = trust
        if quota_bytes is not None and quota_bytes < 0:
            raise SpecError("quota_bytes", quota_bytes, "at least 0, or None")
        self._layout = Layout(self.root)
        self._clock_ns = clock_ns
        self._mutex = threading.Lock()
        self._counts = StoreCounts(0, 0, 0, 0)
        self._proved: dict[str, Stamp] = {}
        self._touched: dict[str, int] = {}
        self._touched_since_ns = clock_ns()
        is_there = self.root.is_dir()
        is_store = is_there and (self._layout.index.is_file() or self._layout.blobs.is_dir())
        if not (create and upkeep) and not is_store:
            raise SpecError("store", str(self.root), "the root of a store")
        self.read_only = is_there and not os.access(self.root, os.W_OK)
        self._keeps = upkeep and not self.read_only
        if self._keeps:
            self._layout.create()
        else:
            self._layout.check()
        self._index = Index(self._layout.index, read_only=self.read_only, create=upkeep)
        self._room = Room(self._layout, self._index, quota_bytes)
        self._publisher = Publisher(self._layout, self._index, self._room)
        if self._keeps:
            mended = mend(self._layout, self._index, clock_ns())
            self._count(hashed=mended.hashed_bytes, discarded=mended.removed_bytes)

    # What is there

    @property
    def counts(self) -> StoreCounts:
        """Return what was done with bytes since the store was opened."""
        with self._mutex:
            return self._counts

    @property
    def sequence(self) -> int:
        """Return a number that grew with every publication and removal, in whichever process."""
        return self._index.sequence

    def inventory(self) -> Inventory:
        """Return everything that is published, at one moment. A read-only root lists what its index lists."""
        with self._index.reading():
            return Inventory(self._index.store, self._index.sequence, self._index.blobs())

    def pins(self) -> tuple[Pin, ...]:
        """Return what first fetches gave: this store's, and those of others under which it got bytes."""
        return self._index.pins()

    def pinned(self, identity: PartialIdentity) -> str | None:
        """Return the digest that this store's first fetch of a range from a version gave; None: it fetched none."""
        return self._index.pinned(identity)

    def pin_told(self, told: Iterable[tuple[PartialIdentity, str]]) -> None:
        """Keep what other Nodes' first fetches gave, under which this store got its bytes; labelled as that.

        A first fetch of this store's own stays what it is.
        """
        self.require_writable("a pin")
        pairs = list(told)
        for _, sha256 in pairs:
            hex_of(sha256)
        if pairs:
            self._index.pin_told(pairs)

    def hold(self, owner: str, digests: Sequence[str], kind: UseKind = "required") -> None:
        """Record that an owner needs blobs, whether they are there or to come; its last word on a blob counts."""
        self.require_writable("a use")
        for sha256 in digests:
            hex_of(sha256)
        self._index.hold(owner, kind, digests)

    def release(self, owner: str, digests: Sequence[str] | None = None) -> None:
        """Record that an owner does not need these blobs; None: any. They stay until room is needed."""
        self.require_writable("a use")
        self._index.release(owner, digests)

    def record_uses(self) -> None:
        """Tell the index which blobs were opened: it orders evictions. Raises StoreRefused."""
        if not self.read_only:
            self._flush()

    # Reading

    def holds(self, sha256: str, check: Callable[[], None] | None = None) -> int | None:
        """Return the length of a blob that is there, proved by the policy; None when it is not, or was altered.

        An altered one is in quarantine then. `check` is called between pieces that are hashed, and may raise.
        """
        try:
            with self.open_verified(sha256, check) as blob:
                return blob.length
        except ArtifactError as error:
            if error.code not in (SOURCE_UNAVAILABLE, CACHE_TAMPERED) or isinstance(error, StoreRefused):
                raise
            return None

    def has_file(self, sha256: str) -> bool:
        """Return whether something has a blob's name, unproved; asks the disk alone, which keeps nobody waiting."""
        return os.path.lexists(self._layout.blob(sha256))

    def open_verified(self, sha256: str, check: Callable[[], None] | None = None) -> VerifiedBlob:
        """Open a blob whose bytes are proved by the policy.

        Raises ArtifactError: `SOURCE_OBJECT_UNAVAILABLE` for one that is not there, `CACHE_OBJECT_TAMPERED` for one
        that is not what it was published as (it is in quarantine then, and not listed), `MALFORMED_ARTIFACT_RECORD`
        for a text that is no digest; StoreRefused when it cannot be read.
        """
        path = self._layout.blob(sha256)
        listed = self._proved.get(sha256) if self.read_only else self._index.stamp(sha256)
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            if listed is not None and not self.read_only:
                self._forget_missing(sha256)
            raise ArtifactError(SOURCE_UNAVAILABLE, sha256, f"is not in the store {self.root}") from None
        except ArtifactError as error:
            raise self._tampered(sha256, error.reason) from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._tampered(sha256, "is a symbolic link") from error
            raise refusal(self.root, error, f"{sha256} cannot be opened") from error
        try:
            stamp = Stamp.of(os.fstat(descriptor))
            if not self._is_trusted(sha256, stamp, listed):
                stamp = self._prove(descriptor, sha256, stamp, check)
            self._touch(sha256)
            return VerifiedBlob(sha256, descriptor, stamp, lambda count: self._count(served=count))
        except BaseException:
            os.close(descriptor)
            raise

    # Writing

    def require_writable(self, what: str, needed: int | None = None) -> None:
        """Raise StoreRefused when the root cannot be written."""
        if self.read_only:
            denied = OSError(errno.EACCES, "its root cannot be written")
            raise refusal(self.root, denied, f"{what} cannot be kept", needed)

    def partial(self, identity: PartialIdentity, check: Callable[[], None] | None = None) -> Partial | None:
        """Lock the beginning of an artifact, resumed or new; None while somebody else has it.

        What could not be continued is in its `discarded`. Raises StoreRefused, before any byte moves, when quota or
        disk cannot take the artifact.
        """
        self.require_writable("a partial", identity.length)
        self._flush()
        self._room.make(identity)
        partial = open_partial(self._layout, identity, lambda count: self._count(written=count), check)
        if partial is not None:
            thrown = 0 if partial.discarded is None else partial.discarded.bytes
            self._count(hashed=partial.hashed_bytes, discarded=thrown)
        return partial

    def held_bytes(self, identity: PartialIdentity) -> int:
        """Return how long an artifact's partial is, unread; 0 when there is none."""
        return held_bytes(self._layout, identity)

    def publish_partial(
        self,
        partial: Partial,
        sha256: str | None = None,
        use: Use | None = None,
        *,
        pin: bool = False,
        check: Callable[[], None] | None = None,
    ) -> str:
        """Publish what a complete partial holds, and return its digest; the partial is closed then.

        Raises ArtifactError, with the partial discarded: `UNVERIFIED_OBJECT_PUBLICATION_REFUSED` for another digest
        than `sha256`, `INTEGRITY_DIGEST_MISMATCH` when the disk gives back other bytes or another digest is pinned.
        With the partial kept: `UNVERIFIED_OBJECT_PUBLICATION_REFUSED` for one that is not complete, StoreRefused.
        """
        proved = self.prove_partial(partial, sha256, pin=pin, check=check)
        try:
            self.publish_proved([proved], use)
        except StoreRefused:
            raise
        except ArtifactError:
            self.discard_partial(partial)
            raise
        return proved.ready.sha256

    def prove_partial(
        self,
        partial: Partial,
        sha256: str | None = None,
        *,
        pin: bool = False,
        check: Callable[[], None] | None = None,
    ) -> Proved:
        """Make a complete partial durable and read it back, which needs nobody else; `publish_proved` names it then.

        Raises as `publish_partial`.
        """
        identity = partial.identity
        if partial.length != identity.length:
            reason = f"an unfinished transfer of {identity.uri}: {partial.length:,} of {identity.length:,} B"
            raise ArtifactError(UNVERIFIED_PUBLICATION, partial.path.name, reason)
        ready = Ready(partial.path, partial.descriptor, partial.sha256, partial.length, identity if pin else None)
        try:
            require_digest(sha256, ready.sha256, ready.length)
            self._count(hashed=read_back(self._layout, ready, check))
        except StoreRefused:
            raise
        except ArtifactError:
            self.discard_partial(partial)
            raise
        return Proved(partial, ready)

    def publish_proved(self, batch: Sequence[Proved], use: Use | None = None) -> None:
        """Name what was read back, all or none: what the index and directories take is paid once for all of it.

        The partials are closed then. Raises ArtifactError `INTEGRITY_DIGEST_MISMATCH` when another digest is pinned
        for one, and StoreRefused; the partials are kept, open.
        """
        self._name([proved.ready for proved in batch], use)
        for partial, _ in batch:
            try:
                partial.let_go()
            except OSError as error:
                raise refusal(self.root, error, f"{partial.path.name} cannot be cleared away") from error

    def discard_partial(self, partial: Partial) -> int:
        """Remove a partial, and return how many bytes it held. Raises StoreRefused."""
        length = partial.discard()
        self._count(discarded=length)
        return length

    def publish(self, data: bytes | bytearray | memoryview, sha256: str | None = None, use: Use | None = None) -> str:
        """Publish bytes that are in memory, and return their digest. Raises as `publish_batch`."""
        return self.publish_batch([Incoming(data, sha256)], use)[0]

    def publish_batch(self, batch: Sequence[Incoming], use: Use | None = None) -> tuple[str, ...]:
        """Publish many small bytes together, all or none, and return their digests.

        Raises ArtifactError `UNVERIFIED_OBJECT_PUBLICATION_REFUSED` for bytes of another digest than declared,
        `INTEGRITY_DIGEST_MISMATCH` when the disk gives back others or another digest is pinned; StoreRefused.
        """
        return self._publish([(item, (item.data,)) for item in batch], use)

    def publish_stream(
        self, pieces: Iterable[bytes | bytearray | memoryview], sha256: str | None = None, use: Use | None = None
    ) -> str:
        """Publish bytes that come in pieces, and return their digest. Raises as `publish_batch`."""
        return self._publish([(Incoming(b"", sha256), pieces)], use)[0]

    # Upkeep

    def verify(self) -> Verification:
        """Hash everything that is published again, trusting nothing; what is altered goes into quarantine."""
        report, hashed = verify_all(self._layout, self._index, self._clock_ns(), read_only=self.read_only)
        self._count(hashed=hashed)
        return report

    def collect(
        self, wanted_bytes: int | None = None, partials_older_than: float = 86_400.0, *, remove: bool = True
    ) -> Collection:
        """Remove optional blobs, the longest unused first, until `wanted_bytes` are free, and old partials.

        `wanted_bytes` None: all of them. Partials go that nobody has and nobody wrote to for so many seconds. With
        `remove` False it is only said. What is required or a replica stays. Raises StoreRefused.
        """
        self.require_writable("a collection")
        self._flush()
        found = self._room.collect(wanted_bytes, self._clock_ns(), partials_older_than, remove=remove)
        self._count(discarded=found.partial_bytes if remove else 0)
        return found

    def prove_empty(self) -> EmptyRoot:
        """Return evidence that nothing is kept here. Raises ArtifactError as `prove_empty_root`."""
        return prove_empty_root(self.root)

    def close(self) -> None:
        """Tell the index what was used, and close it."""
        if self._keeps:
            with suppress(StoreRefused):
                self._flush()
        self._index.close()

    def __enter__(self) -> ContentStore:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _publish(
        self, batch: Sequence[tuple[Incoming, Iterable[bytes | bytearray | memoryview]]], use: Use | None
    ) -> tuple[str, ...]:
        self.require_writable("a blob", sum(len(item.data) for item, _ in batch) or None)
        files: list[Ready] = []
        try:
            for item, pieces in batch:
                files.append(stage(self._layout, pieces, item))
            self._count(written=sum(file.length for file in files))
            for file in files:
                self._count(hashed=read_back(self._layout, file))
            self._name(files, use)
        finally:
            for file in files:
                unstage(file.path, file.descriptor)
        return tuple(file.sha256 for file in files)

    def _name(self, files: Sequence[Ready], use: Use | None) -> None:
        if self.quota_bytes is not None:
            self._flush()  # evictions go by the last uses
        self._publisher.publish(files, use, self._clock_ns())

    def _is_trusted(self, sha256: str, stamp: Stamp, listed: Stamp | None) -> bool:
        if self.trust == "always":
            return False
        return self._proved.get(sha256) == stamp or (self.trust == "until-changed" and listed == stamp)

    def _prove(self, descriptor: int, sha256: str, opened: Stamp, check: Callable[[], None] | None = None) -> Stamp:
        try:
            found: Examined = examine_opened(descriptor, sha256, check)
        except OSError as error:
            raise refusal(self.root, error, f"{sha256} cannot be read") from error
        self._count(hashed=found.hashed)
        if found.stamp is None:
            raise self._tampered(sha256, found.reason or "has gone")
        self._proved[sha256] = found.stamp
        if not self.read_only and self._index.stamp(sha256) != found.stamp:
            with suppress(StoreRefused):  # a full disk: this process knows, others hash again
                self._index.put(sha256, found.stamp, self._clock_ns())
        return opened

    def _tampered(self, sha256: str, found: str) -> ArtifactError:
        """Put a blob into quarantine, where that can be done, and return the error to be raised."""
        self._proved.pop(sha256, None)
        if not self.read_only:
            try:
                quarantine(self._layout, self._index, sha256, found)
            except StoreRefused as error:
                found += f" (and cannot be moved away: {error.reason})"
        return ArtifactError(CACHE_TAMPERED, sha256, f"{found}, in the store {self.root}")

    def _forget_missing(self, sha256: str) -> None:
        with self._index.writing():
            if not self._layout.blob(sha256).exists():
                self._index.drop(sha256)

    def _touch(self, sha256: str) -> None:
        now = self._clock_ns()
        with self._mutex:
            self._touched[sha256] = now
            is_due = now - self._touched_since_ns > _TOUCH_SECONDS * _NS
        if is_due and self._keeps:
            with suppress(StoreRefused):  # it only orders evictions: nobody who reads has to wait for it
                self._flush()

    def _flush(self) -> None:
        with self._mutex:
            touched, self._touched = self._touched, {}
            self._touched_since_ns = self._clock_ns()
        self._index.touch(touched)

    def _count(self, written: int = 0, hashed: int = 0, served: int = 0, discarded: int = 0) -> None:
        with self._mutex:
            was = self._counts
            self._counts = StoreCounts(
                was.written + written, was.hashed + hashed, was.served + served, was.discarded + discarded
            )
