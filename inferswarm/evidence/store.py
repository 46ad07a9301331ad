"""Where observations are kept: raw samples in parquet files named by their digest, an SQLite index beside them.

One `append` writes one parquet file (columns `record`, `sample`), makes it durable, and then commits the records to
the index in one transaction. A process killed in between leaves at most a file that nothing refers to; nobody ever
reads half a record. Reading checks the file against its name and each record against its id, so that an altered
byte of either is an EvidenceError. Several processes may use one store at once. Kept records are never changed.

Questions are answered from the index first: it holds everything of a record but its samples, and only the files of
the records that remain are read. `headers` reads no file at all.

Covers process death, not power loss between two appends: the index commits with synchronous=NORMAL.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferswarm.documents import Digits, canonical_bytes, digest_bytes, read_json
from inferswarm.errors import DocumentError, EvidenceError, SpecError
from inferswarm.evidence.drift import unusable_drift
from inferswarm.evidence.types import ContextItem, EvidenceClass, Observation, RecordHeader, newest_of_each

_FORMAT = 1
_TAG = "inferswarm.observation/1"
_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE observation (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    metric TEXT NOT NULL,
    taken_at_ns INTEGER NOT NULL,
    file TEXT NOT NULL,
    record INTEGER NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX observation_by_question ON observation (metric, subject, taken_at_ns);
"""


class _Row(NamedTuple):
    id: str
    file: str
    record: int
    document: str


class _Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: str


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="document", tag=_TAG):
    """What the index holds of an observation: plain structs, because thousands are read to choose a few."""

    subject: str
    metric: str
    unit: str
    context: tuple[_Pair, ...]
    protocol: str
    evidence_class: EvidenceClass
    taken_at_ns: Digits
    producer: str


class ObservationStore:
    """A directory of observations.

    Raises SpecError when the directory cannot be made or written, EvidenceError when what lies there is no store of
    this version.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._samples = directory / "samples"
        self._index = directory / "observations.sqlite"
        try:
            self._samples.mkdir(parents=True, exist_ok=True)
            with open(directory / ".lock", "w") as lock:
                # Two processes that make the store at once would race for its schema and its journal mode.
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._prepare()
        except OSError as error:
            raise SpecError(
                "observation store", str(directory), f"a writable directory ({error.strerror or error})"
            ) from error

    def append(self, observations: Iterable[Observation]) -> tuple[str, ...]:
        """Keep observations; return their ids in order. One that is there already is kept once.

        All or none: they become visible together. Raises EvidenceError when the index is damaged, SpecError when
        the disk refuses.
        """
        given = tuple(observations)
        ids = tuple(observation.id for observation in given)
        known = self._known(ids)
        fresh = {key: item for key, item in zip(ids, given, strict=True) if key not in known}
        if not fresh:
            return ids
        try:
            name = self._write_samples(tuple(fresh.values()))
        except OSError as error:
            raise SpecError("observation store", str(self._samples), f"room to write ({error.strerror})") from error
        rows = [
            (key, item.subject, item.metric, int(item.taken_at_ns), name, record, _without_samples(item))
            for record, (key, item) in enumerate(fresh.items())
        ]
        with self._connect() as connection, connection:
            connection.executemany(
                "INSERT OR IGNORE INTO observation (id, subject, metric, taken_at_ns, file, record, document) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
        return ids

    def query(
        self,
        subject: str | None = None,
        metric: str | None = None,
        *,
        context: Mapping[str, str] | None = None,
        newest: int | None = None,
        steady_only: bool = False,
    ) -> tuple[Observation, ...]:
        """Return the observations of a subject and a metric (None: of any), oldest first.

        `context` leaves out records that do not state each of its keys with an equal value; `newest` keeps, of
        records that answer the same question, so many that were taken last; `steady_only` leaves out, before that,
        those that drifted too far to be used. Files of records left out are not read. Raises EvidenceError when a
        file or a record that is returned is missing or altered.
        """
        where = _where(subject, metric)
        if context is None and newest is None and not steady_only:
            return self._read(where, "ORDER BY taken_at_ns, sequence")
        wanted = sorted((context or {}).items())
        found = [
            header
            for header in self.headers(subject, metric)
            if all(header.context_value(key) == value for key, value in wanted)
            and not (steady_only and unusable_drift(header))
        ]
        kept = {header.id for header in (found if newest is None else newest_of_each(found, newest))}
        return self.load(header.id for header in found if header.id in kept)

    def headers(self, subject: str | None = None, metric: str | None = None) -> tuple[RecordHeader, ...]:
        """Return what the index says of the observations of a subject and a metric (None: of any), oldest first.

        Reads no samples, and so cannot check a header against its id: `load` does. Raises EvidenceError when the
        index is damaged.
        """
        statement = "SELECT id, document FROM observation"
        where = _where(subject, metric)
        if where:
            statement += " WHERE " + " AND ".join(clause for clause, _ in where)
        with self._connect() as connection:
            rows = connection.execute(
                f"{statement} ORDER BY taken_at_ns, sequence", [value for _, value in where]
            ).fetchall()
        return tuple(self._headers(rows))

    def load(self, observation_ids: Iterable[str]) -> tuple[Observation, ...]:
        """Return the observations with these ids, in their order, reading each file once.

        Raises EvidenceError when one is missing or altered.
        """
        wanted = tuple(observation_ids)
        with self._connect() as connection:
            rows = {}
            for key in wanted:
                statement = "SELECT id, file, record, document FROM observation WHERE id = ?"
                if (fields := connection.execute(statement, (key,)).fetchone()) is None:
                    raise EvidenceError(f"{self.directory}: no observation {key}")
                rows[key] = _Row(*fields)
        found = dict(zip(rows, self._restore_all(tuple(rows.values())), strict=True))
        return tuple(found[key] for key in wanted)

    def latest(self, subject: str, metric: str) -> Observation | None:
        """Return the newest observation of a subject and a metric, or None when there is none."""
        found = self._read(
            [("subject = ?", subject), ("metric = ?", metric)], "ORDER BY taken_at_ns DESC, sequence DESC LIMIT 1"
        )
        return found[0] if found else None

    def get(self, observation_id: str) -> Observation:
        """Return the observation with this id. Raises EvidenceError when it is missing or altered."""
        found = self._read([("id = ?", observation_id)], "")
        if not found:
            raise EvidenceError(f"{self.directory}: no observation {observation_id}")
        return found[0]

    def __len__(self) -> int:
        with self._connect() as connection:
            return int(connection.execute("SELECT count(*) FROM observation").fetchone()[0])

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Open the index for one operation, so that threads and processes need share nothing."""
        try:
            with contextlib.closing(sqlite3.connect(self._index, timeout=_BUSY_SECONDS)) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                yield connection
        except sqlite3.Error as error:
            raise EvidenceError(f"{self._index}: {error}") from error

    def _prepare(self) -> None:
        with self._connect() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if version == 0 and num_tables == 0:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_FORMAT}; COMMIT;")
            elif version != _FORMAT:
                raise EvidenceError(f"{self._index}: is of format {version}, needed {_FORMAT}")

    def _known(self, ids: tuple[str, ...]) -> set[str]:
        with self._connect() as connection:
            return {
                key
                for key in ids
                if connection.execute("SELECT 1 FROM observation WHERE id = ?", (key,)).fetchone() is not None
            }

    def _write_samples(self, observations: tuple[Observation, ...]) -> str:
        """Write one parquet file with the samples of all; return its name, the digest of its bytes."""
        import polars  # here: a third of a second, which planning and serving need not pay

        records = [index for index, item in enumerate(observations) for _ in item.samples]
        samples = [sample for item in observations for sample in item.samples]
        buffer = io.BytesIO()
        polars.DataFrame(
            {"record": records, "sample": samples}, schema={"record": polars.UInt32, "sample": polars.Float64}
        ).write_parquet(buffer, compression="zstd")
        data = buffer.getvalue()
        name = digest_bytes(data).removeprefix("sha256:") + ".parquet"
        handle, temporary = tempfile.mkstemp(dir=self._samples, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self._samples / name)
        except BaseException:
            os.unlink(temporary)
            raise
        return name

    def _read(self, where: list[tuple[str, str]], tail: str) -> tuple[Observation, ...]:
        condition = " AND ".join(clause for clause, _ in where)
        statement = "SELECT id, file, record, document FROM observation"
        if condition:
            statement += f" WHERE {condition}"
        with self._connect() as connection:
            rows = tuple(
                _Row(*fields) for fields in connection.execute(f"{statement} {tail}", [value for _, value in where])
            )
        return self._restore_all(rows)

    def _restore_all(self, rows: tuple[_Row, ...]) -> tuple[Observation, ...]:
        samples = {name: self._read_samples(name) for name in {row.file for row in rows}}
        return tuple(self._restore(row, samples[row.file].get(row.record, ())) for row in rows)

    def _headers(self, rows: list[tuple[str, str]]) -> Iterator[RecordHeader]:
        decoder = msgspec.json.Decoder(_Kept, strict=True)
        items: dict[_Pair, ContextItem] = {}  # few are distinct, and making one checks it
        for key, document in rows:
            try:
                kept = decoder.decode(document)
                context = tuple(
                    items[pair] if pair in items else items.setdefault(pair, ContextItem(pair.key, pair.value))
                    for pair in kept.context
                )
            except (msgspec.DecodeError, ValueError) as error:
                raise EvidenceError(f"{self._index}: observation {key} is altered: {error}") from error
            yield RecordHeader(
                key,
                kept.subject,
                kept.metric,
                kept.unit,
                context,
                kept.protocol,
                kept.evidence_class,
                kept.taken_at_ns,
                kept.producer,
            )

    def _read_samples(self, name: str) -> dict[int, tuple[float, ...]]:
        import polars

        path = self._samples / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EvidenceError(f"{path}: {error.strerror}") from error
        if digest_bytes(data) != f"sha256:{name.removesuffix('.parquet')}":
            raise EvidenceError(f"{path}: its bytes are not those that it is named for")
        frame = polars.read_parquet(io.BytesIO(data))
        grouped: dict[int, list[float]] = {}
        for record, sample in frame.iter_rows():
            grouped.setdefault(record, []).append(sample)
        return {record: tuple(values) for record, values in grouped.items()}

    def _restore(self, row: _Row, samples: tuple[float, ...]) -> Observation:
        source = f"{self._index}: observation {row.id}"
        try:
            fields = read_json(row.document, source)
            found = msgspec.convert({**fields, "samples": samples}, Observation, strict=True)
        except (DocumentError, msgspec.ValidationError, TypeError, ValueError) as error:
            raise EvidenceError(f"{source} is altered: {error}") from error
        if found.id != row.id:
            raise EvidenceError(f"{source} is altered: what is kept has the id {found.id}")
        return found


def _where(subject: str | None, metric: str | None) -> list[tuple[str, str]]:
    return [(f"{column} = ?", value) for column, value in (("subject", subject), ("metric", metric)) if value]


def _without_samples(observation: Observation) -> str:
    fields = msgspec.to_builtins(observation)
    del fields["samples"]
    return canonical_bytes(fields).decode()
