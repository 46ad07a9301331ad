"""The files that an arm writes itself: which names it may use, and how each gets onto the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.artifacts.assembly import sync_directory
from inferswarm.campaigns.expectations import read_expectations
from inferswarm.campaigns.journal import Journal
from inferswarm.campaigns.layout import EXPECTATIONS, OUTPUTS, RESERVED_FILES, RESULT, SAMPLES
from inferswarm.campaigns.records import FileEntry, Request, entry_of
from inferswarm.campaigns.results import make_result
from inferswarm.campaigns.samples import REHEARSED, RunIdentity, write_outputs, write_samples
from inferswarm.campaigns.spec import ArmSpec
from inferswarm.documents import Digest, write_document
from inferswarm.errors import SpecError

_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}\.(json|jsonl|parquet|txt)")


class Given(NamedTuple):
    """The run that an arm belongs to, as its directory has it."""

    directory: Path
    request: Request
    request_digest: Digest
    spec: ArmSpec
    package_digest: Digest


def refuse_name(name: str, produces: Sequence[str] | None, there: Sequence[str]) -> None:
    """Refuse a document's name: one that is not the arm's (`produces`; None: a rehearsal's), or is there already.

    Raises SpecError.
    """
    if not _PLAIN_NAME.fullmatch(name) or name in RESERVED_FILES:
        raise SpecError("document", name, "a plain file name that no other file of a run has")
    if produces is not None and name not in produces:
        raise SpecError("document", name, f"one that the campaign announces: {', '.join(produces) or 'none'}")
    if name in there:
        raise SpecError("document", name, "a name that was not written before")


def write_arm_files(
    directory: Path, journal: Journal, given: Given | None, documents: Sequence[str]
) -> tuple[FileEntry, ...]:
    """Write the samples, the answers and the result, and return them with the documents, in the order of their names.

    Raises EvidenceError when anything observed was lost. In a rehearsal (nothing given) there is no result.
    """
    samples = journal.table()
    run = REHEARSED
    if given is not None:
        run = RunIdentity(run_id=given.request.run_id, nonce=given.request.nonce)
    write_samples(directory / SAMPLES, samples, run)
    write_outputs(directory / OUTPUTS, journal.outputs, run)
    names = [SAMPLES, OUTPUTS, *documents]
    if given is not None:
        expected = read_expectations(directory / EXPECTATIONS).of_arm(given.spec.name)
        result = make_result(given.request.run_id, expected, samples, tuple(journal.outputs))
        (directory / RESULT).write_text(write_document(result), encoding="utf-8")
        names.append(RESULT)
    return tuple(file_entry(directory, name) for name in sorted(names))


def file_entry(directory: Path, name: str) -> FileEntry:
    """Return a file of a run as its manifest and its seal have it. Raises OSError."""
    return entry_of(name, (directory / name).read_bytes())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is on the disk, whole, when this returns; until then it is not there. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
