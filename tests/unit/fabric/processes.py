"""Whether processes run, for tests that end them. A zombie does not run: its parent just has not asked yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import psutil


class Identity(NamedTuple):
    """A process, told apart from a later one with the same number."""

    pid: int
    started: float

    def runs(self) -> bool:
        """Whether it still executes."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def identify(pid: int) -> Identity:
    """Return the identity of a process that exists. Raises psutil.NoSuchProcess."""
    return Identity(pid, psutil.Process(pid).create_time())


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; False when it does not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def all_gone(processes: Iterable[Identity], seconds: float) -> bool:
    """Wait until none of the processes runs; False when one still does."""
    watched = list(processes)
    return wait_until(lambda: not any(process.runs() for process in watched), seconds)


def descendants(pid: int) -> list[Identity]:
    """Return a process's children and theirs, as far as they still have their parents."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            found.append(Identity(process.pid, process.create_time()))
        except psutil.NoSuchProcess:
            continue
    return found


def processes_that_hold(path: Path) -> list[int]:
    """Return the processes that have a file open below `path`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            targets = [link.readlink() for link in (entry / "fd").iterdir()] if entry.name.isdigit() else []
        except OSError:
            continue
        if any(target.is_relative_to(path) for target in targets):
            found.append(int(entry.name))
    return found
