"""How fast this machine reads memory: raw samples in bytes per second.

Each thread reduces its own part of one large array with numpy, which releases the interpreter's lock; a sample is
all bytes over the time from the common start to the last end. The array is at least four times the last-level
cache where memory allows, so that caches do not answer. Reading is what decoding does; writing is not measured.
"""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import numpy.typing as npt

from inferswarm.errors import MeasurementError, SpecError
from inferswarm.resources.types import Fact

_CACHE_MULTIPLE = 4
_MIN_SET_BYTES = 64 * 2**20
_ASSUMED_CACHE_BYTES = 64 * 2**20
"""Stands in for an unknown cache when a size is chosen; the choice is recorded beside the samples."""
_MIN_SAMPLES = 5
_ALIGN_BYTES = 4096


def choose_set_bytes(last_level_cache_bytes: Fact[int], available_bytes: int) -> int:
    """Return how much memory to read: four last-level caches, at least 64 MiB, at most half of what is available.

    Raises MeasurementError when half of what is available does not hold twice the cache: a smaller set would
    measure the cache.
    """
    cache = last_level_cache_bytes.value or _ASSUMED_CACHE_BYTES
    wanted = max(_MIN_SET_BYTES, _CACHE_MULTIPLE * cache)
    chosen = min(wanted, available_bytes // 2)
    if chosen < 2 * cache:
        raise MeasurementError(
            f"memory bandwidth: needs {4 * cache:,} B to be read past a cache of {cache:,} B, "
            f"has {available_bytes:,} B available"
        )
    return chosen


def measure_read_bandwidth(threads: int, seconds: float, set_bytes: int) -> tuple[float, ...]:
    """Read `set_bytes` again and again with `threads` threads for about `seconds`; return bytes per second.

    At least five samples, raw and in the order taken; the warm-up is not among them. The array is `set_bytes`
    rounded down to whole pages for each thread. Raises SpecError for fewer than one thread, no time or less than a
    page for each thread; MeasurementError when the memory cannot be had or a thread fails.
    """
    if threads < 1:
        raise SpecError("threads", threads, "at least 1")
    if seconds <= 0:
        raise SpecError("seconds", seconds, "more than 0")
    share = set_bytes // threads // _ALIGN_BYTES * _ALIGN_BYTES
    if share < _ALIGN_BYTES:
        raise SpecError("set size", set_bytes, f"at least {threads * _ALIGN_BYTES} B, a page for each thread")
    try:
        parts = [np.ones(share // 8, dtype=np.int64) for _ in range(threads)]
    except MemoryError as error:
        raise MeasurementError(f"memory bandwidth: {set_bytes:,} B cannot be had") from error
    team = _Team(parts)
    try:
        team.read()  # warm-up: pages are mapped and threads are up
        samples: list[float] = []
        deadline = time.monotonic() + seconds
        while len(samples) < _MIN_SAMPLES or time.monotonic() < deadline:
            samples.append(share * threads / team.read())
    finally:
        team.stop()
    return tuple(samples)


class _Team:
    """Threads that wait at a gate, read their part once, and wait again."""

    def __init__(self, parts: list[npt.NDArray[np.int64]]) -> None:
        self._times = [(0.0, 0.0)] * len(parts)
        self._gate = threading.Barrier(len(parts) + 1)
        self._done = threading.Barrier(len(parts) + 1)
        self._members = [
            threading.Thread(target=self._run, args=(index, part), name=f"bandwidth-{index}", daemon=True)
            for index, part in enumerate(parts)
        ]
        for member in self._members:
            member.start()

    def _run(self, index: int, part: npt.NDArray[np.int64]) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # how `stop` ends the wait
            while True:
                self._gate.wait()
                start = time.perf_counter()
                largest = part.max()
                # The answer is used, so that no reading can be left out.
                self._times[index] = (start, time.perf_counter() if largest == 1 else 0.0)
                self._done.wait()

    def read(self) -> float:
        """Let every thread read its part once; return the seconds from the first start to the last end."""
        self._times = [(0.0, 0.0)] * len(self._members)
        self._gate.wait()
        self._done.wait()
        starts, ends = zip(*self._times, strict=True)
        if not all(end > start for start, end in self._times):
            raise MeasurementError("memory bandwidth: a thread did not read what was written")
        return float(max(ends) - min(starts))

    def stop(self) -> None:
        """End the threads, wherever they wait."""
        self._gate.abort()
        self._done.abort()
        for member in self._members:
            member.join()
