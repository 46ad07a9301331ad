from __future__ import annotations

import threading
import time

import pytest

from inferswarm.errors import MeasurementError, SpecError
from inferswarm.resources.bandwidth import choose_set_bytes, measure_read_bandwidth
from inferswarm.resources.types import Fact, observed, unknown

MIB = 2**20


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_are_plausible_rates_and_no_thread_stays(threads: int) -> None:
    before = threading.active_count()
    samples = measure_read_bandwidth(threads, 0.05, 64 * MIB)
    assert len(samples) >= 5
    assert all(1e8 < sample < 1e13 for sample in samples)
    assert threading.active_count() == before


def test_it_takes_about_the_time_that_it_was_given() -> None:
    began = time.monotonic()
    samples = measure_read_bandwidth(1, 0.3, MIB)
    assert 0.3 <= time.monotonic() - began < 5
    assert len(samples) > 20


@pytest.mark.parametrize(
    ("threads", "seconds", "size", "field"),
    [(0, 1, MIB, "threads"), (1, 0, MIB, "seconds"), (1, -1, MIB, "seconds"), (4, 1, 4 * 4096 - 1, "set size")],
)
def test_what_cannot_be_measured_is_refused(threads: int, seconds: float, size: int, field: str) -> None:
    with pytest.raises(SpecError, match=field):
        measure_read_bandwidth(threads, seconds, size)


@pytest.mark.parametrize(
    ("cache", "available", "chosen"),
    [
        (observed(32 * MIB, "test"), 1024 * MIB, 128 * MIB),
        (observed(1 * MIB, "test"), 1024 * MIB, 64 * MIB),
        (observed(32 * MIB, "test"), 200 * MIB, 100 * MIB),
        (unknown("test"), 1024 * MIB, 256 * MIB),
    ],
)
def test_the_set_is_larger_than_the_cache(cache: Fact[int], available: int, chosen: int) -> None:
    assert choose_set_bytes(cache, available) == chosen


def test_too_little_memory_to_get_past_the_cache_is_refused() -> None:
    with pytest.raises(MeasurementError, match="past a cache"):
        choose_set_bytes(observed(32 * MIB, "test"), 100 * MIB)
