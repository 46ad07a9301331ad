"""What keeps a store true to itself: mending after a death, hashing everything again, quarantine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from inferswarm.artifacts.store.hashing import hash_descriptor
from inferswarm.artifacts.store.index import Index, Stamp
from inferswarm.artifacts.store.layout import Layout, hex_of, open_exclusively, refusal
from inferswarm.artifacts.store.reading import open_regular
from inferswarm.artifacts.store.records import Finding, Quarantined, Verification
from inferswarm.documents import write_document
from inferswarm.errors import ArtifactError


class Mended(NamedTuple):
    """What opening a store had to put right."""

    removed_bytes: int
    """Of files that dead processes were writing."""
    adopted: tuple[str, ...]
    """Published without an entry, hashed and listed."""
    vanished: tuple[str, ...]
    """Listed without a file, and taken off the list."""
    hashed_bytes: int


def mend(layout: Layout, index: Index, now_ns: int) -> Mended:
    """Make index and files agree again, whatever moment the last process died at. Raises StoreRefused."""
    try:
        removed = _sweep(layout)
        listed = {blob.sha256 for blob in index.blobs()}
        stored = set(layout.stored())
        adopted, hashed = [], 0
        for sha256 in sorted(stored - listed):
            examined = examine(layout, sha256)
            hashed += examined.hashed
            if examined.stamp is not None:
                index.put(sha256, examined.stamp, now_ns)
                adopted.append(sha256)
            elif examined.reason is not None:
                quarantine(layout, index, sha256, examined.reason)
        vanished = []
        for sha256 in sorted(listed - stored):
            with index.writing():  # nobody publishes it meanwhile
                if not layout.blob(sha256).exists():
                    index.drop(sha256)
                    vanished.append(sha256)
    except OSError as error:
        raise refusal(layout.root, error, "the store cannot be opened") from error
    return Mended(removed, tuple(adopted), tuple(vanished), hashed)


class Examined(NamedTuple):
    """What hashing one blob's file found: its stamp when it is right, what it is instead, or neither: it has gone."""

    stamp: Stamp | None
    reason: str | None
    hashed: int


def examine(layout: Layout, sha256: str, check: Callable[[], None] | None = None) -> Examined:
    """Hash the file of one blob. Raises StoreRefused when it cannot be read, and what `check` raises."""
    try:
        descriptor = open_regular(layout.blob(sha256))
    except FileNotFoundError:
        return Examined(None, None, 0)
    except ArtifactError as error:
        return Examined(None, error.reason, 0)
    except OSError as error:
        return Examined(None, f"cannot be opened: {error.strerror}", 0)
    try:
        return examine_opened(descriptor, sha256, check)
    except OSError as error:
        raise refusal(layout.root, error, f"{sha256} cannot be read") from error
    finally:
        os.close(descriptor)


def examine_opened(descriptor: int, sha256: str, check: Callable[[], None] | None = None) -> Examined:
    """Hash an opened blob. Raises OSError, and what `check` raises."""
    before = Stamp.of(os.fstat(descriptor))
    found = hash_descriptor(descriptor, check=check)
    after = Stamp.of(os.fstat(descriptor))
    if found.sha256 != sha256:
        return Examined(None, f"has {found.length:,} B with {found.sha256}", found.length)
    # A file that was written to while it was hashed has no stamp that its digest could be recorded with.
    return Examined(after if after == before else before._replace(mtime_ns=-1), None, found.length)


def quarantine(layout: Layout, index: Index, sha256: str, reason: str) -> None:
    """Move a blob's file out of the way, with a record of why, and take it off the list. Raises StoreRefused."""
    path = layout.blob(sha256)
    with index.writing():
        index.drop(sha256)
        try:
            number = 1
            while (target := layout.quarantine / f"{hex_of(sha256)}-{number}").exists() or target.is_symlink():
                number += 1
            with suppress(FileNotFoundError):
                path.rename(target)
            record = Quarantined(sha256=sha256, found=reason, at_ns=str(time.time_ns()))
            target.with_suffix(".json").write_text(write_document(record), encoding="utf-8")
        except OSError as error:
            raise refusal(layout.root, error, f"{sha256} {reason}, and cannot be moved away") from error


def verify_all(layout: Layout, index: Index, now_ns: int, *, read_only: bool) -> tuple[Verification, int]:
    """Hash every blob; return what was found, and the bytes hashed. Raises StoreRefused."""
    verified, total, hashed = 0, 0, 0
    damaged: list[Finding] = []
    lengths = {blob.sha256: blob.length for blob in index.blobs()}
    for sha256 in sorted({*lengths, *layout.stored()}):
        found = examine(layout, sha256)
        hashed += found.hashed
        place = layout.blob(sha256).relative_to(layout.root).as_posix()
        if found.stamp is not None:
            verified += 1
            total += found.hashed
            if not read_only and index.stamp(sha256) != found.stamp:
                index.put(sha256, found.stamp, now_ns)
            continue
        damaged.append(Finding(path=place, reason=found.reason or "is listed, and its file has gone"))
        if not read_only and found.reason is not None:
            quarantine(layout, index, sha256, found.reason)
        elif not read_only:
            index.drop(sha256)
    strays = tuple(
        Finding(path=path.relative_to(layout.root).as_posix(), reason="is no blob")
        for path in sorted(layout.strays())
        # A link in a blob's place was damage above.
        if path.relative_to(layout.root).as_posix() not in {finding.path for finding in damaged}
    )
    report = Verification(
        root=str(layout.root), verified=verified, bytes=total, damaged=tuple(damaged), strays=strays
    )
    return report, hashed


def _sweep(layout: Layout) -> int:
    """Remove the staged files whose writers are dead; return their bytes. Raises OSError."""
    removed = 0
    for path in sorted(layout.staging.iterdir()):
        descriptor = open_exclusively(path)
        if descriptor is None:
            continue
        removed += os.fstat(descriptor).st_size
        path.unlink(missing_ok=True)
        os.close(descriptor)
    return removed
