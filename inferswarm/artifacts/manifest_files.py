"""Manifests on disk: read strictly, written whole or not at all, never in the place of something else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from inferswarm.artifacts.assembly import sync_directory
from inferswarm.artifacts.manifest import ModelManifest, read_manifest
from inferswarm.artifacts.origin import read_whole
from inferswarm.documents import write_document
from inferswarm.errors import DocumentError, SpecError

MAX_MANIFEST_BYTES: Final = 256 * 2**20
"""A longer file is not read: an entry takes some 200 B, and a model has fewer than a million tensors."""


def load_manifest(path: Path) -> ModelManifest:
    """Return the manifest in a file.

    Raises DocumentError when it is none, ModelError when the file is too long, ArtifactError when it cannot be read.
    """
    return read_manifest(read_whole(path, MAX_MANIFEST_BYTES), str(path))


def check_target(path: Path, manifest: ModelManifest, *, replace: bool = False) -> None:
    """Refuse to write a manifest over something else: another file, another model's, one of other contents.

    What the target may hold already: the same model's manifest whose files are as long and which knows no digest
    that differs; with `replace`, any manifest. Raises SpecError saying what is there.
    """
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise SpecError("output", str(path), "a file in a directory that exists and can be written")
    if not path.exists():
        return
    try:
        there = load_manifest(path)
    except DocumentError as error:
        raise SpecError("output", str(path), f"a new file, or one that holds a manifest; {error.reason}") from error
    if replace:
        return
    if there.provenance.model != manifest.provenance.model:
        raise SpecError("output", str(path), f"another file: it holds the manifest of {there.provenance.model}")
    if not _agree(there, manifest):
        raise SpecError(
            "output",
            str(path),
            f"another file, or --replace: it holds other contents of {there.provenance.model} "
            f"(revision {there.provenance.revision})",
        )


def save_manifest(path: Path, manifest: ModelManifest) -> None:
    """Write a manifest so that the path has all of it or what it had before, power loss included.

    Raises SpecError when it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(write_document(manifest))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise SpecError("output", str(path), f"a place that can be written ({error.strerror})") from error


def _agree(there: ModelManifest, manifest: ModelManifest) -> bool:
    """Return whether two manifests may be about the same bytes."""
    if [file.length for file in there.files] != [file.length for file in manifest.files]:
        return False
    known = {(entry.file, entry.range): entry.sha256 for entry in there.entries}
    for entry in manifest.entries:
        before = known.pop((entry.file, entry.range), None)
        if before is None:
            return False
        if not {msgspec.UNSET} & {before, entry.sha256} and before != entry.sha256:
            return False
    return not known
