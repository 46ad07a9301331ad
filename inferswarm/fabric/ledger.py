"""The Coordinator's memory: authority, sessions, commits, epochs, plans, refusals and the lease, in SQLite.

Write-ahead log with `synchronous=NORMAL`: what is committed survives the death of the process, not a power cut. A
token is written here before anybody sees it. Whoever has taken the lease writes only while its row still has that
term, looked at in the transaction that writes: a process can be stopped for any time between a decision and its
write. Prompts and outputs are kept because replay needs them; `delete_session` removes them.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferswarm.backends.base import LogProbabilities
from inferswarm.documents import canonical_bytes, digest, read_document
from inferswarm.errors import AuthorityUncertain, SpecError
from inferswarm.fabric.authority import AuthorityState
from inferswarm.strategies.sampling import GREEDY_SAMPLING, Sampling

SCHEMA_VERSION = 4
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS lease (
    scope TEXT PRIMARY KEY, term INTEGER NOT NULL, holder TEXT NOT NULL, until REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS authority (scope TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS orders (scope TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS plans (digest TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, term INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS epochs (
    number INTEGER PRIMARY KEY, realization TEXT NOT NULL UNIQUE, plan TEXT NOT NULL, state TEXT NOT NULL,
    reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    number INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    prompt BLOB NOT NULL, max_tokens INTEGER NOT NULL, stop BLOB NOT NULL, partition BLOB NOT NULL,
    replay_of INTEGER NOT NULL, at_ns INTEGER NOT NULL, sampling BLOB NOT NULL, stop_strings BLOB NOT NULL,
    matched TEXT, model TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE IF NOT EXISTS commits (
    session INTEGER NOT NULL REFERENCES sessions(number) ON DELETE CASCADE, position INTEGER NOT NULL,
    token INTEGER NOT NULL, epoch INTEGER NOT NULL, logits_digest TEXT NOT NULL, margin REAL NOT NULL,
    at_ns INTEGER NOT NULL, logprobs BLOB, PRIMARY KEY (session, position)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refusals (
    number INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, code TEXT NOT NULL, detail TEXT NOT NULL) STRICT;
"""


_UPGRADES = {
    "2": "ALTER TABLE sessions ADD COLUMN model TEXT NOT NULL DEFAULT ''",
    "3": "DELETE FROM authority",  # the tables that came with this schema are there, and empty
}
"""What brings a file of an earlier schema to the next one; what is not here is refused."""

_logprobs = msgspec.json.Decoder(LogProbabilities)


class SessionRow(NamedTuple):
    """One session as it is kept."""

    number: int
    epoch: int
    state: str
    reason: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[int, ...]
    partition: bytes
    """The partition document's JSON: how it was, or is to be, computed."""
    replay_of: int
    at_ns: int
    sampling: Sampling = GREEDY_SAMPLING
    """As it was obeyed: with the seed that was used."""
    stop_strings: tuple[str, ...] = ()
    matched: str | None = None
    """The stop string that ended it."""
    model: str = ""
    """Digest of the model: its description, and the bytes that its states were read from. Empty where not known."""


class CommitRow(NamedTuple):
    """One committed token."""

    position: int
    token: int
    epoch: int
    logits_digest: str
    margin: float
    at_ns: int
    logprobs: LogProbabilities | None = None


class _Fence(NamedTuple):
    """The lease under which a process writes."""

    scope: str
    holder: str
    term: int


class Ledger:
    """One scope's ledger in one file. Used by one process at a time, which the lease ensures.

    Every method that writes raises AuthorityUncertain, and writes nothing, when a lease was taken through this object
    and its row has another term by now.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises SpecError when it cannot be written or is something else."""
        self.path = path
        self._fence: _Fence | None = None
        self._in_transaction = False
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            path.chmod(0o600)  # prompts and answers are in it
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._db.executescript(_SCHEMA)
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
            version = self._upgraded()
        except (sqlite3.Error, OSError) as error:
            raise SpecError("ledger", str(path), f"a writable ledger file ({error})") from error
        if version != str(SCHEMA_VERSION):
            raise SpecError("ledger", f"{path} of schema {version}", f"schema {SCHEMA_VERSION}")

    def _upgraded(self) -> str:
        """Bring a file of an earlier schema up to date, each step whole or not at all; return the file's schema."""
        while True:
            (version,) = self._db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()
            if (upgrade := _UPGRADES.get(version)) is None:
                return str(version)
            with self.transaction():
                self._db.execute(upgrade)
                self._db.execute("UPDATE meta SET value=? WHERE key='schema'", (str(int(version) + 1),))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything inside as a whole or not at all; one inside another is a part of it.

        Raises AuthorityUncertain when the lease that was taken is somebody else's.
        """
        if self._in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        self._in_transaction = True
        try:
            self._check_fence()
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        else:
            self._db.execute("COMMIT")
        finally:
            self._in_transaction = False

    def _check_fence(self) -> None:
        fence = self._fence
        if fence is None:
            return
        row = self._db.execute("SELECT holder, term FROM lease WHERE scope=?", (fence.scope,)).fetchone()
        if row != (fence.holder, fence.term):
            raise AuthorityUncertain(f"the lease of {fence.scope!r} (term {fence.term}) belongs to somebody else now")

    def _write(self, statement: str, values: Sequence[object]) -> int:
        """Execute one statement under the fence; return how many rows it changed."""
        with self.transaction():
            return self._db.execute(statement, values).rowcount

    # -- what other modules keep in this file --

    def extend(self, schema: str) -> None:
        """Add tables, where they are not there yet, whose meaning is another module's."""
        self._db.executescript(schema)

    def write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute one statement for each row, for all of them or for none."""
        with self.transaction():
            self._db.executemany(statement, rows)

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what a question finds."""
        return self._db.execute(statement, values).fetchall()

    # -- lease --

    def acquire_lease(self, scope: str, holder: str, seconds: float) -> int:
        """Take the scope's lease and return its term, one higher than any before.

        Raises AuthorityUncertain while another holder's lease runs. Covers Coordinators on this machine only.
        """
        now = time.time()
        self._fence = None
        with self.transaction():
            row = self._db.execute("SELECT term, holder, until FROM lease WHERE scope=?", (scope,)).fetchone()
            if row is not None and row[2] > now and row[1] != holder:
                raise AuthorityUncertain(
                    f"scope {scope!r} is held by {row[1]} for another {row[2] - now:.1f} s (term {row[0]})"
                )
            term = 1 if row is None else int(row[0]) + 1
            self._db.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?)", (scope, term, holder, now + seconds))
        self._fence = _Fence(scope, holder, term)
        return term

    def renew_lease(self, scope: str, holder: str, term: int, seconds: float) -> None:
        """Extend the lease. Raises AuthorityUncertain when it is no longer this holder's."""
        changed = self._db.execute(
            "UPDATE lease SET until=? WHERE scope=? AND holder=? AND term=?",
            (time.time() + seconds, scope, holder, term),
        ).rowcount
        if changed != 1:
            raise AuthorityUncertain(f"the lease of {scope!r} (term {term}) belongs to somebody else now")

    def release_lease(self, scope: str, holder: str) -> None:
        """Let the lease lapse at once; the term stays."""
        self._db.execute("UPDATE lease SET until=0 WHERE scope=? AND holder=?", (scope, holder))

    # -- authority, audit, epochs, plans --

    def keep_authority(self, state: AuthorityState) -> None:
        """Keep the state of a scope in place of the one before."""
        body = canonical_bytes(state)
        self._write("INSERT OR REPLACE INTO authority VALUES (?, ?)", (state.scope, body))

    def authority(self, scope: str) -> AuthorityState | None:
        """Return the last state that was kept of a scope. Raises DocumentError when it is damaged."""
        row = self._db.execute("SELECT body FROM authority WHERE scope=?", (scope,)).fetchone()
        return None if row is None else read_document(AuthorityState, row[0], f"{self.path}: authority of {scope!r}")

    def keep_order(self, scope: str, order: bytes | None) -> None:
        """Keep what was last ordered to be realized in a scope, as it came; None: nothing is to be realized."""
        if order is None:
            self._write("DELETE FROM orders WHERE scope=?", (scope,))
        else:
            self._write("INSERT OR REPLACE INTO orders VALUES (?, ?)", (scope, order))

    def order(self, scope: str) -> bytes | None:
        """Return what was kept with `keep_order`."""
        row = self._db.execute("SELECT body FROM orders WHERE scope=?", (scope,)).fetchone()
        return None if row is None else bytes(row[0])

    def record(self, term: int, items: Sequence[msgspec.Struct]) -> None:
        """Append events or effects to the audit, in order, all of them or none."""
        rows = [(time.time_ns(), term, type(item).__name__, canonical_bytes(item)) for item in items]
        with self.transaction():
            self._db.executemany("INSERT INTO audit (at_ns, term, kind, body) VALUES (?, ?, ?, ?)", rows)

    def audit(self) -> tuple[tuple[str, str], ...]:
        """Return (kind, JSON body) of everything recorded, in order."""
        rows = self._db.execute("SELECT kind, body FROM audit ORDER BY number").fetchall()
        return tuple((kind, bytes(body).decode()) for kind, body in rows)

    def save_plan(self, plan: msgspec.Struct) -> str:
        """Keep a plan under its digest, which is returned."""
        key = digest(plan)
        self._write("INSERT OR IGNORE INTO plans VALUES (?, ?)", (key, canonical_bytes(plan)))
        return key

    def save_epoch(self, number: int, realization: str, plan_digest: str, state: str, reason: str = "") -> None:
        """Insert an epoch or update its state."""
        self._write(
            "INSERT INTO epochs VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (number) DO UPDATE SET state=excluded.state, reason=excluded.reason",
            (number, realization, plan_digest, state, reason),
        )

    def set_epoch_state(self, number: int, state: str, reason: str | None = None) -> None:
        """Update an epoch's state; without a reason, the one that is there stays."""
        self._write("UPDATE epochs SET state=?, reason=COALESCE(?, reason) WHERE number=?", (state, reason, number))

    def next_numbers(self) -> tuple[int, int]:
        """Return the next session and epoch numbers: one higher than any that was ever used."""
        (session,) = self._db.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM sessions").fetchone()
        (epoch,) = self._db.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM epochs").fetchone()
        return int(session), int(epoch)

    def open_sessions(self) -> tuple[tuple[int, int], ...]:
        """Return number and next position of each session that is open."""
        rows = self._db.execute(
            "SELECT s.number, s.prompt, (SELECT COUNT(*) FROM commits c WHERE c.session=s.number) "
            "FROM sessions s WHERE s.state='OPEN' ORDER BY s.number"
        ).fetchall()
        return tuple((number, len(msgspec.json.decode(prompt)) + committed) for number, prompt, committed in rows)

    def close_unknown(self, sessions: Iterable[int], reason: str) -> int:
        """Fail open sessions that are not among these, and end epochs that say they are in force.

        For what the kept state does not know: a file of an earlier schema, or a session that was written without it.
        Returns how many sessions failed.
        """
        known = set(sessions)
        orphans = [(reason, number) for number, _ in self.open_sessions() if number not in known]
        with self.transaction():
            self._db.execute("UPDATE epochs SET state='NON_EXECUTABLE', reason=? WHERE state='ACTIVE'", (reason,))
            self._db.executemany("UPDATE sessions SET state='FAILED', reason=? WHERE number=?", orphans)
        return len(orphans)

    # -- sessions and commits --

    def open_session(self, row: SessionRow) -> None:
        """Insert a session. Raises sqlite3.IntegrityError when its number was used before."""
        self._write(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.number,
                row.epoch,
                row.state,
                row.reason,
                msgspec.json.encode(row.prompt),
                row.max_tokens,
                msgspec.json.encode(row.stop),
                row.partition,
                row.replay_of,
                row.at_ns,
                msgspec.json.encode(row.sampling),
                msgspec.json.encode(row.stop_strings),
                row.matched,
                row.model,
            ),
        )

    def commit(self, session: int, row: CommitRow) -> None:
        """Write one token. Raises sqlite3.IntegrityError for a position that is committed already."""
        self._write(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                session,
                row.position,
                row.token,
                row.epoch,
                row.logits_digest,
                row.margin,
                row.at_ns,
                None if row.logprobs is None else msgspec.json.encode(row.logprobs),
            ),
        )

    def end_session(
        self, number: int, state: str, reason: str, partition: bytes | None = None, matched: str | None = None
    ) -> None:
        """Record how a session ended, by which stop string, and the partition that it was really computed with."""
        self._write(
            "UPDATE sessions SET state=?, reason=?, matched=?, partition=COALESCE(?, partition) WHERE number=?",
            (state, reason, matched, partition, number),
        )

    def session(self, number: int) -> SessionRow:
        """Return a session. Raises SpecError when there is none with that number."""
        row = self._db.execute("SELECT * FROM sessions WHERE number=?", (number,)).fetchone()
        if row is None:
            raise SpecError("session", number, "the number of a session in this ledger")
        number, epoch, state, reason, prompt, max_tokens, stop, partition, replay_of, at_ns = row[:10]
        sampling, stop_strings, matched, model = row[10:]
        return SessionRow(
            number=number,
            epoch=epoch,
            state=state,
            reason=reason,
            prompt=msgspec.json.decode(prompt, type=tuple[int, ...]),
            max_tokens=max_tokens,
            stop=msgspec.json.decode(stop, type=tuple[int, ...]),
            partition=bytes(partition),
            replay_of=replay_of,
            at_ns=at_ns,
            sampling=msgspec.json.decode(sampling, type=Sampling),
            stop_strings=msgspec.json.decode(stop_strings, type=tuple[str, ...]),
            matched=matched,
            model=model,
        )

    def commits(self, number: int, from_position: int = 0) -> tuple[CommitRow, ...]:
        """Return a session's committed tokens from a position on, in order of position."""
        rows = self._db.execute(
            "SELECT position, token, epoch, logits_digest, margin, at_ns, logprobs FROM commits WHERE session=? "
            "AND position>=? ORDER BY position",
            (number, from_position),
        ).fetchall()
        return tuple(
            CommitRow(*row)._replace(logprobs=None if row[-1] is None else _logprobs.decode(row[-1])) for row in rows
        )

    def delete_session(self, number: int) -> None:
        """Remove a session with its prompt and its tokens; its number stays used."""
        with self.transaction():
            self._db.execute(
                "UPDATE sessions SET prompt=CAST('[]' AS BLOB), stop=CAST('[]' AS BLOB), state='DELETED', "
                "reason='deleted on request', sampling=CAST('{}' AS BLOB), stop_strings=CAST('[]' AS BLOB), "
                "matched=NULL WHERE number=?",
                (number,),
            )
            self._db.execute("DELETE FROM commits WHERE session=?", (number,))

    def refuse(self, code: str, detail: str) -> None:
        """Record a refused result."""
        self._write("INSERT INTO refusals (at_ns, code, detail) VALUES (?, ?, ?)", (time.time_ns(), code, detail))

    def refusals(self) -> dict[str, int]:
        """Return how many results were refused, by code."""
        return dict(self._db.execute("SELECT code, COUNT(*) FROM refusals GROUP BY code").fetchall())
