"""A local file as the origin of model bytes: exact ranges, every byte counted, changes noticed.

What it promises: a read returns exactly the bytes of the range or raises; `ranges_read` is the complete log of what
was read; a file that changed after it was opened is refused before its bytes are used. Reading does not map the
file: mapped pages would count as the process's own memory. What it does not do: verify contents (only headers are
known here, so no digest exists to verify against).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.base import PIECE_BYTES
from inferswarm.artifacts.origins.checking import check_expected, check_inside
from inferswarm.artifacts.origins.counting import CountedReads
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, ModelError

_PIECE_BYTES = 8 * 2**20
"""How much is read before the page cache is asked to forget it: bounds what a memory cgroup is charged for."""


class LocalFileOrigin(CountedReads):
    """One opened regular file. A context manager; closing it twice is harmless. Threads may read at once.

    Raises ArtifactError `SOURCE_OBJECT_UNAVAILABLE` when `path` is missing, not a regular file, unreadable, or the
    name of an object elsewhere (`http://…`), and `PROVENANCE_IDENTITY_MISMATCH` when `expected_length` or `expected`
    is given and the file is another one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        expected_length: int | None = None,
        *,
        expected: UpstreamObject | None = None,
        uri: str | None = None,
        version: str | None = None,
    ) -> None:
        """Open the file at `path`.

        `uri` and `version` are what it is described as where it is a copy of an object with another name; otherwise
        that is its path, and the time of its last change in nanoseconds.
        """
        super().__init__()
        _refuse_remote(path)
        self.path = Path(path)
        self._descriptor = -1
        try:
            # O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ArtifactError(SOURCE_UNAVAILABLE, str(self.path), f"cannot be opened: {reason}") from error
        opened = os.fstat(descriptor)
        if not stat.S_ISREG(opened.st_mode):
            os.close(descriptor)
            raise ArtifactError(SOURCE_UNAVAILABLE, str(self.path), "is not a regular file")
        self._descriptor = descriptor
        self._identity = _identity(opened)
        self.length = opened.st_size
        """Bytes in the file when it was opened."""
        if expected_length is not None and self.length != expected_length:
            self.close()
            raise ArtifactError(
                IDENTITY_MISMATCH,
                str(self.path),
                f"has {self.length:,} B; the object that was described has {expected_length:,} B",
            )
        self.described = UpstreamObject(
            uri=uri or str(self.path), length=self.length, version=version or f"modified:{opened.st_mtime_ns}"
        )
        """What was opened. The version of a file is when it changed last: a copy of it has another one."""
        try:
            check_expected(self.described, expected, str(self.path))
        except ArtifactError:
            self.close()
            raise

    def read(self, wanted: ByteRange) -> bytes:
        """Return the bytes of `wanted`. Raises as `read_into`."""
        check_inside(wanted, self.length, str(self.path))
        buffer = bytearray(wanted.length)
        self.read_into(wanted, buffer)
        return bytes(buffer)

    def read_into(self, wanted: ByteRange, buffer: bytearray | memoryview) -> None:
        """Fill `buffer`, whose size must be that of `wanted`, with the file's bytes.

        Raises ArtifactError: `MALFORMED_ARTIFACT_RECORD` for a range outside the file or a buffer of another
        size, `SOURCE_OBJECT_UNAVAILABLE` when the file cannot be read (closed origins included),
        `PROVENANCE_IDENTITY_MISMATCH` when it is no longer the file that was opened.
        """
        check_inside(wanted, self.length, str(self.path))
        view = memoryview(buffer).cast("B")
        if view.nbytes != wanted.length:
            raise ArtifactError(
                MALFORMED, str(self.path), f"a buffer of {view.nbytes:,} B cannot take {wanted.length:,} B"
            )
        self._check_unchanged()
        position = wanted.start
        while position < wanted.end:
            piece_end = min(position + _PIECE_BYTES, wanted.end)
            self._fill(position, view[position - wanted.start : piece_end - wanted.start])
            self._forget_pages(position, piece_end)
            position = piece_end
        # After, too: a change during the read may have mixed old and new bytes.
        self._check_unchanged()
        self._record(wanted)

    def stream(self, wanted: ByteRange) -> Iterator[memoryview]:
        """Give the bytes of `wanted` in pieces of at most 1 MiB. Raises as `read_into`."""
        check_inside(wanted, self.length, str(self.path))
        self._check_unchanged()
        buffer = memoryview(bytearray(min(PIECE_BYTES, wanted.length)))
        for start in range(wanted.start, wanted.end, PIECE_BYTES):
            piece = buffer[: min(PIECE_BYTES, wanted.end - start)]
            self._fill(start, piece)
            self._forget_pages(start, start + piece.nbytes)
            self._check_unchanged()
            yield piece
        self._record(wanted)

    def close(self) -> None:
        """Close the file; the counts stay readable."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_unchanged(self) -> None:
        """Compare the opened file, and the file that the path now names, with what was opened."""
        if self._descriptor < 0:
            raise ArtifactError(SOURCE_UNAVAILABLE, str(self.path), "the origin is closed")
        try:
            now = (_identity(os.fstat(self._descriptor)), _identity(os.stat(self.path)))
        except OSError as error:
            raise ArtifactError(
                IDENTITY_MISMATCH, str(self.path), f"has gone since it was opened: {error.strerror}"
            ) from error
        if now != (self._identity, self._identity):
            raise ArtifactError(
                IDENTITY_MISMATCH,
                str(self.path),
                f"changed since it was opened (it had {self.length:,} B, now {now[1][0]:,} B)",
            )

    def _fill(self, position: int, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            try:
                count = os.preadv(self._descriptor, [view[done:]], position + done)
            except OSError as error:
                raise ArtifactError(
                    SOURCE_UNAVAILABLE, str(self.path), f"cannot be read at {position + done:,}: {error.strerror}"
                ) from error
            if count == 0:
                raise ArtifactError(
                    IDENTITY_MISMATCH, str(self.path), f"ended at {position + done:,} B, before its length"
                )
            done += count
            self._count(count)

    def _forget_pages(self, start: int, end: int) -> None:
        """Ask the kernel to drop what was just read from the page cache, where it offers that."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def read_whole(path: Path, limit_bytes: int) -> bytes:
    """Return all bytes of a file that is not longer than `limit_bytes`.

    Raises ModelError for one that is, ArtifactError as `LocalFileOrigin`.
    """
    with LocalFileOrigin(path) as origin:
        if origin.length > limit_bytes:
            raise ModelError(str(path), f"has {origin.length:,} B; at most {limit_bytes:,} B are read")
        return origin.read(ByteRange(0, origin.length))


def _refuse_remote(path: str | os.PathLike[str]) -> None:
    """Refuse the name of an object that no path leads to, before it is looked for among the files."""
    scheme, separator, _ = str(path).partition("://")
    if separator and scheme.isalnum() and not os.path.lexists(path):
        raise ArtifactError(
            SOURCE_UNAVAILABLE, str(path), "is not a file of this computer: its bytes have to be acquired first"
        )


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)
