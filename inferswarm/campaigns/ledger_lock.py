"""The lock of a ledger: nobody is waited for without an end."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inferswarm.campaigns.plain_files import open_plain
from inferswarm.errors import EvidenceError

LOCK_SECONDS: Final = 10.0
"""How long somebody else's lock is waited for: writers hold it for tenths of a second, on a slow disk for some."""
LOCK_PAUSE_SECONDS: Final = 0.02


class LockHeldError(EvidenceError):
    """Somebody holds a ledger and does not let go: nothing is known of it, also not that it is broken."""


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold the lock with other readers, where there is one that writers could hold. Raises LockHeldError."""
    try:
        lock = open_plain(path)
    except OSError:
        yield
        return
    with lock:
        wait_for(lock.fileno(), fcntl.LOCK_SH, path)
        yield


def wait_for(descriptor: int, kind: int, path: Path) -> None:
    """Take a lock (`LOCK_SH` or `LOCK_EX`). Raises LockHeldError when somebody has held it for LOCK_SECONDS."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise LockHeldError(f"{path}: another process has held it for {LOCK_SECONDS:g} s") from None
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            return
