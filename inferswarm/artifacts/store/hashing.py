"""Digests of files as they lie on the disk, one piece in memory at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Final, NamedTuple

PIECE_BYTES: Final = 2**20
"""What an origin gives at most in one piece, and what is written at a time."""
_READ_BYTES: Final = 256 * 2**10
"""How much of a file is read and hashed at a time."""
EMPTY_SHA256: Final = "sha256:" + hashlib.sha256().hexdigest()


class Hashed(NamedTuple):
    """What a file was found to be."""

    sha256: str
    length: int


def hash_descriptor(descriptor: int, limit: int | None = None, check: Callable[[], None] | None = None) -> Hashed:
    """Hash an opened file from its beginning to its end, or its first `limit` bytes; its position does not move.

    `check` is called before each piece, and may raise to end it. Raises OSError.
    """
    state = hashlib.sha256()
    length = hash_into(state, descriptor, 0, limit, check)
    return Hashed(digest_of(state), length)


def hash_into(
    state: hashlib._Hash,
    descriptor: int,
    start: int,
    end: int | None,
    check: Callable[[], None] | None = None,
) -> int:
    """Feed the bytes from `start` to `end`, or to the end of the file, to a hash; return where it ended.

    Raises OSError, and what `check` raises.
    """
    buffer = memoryview(bytearray(_READ_BYTES))
    position = start
    while end is None or position < end:
        if check is not None:
            check()
        wanted = _READ_BYTES if end is None else min(_READ_BYTES, end - position)
        count = os.preadv(descriptor, [buffer[:wanted]], position)
        if count == 0:
            break
        state.update(buffer[:count])
        position += count
    return position


def hash_from_disk(descriptor: int, check: Callable[[], None] | None = None) -> Hashed:
    """Make a file's bytes durable, have the kernel forget its copy where it can, and hash what the disk gives back.

    Raises OSError, and what `check` raises.
    """
    os.fsync(descriptor)
    forget_pages(descriptor)
    return hash_descriptor(descriptor, check=check)


def forget_pages(descriptor: int) -> None:
    """Ask the kernel to drop a file's clean pages: they would be charged to the process, and answer for the disk."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def digest_of(state: hashlib._Hash) -> str:
    """Return a hash's digest as documents write it."""
    return "sha256:" + state.hexdigest()
