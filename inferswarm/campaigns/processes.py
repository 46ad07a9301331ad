"""Processes of a run: that they end with whoever started them, and how those that do not are found and killed.

A kernel starts a session of its own, and what it starts may do so again: process groups do not hold a run together.
Three things do. Each process asks the kernel of the system to be killed when its parent ends (Linux). The process
that supervises a run is the parent of whatever in it loses its own (Linux). And every process of a run has the run's
nonce in its environment, wherever it went.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

import psutil

from inferswarm.errors import EvidenceError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
KILL_SECONDS = 10.0
"""A killed process goes within milliseconds, unless it is in the middle of an operation on a slow disk."""
_POLL_SECONDS = 0.02


def die_with_parent(parent_pid: int) -> None:
    """Ask to be killed when the thread that started this process ends (Linux; elsewhere it does nothing).

    Raises EvidenceError when the parent has gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        raise EvidenceError(f"the process {parent_pid} that started this one has gone")


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends (Linux; elsewhere it does nothing)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise EvidenceError(f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def descendants() -> tuple[psutil.Process, ...]:
    """Return this process's descendants that are still running."""
    return tuple(filter(_is_running, psutil.Process().children(recursive=True)))


def marked_processes(variable: str, value: str) -> tuple[psutil.Process, ...]:
    """Return the running processes of this user, other than this one, that were started with a variable so set."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or another user's
            if process.pid != os.getpid() and process.environ().get(variable) == value and _is_running(process):
                found.append(process)
    return tuple(found)


def kill_all(
    find: Callable[[], tuple[psutil.Process, ...]], grace_seconds: float, reap: Callable[[], None] | None = None
) -> int:
    """Wait until no process is found any more, then kill those that are; return how many had to be.

    `reap` is called in between where the processes may be this one's own children. Raises EvidenceError when some
    are still there KILL_SECONDS later.
    """
    waited_until = time.monotonic() + grace_seconds
    while found := find():
        if reap is not None:
            reap()
        if time.monotonic() >= waited_until:
            break
        time.sleep(_POLL_SECONDS)
    killed: set[tuple[int, float]] = set()
    given_up_at = time.monotonic() + KILL_SECONDS
    while found := find():  # again and again: one of them may have started another
        for process in found:
            with contextlib.suppress(psutil.Error):
                killed.add((process.pid, process.create_time()))
                process.kill()
        if reap is not None:
            reap()
        if time.monotonic() >= given_up_at:
            raise EvidenceError(f"processes {sorted(process.pid for process in found)} cannot be killed")
        time.sleep(_POLL_SECONDS)
    if reap is not None:
        reap()
    return len(killed)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.Error:
        return False


def reap_adopted() -> None:
    """Let go of all children that ended, adopted ones too; only for a process that asks for none of them itself."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
