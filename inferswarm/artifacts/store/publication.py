"""From bytes on the disk to published blobs: proved by reading them back, given their names together, or not at all.

What is promised: a blob's name never names anything but all of its bytes, durably, whenever the process or the power
fails. That costs a sync of the file, one of its directory and those of the index's transaction. A batch syncs its
files one after the other, renames them all, syncs each directory once and writes the index once. 192 blobs of 20 kB
took 1.7 to 8 ms each one by one, and 0.6 to 2.4 ms in batches of 64: the lower figures on a quiet virtual disk with
ext4, the upper on a busy one; read-back and hashes are in them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from inferswarm.artifacts.store.hashing import digest_of, hash_descriptor, hash_from_disk
from inferswarm.artifacts.store.index import Index, Stamp
from inferswarm.artifacts.store.layout import (
    WRITING_MODE,
    Layout,
    hex_of,
    open_exclusively,
    refusal,
    sync_directory,
    write_all,
)
from inferswarm.artifacts.store.records import PartialIdentity, Use
from inferswarm.artifacts.store.room import Room
from inferswarm.artifacts.store.upkeep import quarantine
from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH, UNVERIFIED_PUBLICATION
from inferswarm.errors import ArtifactError

_PUBLISHED_MODE: Final = 0o444


class Incoming(NamedTuple):
    """Small bytes that are to be published with others."""

    data: bytes | bytearray | memoryview
    sha256: str | None = None
    """What they must be; None: whatever they are."""
    pin: PartialIdentity | None = None
    """Of what they are the first fetch."""


class Ready(NamedTuple):
    """A locked file whose bytes were read back from the disk, about to be named."""

    path: Path
    descriptor: int
    sha256: str
    length: int
    pin: PartialIdentity | None


def stage(layout: Layout, pieces: Iterable[bytes | bytearray | memoryview], incoming: Incoming) -> Ready:
    """Write pieces into a new file that is locked, and return it with the digest of what was written.

    Raises StoreRefused, and ArtifactError `UNVERIFIED_OBJECT_PUBLICATION_REFUSED` for bytes of another digest; then
    nothing is left.
    """
    path = layout.staging / secrets.token_hex(16)
    state = hashlib.sha256()
    length = 0
    descriptor: int | None = None
    try:
        descriptor = open_exclusively(path)
        assert descriptor is not None, "nobody else knows a random name"
        for piece in pieces:
            view = memoryview(piece).cast("B")
            write_all(descriptor, view)
            state.update(view)
            length += view.nbytes
        require_digest(incoming.sha256, digest_of(state), length)
    except BaseException as error:
        if descriptor is not None:
            unstage(path, descriptor)
        if isinstance(error, OSError):
            raise refusal(layout.root, error, "bytes cannot be staged", len(incoming.data) or None) from error
        raise
    return Ready(path, descriptor, digest_of(state), length, incoming.pin)


def unstage(path: Path, descriptor: int) -> None:
    """Remove a file that was not published, and unlock it."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def require_digest(wanted: str | None, found: str, length: int) -> None:
    """Raise ArtifactError `UNVERIFIED_OBJECT_PUBLICATION_REFUSED` for bytes of another digest than the declared."""
    if wanted is not None and hex_of(wanted) != hex_of(found):
        raise ArtifactError(UNVERIFIED_PUBLICATION, wanted, f"the {length:,} B to be published have {found}")


def read_back(layout: Layout, ready: Ready, check: Callable[[], None] | None = None) -> int:
    """Make a file durable, hash what the disk gives back, and return the bytes hashed.

    Raises ArtifactError `INTEGRITY_DIGEST_MISMATCH` when that is not what was written, and StoreRefused.
    """
    try:
        found = hash_from_disk(ready.descriptor, check)
    except OSError as error:
        raise refusal(layout.root, error, "written bytes cannot be read back", ready.length) from error
    if found != (ready.sha256, ready.length):
        raise ArtifactError(
            INTEGRITY_MISMATCH,
            ready.sha256,
            f"the disk gives back {found.length:,} B with {found.sha256}, written were {ready.length:,} B",
        )
    return found.length


class Publisher:
    """Publishes for one store; holds no state of its own."""

    def __init__(self, layout: Layout, index: Index, room: Room) -> None:
        self._layout = layout
        self._index = index
        self._room = room

    def publish(self, files: Sequence[Ready], use: Use | None, now_ns: int) -> None:
        """Name files that were read back, all or none, and record their use. The descriptors stay open.

        Files whose content is published already are removed. Raises StoreRefused; ArtifactError
        `INTEGRITY_DIGEST_MISMATCH` when another digest is pinned for one. Then the files are where they were.
        """
        named: list[Ready] = []
        try:
            with self._index.writing():
                victims = self._publish(files, use, named, now_ns)
            self._room.unlink(victims)
            # What was renamed has left its path, where somebody else may have begun something meanwhile.
            for path in {file.path for file in files} - {file.path for file in named}:
                path.unlink(missing_ok=True)
        except OSError as error:
            needed = sum(file.length for file in files)
            raise refusal(self._layout.root, error, "blobs cannot be published", needed) from error

    def _publish(self, files: Sequence[Ready], use: Use | None, named: list[Ready], now_ns: int) -> tuple[str, ...]:
        """Do it inside the index's transaction; return what has to make room."""
        try:
            if use is not None:
                self._index.hold(use.owner, use.kind, [file.sha256 for file in files])
            for file in files:
                if file.pin is not None:
                    self._index.pin(file.pin, file.sha256)
            fresh = self._fresh(files, now_ns)
            staged = sum(file.length for file in fresh if file.path.parent == self._layout.partials)
            spared = {file.sha256 for file in files}
            victims = self._room.victims(sum(file.length for file in fresh), staged, spared)
            self._name(fresh, named, now_ns)
        except BaseException:
            # While nobody else can publish, so that nobody relies on what is taken back.
            for file in named:
                with suppress(OSError):
                    self._layout.blob(file.sha256).rename(file.path)
                    os.fchmod(file.descriptor, WRITING_MODE)
            raise
        for sha256 in victims:
            self._index.drop(sha256)
        return victims

    def _name(self, fresh: Sequence[Ready], named: list[Ready], now_ns: int) -> None:
        fans = self._layout.make_fans(file.sha256 for file in fresh)
        for file in fresh:
            target = self._layout.blob(file.sha256)
            os.fchmod(file.descriptor, _PUBLISHED_MODE)
            file.path.rename(target)
            named.append(file)
        for fan in fans:
            sync_directory(fan)
        for file in fresh:
            self._index.put(file.sha256, Stamp.of(os.fstat(file.descriptor)), now_ns)

    def _fresh(self, files: Sequence[Ready], now_ns: int) -> list[Ready]:
        """Return the files whose content is not published yet, each content once."""
        fresh: dict[str, Ready] = {}
        for file in files:
            if file.sha256 not in fresh and not self._is_published(file, now_ns):
                fresh[file.sha256] = file
        return list(fresh.values())

    def _is_published(self, file: Ready, now_ns: int) -> bool:
        """Return whether the content is there, proved; what is there under its name and is not it goes away."""
        path = self._layout.blob(file.sha256)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            self._index.drop(file.sha256)
            return False
        except OSError as error:
            quarantine(self._layout, self._index, file.sha256, f"cannot be opened: {error.strerror}")
            return False
        try:
            stamp = Stamp.of(os.fstat(descriptor))
            if stamp != self._index.stamp(file.sha256):
                found = hash_descriptor(descriptor)
                if found != (file.sha256, file.length):
                    reason = f"has {found.length:,} B with {found.sha256}"
                    quarantine(self._layout, self._index, file.sha256, reason)
                    return False
            self._index.put(file.sha256, stamp, now_ns)
            return True
        finally:
            os.close(descriptor)
