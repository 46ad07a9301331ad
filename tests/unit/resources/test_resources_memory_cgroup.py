"""Memory groups on the real kernel. Skipped only where no memory controller can be had; the skip says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferswarm.errors import EngineError, MeasurementError, SpecError
from inferswarm.resources.cgroups import MemoryCgroup, MemoryController, Unavailable, find_memory_controller

LIMIT = 64_000_000
MEMBER = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
kind, size, path = sys.argv[2], int(sys.argv[3]), sys.argv[4]
kept = []
if kind == "anonymous":
    for _ in range(size // 1_000_000):
        kept.append(b"x" * 1_000_000)
elif kind == "shared":
    descriptor = os.memfd_create("test")
    for _ in range(size // 1_000_000):
        os.write(descriptor, b"x" * 1_000_000)
elif kind == "file":
    with open(path, "rb", buffering=0) as stream:
        while stream.read(1_000_000):
            pass
print("done", flush=True)
sys.stdin.readline()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def controller() -> MemoryController:
    found = find_memory_controller()
    if isinstance(found, Unavailable):
        pytest.skip(f"no memory controller: {found.reason}")
    return found


@pytest.fixture
def group(controller: MemoryController) -> Iterator[MemoryCgroup]:
    made = controller.create(f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}", LIMIT)
    yield made
    made.remove()


@pytest.fixture
def start(group: MemoryCgroup) -> Iterator[Start]:
    """Start a member that joins, takes memory, says `done` and waits for its input to close."""
    started: list[subprocess.Popen[str]] = []

    def begin(kind: str, size: int, path: Path | str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", MEMBER, str(group.procs_path), kind, str(size), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said_done(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "done\n"


def test_a_member_that_passes_the_limit_is_killed_at_once_and_counted(group: MemoryCgroup, start: Start) -> None:
    began = time.monotonic()
    process = start("anonymous", 4 * LIMIT)
    assert not said_done(process)
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert time.monotonic() - began < 10
    assert group.oom_kills() == 1


def test_a_member_within_the_limit_lives_and_its_memory_is_counted(group: MemoryCgroup, start: Start) -> None:
    process = start("anonymous", 30_000_000)
    assert said_done(process)
    assert process.poll() is None
    assert 30_000_000 <= group.unreclaimable_bytes() <= LIMIT
    assert group.usage_bytes() >= 30_000_000
    assert group.oom_kills() == 0


def test_reading_a_file_larger_than_the_limit_kills_nobody(group: MemoryCgroup, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with open(path, "wb") as stream:
        for _ in range(2 * LIMIT // 1_000_000):
            stream.write(os.urandom(1_000_000))
        stream.flush()
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert said_done(start("file", 0, path))
    assert group.oom_kills() == 0
    # The peak cannot tell cache from need; what is unreclaimable can.
    assert group.peak_bytes() > LIMIT // 2
    assert group.unreclaimable_bytes() < LIMIT // 4


def test_shared_memory_counts_as_unreclaimable(group: MemoryCgroup, start: Start) -> None:
    assert said_done(start("shared", 20_000_000))
    assert group.unreclaimable_bytes() >= 20_000_000


def test_a_peak_stays_until_it_is_reset(group: MemoryCgroup, start: Start) -> None:
    process = start("anonymous", 40_000_000)
    assert said_done(process)
    process.communicate(timeout=20)
    assert group.peak_bytes() >= 40_000_000
    try:
        group.reset_peak()
    except MeasurementError as error:
        pytest.skip(f"this kernel cannot reset a peak: {error}")
    assert group.peak_bytes() < 40_000_000


def test_a_group_with_members_is_not_removed_and_they_are_named(group: MemoryCgroup, start: Start) -> None:
    process = start("anonymous", 0)
    assert said_done(process)
    with pytest.raises(EngineError, match=rf"still holds pids \[{process.pid}\]"):
        group.remove(timeout_seconds=0.1)
    assert process.poll() is None
    assert group.pids() == (process.pid,)
    process.communicate(timeout=20)
    group.remove()
    group.remove()
    assert not group.path.exists()
    assert group.pids() == ()


def test_a_process_can_be_moved_in_and_a_dead_one_cannot(group: MemoryCgroup) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        group.add(process.pid)
        assert group.pids() == (process.pid,)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(EngineError, match="cannot join"):
        group.add(process.pid)


def test_the_limit_is_what_the_kernel_enforces(controller: MemoryController) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    group = controller.create(f"test-{os.getpid()}-odd", 10 * page + 1)
    try:
        assert group.limit_bytes == 10 * page
        with pytest.raises(SpecError, match="a name that is free"):
            controller.create(f"test-{os.getpid()}-odd", 10 * page)
    finally:
        group.remove()


def test_what_a_killed_run_left_is_removed_and_what_lives_is_not(
    controller: MemoryController, group: MemoryCgroup, start: Start
) -> None:
    assert said_done(start("anonymous", 0))
    prefix = f"test-{os.getpid()}-left"
    left = controller.create(f"{prefix}-1", LIMIT)
    live = controller.create(f"{prefix}-2", LIMIT)
    ours = {group.path.name, left.path.name}
    assert controller.remove_abandoned(lambda name: name in ours) == (left.path.name,)
    assert group.path.exists()
    assert live.path.exists()
    live.remove()


def test_a_count_that_the_kernel_does_not_keep_is_an_error_not_a_zero(group: MemoryCgroup) -> None:
    group.remove()
    for count in (group.usage_bytes, group.peak_bytes, group.unreclaimable_bytes, group.oom_kills):
        with pytest.raises(MeasurementError, match="cannot be read"):
            count()
