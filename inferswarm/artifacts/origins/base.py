"""What every origin of bytes offers, whatever is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final, Protocol, Self

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.types import ByteRange

PIECE_BYTES: Final = 2**20
"""The longest piece that a stream gives at once."""


class Readable(Protocol):
    """What a reader of headers needs of an origin."""

    @property
    def described(self) -> UpstreamObject:
        """Return what was opened: where, how long, which version."""

    @property
    def length(self) -> int:
        """Return the bytes of the object."""

    def read(self, wanted: ByteRange) -> bytes:
        """Return the bytes of a range."""


class Origin(Readable, Protocol):
    """One opened object that is read by ranges. A context manager; closing it twice is harmless.

    A read gives exactly the bytes of the range, of the version that was opened, or raises ArtifactError. Every read
    is counted, whether or not it succeeded. Reads may come from several threads at once.
    """

    @property
    def bytes_read(self) -> int:
        """Return the bytes that were received so far, a byte received twice counted twice."""

    @property
    def ranges_read(self) -> tuple[ByteRange, ...]:
        """Return every range that was read whole so far, in the order of the reads."""

    def stream(self, wanted: ByteRange) -> Iterator[memoryview]:
        """Give the bytes of a range in order, in pieces of at most 1 MiB, so that memory stays bounded.

        A piece is valid until the next one is asked for. What was given before an error is right and may be kept: the
        rest of the range can be asked for again.
        """

    def close(self) -> None:
        """Close it; the counts stay readable."""

    def __enter__(self) -> Self:
        """Return the opened origin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
