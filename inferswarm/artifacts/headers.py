"""Kept headers: the beginnings of remote files of weights, on this computer, that are read as if the files were here.

A folder of the cache holds a model's texts whole, of each file of weights the bytes up to the end of its header,
under the file's own name, and a record of what each file is. Promises: kept bytes have the digest of the record, or
are refused; whatever lies behind them is read from the file's origin, of the version that is recorded; a record
counts in the cache alone, so that no model's folder can name an address; a folder that a process has read is its to
use for as long as it lives (`header_pruning`). Whoever does not know the record sees a file that was cut, which the
formats' readers refuse.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.origins.base import PIECE_BYTES, Origin
from inferswarm.artifacts.origins.checking import check_inside
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.taxonomy import CACHE_TAMPERED, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import Digest, Document, digest_bytes, read_document
from inferswarm.errors import ArtifactError, SpecError

RECORD: Final = "inferswarm-headers.json"

_held: dict[Path, int] = {}
"""Record of a folder → the descriptor whose lock keeps it."""
_holding = threading.Lock()


class KeptFile(Document, frozen=True, kw_only=True):
    """One file of a model: what it is, and how many of its first bytes are kept."""

    name: str
    upstream: UpstreamObject
    num_bytes: int
    sha256: Digest
    """Of the kept bytes."""


class KeptHeaders(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.kept-headers/1"):
    """What a folder of kept headers holds: texts and weights, sorted by name."""

    uri: str
    """The name by which the model was asked for."""
    files: tuple[KeptFile, ...]


def header_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $XDG_CACHE_HOME/inferswarm/headers, or ~/.cache/inferswarm/headers.

    Raises SpecError when neither XDG_CACHE_HOME nor HOME is set.
    """
    base, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    if not base and not home:
        raise SpecError("header cache", "neither XDG_CACHE_HOME nor HOME is set", "one of them")
    return (Path(base) if base else Path(home or "", ".cache")) / "inferswarm" / "headers"


def open_file(path: str | os.PathLike[str]) -> Origin:
    """Open a file of this computer, or the remote file whose beginning is kept at `path`.

    Raises ArtifactError as `LocalFileOrigin`, and `CACHE_OBJECT_TAMPERED` for kept bytes that are others now.
    """
    path = Path(path)
    kept = read_kept(path.parent)
    found = () if kept is None else [file for file in kept.files if file.name == path.name]
    return HeaderOrigin(path, found[0]) if found else LocalFileOrigin(path)


def read_kept(folder: Path) -> KeptHeaders | None:
    """Return the record of a folder of the cache, which this process holds then; None for any other folder.

    Raises DocumentError for a record that is none, ArtifactError when it cannot be read.
    """
    record = folder / RECORD
    if not hold_kept(folder):
        return None
    with LocalFileOrigin(record) as origin:
        return read_document(KeptHeaders, origin.read(ByteRange(0, origin.length)), str(record))


def hold_kept(folder: Path) -> bool:
    """Keep a folder of the cache from being pruned while this process lives; return whether it is one, and there."""
    try:
        cache = header_cache()
    except SpecError:
        return False
    record = Path(os.path.abspath(folder), RECORD)
    if not record.is_relative_to(cache.absolute()) or not record.is_file():
        return False
    with _holding:
        try:
            there = record.stat()
            if (known := _held.get(record)) is not None and os.path.samestat(os.fstat(known), there):
                return True
            descriptor = os.open(record, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return error.errno != errno.ENOENT  # it has just gone, or cannot be locked
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # who prunes has it for an instant
            if not os.path.samestat(os.fstat(descriptor), record.stat()):
                raise FileNotFoundError(record)
        except FileNotFoundError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            return True  # a file system without locks, of which nothing is pruned
        if known is not None:
            os.close(known)
        _held[record] = descriptor
        return True


class HeaderOrigin:
    """One remote file whose beginning is kept. A context manager; the origin is opened when it is needed.

    Raises as `open_file`.
    """

    def __init__(self, path: Path, kept: KeptFile) -> None:
        self._path, self._kept = path, kept
        self._behind: Origin | None = None
        self._bytes_read, self._ranges = 0, list[ByteRange]()
        with LocalFileOrigin(path) as file:
            self._data = file.read(ByteRange(0, min(file.length, kept.num_bytes + 1)))
        if digest_bytes(self._data) != kept.sha256:
            raise ArtifactError(
                CACHE_TAMPERED,
                str(path),
                "holds other bytes than were kept; remove its folder",
            )

    @property
    def described(self) -> UpstreamObject:
        """Return the remote file."""
        return self._kept.upstream

    @property
    def length(self) -> int:
        """Return the bytes of the remote file."""
        return self._kept.upstream.length

    @property
    def bytes_read(self) -> int:
        """Return the bytes that were read so far, from what is kept and from the origin."""
        return self._bytes_read + (0 if self._behind is None else self._behind.bytes_read)

    @property
    def ranges_read(self) -> tuple[ByteRange, ...]:
        """Return every range that was read whole so far, in the order of the reads."""
        return tuple(self._ranges)

    def read(self, wanted: ByteRange) -> bytes:
        """Return the bytes of a range: kept ones from here, others from the origin. Raises as `open_origin`."""
        return b"".join(bytes(piece) for piece in self.stream(wanted))

    def stream(self, wanted: ByteRange) -> Iterator[memoryview]:
        """Give the bytes of a range in pieces of at most 1 MiB. Raises as `read`."""
        check_inside(wanted, self.length, self._kept.upstream.uri)
        if wanted.end <= len(self._data):
            for start in range(wanted.start, wanted.end, PIECE_BYTES):
                piece = memoryview(self._data)[start : min(start + PIECE_BYTES, wanted.end)]
                self._bytes_read += len(piece)
                yield piece
        else:
            yield from self._origin().stream(wanted)
        self._ranges.append(wanted)

    def close(self) -> None:
        """Close it; the counts stay readable."""
        if self._behind is not None:
            self._behind.close()

    def __enter__(self) -> HeaderOrigin:
        """Return the opened origin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _origin(self) -> Origin:
        if self._behind is None:
            self._behind = open_origin(self._kept.upstream.uri, self._kept.upstream)
        return self._behind


def same_bytes(path: Path, kept: KeptFile) -> bool:
    """Return whether a file holds exactly the bytes that a record says were kept."""
    try:
        return path.stat().st_size == kept.num_bytes and digest_bytes(path.read_bytes()) == kept.sha256
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ArtifactError(SOURCE_UNAVAILABLE, str(path), f"cannot be read: {error.strerror}") from error
