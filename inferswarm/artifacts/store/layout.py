"""Where a store keeps what: every name is made here from digests alone, and no directory is one in disguise.

::

    ROOT/blobs/sha256/ab/cdef…     published bytes, read-only
    ROOT/partials/DIGEST.part      a prefix, with DIGEST.json beside it
    ROOT/staging/RANDOM            what is being written; locked by its writer, so that a dead one's is known
    ROOT/quarantine/SHA256-NUMBER  what was found altered, with its record
    ROOT/index.sqlite              which blobs were verified, who uses them, pins, the sequence
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from inferswarm.artifacts.store.records import EmptyRoot
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError, StoreRefused

INDEX_NAME: Final = "index.sqlite"
_INDEX_FILES: Final = frozenset({INDEX_NAME, f"{INDEX_NAME}-journal"})
_DIRECTORIES: Final = ("blobs", "blobs/sha256", "partials", "staging", "quarantine")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{2})([0-9a-f]{62})")
_FAN: Final = re.compile(r"[0-9a-f]{2}")
_REST: Final = re.compile(r"[0-9a-f]{62}")
_DIRECTORY_MODE: Final = 0o700
WRITING_MODE: Final = 0o600


def hex_of(sha256: str) -> str:
    """Return the digits of a digest. Raises ArtifactError `MALFORMED_ARTIFACT_RECORD` for a text that is none."""
    found = _DIGEST.fullmatch(sha256)
    if found is None:
        raise ArtifactError(MALFORMED, repr(sha256[:100]), "is no sha256: and 64 lowercase hexadecimal digits")
    return found[1] + found[2]


class Layout:
    """The directories below one root, checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = root / INDEX_NAME
        self.blobs = root / "blobs" / "sha256"
        self.partials = root / "partials"
        self.staging = root / "staging"
        self.quarantine = root / "quarantine"

    def create(self) -> None:
        """Make what is not there, for its owner only. Raises StoreRefused, and ArtifactError as `check`."""
        try:
            if not self.root.is_symlink():
                self.root.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
            self.check()
            for name in _DIRECTORIES:
                (self.root / name).mkdir(exist_ok=True, mode=_DIRECTORY_MODE)
        except OSError as error:
            raise refusal(self.root, error, "a store cannot be made there") from error
        self.check()

    def check(self) -> None:
        """Raise ArtifactError `PROVENANCE_IDENTITY_MISMATCH` when the root, or a directory in it, is none itself."""
        for place in (self.root, *(self.root / name for name in _DIRECTORIES)):
            _refuse_alias(place)
        try:
            fans = sorted(name for name in os.listdir(self.blobs) if _FAN.fullmatch(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise refusal(self.root, error, "a store cannot be read there") from error
        for name in fans:
            _refuse_alias(self.blobs / name)

    def blob(self, sha256: str) -> Path:
        """Return where a blob is, or would be. Raises ArtifactError as `hex_of`."""
        digits = hex_of(sha256)
        return self.blobs / digits[:2] / digits[2:]

    def make_fans(self, digests: Iterable[str]) -> tuple[Path, ...]:
        """Make the directories that blobs belong in, durably, and return them in order. Raises OSError."""
        fans = sorted({self.blob(sha256).parent for sha256 in digests})
        made = False
        for fan in fans:
            try:
                fan.mkdir(mode=_DIRECTORY_MODE)
                made = True
            except FileExistsError:
                _refuse_alias(fan)
        if made:
            sync_directory(self.blobs)
        return tuple(fans)

    def stored(self) -> Iterator[str]:
        """Give the digest of every file that has a blob's name, in order. Raises OSError."""
        if not self.blobs.is_dir():
            return
        for fan in sorted(name for name in os.listdir(self.blobs) if _FAN.fullmatch(name)):
            for rest in sorted(name for name in os.listdir(self.blobs / fan) if _REST.fullmatch(name)):
                yield f"sha256:{fan}{rest}"

    def strays(self) -> Iterator[Path]:
        """Give every file among the blobs that has no blob's name, and every blob that is no regular file."""
        for directory, names, files in os.walk(self.root / "blobs"):
            for name in (*names, *files):
                path = Path(directory) / name
                place = path.relative_to(self.root / "blobs").parts
                shape = (re.compile("sha256"), _FAN, _REST)[len(place) - 1] if len(place) <= 3 else None
                is_right = stat.S_ISREG if len(place) == 3 else stat.S_ISDIR
                if shape is None or not shape.fullmatch(name) or not is_right(path.lstat().st_mode):
                    yield path


def prove_empty_root(root: Path) -> EmptyRoot:
    """Return evidence that a root holds no artifact bytes; a root that does not exist is not empty but absent.

    Raises ArtifactError: `PROVENANCE_IDENTITY_MISMATCH` for a symbolic link anywhere, a file with a second name (a
    hard link from elsewhere) and any file but the store's index; `SOURCE_OBJECT_UNAVAILABLE` when it cannot be read.
    """
    _refuse_alias(root)
    directories, files = 0, []
    try:
        inode = root.lstat().st_ino
        for directory, names, found in os.walk(root, onerror=_raise):
            directories += len(names)
            for name in (*names, *found):
                path = Path(directory) / name
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    raise ArtifactError(IDENTITY_MISMATCH, str(path), "is a symbolic link in a root to be empty")
                if stat.S_ISDIR(status.st_mode):
                    continue
                if status.st_nlink > 1:
                    raise ArtifactError(IDENTITY_MISMATCH, str(path), f"has {status.st_nlink} names, needed 1")
                if path.parent != root or name not in _INDEX_FILES:
                    raise ArtifactError(
                        IDENTITY_MISMATCH, str(path), f"is there with {status.st_size:,} B in a root to be empty"
                    )
                files.append(name)
    except OSError as error:
        raise ArtifactError(SOURCE_UNAVAILABLE, str(root), f"cannot be looked through: {error.strerror}") from error
    return EmptyRoot(root=str(root), inode=str(inode), directories=directories, files=tuple(sorted(files)))


def open_exclusively(path: Path) -> int | None:
    """Open a file for reading and writing, made if needed, and lock it; None when another holds its lock.

    The lock ends with the descriptor, and so with its process. Raises OSError.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, WRITING_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_still(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # Between opening and locking its last owner renamed or removed it: what was locked is another file.
        os.close(descriptor)


def is_still(path: Path, descriptor: int) -> bool:
    """Return whether a path names the opened file."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (there.st_ino, there.st_dev) == (opened.st_ino, opened.st_dev)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes at the file's position. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def free_bytes(root: Path) -> int | None:
    """Return what an unprivileged process can still write below a root; None when nobody says."""
    try:
        found = os.statvfs(root)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def refusal(root: Path, error: OSError, what: str, needed: int | None = None) -> StoreRefused:
    """Return the refusal that a failed operation of the system means: which root, what was needed, what is free."""
    free = free_bytes(root)
    amounts = "" if needed is None else f"; {needed:,} B needed"
    amounts += "" if free is None else f", {free:,} B free"
    reason = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        reason += " (a limit of this process)"
    return StoreRefused(SOURCE_UNAVAILABLE, str(root), f"{what}: {reason}{amounts}", needed, free)


def _refuse_alias(place: Path) -> None:
    try:
        status = place.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArtifactError(SOURCE_UNAVAILABLE, str(place), f"cannot be looked at: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise ArtifactError(
            IDENTITY_MISMATCH, str(place), f"is a symbolic link to {os.readlink(place)}; a store needs the directory"
        )
    if not stat.S_ISDIR(status.st_mode):
        raise ArtifactError(IDENTITY_MISMATCH, str(place), "is no directory")


def _raise(error: OSError) -> None:
    raise error
