"""Where a participant's required bytes are read from: the model's files, or its Node's content store. Torch-free.

Promises: a read gives exactly the bytes of the range or raises; `ranges_read` is the complete log, by the places in
the model's files, wherever the bytes lie; a participant with a store reads its bytes from there and from nowhere
else. Bytes of a store are proved as its policy says before the first of them is used. Either way a read takes no more
memory than the range itself (hashing takes one piece of 1 MiB), and the kernel is asked to forget what was read:
pages in its cache would be charged to this process's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.origins.opening import is_remote
from inferswarm.artifacts.store import ContentStore, VerifiedBlob
from inferswarm.artifacts.store.hashing import forget_pages
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, SOURCE_UNAVAILABLE, UNPLANNED_READ
from inferswarm.artifacts.types import ByteRange, ParticipantRequirement, StoredBlob, StoredBlobs
from inferswarm.errors import ArtifactError, SpecError, StoreRefused

_OPEN_BLOBS: Final = 8
"""How many blobs stay open: readers take the rows of a few tensors in turn, and a fused one is a single blob."""


class RequiredBytes(Protocol):
    """An opened source of required bytes. Closing it twice is harmless; what was counted stays readable."""

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, a byte that was read twice counted twice."""

    @property
    def ranges_read(self) -> Mapping[int, tuple[ByteRange, ...]]:
        """Every range read so far, by file, in the order of the reads."""

    def read_into(self, file: int, wanted: ByteRange, buffer: bytearray) -> None:
        """Fill `buffer`, whose size must be that of `wanted`, with bytes of one of the model's files.

        Raises ArtifactError.
        """

    def close(self) -> None:
        """Close whatever is open."""


def open_required(requirement: ParticipantRequirement) -> RequiredBytes:
    """Open the store that the requirement names, or else the files that hold something of it.

    Raises ArtifactError: `SOURCE_OBJECT_UNAVAILABLE` for a root that is empty or no store of this computer, for a
    file that is missing, and for one that lies elsewhere while no store is named; `PROVENANCE_IDENTITY_MISMATCH` for
    another file than was described.
    """
    if isinstance(requirement.stored, StoredBlobs):
        return StoredBytes(requirement, requirement.stored)
    return FileBytes(requirement)


class FileBytes:
    """The required bytes in the model's own files. Only the files that hold something required are opened."""

    def __init__(self, requirement: ParticipantRequirement) -> None:
        """Open them. Raises ArtifactError as `open_required`."""
        files = {tensor.file: requirement.files[tensor.file] for tensor in requirement.tensors}
        for file in files.values():
            if is_remote(file.uri):
                reason = (
                    "is not a file of this computer: its bytes have to be acquired first, "
                    f"and {requirement.participant} names no artifact store that they are in"
                )
                raise ArtifactError(SOURCE_UNAVAILABLE, file.uri, reason)
        self._origins: dict[int, LocalFileOrigin] = {}
        try:
            for place, file in sorted(files.items()):
                self._origins[place] = LocalFileOrigin(file.uri, expected_length=file.length)
        except ArtifactError:
            self.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        return sum(origin.bytes_read for origin in self._origins.values())

    @property
    def ranges_read(self) -> Mapping[int, tuple[ByteRange, ...]]:
        """Every range read so far, by file."""
        return {place: origin.ranges_read for place, origin in self._origins.items()}

    def read_into(self, file: int, wanted: ByteRange, buffer: bytearray) -> None:
        """Fill `buffer`. Raises ArtifactError as `LocalFileOrigin.read_into`."""
        self._origins[file].read_into(wanted, buffer)

    def close(self) -> None:
        """Close the files."""
        for origin in self._origins.values():
            origin.close()


class StoredBytes:
    """The required bytes in a content store, each blob opened when its first byte is asked for.

    Nothing is fetched, and no file of the model is looked for. A read that fails closes the store.
    """

    def __init__(self, requirement: ParticipantRequirement, stored: StoredBlobs) -> None:
        """Open the store at `stored.root` without its upkeep. Raises ArtifactError as `open_required`."""
        self._requirement = requirement
        self._stored = stored
        self._open: dict[int, VerifiedBlob] = {}
        self._ranges: dict[int, list[ByteRange]] = {}
        self._bytes_read = 0
        if not stored.root:
            reason = f"its Node has not said where its artifact store is, which {requirement.bytes:,} B are read from"
            raise ArtifactError(SOURCE_UNAVAILABLE, requirement.participant, reason)
        try:
            self._store = ContentStore(stored.root, create=False, upkeep=False)
        except (SpecError, OSError) as error:
            found = error.strerror if isinstance(error, OSError) else "is no artifact store of this computer"
            reason = f"{found}; {requirement.participant} was to read {requirement.bytes:,} B from there"
            raise ArtifactError(SOURCE_UNAVAILABLE, stored.root, reason) from error

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, hashing aside."""
        return self._bytes_read

    @property
    def ranges_read(self) -> Mapping[int, tuple[ByteRange, ...]]:
        """Every range read so far, by file."""
        return {file: tuple(ranges) for file, ranges in self._ranges.items()}

    def read_into(self, file: int, wanted: ByteRange, buffer: bytearray) -> None:
        """Fill `buffer`.

        Raises ArtifactError, naming the blob's digest and its tensors: `CACHE_OBJECT_TAMPERED` for a blob that is not
        what it was published as, `SOURCE_OBJECT_UNAVAILABLE` for one that is not there or when the source is closed,
        `PROVENANCE_IDENTITY_MISMATCH` for one of another length; `STAGING_UNPLANNED_KEY` for a range that is in none.
        """
        place = self._stored.holding(file, wanted)
        if place is None:
            who, where = self._requirement.participant, f"{wanted.start:,} to {wanted.end:,} of file {file}"
            raise ArtifactError(UNPLANNED_READ, who, f"asked for bytes {where}, which no stored blob holds")
        blob = self._stored.blobs[place]
        start = wanted.start - blob.range.start
        with self._explaining(blob):
            opened = self._opened(place)
            opened.read_into(ByteRange(start, start + wanted.length), buffer)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(opened.fileno(), start, wanted.length, os.POSIX_FADV_DONTNEED)
        self._bytes_read += wanted.length
        self._ranges.setdefault(file, []).append(wanted)

    def close(self) -> None:
        """Close the blobs and the store."""
        while self._open:
            self._close_oldest()
        self._store.close()

    def _opened(self, place: int) -> VerifiedBlob:
        """Return a blob, opened and proved, and the last to be closed again."""
        opened = self._open.pop(place, None)
        if opened is None:
            opened = self._prove(self._stored.blobs[place])
            if len(self._open) == _OPEN_BLOBS:
                self._close_oldest()
        self._open[place] = opened
        return opened

    def _prove(self, blob: StoredBlob) -> VerifiedBlob:
        opened = self._store.open_verified(blob.sha256)
        if opened.length != blob.range.length:
            opened.close()
            reason = f"has {opened.length:,} B in the store; needed are {blob.range.length:,} B"
            raise ArtifactError(IDENTITY_MISMATCH, blob.sha256, reason)
        return opened

    def _close_oldest(self) -> None:
        blob = self._open.pop(next(iter(self._open)))
        forget_pages(blob.fileno())  # also those of hashing, and those that no read filled
        blob.close()

    @contextmanager
    def _explaining(self, blob: StoredBlob) -> Iterator[None]:
        """Say of an error whose bytes it is about, and close everything: nothing more is read after it."""
        try:
            yield
        except ArtifactError as error:
            self.close()
            if isinstance(error, StoreRefused):  # it speaks of the whole store
                raise
            tensors = ", ".join(
                tensor.name
                for tensor in self._requirement.tensors
                if tensor.file == blob.file and blob.range.start <= tensor.range.start < blob.range.end
            )
            who, root = self._requirement.participant, self._stored.root
            reason = f"{error.reason}; {who} needs it from the store {root} for {tensors}"
            raise ArtifactError(error.code, blob.sha256, reason) from error
