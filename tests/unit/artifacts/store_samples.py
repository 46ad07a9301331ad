"""Artifacts of made-up bytes, and an origin that gives them: what tests of the store and of acquiring share."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator

import msgspec

from inferswarm.artifacts.identity import Artifact, Provenance, UpstreamObject
from inferswarm.artifacts.origins.base import PIECE_BYTES
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError

PROVENANCE = Provenance(model="made-up", revision="1", representation="stored")


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sample_bytes(length: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(length)


def artifact(
    whole: bytes,
    start: int,
    end: int,
    *,
    uri: str = "file:///model",
    version: str | None = "etag:1",
    pinned: bool = True,
) -> Artifact:
    """Return the record of a range of an object; without `pinned`, of one whose digest nobody knows."""
    return Artifact(
        kind="byte_range",
        length=end - start,
        provenance=PROVENANCE,
        origin=UpstreamObject(uri=uri, length=len(whole), version=msgspec.UNSET if version is None else version),
        range=ByteRange(start, end),
        states=(f"state-{start}",),
        requirement_class="assigned",
        sha256=sha(whole[start:end]) if pinned else msgspec.UNSET,
    )


class MemoryOrigin:
    """An origin of bytes in memory that may be slow, break off, or hang, until it is closed or deaf to that."""

    def __init__(
        self,
        whole: bytes,
        *,
        uri: str = "file:///model",
        version: str | None = "etag:1",
        piece_bytes: int = 65_536,
        breaks_at: int | None = None,
        seconds_per_piece: float = 0.0,
        hangs_at: int | None = None,
        is_deaf: bool = True,
    ) -> None:
        self.whole = whole
        self.described = UpstreamObject(
            uri=uri, length=len(whole), version=msgspec.UNSET if version is None else version
        )
        self.asked: list[ByteRange] = []
        self.ranges_read: tuple[ByteRange, ...] = ()
        self.bytes_read = 0
        self.is_closed = threading.Event()
        self.breaks_at = breaks_at
        self._piece_bytes = min(piece_bytes, PIECE_BYTES)
        self._seconds = seconds_per_piece
        self._hangs_at = hangs_at
        self._is_deaf = is_deaf
        self.released = threading.Event()

    @property
    def length(self) -> int:
        return len(self.whole)

    def read(self, wanted: ByteRange) -> bytes:
        return b"".join(bytes(piece) for piece in self.stream(wanted))

    def stream(self, wanted: ByteRange) -> Iterator[memoryview]:
        self.asked.append(wanted)
        position = wanted.start
        while position < wanted.end:
            end = min(position + self._piece_bytes, wanted.end)
            if self.breaks_at is not None and position <= self.breaks_at < end:
                end = self.breaks_at
                if end == position:
                    raise ArtifactError("SOURCE_OBJECT_UNAVAILABLE", self.described.uri, f"broke off at {position}")
            if self._hangs_at is not None and position >= self._hangs_at:
                if self._is_deaf:  # as a system call may be
                    self.released.wait(30)
                elif self.is_closed.wait(30):
                    raise ArtifactError("SOURCE_OBJECT_UNAVAILABLE", self.described.uri, "was closed")
            if self._seconds:
                time.sleep(self._seconds)
            self.bytes_read += end - position
            yield memoryview(self.whole)[position:end]
            position = end
        self.ranges_read += (wanted,)

    def close(self) -> None:
        self.is_closed.set()

    def __enter__(self) -> MemoryOrigin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
