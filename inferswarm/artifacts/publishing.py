"""The publisher's pass: every byte of a model read once, every digest of its manifest computed on the way.

Promises: each file is streamed from its first byte to its last, once, and never held in memory; the digest of the
whole file and those of its entries come from the same bytes; a file of another length or version than the manifest
has is refused before it is read. What a publisher computed is as good as the copy it read: publish from the original.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.manifest import ManifestEntry, ModelManifest
from inferswarm.artifacts.origins.opening import is_remote
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, INTEGRITY_MISMATCH, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import digest
from inferswarm.errors import ArtifactError

if TYPE_CHECKING:
    from inferswarm.artifacts.origins.base import Origin

Progress = Callable[[UpstreamObject, int], None]
"""Told after each piece: which file, how many of its bytes are read."""

_ALGORITHM: Final = "sha256:"


def publish(
    manifest: ModelManifest,
    open_origin: Callable[[UpstreamObject], Origin],
    progress: Progress = lambda file, done: None,
) -> ModelManifest:
    """Read every file of a manifest once and return the manifest as `hashed`.

    Digests that the manifest has already must be found again. Raises ArtifactError: `PROVENANCE_IDENTITY_MISMATCH`
    when a file has another length or version, `INTEGRITY_DIGEST_MISMATCH` when it has other bytes,
    `SOURCE_OBJECT_UNAVAILABLE` when it ends early, and whatever the origin raises.
    """
    files: list[UpstreamObject] = []
    entries: list[ManifestEntry] = []
    for index, file in enumerate(manifest.files):
        with open_origin(file) as origin:
            version = _version(file, origin.described)
            pieces = _watched(origin, file, progress)
            whole, parts = hash_pieces(pieces, [entry.range for entry in manifest.of_file(index)])
        _refuse_other(file.uri, file.sha256, whole)
        files.append(replace(file, version=version, sha256=whole))
        for entry, sha256 in zip(manifest.of_file(index), parts, strict=True):
            _refuse_other(entry.name, entry.sha256, sha256)
            entries.append(replace(entry, sha256=sha256))
    return replace(manifest, files=tuple(files), entries=tuple(entries), hash_known_by="hashed")


def hash_pieces(pieces: Iterator[memoryview], ranges: Sequence[ByteRange]) -> tuple[str, tuple[str, ...]]:
    """Return the digest of all pieces together, and those of ranges in them, which are sorted and share no byte.

    One pass, one piece at a time. The pieces must reach the end of the last range.
    """
    whole = hashlib.sha256()
    parts = [hashlib.sha256() for _ in ranges]
    position, current = 0, 0
    for piece in pieces:
        whole.update(piece)
        end = position + len(piece)
        while current < len(ranges) and ranges[current].start < end:
            wanted = ranges[current]
            parts[current].update(piece[max(wanted.start - position, 0) : wanted.end - position])
            if wanted.end > end:
                break
            current += 1
        position = end
    return _ALGORITHM + whole.hexdigest(), tuple(_ALGORITHM + part.hexdigest() for part in parts)


def content_revision(files: Sequence[UpstreamObject]) -> str:
    """Return a revision for a model whose publisher names none: the digest of its files' lengths and digests.

    The same bytes have the same revision wherever they lie. Raises ArtifactError `SOURCE_OBJECT_UNAVAILABLE` for a
    file whose digest is not known.
    """
    for file in files:
        if isinstance(file.sha256, msgspec.UnsetType):
            raise ArtifactError(SOURCE_UNAVAILABLE, file.uri, "was not read, so that its revision is not known")
    return digest([[file.length, file.sha256] for file in files])


def _watched(origin: Origin, file: UpstreamObject, progress: Progress) -> Iterator[memoryview]:
    """Give the whole file and tell how far it is. An end before its length, or after, is refused."""
    done = 0
    for piece in origin.stream(ByteRange(0, file.length)):
        done += len(piece)
        yield piece
        progress(file, done)
    if done != file.length:
        raise ArtifactError(SOURCE_UNAVAILABLE, file.uri, f"gave {done:,} B of {file.length:,} B")


def _version(file: UpstreamObject, opened: UpstreamObject) -> str | msgspec.UnsetType:
    """Return the version of what was opened, which must be that of the manifest, to be kept in it.

    Of a local file none is kept: it is the time of a change, which would refuse every copy of the same bytes.
    """
    if opened.length != file.length:
        raise ArtifactError(IDENTITY_MISMATCH, file.uri, f"has {opened.length:,} B, described were {file.length:,} B")
    if not isinstance(file.version, msgspec.UnsetType) and opened.version != file.version:
        raise ArtifactError(IDENTITY_MISMATCH, file.uri, f"is version {opened.version}, described was {file.version}")
    return opened.version if is_remote(file.uri) else msgspec.UNSET


def _refuse_other(subject: str, known: str | msgspec.UnsetType, found: str) -> None:
    if known != found and not isinstance(known, msgspec.UnsetType):
        raise ArtifactError(INTEGRITY_MISMATCH, subject, f"has the digest {found}, known is {known}")
