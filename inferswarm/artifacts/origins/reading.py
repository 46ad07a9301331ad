"""Many ranges of one object at once: few requests, several connections, bounded memory, surplus counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.requirement import coalesce
from inferswarm.artifacts.types import ByteRange

MAX_GAP_BYTES: Final = 64 * 2**10
"""Bytes between two ranges that are read and dropped, to save a request. At 100 ms for a request and 5 MB/s a gap
that takes as long as a request has 500 KB; this is well below, so that surplus stays small on slower ways."""
MAX_SPAN_BYTES: Final = 32 * 2**20
"""Ranges are joined up to this length, so that what lies side by side still travels over several connections."""
NUM_CONNECTIONS: Final = 4

Deliver = Callable[[ByteRange, int, memoryview], None]
"""Takes a piece of a range that was asked for: the range, where in the object the piece starts, its bytes."""


class RangesRead(NamedTuple):
    """What one reading of many ranges took."""

    wanted_bytes: int
    """Bytes that were asked for, each once."""
    surplus_bytes: int
    """Bytes that were received and dropped because they lay between ranges."""
    num_requests: int


def join_ranges(
    ranges: Iterable[ByteRange], max_gap_bytes: int = MAX_GAP_BYTES, max_span_bytes: int = MAX_SPAN_BYTES
) -> tuple[tuple[ByteRange, ...], ...]:
    """Return the ranges in groups that are each read at once, in order; empty ranges and repetitions are dropped.

    A group spans no gap above `max_gap_bytes`, and no more than `max_span_bytes` unless ranges overlap or one is
    longer by itself.

    >>> [len(group) for group in join_ranges([ByteRange(0, 8), ByteRange(9, 16), ByteRange(90, 99)], 1, 100)]
    [2, 1]
    """
    groups: list[list[ByteRange]] = []
    start = end = 0
    for part in sorted({part for part in ranges if part.length}):
        joins = bool(groups) and part.start <= end + max_gap_bytes
        if joins and (part.start < end or part.end - start <= max_span_bytes):
            groups[-1].append(part)
            end = max(end, part.end)
        else:
            groups.append([part])
            start, end = part.start, part.end
    return tuple(tuple(group) for group in groups)


def read_ranges(
    origin: Origin,
    ranges: Iterable[ByteRange],
    deliver: Deliver,
    *,
    max_gap_bytes: int = MAX_GAP_BYTES,
    max_span_bytes: int = MAX_SPAN_BYTES,
    num_connections: int = NUM_CONNECTIONS,
) -> RangesRead:
    """Read ranges of one object over up to `num_connections` connections and give every byte of them to `deliver`.

    The pieces of one range come in order and from one thread; those of several ranges come from several threads at
    once. A byte that several ranges hold is received once and given to each. In memory is at most one piece (1 MiB)
    for each connection. The first error ends the reading of all and is raised, when every thread has ended: what
    `deliver` raises, or ArtifactError as the origin.
    """
    groups = join_ranges(ranges, max_gap_bytes, max_span_bytes)
    stop = threading.Event()

    def read_group(group: Sequence[ByteRange]) -> None:
        try:
            _read_group(origin, group, deliver, stop)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(num_connections, thread_name_prefix="ranges") as pool:
        ended = [pool.submit(read_group, group) for group in groups]
        try:
            for future in ended:
                future.result()
        finally:
            stop.set()  # also where the caller is interrupted
    spans = [_span(group) for group in groups]
    wanted = sum(part.length for part in coalesce(part for group in groups for part in group))
    return RangesRead(wanted, sum(span.length for span in spans) - wanted, len(spans))


def _read_group(origin: Origin, group: Sequence[ByteRange], deliver: Deliver, stop: threading.Event) -> None:
    span = _span(group)
    position = span.start
    if stop.is_set():
        return
    with _closing(origin.stream(span)) as pieces:
        for piece in pieces:
            if stop.is_set():
                return
            end = position + len(piece)
            for part in group:
                start, stop_at = max(part.start, position), min(part.end, end)
                if start < stop_at:
                    deliver(part, start, piece[start - position : stop_at - position])
            position = end


def _span(group: Sequence[ByteRange]) -> ByteRange:
    return ByteRange(group[0].start, max(part.end for part in group))


@contextlib.contextmanager
def _closing(pieces: Iterator[memoryview]) -> Iterator[Iterator[memoryview]]:
    """Close a stream that is not read to its end: it may hold a connection."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
