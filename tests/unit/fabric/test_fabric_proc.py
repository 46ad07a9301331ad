"""What is read from /proc, and that a missing line is never a zero."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferswarm.fabric.proc import (
    ProcessMemory,
    mapped_files,
    maps_torch,
    parse_status,
    process_memory,
    start_time,
)

STATUS = """\
Name:\tpython3
Umask:\t0022
State:\tS (sleeping)
Pid:\t4711
VmPeak:\t  500000 kB
VmSize:\t  400000 kB
VmHWM:\t  120000 kB
VmRSS:\t  100000 kB
RssAnon:\t   60000 kB
RssFile:\t   39000 kB
RssShmem:\t    1000 kB
VmData:\t   80000 kB
voluntary_ctxt_switches:\t12
"""
PROBE = """
import mmap, sys
file = open(sys.argv[1], "rb")
kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sys.stdout.write("mapped\\n"); sys.stdout.flush()
sys.stdin.read()
"""


def test_the_memory_lines_are_read_in_bytes() -> None:
    assert parse_status(STATUS) == ProcessMemory(
        resident=102_400_000,
        resident_peak=122_880_000,
        anonymous=61_440_000,
        file_backed=39_936_000,
        data=81_920_000,
    )


@pytest.mark.parametrize("key", ["VmHWM", "VmRSS", "RssAnon", "RssFile", "VmData"])
@pytest.mark.parametrize("instead", ["", "{key}:\t\n", "{key}:\t12 MB\n", "{key}:\t-1 kB\n", "{key}:\tmany kB\n"])
def test_a_missing_or_strange_line_makes_the_memory_unknown(key: str, instead: str) -> None:
    lines = [line if not line.startswith(key) else instead.format(key=key) for line in STATUS.splitlines(True)]
    assert parse_status("".join(lines)) is None


def test_a_zombie_has_no_memory() -> None:
    assert parse_status("Name:\tpython3\nState:\tZ (zombie)\nPid:\t4711\n") is None


def test_a_process_that_takes_memory_is_seen_to_have_it() -> None:
    code = """
import os
from inferswarm.fabric.proc import process_memory
memory = process_memory(os.getpid())
assert 0 < memory.anonymous <= memory.resident <= memory.resident_peak
ballast = bytearray(os.urandom(1024)) * 40_000
grown = process_memory(os.getpid())
print(grown.anonymous - memory.anonymous, grown.data - memory.data)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    anonymous, data = map(int, done.stdout.split())
    assert 38_000_000 < anonymous < 60_000_000
    assert 38_000_000 < data < 60_000_000


def test_a_process_that_has_gone_has_neither_memory_nor_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_memory(child.pid) is None
    assert start_time(child.pid) is None


def test_a_process_is_identified_by_its_start(tmp_path: Path) -> None:
    assert start_time(os.getpid()) == start_time(os.getpid())
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) 1 (b)) S {fields}\n")
    assert start_time(7, tmp_path) == 22


def test_mapped_files_are_listed_once_and_anonymous_memory_is_not(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(
        "7f00-7f01 r--p 00000000 08:01 11   /usr/lib/libc.so.6\n"
        "7f01-7f02 r-xp 00001000 08:01 11   /usr/lib/libc.so.6\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f03-7f04 rw-p 00000000 00:00 0   [heap]\n"
        "7f04-7f05 r--p 00000000 08:01 12   /a folder/with spaces.so\n"
    )
    assert mapped_files(7, tmp_path) == {"/usr/lib/libc.so.6", "/a folder/with spaces.so"}


@pytest.mark.parametrize(
    ("name", "found"), [("libtorch_cpu.so", True), ("torch/lib/libc10.so", True), ("libtimes.so", False)]
)
def test_a_mapped_torch_library_is_seen_from_outside(tmp_path: Path, name: str, found: bool) -> None:
    library = tmp_path / name
    library.parent.mkdir(exist_ok=True, parents=True)
    library.write_bytes(b"\x7fELF" * 1024)
    child = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "mapped\n"
    assert str(library) in mapped_files(child.pid)
    assert maps_torch(child.pid) is found
    child.communicate("")


def test_a_process_that_cannot_be_read_is_an_error_and_not_torch_free(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        mapped_files(7, tmp_path)
