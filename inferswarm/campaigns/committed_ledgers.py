"""What a repository has of a ledger: that nothing of it was dropped since, and since when it has each run.

A ledger is told by its runs and its first line, not by its place: roots are moved and renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from inferswarm.campaigns.findings import broken, proven, unproven
from inferswarm.campaigns.git_objects import GitObjects
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.layout import LEDGER
from inferswarm.documents import read_json
from inferswarm.errors import DocumentError, EvidenceError

LAW: Final = "ledger-chain"
COMMIT_CHARACTERS: Final = 12
"""So much of a commit's name is shown."""


class CommittedLedger(NamedTuple):
    """One version of a ledger: a commit that has it, its path, and what it holds."""

    commit: str
    path: tuple[str, ...]
    data: bytes
    marks: frozenset[str]
    """What tells whose ledger it is: its runs, and its first line."""

    @property
    def place(self) -> str:
        """Return where it is, for people."""
        return f"{self.commit[:COMMIT_CHARACTERS]}:{'/'.join(self.path)}"


def committed_ledgers(objects: GitObjects, with_logs: bool) -> tuple[CommittedLedger, ...]:
    """Return every version that is in the history of a ref; `with_logs`: also of commits that a ref was at before.

    Raises EvidenceError when any of it cannot be read.
    """
    versions = objects.versions(LEDGER, with_logs)
    return tuple(CommittedLedger(commit, path, data, marks_of(data)) for commit, path, data in versions)


def marks_of(data: bytes) -> frozenset[str]:
    """Return what tells whose ledger these bytes are: the names of its runs, and its first line."""
    lines = data.splitlines()
    marks = {lines[0].decode("utf-8", "replace")} if lines else set()
    for line in lines:
        try:
            entry = read_json(line, LEDGER)
        except DocumentError:
            continue
        if isinstance(entry, dict) and isinstance(run_id := entry.get("run_id"), str) and run_id:
            marks.add(run_id)
    return frozenset(marks)


def check_kept_lines(root: Path, there: bytes, objects: GitObjects) -> Iterator[Finding]:
    """The ledger begins with whatever the repository has of it: no committed line was dropped or altered.

    Of the newest commit that is proven or broken, at the root's own place. What other refs have, elsewhere or from
    before, may be another's work: if these bytes do not begin with it, nothing is proven. Neither is it where the
    repository could not be read.
    """
    wanted = "every line of it that is committed, and perhaps more"
    known, ours = set[str](), marks_of(there)
    try:
        head, top = objects.head(), objects.top.resolve()
        if root.is_relative_to(top):
            path = (*root.relative_to(top).parts, LEDGER)
            committed = objects.file_at(head, path)
            if committed is not None:
                known.add(place := CommittedLedger(head, path, committed, frozenset()).place)
                if there.startswith(committed):
                    yield proven(LAW, place, wanted)
                else:
                    yield broken(LAW, place, wanted, "others, or fewer")
    except EvidenceError as error:
        known.add("HEAD")
        yield unproven(LAW, "HEAD", wanted, f"nobody could look: {error}")
    try:
        same = [item for item in committed_ledgers(objects, with_logs=True) if item.marks & ours]
    except EvidenceError as error:
        yield unproven(LAW, LEDGER, wanted, f"nobody could look: {error}")
        return
    lost = [item for item in same if not there.startswith(item.data) and item.place not in known]
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield unproven(LAW, lost[0].place, wanted, f"others, or fewer, than this commit has{more}")
    elif same:
        yield proven(LAW, LEDGER, wanted, f"it begins with all {len(same)} versions that are committed")
    elif not known:
        yield proven(LAW, LEDGER, wanted, "no ref has a line of it: it was never committed")
