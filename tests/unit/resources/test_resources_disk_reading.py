"""Reading from disk: whole blocks past the cache, and a refusal where that cannot be had."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from pathlib import Path

import pytest

from inferswarm.errors import MeasurementError, SpecError
from inferswarm.resources.disk_reading import measure_disk_read

PAGE = 4096


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * (PAGE // 256) * 10 + b"rest")
    return path


def readable(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"this filesystem reads through its cache only: {error.strerror}")


def test_each_block_is_a_sample_and_reading_starts_again_at_the_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable(file)
    asked: list[int] = []
    read = os.preadv

    def noted(handle: int, parts: list[mmap.mmap], at: int) -> int:
        asked.append(at)
        return read(handle, parts, at)

    monkeypatch.setattr(os, "preadv", noted)
    now = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    samples = measure_disk_read(file, 14.5, PAGE)
    assert asked == [index % 10 * PAGE for index in range(len(samples))]
    assert len(samples) > 10
    assert min(samples) > 0


def test_at_least_eight_samples_are_taken_however_little_time_there_is(file: Path) -> None:
    readable(file)
    assert len(measure_disk_read(file, 1e-9, PAGE)) == 8


@pytest.mark.parametrize(("seconds", "block"), [(0.1, 0), (0.1, 100), (0.1, PAGE + 1), (0.0, PAGE), (-1.0, PAGE)])
def test_what_cannot_be_asked_is_refused(file: Path, seconds: float, block: int) -> None:
    with pytest.raises(SpecError):
        measure_disk_read(file, seconds, block)


def test_a_file_that_is_too_short_or_not_there_tells_nothing(file: Path) -> None:
    readable(file)
    with pytest.raises(MeasurementError, match="needs 8 blocks of 8,192 B, has 5"):
        measure_disk_read(file, 0.1, 2 * PAGE)
    with pytest.raises(MeasurementError, match="cannot be read past the cache"):
        measure_disk_read(file.with_name("none"), 0.1, PAGE)


def test_a_system_without_direct_reading_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    with pytest.raises(MeasurementError, match="this system cannot read past its cache"):
        measure_disk_read(file, 0.1, PAGE)
