"""The index of a store: which blobs were verified, who uses them, what was pinned, and a sequence that only grows.

It survives the death of its process at any moment and the loss of power: a transaction is on the disk when it is
committed. It is the lock, too: whoever changes what is published does so inside one transaction, which one process
at a time can have. Blobs without an entry, and entries without a blob, are what a death leaves; opening a store mends
both. Readers of a root that cannot be written read the index as it lies there.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from inferswarm.artifacts.store.layout import free_bytes
from inferswarm.artifacts.store.records import Blob, PartialIdentity, Pin, Use, UseKind
from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, StoreRefused

_BUSY_SECONDS: Final = 20.0
"""How long another process's transaction is waited for; the longest of ours syncs one batch of blobs."""
_VERSION: Final = "1"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (
    sha256 TEXT PRIMARY KEY, length INTEGER NOT NULL, used_ns INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, inode INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS uses (
    owner TEXT NOT NULL, sha256 TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (owner, sha256));
CREATE INDEX IF NOT EXISTS uses_of_blobs ON uses (sha256);
CREATE TABLE IF NOT EXISTS pins (
    uri TEXT NOT NULL, version TEXT NOT NULL, first INTEGER NOT NULL, past INTEGER NOT NULL, sha256 TEXT NOT NULL,
    PRIMARY KEY (uri, version, first, past));
CREATE TABLE IF NOT EXISTS told_pins (
    uri TEXT NOT NULL, version TEXT NOT NULL, first INTEGER NOT NULL, past INTEGER NOT NULL, sha256 TEXT NOT NULL,
    PRIMARY KEY (uri, version, first, past));
"""
_PINS: Final = "SELECT uri, version, first, past, sha256, 0 FROM pins"
_TOLD: Final = (
    " UNION ALL SELECT uri, version, first, past, sha256, 1 FROM told_pins t WHERE NOT EXISTS"
    " (SELECT 1 FROM pins p WHERE p.uri = t.uri AND p.version = t.version AND p.first = t.first AND p.past = t.past)"
)
_HAS_TOLD: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'told_pins'"


class Stamp(NamedTuple):
    """What the file system says of a blob's file when it was hashed: a file that was altered has another."""

    length: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of an opened file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Index:
    """The index's file, shared by the threads of one process. Every method may raise StoreRefused."""

    def __init__(self, path: Path, *, read_only: bool = False, create: bool = True) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._depth = 0
        place = str(path)
        if read_only:
            # A root without an index is a directory of blobs that somebody brought: nothing is known of them.
            place = f"{path.resolve().as_uri()}?mode=ro" if path.is_file() else ":memory:"
        elif not create:
            # Not mode=ro: what a writer that died has left half done can then not be undone, and so not be read.
            place = f"{path.resolve().as_uri()}?mode=rw"
        with self._refusing():
            self._database = sqlite3.connect(
                place,
                uri=place.startswith("file:"),
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            if not read_only:
                # Not a write-ahead log: that could not be read from a read-only root. The journal keeps its blocks,
                # so that removing blobs works on a full disk.
                self._rows("PRAGMA journal_mode=PERSIST")
                self._rows("PRAGMA synchronous=FULL")
            if not place.startswith("file:"):
                self._create()
            if (found := self._fact("version")) != _VERSION:
                raise StoreRefused(SOURCE_UNAVAILABLE, str(path), f"is of version {found}, needed {_VERSION}")
        except BaseException:
            self._database.close()
            raise

    @property
    def store(self) -> str:
        """Return the number that the store was given at its creation."""
        return self._fact("store")

    @property
    def sequence(self) -> int:
        """Return the number of publications and removals so far."""
        return int(self._fact("sequence"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the only right to change the store; what is done takes effect as a whole, or not at all."""
        with self._mutex:
            if self._depth:
                yield
                return
            with self._refusing():
                self._database.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
            except BaseException:
                self._database.rollback()
                raise
            else:
                with self._refusing():
                    self._database.commit()
            finally:
                self._depth = 0
                if self._database.in_transaction:
                    self._database.rollback()

    def stamp(self, sha256: str) -> Stamp | None:
        """Return what was recorded of a blob's file when it was hashed; None for a blob that is not listed."""
        rows = self._rows("SELECT length, mtime_ns, ctime_ns, inode FROM blobs WHERE sha256 = ?", sha256)
        return Stamp(*rows[0]) if rows else None

    def put(self, sha256: str, stamp: Stamp, used_ns: int) -> None:
        """List a blob, and count a publication, unless it is listed; record the file that was hashed."""
        statement = "INSERT OR REPLACE INTO blobs VALUES (?, ?, ?, ?, ?, ?)"
        with self.writing():
            if self.stamp(sha256) is None:
                self._step()
            self._rows(statement, sha256, stamp.length, used_ns, stamp.mtime_ns, stamp.ctime_ns, stamp.inode)

    def drop(self, sha256: str) -> None:
        """Take a blob off the list, and count a removal, if it is listed. Its uses and pins stay: they are wishes."""
        with self.writing():
            if self.stamp(sha256) is not None:
                self._step()
                self._rows("DELETE FROM blobs WHERE sha256 = ?", sha256)

    def touch(self, used_ns: dict[str, int]) -> None:
        """Record when blobs were used."""
        if used_ns:
            with self.writing():
                for sha256, moment in used_ns.items():
                    self._rows("UPDATE blobs SET used_ns = max(used_ns, ?) WHERE sha256 = ?", moment, sha256)

    def blobs(self) -> tuple[Blob, ...]:
        """Return all blobs that are listed, in the order of digests."""
        uses: dict[str, list[Use]] = {}
        with self._mutex:
            for owner, sha256, kind in self._rows("SELECT owner, sha256, kind FROM uses ORDER BY owner"):
                uses.setdefault(sha256, []).append(Use(owner, kind))
            rows = self._rows("SELECT sha256, length, used_ns FROM blobs ORDER BY sha256")
        return tuple(
            Blob(
                sha256=sha256,
                length=length,
                used_ns=str(used_ns),
                kind=_strongest(uses.get(sha256, ())),
                owners=tuple(use.owner for use in uses.get(sha256, ())),
            )
            for sha256, length, used_ns in rows
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold what is read together at one moment."""
        with self._mutex:
            if self._depth or self._database.in_transaction:
                yield
                return
            with self._refusing():
                self._database.execute("BEGIN")
            try:
                yield
            finally:
                self._database.rollback()

    def total_bytes(self) -> int:
        """Return the bytes of all blobs."""
        return int(self._rows("SELECT coalesce(sum(length), 0) FROM blobs")[0][0])

    def evictable(self) -> tuple[tuple[str, int], ...]:
        """Return digest and length of the blobs that nobody requires or replicates, the longest unused first."""
        return tuple(
            self._rows(
                "SELECT sha256, length FROM blobs WHERE NOT EXISTS (SELECT 1 FROM uses"
                " WHERE uses.sha256 = blobs.sha256 AND kind != 'optional') ORDER BY used_ns, sha256"
            )
        )

    def hold(self, owner: str, kind: UseKind, digests: Sequence[str]) -> None:
        """Record that an owner uses blobs, present or to come, in place of what it said of them before."""
        with self.writing():
            for sha256 in digests:
                self._rows("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", owner, sha256, kind)

    def release(self, owner: str, digests: Sequence[str] | None) -> None:
        """Record that an owner does not use these blobs; None: any."""
        with self.writing():
            if digests is None:
                self._rows("DELETE FROM uses WHERE owner = ?", owner)
            for sha256 in digests or ():
                self._rows("DELETE FROM uses WHERE owner = ? AND sha256 = ?", owner, sha256)

    def pinned(self, identity: PartialIdentity) -> str | None:
        """Return the digest that was pinned for this range of this version; None when there is none."""
        if not isinstance(identity.version, str):
            return None
        rows = self._rows(
            "SELECT sha256 FROM pins WHERE uri = ? AND version = ? AND first = ? AND past = ?", *_place(identity)
        )
        return str(rows[0][0]) if rows else None

    def pin(self, identity: PartialIdentity, sha256: str) -> None:
        """Keep what the first fetch gave. Without a version there is nothing that it could be kept for.

        Raises ArtifactError `INTEGRITY_DIGEST_MISMATCH` when another digest is pinned.
        """
        if not isinstance(identity.version, str):
            return
        with self.writing():
            found = self.pinned(identity)
            if found is None:
                self._rows("INSERT INTO pins VALUES (?, ?, ?, ?, ?)", *_place(identity), sha256)
            elif found != sha256:
                where = f"{identity.uri} {identity.range.start:,} to {identity.range.end:,}"
                raise ArtifactError(
                    INTEGRITY_MISMATCH, where, f"has {sha256}; the first fetch of {identity.version} gave {found}"
                )

    def pin_told(self, told: Iterable[tuple[PartialIdentity, str]]) -> None:
        """Keep what others' first fetches gave; where the store has a first fetch of its own, that one counts."""
        with self.writing():
            for identity, sha256 in told:
                if isinstance(identity.version, str):
                    self._rows("INSERT OR REPLACE INTO told_pins VALUES (?, ?, ?, ?, ?)", *_place(identity), sha256)

    def pins(self) -> tuple[Pin, ...]:
        """Return all pins, by object, version and place: own ones, and told ones where none is own."""
        told = _TOLD if self._rows(_HAS_TOLD) else ""  # an index that cannot be written may be from before them
        return tuple(
            Pin(uri=uri, version=version, range=ByteRange(first, past), sha256=sha256, is_told=bool(is_told))
            for uri, version, first, past, sha256, is_told in self._rows(f"{_PINS}{told} ORDER BY 1, 2, 3, 4")
        )

    def close(self) -> None:
        """Close the file; harmless when it is closed."""
        with self._mutex:
            self._database.close()

    def _create(self) -> None:
        with self.writing():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._rows(statement)
            for name, value in (("version", _VERSION), ("store", uuid.uuid4().hex), ("sequence", "0")):
                self._rows("INSERT OR IGNORE INTO facts VALUES (?, ?)", name, value)

    def _fact(self, name: str) -> str:
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        return str(rows[0][0]) if rows else "none"

    def _step(self) -> None:
        self._rows("UPDATE facts SET value = CAST(value AS INTEGER) + 1 WHERE name = 'sequence'")

    def _rows(self, statement: str, *values: str | int) -> list[tuple[Any, ...]]:
        with self._mutex, self._refusing():
            return self._database.execute(statement, values).fetchall()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            free = free_bytes(self._path.parent)
            amount = "" if free is None else f"; {free:,} B free"
            raise StoreRefused(
                SOURCE_UNAVAILABLE,
                str(self._path.parent),
                f"its index cannot be read or written: {error}{amount}",
                None,
                free,
            ) from error


def _place(identity: PartialIdentity) -> tuple[str, str, int, int]:
    assert isinstance(identity.version, str)
    return (identity.uri, identity.version, identity.range.start, identity.range.end)


def _strongest(uses: Sequence[Use]) -> UseKind:
    kinds = {use.kind for use in uses}
    return "required" if "required" in kinds else "replica" if "replica" in kinds else "optional"
