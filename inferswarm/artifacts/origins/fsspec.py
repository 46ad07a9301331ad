"""Ranges of an object in any file system that fsspec knows, such as `memory://`, `s3://` and `gs://`.

The drivers of most schemes are packages of their own. Promises: exactly the bytes of the range, of the object that
was opened: what the file system says of it is compared again after every read. How long a driver waits, and how often
it tries again, is the driver's affair.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import fsspec  # type: ignore[import-untyped]

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.base import PIECE_BYTES
from inferswarm.artifacts.origins.checking import AbsentObject, check_expected, check_inside
from inferswarm.artifacts.origins.counting import CountedReads
from inferswarm.artifacts.origins.opening import scheme_of
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, SOURCE_UNAVAILABLE, UNAUTHORIZED
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, SpecError

_REQUEST_BYTES: Final = 8 * 2**20
"""What is asked of a driver at once: many answer each question with a request of its own."""


class FsspecOrigin(CountedReads):
    """One object of a file system. Usable from several threads; a context manager.

    Raises SpecError for a scheme that fsspec does not know or whose driver is not installed; ArtifactError
    `SOURCE_OBJECT_UNAVAILABLE`, `SOURCE_UNAUTHORIZED`, and `PROVENANCE_IDENTITY_MISMATCH` for another object than
    `expected`.
    """

    def __init__(self, uri: str, expected: UpstreamObject | None = None) -> None:
        super().__init__()
        self._uri = uri
        self._closed = False
        if scheme_of(uri) not in fsspec.available_protocols():
            raise SpecError("URL", uri, "a path, or a known scheme: file, http, https, hf, or one of fsspec's")
        self._files: Any
        try:
            self._files, self._path = fsspec.core.url_to_fs(uri)
        except ImportError as error:
            raise SpecError("URL", uri, f"the driver of its scheme: {error}") from error
        except ValueError as error:
            raise SpecError("URL", uri, f"a name as its driver takes it: {error}") from error
        self._described = self._describe()
        check_expected(self._described, expected, uri)

    @property
    def described(self) -> UpstreamObject:
        """Return what was opened; the version is fsspec's digest of everything that the file system says of it."""
        return self._described

    @property
    def length(self) -> int:
        """Return the bytes of the object."""
        return self._described.length

    def read(self, wanted: ByteRange) -> bytes:
        """Return the bytes of a range. Raises as `stream`."""
        return b"".join(bytes(piece) for piece in self.stream(wanted))

    def stream(self, wanted: ByteRange) -> Iterator[memoryview]:
        """Give the bytes of a range in pieces of at most 1 MiB.

        Raises ArtifactError: `MALFORMED_ARTIFACT_RECORD` for a range outside the object,
        `PROVENANCE_IDENTITY_MISMATCH` when it is another one than was opened, otherwise as opening.
        """
        check_inside(wanted, self.length, self._uri)
        for start in range(wanted.start, wanted.end, _REQUEST_BYTES):
            data = self._fetch(start, min(start + _REQUEST_BYTES, wanted.end))
            view = memoryview(data)
            for at in range(0, len(data), PIECE_BYTES):
                yield view[at : at + PIECE_BYTES]
        self._record(wanted)

    def close(self) -> None:
        """Close it; the counts stay readable."""
        self._closed = True

    def _describe(self) -> UpstreamObject:
        try:
            self._files.invalidate_cache()  # what a driver remembers of a folder says nothing of a change
            information = self._files.info(self._path)
            version = f"ukey:{self._files.ukey(self._path)}"
        except (OSError, ValueError) as error:
            self._refuse(error)
        length = information.get("size")
        if information.get("type") != "file" or not isinstance(length, int):
            kind = information.get("type", "something")
            raise ArtifactError(SOURCE_UNAVAILABLE, self._uri, f"is a {kind} of {length} B, needed a file")
        return UpstreamObject(uri=self._uri, length=length, version=version)

    def _fetch(self, start: int, end: int) -> bytes:
        if self._closed:
            raise ArtifactError(SOURCE_UNAVAILABLE, self._uri, "the origin is closed")
        try:
            data = self._files.cat_file(self._path, start=start, end=end)
        except (OSError, ValueError) as error:
            self._refuse(error)
        self._count(len(data))
        check_expected(self._describe(), self._described, self._uri)
        if len(data) != end - start:
            raise ArtifactError(
                IDENTITY_MISMATCH, self._uri, f"gave {len(data):,} B for the range {start:,} to {end:,}"
            )
        return bytes(data)

    def _refuse(self, error: Exception) -> NoReturn:
        if isinstance(error, FileNotFoundError):
            raise AbsentObject(self._uri, "nothing is there") from error
        words = next(iter(str(error).splitlines()), "") or type(error).__name__
        if isinstance(error, PermissionError):
            raise ArtifactError(UNAUTHORIZED, self._uri, f"{words}; the driver's settings say who asks") from error
        raise ArtifactError(SOURCE_UNAVAILABLE, self._uri, f"cannot be read: {words}") from error
