"""Published bytes on their way out: opened, proved by the policy in force, watched while they are read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from inferswarm.artifacts.store.hashing import PIECE_BYTES
from inferswarm.artifacts.store.index import Stamp
from inferswarm.artifacts.taxonomy import CACHE_TAMPERED, MALFORMED, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError


class VerifiedBlob:
    """One opened blob whose digest was proved as the store's policy says. Close it; closing it twice is harmless.

    Its bytes are read from the file that was proved, even when the store gives the name away. A file that is written
    to meanwhile is noticed after each read: ArtifactError `CACHE_OBJECT_TAMPERED`.
    """

    def __init__(self, sha256: str, descriptor: int, stamp: Stamp, on_served: Callable[[int], None]) -> None:
        self.sha256 = sha256
        self.length = stamp.length
        self._descriptor = descriptor
        self._stamp = stamp
        self._on_served = on_served

    def read(self, wanted: ByteRange | None = None) -> bytes:
        """Return the bytes of a range; None: all. Raises ArtifactError as `read_into`."""
        place = self._whole(wanted)
        buffer = bytearray(place.length)
        self.read_into(place, buffer)
        return bytes(buffer)

    def read_into(self, wanted: ByteRange, buffer: bytearray | memoryview) -> None:
        """Fill a buffer with the bytes of a range.

        Raises ArtifactError: `MALFORMED_ARTIFACT_RECORD` for a range outside or a buffer of another size,
        `SOURCE_OBJECT_UNAVAILABLE` when it cannot be read or is closed, `CACHE_OBJECT_TAMPERED` when it changed.
        """
        place = self._whole(wanted)
        view = memoryview(buffer).cast("B")
        if view.nbytes != place.length:
            raise ArtifactError(MALFORMED, self.sha256, f"{view.nbytes:,} B cannot take {place.length:,} B")
        done = 0
        while done < place.length:
            count = self._fill(view[done : done + PIECE_BYTES], place.start + done)
            done += count
        self._require_unchanged()
        self._on_served(place.length)

    def stream(self, wanted: ByteRange | None = None) -> Iterator[memoryview]:
        """Give the bytes of a range in pieces of at most 1 MiB; a piece is valid until the next. Raises as `read`."""
        place = self._whole(wanted)
        buffer = memoryview(bytearray(min(PIECE_BYTES, place.length)))
        position = place.start
        while position < place.end:
            count = self._fill(buffer[: min(PIECE_BYTES, place.end - position)], position)
            self._require_unchanged()
            self._on_served(count)
            yield buffer[:count]
            position += count

    def fileno(self) -> int:
        """Return the descriptor, for sending the file as it is; bytes that leave that way are not counted."""
        return self._descriptor

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        """Return the opened blob."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def _whole(self, wanted: ByteRange | None) -> ByteRange:
        place = ByteRange(0, self.length) if wanted is None else wanted
        if place.end > self.length:
            raise ArtifactError(
                MALFORMED, self.sha256, f"{place.start:,} to {place.end:,} leaves the blob of {self.length:,} B"
            )
        return place

    def _fill(self, view: memoryview, position: int) -> int:
        if self._descriptor < 0:
            raise ArtifactError(SOURCE_UNAVAILABLE, self.sha256, "the blob is closed")
        try:
            count = os.preadv(self._descriptor, [view], position)
        except OSError as error:
            raise ArtifactError(
                SOURCE_UNAVAILABLE, self.sha256, f"cannot be read at {position:,}: {error.strerror}"
            ) from error
        if count == 0:
            raise ArtifactError(CACHE_TAMPERED, self.sha256, f"ends at {position:,} B, published {self.length:,} B")
        return count

    def _require_unchanged(self) -> None:
        now = Stamp.of(os.fstat(self._descriptor))
        # The time of the inode alone also changes when the name is removed, which harms nobody who reads.
        if now._replace(ctime_ns=0) != self._stamp._replace(ctime_ns=0):
            raise ArtifactError(CACHE_TAMPERED, self.sha256, "was written to while it was read")


def open_regular(path: Path) -> int:
    """Open a regular file for reading, following no link and waiting for nobody. Raises OSError, ArtifactError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(CACHE_TAMPERED, str(path), "is no regular file")
    return descriptor
