"""The beginning of an artifact, kept over interruptions, and never continued as the beginning of another.

A partial is named by the digest of what it is a prefix of, and its record beside it says the same in full: a file
without the right record is discarded. Continuing one hashes its bytes again. Where the artifact's digest is known,
every byte on the disk counts, since the digest decides in the end. Where it is not, only the marked prefix does: that
much was synced and hashed, and after a loss of power a file may have bytes that nobody wrote.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from inferswarm.artifacts.store.hashing import EMPTY_SHA256, digest_of, forget_pages, hash_into
from inferswarm.artifacts.store.layout import (
    WRITING_MODE,
    Layout,
    is_still,
    open_exclusively,
    refusal,
    sync_directory,
    write_all,
)
from inferswarm.artifacts.store.records import PartialIdentity, PartialRecord
from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH, MALFORMED, PARTIAL_MISMATCH, SOURCE_UNAVAILABLE
from inferswarm.documents import read_document, write_document
from inferswarm.errors import ArtifactError, DocumentError

MARK_BYTES: Final = 64 * 2**20
"""How much is written between two marks: what an unpinned artifact may have to fetch again after a kill. At 1 GbE it
is half a second; a mark costs two syncs, some milliseconds."""
_RECORD_LIMIT_BYTES: Final = 2**16


class Discarded(NamedTuple):
    """A partial that could not be continued: how much of it was thrown away, and why."""

    bytes: int
    code: str
    reason: str


class Partial:
    """One locked partial, written at its end. Closing it keeps what is there; closing it twice is harmless."""

    def __init__(
        self, layout: Layout, identity: PartialIdentity, descriptor: int, on_written: Callable[[int], None]
    ) -> None:
        self.identity = identity
        self.descriptor = descriptor
        self.discarded: Discarded | None = None
        """What was thrown away when it was opened."""
        self.resumed_bytes = 0
        """What was there when it was opened, and counts."""
        self.hashed_bytes = 0
        """What was hashed again when it was opened."""
        self._layout = layout
        self._on_written = on_written
        self._path = layout.partials / f"{identity.name}.part"
        self._record = layout.partials / f"{identity.name}.json"
        self._state = hashlib.sha256()
        self._length = 0
        self._marked = 0
        self._mutex = threading.Lock()

    @property
    def length(self) -> int:
        """Return the bytes that it holds."""
        return self._length

    @property
    def path(self) -> Path:
        """Return its file."""
        return self._path

    @property
    def sha256(self) -> str:
        """Return the digest of the bytes that it holds."""
        return digest_of(self._state)

    def resume(self, check: Callable[[], None] | None = None) -> None:
        """Find out what of the file counts, discard the rest, and write the record. Raises StoreRefused."""
        held = os.fstat(self.descriptor).st_size
        try:
            record = self._read_record()
        except ArtifactError as error:
            self._begin(Discarded(held, error.code, error.reason) if held else None)
            return
        if record is None or not held:
            reason = "lies there without a record of what it is the beginning of"
            self._begin(Discarded(held, PARTIAL_MISMATCH, reason) if held else None)
            return
        wrong = self._rehash(held, record, check)
        if wrong is not None:
            self._begin(wrong)
            return
        self.resumed_bytes = self._length

    def write(self, piece: memoryview | bytes | bytearray) -> None:
        """Add bytes. Raises StoreRefused, with what was there before kept.

        ArtifactError when it is closed, and for more than the artifact has.
        """
        view = memoryview(piece)
        with self._mutex:
            self._require_open()
            if self._length + view.nbytes > self.identity.length:
                past = self._length + view.nbytes
                raise ArtifactError(MALFORMED, self._what(), f"would have {past:,} of {self.identity.length:,} B")
            try:
                write_all(self.descriptor, view)
            except OSError as error:
                os.ftruncate(self.descriptor, self._length)
                os.lseek(self.descriptor, self._length, os.SEEK_SET)
                needed = self.identity.length - self._length
                raise refusal(self._layout.root, error, f"{self._what()} cannot be written", needed) from error
            self._state.update(view)
            self._length += view.nbytes
            self._on_written(view.nbytes)
            if self._length - self._marked >= MARK_BYTES:
                self._mark()

    def mark(self) -> None:
        """Make what is there durable, and record that it is. Raises StoreRefused."""
        with self._mutex:
            self._require_open()
            self._mark()

    def discard(self) -> int:
        """Remove it, and return how many bytes it held. Raises StoreRefused."""
        with self._mutex:
            self._require_open()
            try:
                self._path.unlink()
                self._record.unlink(missing_ok=True)
            except OSError as error:
                raise refusal(self._layout.root, error, f"{self._what()} cannot be removed") from error
            self._close()
            return self._length

    def close(self) -> None:
        """Keep what is there, marked where that is possible, and let go of it."""
        with self._mutex:
            if self.descriptor < 0:
                return
            try:
                if self._length > self._marked and is_still(self._path, self.descriptor):
                    self._mark()
            except ArtifactError:
                pass  # a full disk: the last mark holds
            finally:
                self._close()

    def let_go(self) -> None:
        """Remove the record of a partial whose file was published, and unlock it. Raises OSError."""
        with self._mutex:
            if self.descriptor < 0:
                return
            self._record.unlink(missing_ok=True)
            self._close()

    def _begin(self, discarded: Discarded | None) -> None:
        """Start from nothing, under a record that says so."""
        self.discarded = discarded
        self._state, self._length, self._marked = hashlib.sha256(), 0, 0
        try:
            os.ftruncate(self.descriptor, 0)
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            self._write_record(0, EMPTY_SHA256)
        except OSError as error:
            raise refusal(
                self._layout.root, error, f"{self._what()} cannot be begun", self.identity.length
            ) from error

    def _rehash(self, held: int, record: PartialRecord, check: Callable[[], None] | None = None) -> Discarded | None:
        """Hash what counts; return why nothing does."""
        if record.identity != self.identity:
            return Discarded(held, PARTIAL_MISMATCH, f"is the beginning of {record.identity.uri}, not of this")
        if not self.identity.is_bound:
            return Discarded(held, PARTIAL_MISMATCH, "has neither digest nor version that it could be bound to")
        if held > self.identity.length or held < record.marked_bytes:
            found = f"has {held:,} B; recorded are {record.marked_bytes:,} of {self.identity.length:,} B"
            return Discarded(held, PARTIAL_MISMATCH, found)
        try:
            marked = hash_into(self._state, self.descriptor, 0, record.marked_bytes, check)
            self.hashed_bytes = marked
            if digest_of(self._state) != record.marked_sha256:
                return Discarded(
                    held, INTEGRITY_MISMATCH, f"its first {marked:,} B have {digest_of(self._state)}, not as recorded"
                )
            past = held if isinstance(self.identity.sha256, str) else marked
            self._length = hash_into(self._state, self.descriptor, marked, past, check)
            self.hashed_bytes = self._length
            os.ftruncate(self.descriptor, self._length)
            os.lseek(self.descriptor, self._length, os.SEEK_SET)
        except OSError as error:
            raise refusal(self._layout.root, error, f"{self._what()} cannot be read") from error
        self._marked = marked
        return None

    def _mark(self) -> None:
        try:
            os.fsync(self.descriptor)
            forget_pages(self.descriptor)
            self._write_record(self._length, digest_of(self._state))
        except OSError as error:
            needed = self.identity.length - self._length
            raise refusal(self._layout.root, error, f"{self._what()} cannot be marked", needed) from error
        self._marked = self._length

    def _read_record(self) -> PartialRecord | None:
        try:
            descriptor = os.open(self._record, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArtifactError(PARTIAL_MISMATCH, str(self._record), f"cannot be opened: {error.strerror}") from error
        try:
            data = os.read(descriptor, _RECORD_LIMIT_BYTES)
            return read_document(PartialRecord, data, str(self._record))
        except DocumentError as error:
            raise ArtifactError(PARTIAL_MISMATCH, str(self._record), error.reason) from error
        except OSError as error:
            raise ArtifactError(SOURCE_UNAVAILABLE, str(self._record), str(error.strerror)) from error
        finally:
            os.close(descriptor)

    def _write_record(self, marked: int, sha256: str) -> None:
        record = PartialRecord(identity=self.identity, marked_bytes=marked, marked_sha256=sha256)
        # The partial's lock covers this name too: nobody else writes it.
        fresh = self._record.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, WRITING_MODE)
        try:
            write_all(descriptor, write_document(record).encode())
            # A record that says nothing is there yet need not outlive the power: without it the file is discarded.
            if marked:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(self._record)
        if marked:
            sync_directory(self._layout.partials)

    def _what(self) -> str:
        place = self.identity.range
        return f"the beginning of {self.identity.uri} {place.start:,} to {place.end:,}"

    def _require_open(self) -> None:
        if self.descriptor < 0:
            raise ArtifactError(SOURCE_UNAVAILABLE, str(self._path), "the partial is closed")

    def _close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


def open_partial(
    layout: Layout,
    identity: PartialIdentity,
    on_written: Callable[[int], None],
    check: Callable[[], None] | None = None,
) -> Partial | None:
    """Lock and resume an artifact's partial, or begin it; None while another process or thread has it.

    `on_written` is told how many bytes were added; `check` is called while a prefix is hashed again, and may raise.
    Raises StoreRefused.
    """
    path = layout.partials / f"{identity.name}.part"
    try:
        descriptor = open_exclusively(path)
    except OSError as error:
        raise refusal(layout.root, error, f"{path.name} cannot be opened", identity.length) from error
    if descriptor is None:
        return None
    partial = Partial(layout, identity, descriptor, on_written)
    try:
        partial.resume(check)
    except BaseException:
        os.close(descriptor)
        raise
    return partial


def held_bytes(layout: Layout, identity: PartialIdentity) -> int:
    """Return how long an artifact's partial is, unread and unchecked; 0 when there is none."""
    try:
        return (layout.partials / f"{identity.name}.part").lstat().st_size
    except FileNotFoundError:
        return 0


def remove_stale(layout: Layout, older_than_ns: int, *, remove: bool = True) -> tuple[int, int]:
    """Remove the partials that nobody has and nobody wrote to since; return how many, and their bytes.

    Files beside them that belong to none go with them. With `remove` False it is only said. Raises OSError.
    """
    files: dict[str, list[Path]] = {}
    for path in sorted(layout.partials.iterdir()):
        files.setdefault(path.stem, []).append(path)
    num_partials, length = 0, 0
    for stem, paths in files.items():
        part = layout.partials / f"{stem}.part"
        try:
            if max(path.lstat().st_mtime_ns for path in paths) > older_than_ns:
                continue
            # Locked, so that nobody begins the same one meanwhile; where there is no file, one is made for that.
            descriptor = open_exclusively(part)
        except FileNotFoundError:  # published or removed meanwhile
            continue
        if descriptor is None:
            continue
        try:
            num_partials += part in paths
            length += os.fstat(descriptor).st_size
            for path in {part, *paths} if remove else {part} - set(paths):
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    return num_partials, length


def partial_bytes(layout: Layout) -> int:
    """Return the bytes of all partials. Raises OSError."""
    total = 0
    for path in layout.partials.glob("*.part"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # published or removed meanwhile
            continue
    return total
