"""How fast files are read from their disk, past the kernel's cache: raw samples in bytes per second.

Blocks are read one after the other from the beginning of one file with O_DIRECT, which no cached page answers; at the
end of the file reading starts again. A disk or a hypervisor may keep a cache of its own, which this cannot see past.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from inferswarm.errors import MeasurementError, SpecError

BLOCK_BYTES = 4 * 2**20
_MIN_BLOCKS = 8
_ALIGN_BYTES = 4096


def measure_disk_read(path: Path, seconds: float, block_bytes: int = BLOCK_BYTES) -> tuple[float, ...]:
    """Read whole blocks of a file for about `seconds`; return bytes per second of each, in the order taken.

    At least eight samples. Raises SpecError for a block that is no multiple of a page or no time, MeasurementError
    for a file that is too short or cannot be read past the cache.
    """
    if block_bytes < _ALIGN_BYTES or block_bytes % _ALIGN_BYTES:
        raise SpecError("block size", block_bytes, f"a multiple of {_ALIGN_BYTES} B")
    if seconds <= 0:
        raise SpecError("seconds", seconds, "more than 0")
    direct = getattr(os, "O_DIRECT", None)
    if direct is None:
        raise MeasurementError(f"{path}: this system cannot read past its cache")
    try:
        handle = os.open(path, os.O_RDONLY | direct)
    except OSError as error:
        raise MeasurementError(f"{path}: cannot be read past the cache: {error.strerror}") from error
    try:
        num_blocks = os.fstat(handle).st_size // block_bytes
        if num_blocks < _MIN_BLOCKS:
            raise MeasurementError(f"{path}: needs {_MIN_BLOCKS} blocks of {block_bytes:,} B, has {num_blocks}")
        return _read(handle, num_blocks, block_bytes, seconds)
    except OSError as error:
        raise MeasurementError(f"{path}: cannot be read past the cache: {error.strerror}") from error
    finally:
        os.close(handle)


def _read(handle: int, num_blocks: int, block_bytes: int, seconds: float) -> tuple[float, ...]:
    samples: list[float] = []
    deadline = time.monotonic() + seconds
    with mmap.mmap(-1, block_bytes) as buffer:  # a page's alignment, which O_DIRECT asks for
        while len(samples) < _MIN_BLOCKS or time.monotonic() < deadline:
            started = time.perf_counter()
            got = os.preadv(handle, [buffer], len(samples) % num_blocks * block_bytes)
            elapsed = time.perf_counter() - started
            if got != block_bytes:
                raise MeasurementError(f"a block of {block_bytes:,} B was read as {got:,} B")
            samples.append(block_bytes / elapsed)
    return tuple(samples)
