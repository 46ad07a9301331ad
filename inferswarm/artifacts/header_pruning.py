"""How much of kept headers stays: the folders of the models that were opened last, and what somebody uses.

What goes can be fetched again. A folder that a process has read is never removed while that process lives: it holds a
lock on the folder's record, which is the kernel's to release (`headers.hold_kept`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from inferswarm.artifacts.headers import RECORD, KeptFile, KeptHeaders
from inferswarm.documents import digest, read_document
from inferswarm.errors import DocumentError

KEPT_MODELS: Final = 64
"""So many models' headers and texts stay: some MB each, tens where a tokenizer is large."""
REST_SECONDS: Final = 3600.0
"""What belongs to no folder stays so long: somebody may be making one of it."""
MODELS: Final = "models"
KEPT: Final = "kept"
FOLDER_DIGITS: Final = 32
_FOLDER: Final = re.compile(f"[0-9a-f]{{{FOLDER_DIGITS}}}")


def kept_name(file: KeptFile) -> str:
    """Return what a kept file is called in the cache: by what it is, and by its bytes."""
    return f"{digest(file.upstream)}-{file.sha256}".replace("sha256:", "")


def prune_headers(cache: Path, most: int | None = None) -> tuple[Path, ...]:
    """Remove folders, the longest unopened first, until at most so many are left, and return them.

    None: `KEPT_MODELS`. Those in use stay, and what cannot be looked at or removed stays too. What is left of folders
    that were never finished, and files of none, go once they have rested.
    """
    removed: list[Path] = []
    with contextlib.suppress(OSError):
        folders = sorted((path.stat().st_mtime, path) for path in (cache / MODELS).iterdir())
        whole = [path for _, path in folders if _FOLDER.fullmatch(path.name)]
        left = len(whole) - (KEPT_MODELS if most is None else most)
        for path in whole:
            if left > 0 and _remove(path):
                removed.append(path)
                left -= 1
        if removed:
            _remove_rest(cache, [path for _, path in folders if path not in (*whole, *removed)])
    return tuple(removed)


def _remove(folder: Path) -> bool:
    """Remove a folder unless somebody uses it; return whether it went."""
    with contextlib.ExitStack() as stack:
        for record in folder.glob(f"*/{RECORD}"):
            descriptor = os.open(record, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        out_of_the_way = folder.with_name(f"{folder.name}.{os.getpid()}.{secrets.token_hex(4)}")
        folder.rename(out_of_the_way)  # nobody can find it half removed
        shutil.rmtree(out_of_the_way, ignore_errors=True)
    return True


def _remove_rest(cache: Path, unfinished: list[Path]) -> None:
    """Remove what belongs to no folder."""
    before = time.time() - REST_SECONDS
    for path in unfinished:
        if path.stat().st_mtime < before:
            shutil.rmtree(path, ignore_errors=True)
    needed: set[str] = set()
    for record in (cache / MODELS).glob(f"*/*/{RECORD}"):
        try:
            files = read_document(KeptHeaders, record.read_bytes(), str(record)).files
        except DocumentError:
            return  # of another version, whose files are not ours to judge
        needed |= {kept_name(file) for file in files}
    for path in (cache / KEPT).iterdir():
        if path.name not in needed and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)
