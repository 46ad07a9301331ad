"""One memory cgroup: a limit that the kernel enforces on a group of processes, and what it counts for them.

Covers the memory controller of cgroup v1 and of v2 behind one interface. What the numbers mean:

- `usage_bytes` is everything charged: anonymous memory, page cache of files that members read or mapped, tmpfs,
  kernel memory. A page is charged to the group whose member touched it first, for as long as it stays.
- `unreclaimable_bytes` is what the kernel cannot drop under pressure: anonymous memory, shared memory and kernel
  memory. When it reaches the limit a member is killed. Clean page cache never kills: it is dropped instead.
- `peak_bytes` is the highest `usage_bytes`, page cache included: after reading a large file it sits at the limit
  without anything being wrong. For what processes themselves needed, use their VmHWM beside it.

Memory that a process touched before it joined stays charged to the group that it came from.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import IO

from inferswarm.errors import DiscoveryError, EngineError, MeasurementError

_V1_KERNEL = "memory.kmem.usage_in_bytes"
_V2_KERNEL_PARTS = ("kernel_stack", "pagetables", "sec_pagetables", "percpu", "sock", "vmalloc", "slab")
_POLL_SECONDS = 0.02


class MemoryCgroup:
    """A cgroup that exists, with its limit set. Made by `MemoryController.create`."""

    mechanism: str
    """`cgroup-v1` or `cgroup-v2`."""

    def __init__(self, path: Path, limit_bytes: int, swap: str) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        """What the kernel enforces: what was asked for, rounded down to whole pages."""
        self.swap = swap
        """`disabled`, or why swapping could not be switched off."""

    @property
    def procs_path(self) -> Path:
        """Return the file that a process writes its own pid to (as text) in order to join."""
        return self.path / "cgroup.procs"

    def add(self, pid: int) -> None:
        """Move a process into the group. Raises EngineError when the process is gone or may not be moved."""
        try:
            self.procs_path.write_text(str(pid))
        except OSError as error:
            raise EngineError(f"pid {pid}", f"cannot join {self.path}: {error.strerror}") from error

    def pids(self) -> tuple[int, ...]:
        """Return the processes in the group; empty when the group is gone."""
        try:
            return tuple(int(line) for line in self.procs_path.read_text().split())
        except FileNotFoundError:
            return ()

    def usage_bytes(self) -> int:
        """Return what is charged now, page cache included. Raises MeasurementError when it cannot be read."""
        raise NotImplementedError

    def unreclaimable_bytes(self) -> int:
        """Return what cannot be dropped under pressure. Raises MeasurementError when it cannot be read."""
        raise NotImplementedError

    def peak_bytes(self) -> int:
        """Return the highest usage since creation or `reset_peak`. Raises MeasurementError when it is not kept."""
        raise NotImplementedError

    def reset_peak(self) -> None:
        """Start a new peak from the present usage. Raises MeasurementError when the kernel cannot."""
        raise NotImplementedError

    def oom_kills(self) -> int:
        """Return how many members the limit has killed. Raises MeasurementError when the kernel does not count."""
        raise NotImplementedError

    def remove(self, timeout_seconds: float = 5.0) -> None:
        """Remove the group once its processes have ended; a group that is gone already is fine.

        Moves nobody out and kills nobody. Raises EngineError naming the pids that are still there at the end.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                    raise EngineError(f"cgroup {self.path}", f"cannot be removed: {error.strerror}") from error
            else:
                return
            if time.monotonic() >= deadline:
                pids = self.pids()
                still = f"pids {list(pids)}" if pids else "other groups inside it"
                raise EngineError(f"cgroup {self.path}", f"still holds {still} after {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def _number(self, name: str) -> int:
        text = self._text(name)
        try:
            return int(text)
        except ValueError as error:
            raise MeasurementError(f"{self.path / name} holds {text[:40]!r}, not a number") from error

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text()
        except OSError as error:
            raise MeasurementError(f"{self.path / name} cannot be read: {error.strerror}") from error

    def _table(self, name: str) -> dict[str, int]:
        """Read a file of `key value` lines."""
        pairs = (line.split() for line in self._text(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}

    def _entry(self, name: str, key: str) -> int:
        table = self._table(name)
        if key not in table:
            raise MeasurementError(f"{self.path / name} has no entry {key!r}; found {sorted(table)}")
        return table[key]


class MemoryCgroupV1(MemoryCgroup):
    """A group of the v1 memory hierarchy."""

    mechanism = "cgroup-v1"

    def usage_bytes(self) -> int:
        """Return what is charged now, page cache included."""
        return self._number("memory.usage_in_bytes")

    def unreclaimable_bytes(self) -> int:
        """Return total_rss + total_shmem + kernel memory; the last includes slab that could be dropped (kilobytes).

        In v1 `rss` is anonymous memory alone; tmpfs and shared anonymous memory are `shmem`, inside `cache`.
        """
        stat = "memory.stat"
        return self._entry(stat, "total_rss") + self._entry(stat, "total_shmem") + self._number(_V1_KERNEL)

    def peak_bytes(self) -> int:
        """Return the highest usage since creation or `reset_peak`."""
        return self._number("memory.max_usage_in_bytes")

    def reset_peak(self) -> None:
        """Start a new peak from the present usage."""
        _write(self.path / "memory.max_usage_in_bytes", "0")

    def oom_kills(self) -> int:
        """Return how many members the limit has killed."""
        return self._entry("memory.oom_control", "oom_kill")


class MemoryCgroupV2(MemoryCgroup):
    """A group of the unified hierarchy."""

    mechanism = "cgroup-v2"
    _peak: IO[str] | None = None

    def usage_bytes(self) -> int:
        """Return what is charged now, page cache included."""
        return self._number("memory.current")

    def unreclaimable_bytes(self) -> int:
        """Return anon + shmem + kernel; before Linux 5.18 `kernel` is the sum of the parts that are reported."""
        table = self._table("memory.stat")
        for key in ("anon", "shmem"):
            self._entry("memory.stat", key)
        kernel = table.get("kernel", sum(table.get(part, 0) for part in _V2_KERNEL_PARTS))
        return table["anon"] + table["shmem"] + kernel

    def peak_bytes(self) -> int:
        """Return the highest usage since creation or `reset_peak` (Linux 5.19 and later)."""
        if self._peak is None:
            return self._number("memory.peak")
        self._peak.seek(0)
        return int(self._peak.read())

    def reset_peak(self) -> None:
        """Start a new peak from the present usage (Linux 6.12 and later, where a reset belongs to an open file)."""
        try:
            if self._peak is None:
                self._peak = open(self.path / "memory.peak", "r+")  # noqa: SIM115 - the reset lives with the file
            self._peak.write("reset")
            self._peak.flush()
        except OSError as error:
            raise MeasurementError(f"{self.path / 'memory.peak'} cannot be reset: {error.strerror}") from error

    def oom_kills(self) -> int:
        """Return how many members the limit has killed."""
        return self._entry("memory.events", "oom_kill")

    def remove(self, timeout_seconds: float = 5.0) -> None:
        """Remove the group once its processes have ended; see `MemoryCgroup.remove`."""
        if self._peak is not None:
            self._peak.close()
            self._peak = None
        super().remove(timeout_seconds)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise MeasurementError(f"{path} cannot be written: {error.strerror}") from error


def make_group(path: Path, limit_bytes: int, version: int) -> MemoryCgroup:
    """Make the directory, set the limit and switch swap off.

    Raises DiscoveryError when the kernel refuses any of it, or enforces another limit than was asked for; the
    directory is then gone again.
    """
    try:
        path.mkdir()
    except OSError as error:
        raise DiscoveryError("memory cgroup", f"{path} cannot be made: {error.strerror}") from error
    try:
        limit_name = "memory.limit_in_bytes" if version == 1 else "memory.max"
        (path / limit_name).write_text(str(limit_bytes))
        enforced = int((path / limit_name).read_text())
        if not 0 <= limit_bytes - enforced < os.sysconf("SC_PAGE_SIZE"):
            raise DiscoveryError("memory cgroup", f"{path} enforces {enforced} B, asked for {limit_bytes} B")
        swap = _switch_swap_off(path, enforced, version)
    except (OSError, ValueError, DiscoveryError) as error:
        path.rmdir()
        if isinstance(error, DiscoveryError):
            raise
        raise DiscoveryError("memory cgroup", f"{path}: the limit cannot be set: {error}") from error
    kind = MemoryCgroupV1 if version == 1 else MemoryCgroupV2
    return kind(path, enforced, swap)


def _switch_swap_off(path: Path, limit_bytes: int, version: int) -> str:
    """Bound memory and swap together by the limit (v1), or swap by 0 (v2); say why where no file is there for it."""
    name, value = ("memory.memsw.limit_in_bytes", limit_bytes) if version == 1 else ("memory.swap.max", 0)
    if not (path / name).exists():
        return f"{name} is not there: the kernel does not account swap"
    (path / name).write_text(str(value))
    if version == 1 and (path / "memory.swappiness").exists():
        (path / "memory.swappiness").write_text("0")
    return "disabled"
