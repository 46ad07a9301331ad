"""What the kernel says of a process: its memory, its mapped libraries, whether it lives.

Peaks come from VmHWM of /proc/PID/status. `ru_maxrss` is never used: a fresh child inherits its parent's.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple


class ProcessMemory(NamedTuple):
    """Bytes of one process. `data` is what RLIMIT_DATA counts: private writable mappings."""

    resident: int
    resident_peak: int
    anonymous: int
    file_backed: int
    data: int


def parse_status(text: str) -> ProcessMemory | None:
    """Read the memory lines of a /proc/PID/status; None when they are missing (a zombie has none)."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            fields[key] = int(words[0]) * 1024
    try:
        return ProcessMemory(
            resident=fields["VmRSS"],
            resident_peak=fields["VmHWM"],
            anonymous=fields["RssAnon"],
            file_backed=fields["RssFile"],
            data=fields["VmData"],
        )
    except KeyError:
        return None


def process_memory(pid: int, proc: Path = Path("/proc")) -> ProcessMemory | None:
    """Return the memory of a process, or None when it has gone or the kernel does not say."""
    try:
        return parse_status((proc / str(pid) / "status").read_text())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def mapped_files(pid: int, proc: Path = Path("/proc")) -> frozenset[str]:
    """Return the paths of the files that a process has mapped. Raises OSError when it cannot be read."""
    paths = set()
    for line in (proc / str(pid) / "maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/"):
            paths.add(words[5])
    return frozenset(paths)


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def maps_torch(pid: int) -> bool:
    """Return whether a process has a torch library mapped. Raises OSError when it cannot be read."""
    return any("/torch/" in path or Path(path).name.startswith("libtorch") for path in mapped_files(pid))


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return a process's start time in clock ticks since boot: with the pid, it identifies a process."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def is_stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether the kernel says that a signal has stopped a process. One that a debugger holds is not."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] == "T"
