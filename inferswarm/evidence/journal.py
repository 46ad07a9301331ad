"""Acceptances, alerts and health events in the order in which they were written, kept for good in one SQLite file.

What is in force is computed from the journal each time it is asked for, so that a restart changes nothing. Entries
are only ever added. Each carries the digest of the entry before it and of its own document: an altered, missing or
exchanged entry breaks the chain and is an EvidenceError. Missing entries at the end are not noticed. Several
processes may write one journal at once; each entry gets its place when it is written. Every operation reads the
whole journal: it is for what changed, not for each heartbeat that came.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferswarm.documents import canonical_bytes, digest_bytes, read_json
from inferswarm.errors import DocumentError, EvidenceError, SpecError
from inferswarm.evidence.alerts import Alert, AlertCleared, open_alerts
from inferswarm.evidence.baselines import Baseline, baseline_in_force
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.health import Health, health_of
from inferswarm.evidence.quarantine import QuarantineState, quarantines_of
from inferswarm.evidence.types import Described

JournalDocument = Baseline | Alert | AlertCleared | HealthEvent

_FORMAT = 1
_BUSY_SECONDS = 30.0
_START = "sha256:" + "0" * 64
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    sequence INTEGER PRIMARY KEY,
    chain TEXT NOT NULL UNIQUE,
    document TEXT NOT NULL
);
"""


class Entry(NamedTuple):
    """One document with its place, which counts from 1."""

    sequence: int
    document: JournalDocument


class Journal:
    """The journal in a directory, made when it is not there.

    Raises SpecError when the directory cannot be made or written, EvidenceError when the file is no journal of this
    version.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / "journal.sqlite"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            needed = f"a writable directory ({error.strerror or error})"
            raise SpecError("evidence journal", str(directory), needed) from error
        with self._writing() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise EvidenceError(f"{self._file}: is of format {version}, needed {_FORMAT}")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_FORMAT}")

    def append(self, documents: Sequence[JournalDocument]) -> tuple[int, ...]:
        """Add documents at the end, all or none; return their places.

        Raises SpecError for an acceptance that does not follow the newest version of its baseline, or the end of an
        alert that is not open, so that nothing is added that could not be read; EvidenceError when the journal is
        damaged.
        """
        with self._writing() as connection:
            entries = self._entries(connection)
            self._refuse_contradictions([entry.document for entry in entries], documents)
            row = connection.execute("SELECT chain FROM entry ORDER BY sequence DESC LIMIT 1").fetchone()
            chain = _START if row is None else row[0]
            places = []
            for place, document in enumerate(documents, start=len(entries) + 1):
                text = canonical_bytes(document).decode()
                chain = _link(chain, text)
                connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (place, chain, text))
                places.append(place)
        return tuple(places)

    def entries(self) -> tuple[Entry, ...]:
        """Return everything, oldest first. Raises EvidenceError when the chain is broken."""
        with self._connection() as connection:
            return self._entries(connection)

    def baseline(self, record: Described) -> Baseline | None:
        """Return the accepted baseline for what a record answers, or None."""
        return baseline_in_force((item for item in self._documents() if isinstance(item, Baseline)), record)

    def open_alerts(self) -> tuple[Alert, ...]:
        """Return the alerts that no revalidation has cleared, oldest first."""
        return open_alerts([item for item in self._documents() if isinstance(item, (Alert, AlertCleared))])

    def events(self) -> tuple[HealthEvent, ...]:
        """Return the health events, oldest first."""
        return tuple(item for item in self._documents() if isinstance(item, HealthEvent))

    def health(self, scope: Scope) -> Health:
        """Return the health of a scope now."""
        return health_of(scope, self.events())

    def quarantines(self) -> QuarantineState:
        """Return what is in quarantine now, with the audit."""
        return quarantines_of(self.events())

    def _documents(self) -> list[JournalDocument]:
        return [entry.document for entry in self.entries()]

    def _refuse_contradictions(self, kept: list[JournalDocument], added: Sequence[JournalDocument]) -> None:
        after = [*kept, *added]
        try:
            open_alerts([item for item in after if isinstance(item, (Alert, AlertCleared))])
            baselines = [item for item in after if isinstance(item, Baseline)]
            for item in added:
                if isinstance(item, Baseline):
                    self._refuse_gap([other for other in baselines if other.question == item.question])
        except EvidenceError as error:
            raise SpecError("journal entry", [type(item).__name__ for item in added], str(error)) from error

    @staticmethod
    def _refuse_gap(versions: list[Baseline]) -> None:
        for place, item in enumerate(versions):
            replaced = None if place == 0 else versions[place - 1].id
            if (item.version, item.replaces) != (place + 1, replaced):
                raise EvidenceError(f"an acceptance of version {place + 1} that replaces {replaced}")

    def _entries(self, connection: sqlite3.Connection) -> tuple[Entry, ...]:
        found = []
        chain = _START
        for place, (sequence, kept, text) in enumerate(
            connection.execute("SELECT sequence, chain, document FROM entry ORDER BY sequence"), start=1
        ):
            chain = _link(chain, text)
            if (sequence, kept) != (place, chain):
                raise EvidenceError(f"{self._file}: entry {place} is missing or altered")
            try:
                fields = read_json(text, f"{self._file}: entry {place}")
                found.append(Entry(place, msgspec.convert(fields, JournalDocument, strict=True)))
            except (DocumentError, msgspec.ValidationError, ValueError) as error:
                raise EvidenceError(f"{self._file}: entry {place} is no entry of this version: {error}") from error
        return tuple(found)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(
                sqlite3.connect(self._file, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                yield connection
        except sqlite3.Error as error:
            raise EvidenceError(f"{self._file}: {error}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the journal alone from reading its end to writing behind it."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _link(previous: str, text: str) -> str:
    return digest_bytes(f"{previous}\n{text}".encode())
