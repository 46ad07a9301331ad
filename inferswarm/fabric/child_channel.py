"""Child processes of an agent that it speaks to over an inherited socket pair: started, and listened to."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

STDERR_TAIL_BYTES = 4000


class ChildChannel(NamedTuple):
    """A child process, and the agent's end of the channel to it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def spawn(module: str, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None) -> ChildChannel:
    """Start `python -m MODULE --control-fd FD --parent PID ARGUMENTS`, which holds the other end of the channel.

    `env` is its whole environment (None: ours). Raises OSError when no process or descriptor is to be had.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", module, "--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            env=env,
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    return ChildChannel(process, reader, writer)


class StderrTail:
    """The end of what a child says on its standard error."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._tail = b""

    @property
    def lines(self) -> list[str]:
        """Return the last lines that were said, the first of them perhaps cut."""
        return self._tail.decode(errors="replace").strip().splitlines()

    async def read(self, process: asyncio.subprocess.Process) -> None:
        """Listen until the child closes it."""
        assert process.stderr is not None, "it was started by `spawn`"
        while chunk := await process.stderr.read(65536):
            self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]
