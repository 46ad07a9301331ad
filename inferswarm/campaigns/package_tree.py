"""Which package a run used: every source file of it with its digest, and one digest of them all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import inferswarm
from inferswarm.campaigns.records import SCHEMA, FileEntry
from inferswarm.documents import Digest, Document, digest, digest_bytes
from inferswarm.errors import EvidenceError

PACKAGE_NAME = "inferswarm"


class PackageTree(Document, frozen=True, kw_only=True):
    """`package.json`: the package's `.py` files, by paths below the package's parent, in the order of the paths."""

    schema: int
    files: tuple[FileEntry, ...]

    @property
    def digest(self) -> Digest:
        """Return the package digest: that of the canonical bytes of the files' list."""
        return digest(self.files)


def package_tree(parent: Path | None = None) -> PackageTree:
    """Return the tree of the package below `parent`, or of the one that this process has imported.

    Raises EvidenceError when a file cannot be read, or there is none.
    """
    root = package_parent() if parent is None else parent
    try:
        sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in _sources(root)}
    except OSError as error:
        raise EvidenceError(f"the package's source cannot be read: {error}") from error
    if not sources:
        raise EvidenceError(f"{root}: there is no source of {PACKAGE_NAME} here")
    return tree_of(sources.items())


def package_parent() -> Path:
    """Return the directory that the imported package lies in."""
    return Path(inferswarm.__file__).resolve().parents[1]


def tree_of(sources: Iterable[tuple[str, bytes]]) -> PackageTree:
    """Return the tree of source files that are given as path (below the package's parent) and bytes."""
    entries = (FileEntry(path, len(data), digest_bytes(data)) for path, data in sources)
    return PackageTree(schema=SCHEMA, files=tuple(sorted(entries, key=lambda entry: entry.path)))


def _sources(root: Path) -> list[Path]:
    return [path for path in (root / PACKAGE_NAME).rglob("*.py") if path.is_file()]
