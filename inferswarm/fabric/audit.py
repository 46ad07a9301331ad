"""Reading what a Coordinator has recorded of authority, while it runs or after: events, effects, refusals, in order.

Nothing is written, and nothing is read that was not asked for yet. No prompt and no output is in it. A record of a
kind that this version does not know is an error, never passed over.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from inferswarm.documents import Document, read_json
from inferswarm.errors import DocumentError, SpecError
from inferswarm.fabric import events as ev

BATCH_ROWS = 256
"""Rows that are read at once; between two batches the file is free."""
AuditItem = ev.Event | ev.Effect


class RefusedWork(Document, frozen=True, kw_only=True, tag=True):
    """A result or a request that was refused, and why."""

    code: str
    detail: str


class AuditEntry(NamedTuple):
    """One record with its place and its time; `term` is the Coordinator's (0 where a refusal states none)."""

    number: int
    at_ns: int
    term: int
    item: AuditItem | RefusedWork


_AUDIT = "SELECT number, at_ns, term, kind, body FROM audit WHERE number>? AND at_ns>=? ORDER BY number LIMIT ?"
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type='table' AND name=?"
_REFUSALS = "SELECT number, at_ns, code, detail FROM refusals WHERE number>? AND at_ns>=? ORDER BY number LIMIT ?"


def read_audit(ledger: Path, after: int = 0, since_ns: int = 0) -> Iterator[AuditEntry]:
    """Return events and effects behind number `after` and not before `since_ns`, in order, as they are asked for.

    Raises SpecError for a file that is no ledger, DocumentError for a record that this version cannot read.
    """
    for number, at_ns, term, kind, body in read_rows(ledger, _AUDIT, after, since_ns):
        yield AuditEntry(number, at_ns, term, _read_item(bytes(body), kind, f"{ledger}: record {number}"))


def read_refusals(ledger: Path, after: int = 0, since_ns: int = 0) -> Iterator[AuditEntry]:
    """Return what was refused behind number `after` and not before `since_ns`; otherwise as `read_audit`."""
    for number, at_ns, code, detail in read_rows(ledger, _REFUSALS, after, since_ns):
        yield AuditEntry(number, at_ns, 0, RefusedWork(code=code, detail=detail))


def read_rows(
    ledger: Path, query: str, after: int, since_ns: int, *, table: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """Return what a query finds whose rows begin with their numbers, batch by batch; parameters as in `read_audit`.

    `table` is one that a ledger may not have; then there are no rows. Raises SpecError for a file that is no ledger.
    """
    if table is not None and not _batch(ledger, _HAS_TABLE, table):
        return
    while rows := _batch(ledger, query, after, since_ns, BATCH_ROWS):
        yield from rows
        after = rows[-1][0]


def _batch(ledger: Path, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    address = f"file:{quote(str(ledger.absolute()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
            return connection.execute(query, parameters).fetchall()
    except sqlite3.Error as error:
        raise SpecError("ledger", str(ledger), f"a swarm's ledger that can be read ({error})") from error


def _read_item(body: bytes, kind: str, source: str) -> AuditItem:
    try:
        item: AuditItem = msgspec.convert(read_json(body, source), AuditItem, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise DocumentError(source, f"of kind {kind!r} is none of this version: {error}") from error
    if type(item).__name__ != kind:
        raise DocumentError(source, f"is called {kind!r} and is {type(item).__name__}")
    return item
