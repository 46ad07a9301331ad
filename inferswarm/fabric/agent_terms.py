"""The highest term that a Node has seen from any Coordinator of a scope, kept on the Node's own disk.

A Coordinator's lease is a row in a ledger of one machine. What makes a second authority impossible is that a Node
obeys no lower term than it has seen, and that neither the end of its agent nor a second agent beside the first makes
it forget. Covered: agents that end at any moment, and several agents of a Node over one directory, also at once. Not
covered: a directory that is removed or put back from a copy, a disk that loses what it confirmed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from inferswarm.errors import EngineError


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds."""

    scope: str
    term: int


class TermFile:
    """The file `term` in a directory of its own. Every question reads it again: another agent may have raised it."""

    def __init__(self, directory: Path, scope: str) -> None:
        """Make the directory, for its owner only.

        Raises EngineError when that cannot be done, and for a file that cannot be read or is about another scope: a
        Node that does not know what it has seen obeys nobody.
        """
        self._path = directory / "term"
        self._lock = directory / "term.lock"
        self._scope = scope
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EngineError(str(directory), f"terms cannot be kept there: {error.strerror}") from error
        self.highest()

    def highest(self) -> int:
        """Return the highest term seen so far, 0 when there was none. Raises EngineError as the constructor."""
        try:
            body = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise EngineError(str(self._path), f"cannot be read: {error.strerror}") from error
        try:
            kept = msgspec.json.decode(body, type=_Kept)
        except msgspec.DecodeError as error:
            raise EngineError(str(self._path), f"is no record of a term: {error}") from error
        if kept.scope != self._scope:
            raise EngineError(str(self._path), f"is about scope {kept.scope!r}, not {self._scope!r}")
        return kept.term

    def admit(self, term: int) -> bool:
        """Return whether a Coordinator of this term may be obeyed; a new highest term is on disk before that.

        Raises EngineError when it cannot be kept.
        """
        if term <= (highest := self.highest()):
            return term == highest
        try:
            with self._locked():
                if (highest := self.highest()) < term:
                    self._write(term)
                    return True
                return term == highest
        except OSError as error:
            raise EngineError(str(self._path), f"term {term} cannot be kept: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other agents of this Node from writing meanwhile."""
        descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, term: int) -> None:
        """Replace the file as a whole, and return when the disk has it."""
        unfinished = self._path.with_suffix(".new")
        descriptor = os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(_Kept(self._scope, term)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        unfinished.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
