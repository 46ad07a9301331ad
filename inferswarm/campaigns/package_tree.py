"""Which package a run used: every file of it with its digest, and one digest of them all.

Caches are no part of it: the processes of a run read none. What else could be imported in the place of a source file,
an extension module or bytecode without its source, is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path

import inferswarm
from inferswarm.campaigns.records import SCHEMA, FileEntry, entry_of
from inferswarm.documents import Digest, Document, digest
from inferswarm.errors import EvidenceError

PACKAGE_NAME = "inferswarm"
CACHE = "__pycache__"
_OTHER_CODE = tuple(suffix for suffix in all_suffixes() if suffix != ".py")
"""Endings of what Python imports although it is no source: extension modules come before sources of the same name."""


class PackageTree(Document, frozen=True, kw_only=True):
    """`package.json`: the package's files but caches, by their paths below its parent, in the order of the paths."""

    schema: int
    files: tuple[FileEntry, ...]

    @property
    def digest(self) -> Digest:
        """Return the package digest: that of the canonical bytes of the files' list."""
        return digest(self.files)


def package_tree(parent: Path | None = None) -> PackageTree:
    """Return the tree of the package below `parent`, or of the one that this process has imported.

    Raises EvidenceError when a file cannot be read, there is no source, or something that is no source could be
    imported in its place: an extension module, bytecode outside of the caches, a linked folder.
    """
    root = package_parent() if parent is None else parent
    try:
        sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in _files(root)}
    except OSError as error:
        raise EvidenceError(f"the package's source cannot be read: {error}") from error
    if not any(path.endswith(".py") for path in sources):
        raise EvidenceError(f"{root}: there is no source of {PACKAGE_NAME} here")
    return tree_of(sources.items())


def package_parent() -> Path:
    """Return the directory that the imported package lies in."""
    return Path(inferswarm.__file__).resolve().parents[1]


def python_path(variables: Mapping[str, str] = os.environ) -> str:
    """Return the PYTHONPATH with which a process imports this very package, from whatever directory it is started.

    What the variable has is kept behind it, as absolute paths; a process that has this value gets it again.
    """
    parent = str(package_parent())
    others = [os.path.abspath(item) for item in variables.get("PYTHONPATH", "").split(os.pathsep) if item]
    return os.pathsep.join([parent, *(item for item in others if os.path.realpath(item) != parent)])


def tree_of(sources: Iterable[tuple[str, bytes]]) -> PackageTree:
    """Return the tree of source files that are given as path (below the package's parent) and bytes."""
    entries = (entry_of(path, data) for path, data in sources)
    return PackageTree(schema=SCHEMA, files=tuple(sorted(entries, key=lambda entry: entry.path)))


def is_of_tree(path: str) -> bool:
    """Return whether a file of the package, by its path with `/`, belongs into its tree."""
    return CACHE not in path.split("/")[:-1]


def _files(root: Path) -> Iterator[Path]:
    """Yield the package's files. Raises EvidenceError as `package_tree` does, OSError for what cannot be listed."""
    for path in _below(root / PACKAGE_NAME):
        mode = path.stat().st_mode
        if path.name.endswith(_OTHER_CODE) or not stat.S_ISREG(mode):
            needed = "sources only: no extension module, no bytecode outside of caches, no linked folder"
            raise EvidenceError(f"the package holds {path.relative_to(root).as_posix()}; needed {needed}")
        yield path


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder but folders and caches; links to folders are yielded, and not followed."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)
        elif entry.name != CACHE:
            yield from _below(Path(entry.path))
