"""The records of a run, as they lie in its directory: who wanted what, what came of it, and who says so.

A *run* is one attempt of one *arm* (a notebook with parameters) of one *campaign* (a closed set of arms). Intent
comes first: `request.json` is on disk and in the ledger before anything starts. Two witnesses follow, who do not know
each other: the parent, which watched the process (`outcome.json`), and the last cell (`seal.json`). Times of
day (`at`, `…_at`) are nanoseconds since 1970; durations are seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from inferswarm.documents import Digest, Document, digest_bytes

SCHEMA = 1
"""Version of all records here; a reader refuses any other."""

Moment = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,18})\Z")]
"""Nanoseconds since 1970 as digits, until the year 2286; JSON numbers of that size do not survive elsewhere."""

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A count that JSON carries everywhere."""

Value = str | int | float | bool
"""What a parameter may be: papermill passes tuples, bytes and dates as text, without a word."""

Disposition = Literal["PASS", "FAIL", "INCOMPLETE", "BLOCKED"]
"""What a run came to. BLOCKED: a predecessor had not passed, so nothing was started."""

End = Literal["exited", "signalled", "deadline", "interrupted", "not-started", "blocked"]
"""How the parent saw the process end."""


class Parameter(Document, frozen=True):
    """One parameter of an arm with its value."""

    name: str
    value: Value


class FileEntry(Document, frozen=True):
    """One file of a run: its path below the run's directory with `/`, its length and the sha256 of its bytes."""

    path: str
    bytes: Whole
    digest: Digest


def entry_of(path: str, data: bytes) -> FileEntry:
    """Return the entry of a file that has these bytes."""
    return FileEntry(path, len(data), digest_bytes(data))


class Request(Document, frozen=True, kw_only=True):
    """The intent: `request.json`. Written, synced and in the ledger before the arm's process starts."""

    schema: Whole
    campaign: str
    edition: Whole
    arm: str
    run_id: str
    nonce: str
    parameters: tuple[Parameter, ...]
    deadline_seconds: float
    requested_at: Moment
    attempt: Whole
    campaign_digest: Digest
    expectations_digest: Digest
    notebook_digest: Digest
    package_digest: Digest
    package_version: str
    commit: str
    dirty: bool
    predecessors: tuple[str, ...]


class Outcome(Document, frozen=True, kw_only=True):
    """What the parent saw: `outcome.json`.

    `exit_status` is None unless the process exited; `signal` likewise. `survivors` counts processes of the run that
    were still there afterwards and had to be killed.
    """

    schema: Whole
    run_id: str
    nonce: str
    request_digest: Digest
    end: End
    exit_status: int | None
    signal: int | None
    started_at: Moment
    ended_at: Moment
    seconds: float
    kernel_pid: int | None
    survivors: Whole
    parent_environment_digest: Digest
    """Of `environment.parent.json` as the parent wrote it, from what it kept in its own memory."""
    reason: str
    """Why it is no good end; "" where it is one."""


class BackgroundFailure(Document, frozen=True):
    """An exception that ended no cell: of a thread, of a task, or one that nobody could raise."""

    where: str
    error: str


class Seal(Document, frozen=True, kw_only=True):
    """What the notebook's last cell says: `seal.json`. Its files are those that the arm itself wrote."""

    schema: Whole
    run_id: str
    nonce: str
    request_digest: Digest
    parameters: tuple[Parameter, ...]
    files: tuple[FileEntry, ...]
    num_samples: Whole
    num_outputs: Whole
    realized_plans: tuple[Digest, ...]
    kernel_pid: int
    executable: str
    package_digest: Digest
    background_failures: tuple[BackgroundFailure, ...]
    sealed_at: Moment


class Manifest(Document, frozen=True, kw_only=True):
    """Every file of a run but itself and `statement*.json`: `manifest.json`. In the order of the paths."""

    schema: Whole
    campaign: str
    arm: str
    run_id: str
    files: tuple[FileEntry, ...]


class LedgerEntry(Document, frozen=True, kw_only=True):
    """One line of `ledger.jsonl`: canonical JSON, each bound to the line before it.

    `kind` is `requested` (subject: the digest of request.json), `finished` (of manifest.json, with the disposition),
    `accepted`, `waived` or `authorized` (of that record). `previous` is the digest of the line before, or of nothing.
    """

    schema: Whole
    sequence: Whole
    previous: Digest
    kind: Literal["requested", "finished", "accepted", "waived", "authorized"]
    campaign: str
    edition: Whole
    arm: str
    run_id: str
    subject: Digest
    disposition: Disposition | None
    at: Moment


class ArmDisposition(Document, frozen=True):
    """An arm with what its attempts came to."""

    arm: str
    disposition: Literal["PASS", "FAIL", "INCOMPLETE", "BLOCKED", "WAIVED"]
    attempts: Whole


class Acceptance(Document, frozen=True, kw_only=True):
    """Somebody has read a campaign's runs and takes them as they are, up to one line of the ledger.

    It changes no disposition. `head` is the digest of that line, so that no earlier line can be dropped any more.
    """

    schema: Whole
    campaign: str
    edition: Whole
    head: Digest
    dispositions: tuple[ArmDisposition, ...]
    author: str
    reason: str
    at: Moment


class Waiver(Document, frozen=True, kw_only=True):
    """Somebody goes on without an arm's PASS: it makes WAIVED of it until `expires_at`, never PASS."""

    schema: Whole
    campaign: str
    edition: Whole
    arm: str
    reason: str
    author: str
    at: Moment
    expires_at: Moment


class Authorization(Document, frozen=True, kw_only=True):
    """Somebody allows something on the strength of an acceptance. No disposition does that by itself."""

    schema: Whole
    campaign: str
    edition: Whole
    acceptance: Digest
    allows: str
    author: str
    at: Moment
    expires_at: Moment
