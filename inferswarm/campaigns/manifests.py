"""The manifest of a run: every file in its directory with length and digest, but itself and what is said about it.

It is written last, so that nothing which it lists can change without its saying so; the ledger names its digest.
"""

from __future__ import annotations

from pathlib import Path

from inferswarm.campaigns.arm_files import write_whole
from inferswarm.campaigns.bundle import Bundle, read_bundle
from inferswarm.campaigns.layout import MANIFEST, UNLISTED_FILES
from inferswarm.campaigns.records import SCHEMA, FileEntry, Manifest, Request, entry_of
from inferswarm.documents import write_document
from inferswarm.errors import EvidenceError


def entries_of(bundle: Bundle) -> tuple[FileEntry, ...]:
    """Return what a manifest of these files lists, in the order of the paths."""
    return tuple(entry_of(name, data) for name, data in sorted(bundle.files.items()) if name not in UNLISTED_FILES)


def make_manifest(bundle: Bundle, request: Request) -> Manifest:
    """Return the manifest of a run. Raises EvidenceError when its directory holds anything but plain files."""
    if bundle.odd:
        raise EvidenceError(f"{bundle.directory}: holds {', '.join(bundle.odd)}; a manifest lists plain files only")
    return Manifest(
        schema=SCHEMA,
        campaign=request.campaign,
        arm=request.arm,
        run_id=request.run_id,
        files=entries_of(bundle),
    )


def write_manifest(directory: Path, request: Request) -> Manifest:
    """Write a run's manifest, on the disk when this returns. Raises as `make_manifest` does, and OSError."""
    manifest = make_manifest(read_bundle(directory), request)
    write_whole(directory / MANIFEST, write_document(manifest).encode())
    return manifest
