"""An origin that an arm starts for itself, and what its log says: the other account of every byte that moved."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferswarm.documents import Document
from inferswarm.errors import EngineError

QUIET_SECONDS = 0.3
"""A client may have all of an answer before the server has logged it; the log is complete when it says no more."""
PATIENCE_SECONDS = 10.0
"""In which a log must come to rest."""


class Sent(Document, frozen=True, kw_only=True):
    """One answer of the origin: the bytes [start, end) of a file were asked for, and so many were sent."""

    method: str
    path: str
    start: int
    end: int
    status: int
    sent: int

    @property
    def is_look(self) -> bool:
        """Whether one byte was asked for, to learn length and version; nobody keeps it."""
        return self.sent <= 1


class OriginProcess:
    """An origin of a folder, in a process of its own. It ends with `stop`, or with the process that began it."""

    def __init__(self, folder: Path, log: Path) -> None:
        """Start it. Raises EngineError when it does not start."""
        command = [sys.executable, "-m", "inferswarm.arms.origin_server", str(folder), str(log)]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._log = log
        assert self._server.stdout is not None
        port = self._server.stdout.readline().strip()
        if not port.isdecimal():
            raise EngineError("origin", f"did not start: exit status {self._server.wait()}")
        self.address = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """End the process, and wait for it. Harmless the second time."""
        self._server.kill()
        self._server.communicate()

    def url(self, name: str) -> str:
        """Return the address of a file of the folder."""
        return f"{self.address}/{name}"

    def lines(self, after: int = 0) -> tuple[Sent, ...]:
        """Return every answer so far, without the first `after`, once the log is at rest.

        Raises EngineError when it does not come to rest.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        before, found = -1, 0
        while before != found:
            if time.monotonic() > deadline:
                raise EngineError("origin", f"its log did not come to rest within {PATIENCE_SECONDS:.0f} s")
            time.sleep(QUIET_SECONDS)
            before, found = found, self._log.stat().st_size
        decoder = msgspec.json.Decoder(Sent)
        return tuple(map(decoder.decode, self._log.read_bytes().splitlines()[after:]))


def bytes_of(lines: Sequence[Sent]) -> int:
    """Return the bytes of all bodies that were sent, without looks."""
    return sum(line.sent for line in lines if not line.is_look)
