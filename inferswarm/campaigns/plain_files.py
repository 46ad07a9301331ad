"""Files in places where a run can write: opened without waiting for anybody, and only plain ones are read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


def open_plain(path: Path, *, follow: bool = False) -> IO[bytes]:
    """Open a plain file for reading. Raises OSError where it is anything else, such as a pipe or a link.

    `follow` takes what a link leads to: for files that a person named.
    """
    return os.fdopen(_opened(path, os.O_RDONLY, follow=follow), "rb")


def open_own(path: Path) -> int:
    """Open a plain file to read and write, or make it. Raises OSError as `open_plain` does."""
    return _opened(path, os.O_RDWR | os.O_CREAT)


def read_plain(path: Path, *, follow: bool = False) -> bytes:
    """Return the bytes of a plain file. Links, and what raises OSError, are as for `open_plain`."""
    with open_plain(path, follow=follow) as file:
        return file.read()


def _opened(path: Path, flags: int, *, follow: bool = False) -> int:
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return descriptor
