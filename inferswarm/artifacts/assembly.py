"""A file from its slices, written once into a cache directory and verified before it has its name.

Promises: a file under the target's name is complete and has the recorded digest; a failure leaves no part of it;
two processes that ask at once write it once. Memory stays at one piece.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, INTEGRITY_MISMATCH, SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError

_PIECE_BYTES: Final = 2**20


def assemble(slices: Sequence[Path], target: Path, length: int, sha256: str) -> Path:
    """Return `target`, written first from `slices`, one after the other, unless it is there already.

    A file that is there is believed by its length alone: reading all of it at every start would cost what the
    cache saves. Raises ArtifactError: `SOURCE_OBJECT_UNAVAILABLE` when a slice cannot be read or the target cannot be
    written (a full disk), `PROVENANCE_IDENTITY_MISMATCH` for another length, `INTEGRITY_DIGEST_MISMATCH` when the
    slices do not give the recorded digest.
    """
    try:
        if _is_there(target, length):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(f".{target.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_there(target, length):
                _write(slices, target, length, sha256)
    except OSError as error:
        raise ArtifactError(
            SOURCE_UNAVAILABLE, str(target), f"cannot be assembled ({length:,} B): {error.strerror}: {error.filename}"
        ) from error
    return target


def digest_file(path: Path) -> str:
    """Return the hexadecimal sha256 of a file's bytes, one piece in memory at a time. Raises OSError."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            state.update(piece)
    return state.hexdigest()


def _is_there(target: Path, length: int) -> bool:
    try:
        found = target.stat().st_size
    except FileNotFoundError:
        return False
    if found != length:
        raise ArtifactError(
            IDENTITY_MISMATCH, str(target), f"has {found:,} B, recorded {length:,} B; remove it to have it made again"
        )
    return True


def _write(slices: Sequence[Path], target: Path, length: int, sha256: str) -> None:
    """Write the slices into a file beside the target, verify it, and give it the name."""
    if (total := sum(part.stat().st_size for part in slices)) != length:
        raise ArtifactError(
            IDENTITY_MISMATCH, str(target), f"its {len(slices)} slices have {total:,} B, recorded {length:,} B"
        )
    # One fixed name: what a killed process left is overwritten by the next, not added to.
    partial = target.with_name(f".{target.name}.partial")
    try:
        state = hashlib.sha256()
        with partial.open("wb", buffering=0) as file:
            for part in slices:
                with part.open("rb") as source:
                    while piece := source.read(_PIECE_BYTES):
                        state.update(piece)
                        _write_all(file.fileno(), piece, partial)
            os.fsync(file.fileno())
        if state.hexdigest() != sha256:
            raise ArtifactError(
                INTEGRITY_MISMATCH, str(target), f"its slices have sha256 {state.hexdigest()}, recorded {sha256}"
            )
        partial.replace(target)
        sync_directory(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_all(descriptor: int, piece: bytes, path: Path) -> None:
    view = memoryview(piece)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            # A failed write does not know its file's name, and the message is to say which disk is full.
            raise OSError(error.errno, error.strerror, str(path)) from error


def sync_directory(path: Path) -> None:
    """Have a directory's names on the disk, also where a link leads to it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
