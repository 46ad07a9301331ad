"""The process between the parent of a run and its papermill: it ends nothing but what it started, and all of that.

It lives as long as its standard input is open, so that it notices the parent's end however that came about, and
is the parent of whatever in the run loses its own. When papermill ends, or standard input does, it kills what is left
and says on standard output what it saw, as one line of JSON.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

from inferswarm.campaigns.processes import adopt_orphans, descendants, kill_all, reap_adopted
from inferswarm.documents import Document, canonical_bytes, read_document

GRACE_SECONDS = 2.0
"""For what is left to end by itself: kernels and stages notice the end of their parent within a second."""
_POLL_SECONDS = 0.05


class Orders(Document, frozen=True, kw_only=True):
    """What to start, and where: paths are absolute."""

    command: tuple[str, ...]
    directory: str
    """Working directory of what is started."""
    stdout: str
    stderr: str
    work: str
    """A directory that goes with the run, when nobody is there to remove it."""


class Seen(Document, frozen=True, kw_only=True):
    """What came of it: how the started process ended, and how many others had to be killed afterwards."""

    exit_status: int | None
    signal: int | None
    survivors: int


def supervise(orders: Orders) -> Seen | None:
    """Start and watch until the end; None when the parent ended first, and nobody is there to be told."""
    adopt_orphans()
    with open(orders.stdout, "ab") as stdout, open(orders.stderr, "ab") as stderr:
        process = subprocess.Popen(
            [*orders.command, str(os.getpid())],
            cwd=orders.directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
        )
    told_to_stop = False
    while process.poll() is None and not told_to_stop:
        if select.select([sys.stdin.fileno()], [], [], _POLL_SECONDS)[0]:
            told_to_stop = True
            is_orphan = not os.read(sys.stdin.fileno(), 1)
            process.kill()
            process.wait()
    survivors = kill_all(descendants, GRACE_SECONDS, reap_adopted)
    if told_to_stop and is_orphan:
        shutil.rmtree(orders.work, ignore_errors=True)
        return None
    status = process.returncode
    return Seen(
        exit_status=status if status >= 0 else None, signal=-status if status < 0 else None, survivors=survivors
    )


def main(arguments: list[str]) -> None:
    """Read the orders from the file that is named, carry them out, and say what was seen."""
    (path,) = arguments
    seen = supervise(read_document(Orders, Path(path).read_bytes(), path))
    if seen is not None:
        sys.stdout.buffer.write(canonical_bytes(seen) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
