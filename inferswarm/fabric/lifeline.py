"""How a process of the swarm notices that the one it belongs to has gone, however that one ended.

Two mechanisms, because each has a gap. *PDEATHSIG*: the kernel signals a child when the thread that spawned it ends
(Linux; set by the child itself, then checked against a parent that died before). *Pipe*: the child holds the read
end of a pipe whose only write end is the parent's; end-of-file means that the parent is gone, whichever thread
spawned the child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from inferswarm.errors import EngineError

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when the thread that spawned it ends.

    Raises EngineError when the parent has gone already. Elsewhere than on Linux it does nothing: the pipe serves.
    """
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0) != 0:
            raise EngineError("prctl", os.strerror(ctypes.get_errno()))
    if os.getppid() != parent_pid:
        raise EngineError("lifeline", f"the parent {parent_pid} has gone")


def prefer_as_victim() -> None:
    """Make this process the first that the kernel kills when its memory envelope overflows (Linux)."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("600")
    except OSError:
        return  # the kernel's own choice stands: the largest process, which is the stage
