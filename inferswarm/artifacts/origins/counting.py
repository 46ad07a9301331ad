"""What origins say of their reads: bytes received and ranges read whole, from however many threads."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from inferswarm.artifacts.types import ByteRange


class CountedReads:
    """The counts of an origin, and its end as a context manager. Whoever derives from it has a `close`."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._lock = threading.Lock()
        self._bytes_read = 0
        self._ranges: list[ByteRange] = []

    @property
    def bytes_read(self) -> int:
        """Return the bytes that were received so far, opening included, a byte received twice counted twice."""
        return self._bytes_read

    @property
    def ranges_read(self) -> tuple[ByteRange, ...]:
        """Return every range that was read whole so far, in the order in which reads ended."""
        with self._lock:
            return tuple(self._ranges)

    def close(self) -> None:
        """Close it; the counts stay readable."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return the opened origin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self._bytes_read += num_bytes

    def _record(self, wanted: ByteRange) -> None:
        with self._lock:
            self._ranges.append(wanted)
