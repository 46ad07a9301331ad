"""Runs that go well, several at once, and what the parent's own trouble leaves behind: INCOMPLETE, and a way on."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.campaigns.handover import RUN_NONCE
from inferswarm.campaigns.layout import EXECUTED, REQUEST, run_directory
from inferswarm.campaigns.processes import marked_processes
from inferswarm.campaigns.records import Request
from inferswarm.campaigns.standing import standing_of
from inferswarm.campaigns.verify import verify_root
from inferswarm.campaigns.watching import Clock
from inferswarm.documents import read_document
from inferswarm.errors import EvidenceError, SpecError
from tests.campaigns.campaigns_support import (
    CAMPAIGN,
    OBSERVING,
    TinyArm,
    ledger_lines,
    read_outcome,
    run,
    start_command,
    write_project,
)

PATIENCE_SECONDS = 60.0
"""For something that takes seconds on a machine that does nothing else."""
GONE_SECONDS = 15.0
"""For a run's processes to go when their runner was killed: the kill itself and two seconds of grace."""
VALUES = {
    "version": "1.10",
    "identifier": "007",
    "grouped": "1_000",
    "not_a_number": "nan",
    "minutes": "1:30",
    "exponent": "1e5",
    "switch": "on",
    "date": "2026-11-30",
    "equals": "a=b # no comment",
    "braces": "{x} {{y}} {0}",
    "unicode": "größe ☃ 𝄞",
    "lines": "a\nb\r\n\tc\\n\x00",
    "quotes": "'\"\\\"'",
    "large": "x" * 1_000_000,
    "größe": -3,
    "most": 2**53 - 1,
    "whole": 2.0,
    "small": 1e-300,
    "yes": True,
}
NUM_LINES = 200_000
SCRATCH = """import os, pathlib
assert pathlib.Path.cwd() == arm.scratch and not list(arm.scratch.iterdir())
(arm.scratch / "mine").write_text(run)"""
WAITING = """import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
arm.progress("waiting")
time.sleep(600)"""


def wait_for(condition, seconds: float, what: str):
    """Return what the condition gives once that is true; fail after so many seconds."""
    given_up_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < given_up_at, f"no {what} within {seconds} s"
        time.sleep(0.05)
    return found


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the list that a process's lines of output are added to as they come."""
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        lines.extend(line.rstrip("\n") for line in process.stdout)

    threading.Thread(target=read, daemon=True).start()
    return lines


@contextlib.contextmanager
def started(*arguments, **options) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and leave none of it when the test is over."""
    with start_command(*arguments, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def request_of(root: Path) -> Request:
    """Return the request of the only run of a root."""
    (entry,) = [line for line in ledger_lines(root) if line.kind == "requested"]
    data = (run_directory(root, CAMPAIGN, entry.run_id) / REQUEST).read_bytes()
    return read_document(Request, data, REQUEST)


def test_values_arrive_as_they_were_requested_beside_a_flood_of_output(tmp_path):
    defaults = {name: type(value)() for name, value in VALUES.items()}
    flood = f"for number in range({NUM_LINES}):\n    print(number)"
    arm = TinyArm("good", [SCRATCH, flood, OBSERVING], VALUES, defaults)
    project = tmp_path / "a=b {x} größe"
    project.mkdir()
    ran = run(write_project(project, arm))  # its evidence root is not there yet
    assert ran.disposition("good") == "PASS", ran.said
    assert {item.name: item.value for item in request_of(ran.root).parameters} == VALUES
    notebook = json.loads((ran.directory("good") / EXECUTED).read_text())
    assert notebook["metadata"]["papermill"]["parameters"] == {"run": request_of(ran.root).run_id, **VALUES}
    printed = [
        "".join(output["text"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if "text" in output
    ]
    assert "".join(printed).split().count(str(NUM_LINES - 1)) == 1
    assert str(project) not in (ran.directory("good") / EXECUTED).read_text()
    assert verify_root(ran.root, None).is_sound


@pytest.mark.slow
def test_fifty_megabytes_in_one_line_are_kept_whole(tmp_path):
    length = 50_000_000
    ran = run(write_project(tmp_path, TinyArm("good", [f"print('x' * {length})", OBSERVING])))
    assert ran.disposition("good") == "PASS", ran.said
    assert (ran.directory("good") / EXECUTED).read_bytes().count(b"x" * 1_000_000) == 50


def test_two_runs_at_once_keep_to_themselves_and_to_one_ledger(tmp_path):
    project = write_project(tmp_path, TinyArm("good", [SCRATCH, OBSERVING]))
    root = tmp_path / "evidence"
    with started(project, root=root) as one, started(project, root=root) as other:
        said = [process.communicate(timeout=PATIENCE_SECONDS) for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], said
    kinds = [line.kind for line in ledger_lines(root)]
    assert sorted(kinds) == ["finished", "finished", "requested", "requested"]
    assert len({line.run_id for line in ledger_lines(root)}) == 2
    verdict = verify_root(root, None)
    assert verdict.is_sound
    assert [item.disposition for item in verdict.runs] == ["PASS", "PASS"]


@pytest.mark.long
def test_a_runner_that_is_killed_leaves_an_incomplete_run_and_no_process(tmp_path):
    project = write_project(tmp_path, TinyArm("waits", [OBSERVING, WAITING]), TinyArm("good"))
    root = tmp_path / "evidence"
    with started(project, "--arm", "waits", root=root) as process:
        lines = lines_of(process)
        wait_for(lambda: any(line.endswith("waits: waiting") for line in lines), PATIENCE_SECONDS, "line of progress")
        nonce = request_of(root).nonce
        assert len(marked_processes(RUN_NONCE, nonce)) >= 3  # what supervises, papermill, the kernel
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not marked_processes(RUN_NONCE, nonce), GONE_SECONDS, "end of the run's processes")
    chain = ledger_lines(root)
    assert [line.kind for line in chain] == ["requested"]
    assert standing_of("waits", CAMPAIGN, 1, chain, (), time.time_ns()).state == "INCOMPLETE"
    (verdict,) = verify_root(root, None).runs
    assert (verdict.disposition, verdict.recorded) == ("INCOMPLETE", None)
    ran = run(project, "good", root=root)
    assert ran.disposition("good") == "PASS", ran.said
    assert verify_root(root, None).is_sound


@pytest.mark.parametrize(
    ("observing", "disposition"), [(OBSERVING, "INCOMPLETE"), ("arm.truth('works', False)", "FAIL")]
)
def test_an_interrupted_run_is_recorded_as_such_and_is_a_fail_where_its_gate_had_failed(
    tmp_path, observing, disposition
):
    project = write_project(tmp_path, TinyArm("waits", [observing, WAITING]), TinyArm("never"))
    root = tmp_path / "evidence"
    with started(project, root=root) as process:
        lines = lines_of(process)
        wait_for(lambda: any(line.endswith("waits: waiting") for line in lines), PATIENCE_SECONDS, "line of progress")
        os.kill(process.pid, signal.SIGINT)
        status = process.wait(timeout=PATIENCE_SECONDS)
    assert status == 128 + signal.SIGINT
    request = request_of(root)
    outcome = read_outcome(run_directory(root, CAMPAIGN, request.run_id))
    assert (outcome.end, outcome.exit_status, outcome.reason) == ("interrupted", None, "SIGINT to the parent")
    assert [line.disposition for line in ledger_lines(root)] == [None, disposition]
    assert marked_processes(RUN_NONCE, request.nonce) == ()
    assert verify_root(root, None).is_sound


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[bool]:
    """Put a file system of so many bytes at a directory, where that is allowed; say whether it was."""
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    is_mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture
def file_limit():
    """Bound what this process and its children can write into one file; the limit goes with the test."""
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal_before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, earlier[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
    signal.signal(signal.SIGXFSZ, signal_before)


@pytest.mark.long
def test_a_full_disk_leaves_an_incomplete_run_or_none_and_a_later_run_works(tmp_path, file_limit):
    """The first arm fills the disk; then there is not even room for a request. Space makes everything well again."""
    size_bytes = 2_000_000
    filling = "text = 'x' * 1000\nfor number in range(4000):\n    print(text)\n" + OBSERVING
    project = write_project(tmp_path, TinyArm("fills", [filling]), TinyArm("good"))
    root = tmp_path / "evidence"
    with small_disk(root, size_bytes) as is_small:
        if not is_small:
            file_limit(size_bytes)
        with pytest.raises((EvidenceError, SpecError)) if is_small else contextlib.nullcontext():
            assert run(project, "fills", root=root).disposition("fills") == "INCOMPLETE"
        chain = ledger_lines(root)
        assert standing_of("fills", CAMPAIGN, 1, chain, (), time.time_ns()).state == "INCOMPLETE"
        assert "PASS" not in {item.disposition for item in verify_root(root, None).runs}
        if is_small:
            fill = root / "fill"
            with contextlib.suppress(OSError), open(fill, "wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
            with pytest.raises(SpecError, match=os.strerror(errno.ENOSPC)):
                run(project, "good", root=root)
            assert ledger_lines(root) == chain
            fill.unlink()
            for log in root.glob(f"{CAMPAIGN}/*/std*.log"):
                log.unlink()
        ran = run(project, "good", root=root)
        assert ran.disposition("good") == "PASS", ran.said


def test_a_clock_that_steps_back_is_no_pass(tmp_path):
    # A minute back at every look: what comes later is dated earlier.
    times = itertools.count(time.time_ns(), -60_000_000_000)
    ran = run(write_project(tmp_path, TinyArm("good")), clock=Clock(time_ns=times.__next__))
    assert ran.disposition("good") != "PASS"
    assert "chronology" in ran.not_proven("good")


def test_an_arm_that_cannot_start_says_why_and_is_recorded(tmp_path):
    project = write_project(
        tmp_path,
        TinyArm("large", requires="{ cpus = 100000 }"),
        TinyArm("lost", requires='{ files = ["gemma"] }'),
        TinyArm("after", after=("large",)),
    )
    ran = run(project)
    shown = {arm: (ran.disposition(arm), ran.outcome(arm).end) for arm in ran.runs}
    assert shown == {
        "large": ("INCOMPLETE", "not-started"),
        "lost": ("INCOMPLETE", "not-started"),
        "after": ("BLOCKED", "blocked"),
    }
    assert "needs 100000 CPUs, has" in ran.outcome("large").reason
    assert "needs the model 'gemma'" in ran.outcome("lost").reason
    assert ran.outcome("after").reason == "not passed: large (INCOMPLETE, 1 attempts)"
    assert verify_root(ran.root, None).is_sound
