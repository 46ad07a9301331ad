"""What a Coordinator keeps of artifacts: who was allowed to get what from whom, every byte that moved, pins, owners.

It lies in the scope's ledger, under the same lease, so that a successor goes on with it: a generation never comes
again, a digest that the first fetch found holds for the next one, a source that gave other bytes is not asked again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from inferswarm.artifacts.byte_ledger import ByteLedger, LedgerEvent
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.documents import Document, canonical_bytes, digest, read_document
from inferswarm.errors import SpecError
from inferswarm.fabric.ledger import Ledger

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS acquisitions (
    generation INTEGER PRIMARY KEY, realization TEXT NOT NULL UNIQUE, at_ns INTEGER NOT NULL, nodes BLOB NOT NULL,
    artifacts TEXT NOT NULL, serving_since INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS artifact_sets (digest TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS transfers (
    number INTEGER PRIMARY KEY, generation INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS transfers_of_generation ON transfers (generation);
CREATE TABLE IF NOT EXISTS authorizations (
    generation INTEGER NOT NULL, participant TEXT NOT NULL, artifact TEXT NOT NULL, source TEXT NOT NULL,
    PRIMARY KEY (generation, participant, artifact, source)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pins (
    uri TEXT NOT NULL, version TEXT NOT NULL, first INTEGER NOT NULL, past INTEGER NOT NULL, sha256 TEXT NOT NULL,
    PRIMARY KEY (uri, version, first, past)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shut_sources (
    source TEXT NOT NULL, sha256 TEXT NOT NULL, at_ns INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (source, sha256)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS artifact_owners (
    owner TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (owner, node)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS declared_results (
    generation INTEGER NOT NULL, artifact TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (generation, artifact))
    STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS acquisition_reports (
    number INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
"""
REPORTS_TABLE: Final = "acquisition_reports"
REPORTS_QUERY: Final = (
    "SELECT number, at_ns, body FROM acquisition_reports WHERE number>? AND at_ns>=? ORDER BY number LIMIT ?"
)
_HAS_RESULTS: Final = "SELECT 1 FROM sqlite_master WHERE name='declared_results'"
_RESULTS: Final = "SELECT artifact FROM declared_results WHERE generation=?"
_TABLES: Final = "SELECT 1 FROM sqlite_master WHERE name='acquisitions'"
_RECORDS: Final = (
    "SELECT generation, realization, at_ns, nodes, s.body, serving_since FROM acquisitions "
    "JOIN artifact_sets s ON s.digest=artifacts ORDER BY generation"
)
_EVENTS: Final = "SELECT body FROM transfers WHERE generation=? ORDER BY number"
_ALLOWED: Final = "SELECT participant, artifact, source FROM authorizations WHERE generation=?"

Place = tuple[str, str, int, int]
"""Which bytes of which version of an object: URI, version, start, end."""
HAS_CONTENT: Final = ("acquired", "cache_hit", "resume_transfer")
"""Classes of events after which a content is there, verified."""
_event = msgspec.json.Decoder(LedgerEvent)
_nodes = msgspec.json.Decoder(tuple[tuple[str, str, str], ...])


class TransferRecord(NamedTuple):
    """What moved for one realization."""

    generation: int
    realization: str
    at_ns: int
    """When it began, in nanoseconds since 1970."""
    nodes: tuple[tuple[str, str, str], ...]
    """Participant, Node id and Node name, in route order."""
    artifacts: PlanArtifacts
    events: tuple[LedgerEvent, ...]
    authorized: frozenset[tuple[str, str, str]]
    """Participant, artifact id and source id of every attempt that was allowed."""
    serving_since_ns: int | None
    """When its stages began to serve; None: they did not."""
    results: frozenset[str] = frozenset()
    """Ids of results of transforms that participants were to get from peers, beside what they need."""

    @property
    def ledger(self) -> ByteLedger:
        """Return its ledger of bytes. Raises ArtifactError as `ByteLedger.append`."""
        return ByteLedger(self.events)


def pin_place(artifact: Artifact) -> Place | None:
    """Return what a pin of an artifact is of; None where nothing tells the object's version from another."""
    if isinstance(artifact.origin.version, msgspec.UnsetType):
        return None
    return (artifact.origin.uri, artifact.origin.version, artifact.range.start, artifact.range.end)


def known_digests(records: Iterable[TransferRecord]) -> dict[Place, str]:
    """Return the digests that earlier acquisitions found, by what they are of."""
    found: dict[Place, str] = {}
    for record in records:
        by_id = {artifact.id: artifact for item in record.artifacts.participants for artifact in item.artifacts}
        for event in record.events:
            artifact = None if isinstance(event.artifact, msgspec.UnsetType) else by_id.get(event.artifact)
            if event.kind not in HAS_CONTENT or artifact is None or isinstance(event.content, msgspec.UnsetType):
                continue
            if (place := pin_place(artifact)) is not None:
                found.setdefault(place, event.content)
    return found


class TransferRecords:
    """The records of one scope, in its ledger. Writing raises AuthorityUncertain as the ledger does."""

    def __init__(self, ledger: Ledger) -> None:
        """Use a ledger's file."""
        self._ledger = ledger
        ledger.extend(SCHEMA)

    # -- one realization --

    def begin(self, realization: str, nodes: tuple[tuple[str, str, str], ...], artifacts: PlanArtifacts) -> int:
        """Begin the record of a realization; returns its generation, higher than any before."""
        key = digest(artifacts)
        with self._ledger.transaction():
            ((generation,),) = self._ledger.rows("SELECT COALESCE(MAX(generation), 0) + 1 FROM acquisitions")
            body = canonical_bytes(artifacts)
            self._ledger.write("INSERT OR IGNORE INTO artifact_sets VALUES (?, ?)", [(key, body)])
            self._ledger.write(
                "INSERT INTO acquisitions VALUES (?, ?, ?, ?, ?, NULL)",
                [(generation, realization, time.time_ns(), canonical_bytes(nodes), key)],
            )
        return int(generation)

    def authorize(self, generation: int, attempts: Iterable[tuple[str, str, str]]) -> None:
        """Keep that participants may get artifacts from sources: participant, artifact id, source id."""
        rows = [(generation, *attempt) for attempt in attempts]
        self._ledger.write("INSERT OR IGNORE INTO authorizations VALUES (?, ?, ?, ?)", rows)

    def declare_results(self, generation: int, results: Iterable[Artifact]) -> None:
        """Keep which results of transforms participants are to get beside what they need."""
        rows = [(generation, result.id, canonical_bytes(result)) for result in results]
        self._ledger.write("INSERT OR IGNORE INTO declared_results VALUES (?, ?, ?)", rows)

    def append(self, generation: int, events: Iterable[LedgerEvent]) -> None:
        """Add events, in their order."""
        rows = [(generation, msgspec.json.encode(event)) for event in events]
        self._ledger.write("INSERT INTO transfers (generation, body) VALUES (?, ?)", rows)

    def serves(self, realization: str) -> None:
        """Keep that a realization serves from now on; nothing where it acquired nothing."""
        statement = "UPDATE acquisitions SET serving_since=COALESCE(serving_since, ?) WHERE realization=?"
        self._ledger.write(statement, [(time.time_ns(), realization)])

    def report(self, how_far: Document) -> None:
        """Keep how far an acquisition is (`acquisition_log` reads it)."""
        statement = "INSERT INTO acquisition_reports (at_ns, body) VALUES (?, ?)"
        self._ledger.write(statement, [(time.time_ns(), canonical_bytes(how_far))])

    # -- what holds beyond it --

    def pins(self) -> dict[Place, str]:
        """Return the digests that first fetches found."""
        rows = self._ledger.rows("SELECT uri, version, first, past, sha256 FROM pins")
        return {(uri, version, start, end): sha256 for uri, version, start, end, sha256 in rows}

    def pin(self, found: Iterable[tuple[Place, str]]) -> None:
        """Keep digests that first fetches found; of one place the first stays."""
        rows = [(*place, sha256) for place, sha256 in found]
        self._ledger.write("INSERT OR IGNORE INTO pins VALUES (?, ?, ?, ?, ?)", rows)

    def shut(self, source: str, sha256: str, reason: str) -> None:
        """Keep that a source is not to be asked for a content any more."""
        statement = "INSERT OR IGNORE INTO shut_sources VALUES (?, ?, ?, ?)"
        self._ledger.write(statement, [(source, sha256, time.time_ns(), reason)])

    def shut_sources(self) -> frozenset[tuple[str, str]]:
        """Return (source id, digest of a content) of those that are not to be asked."""
        return frozenset(self._ledger.rows("SELECT source, sha256 FROM shut_sources"))

    def own(self, owner: str, nodes: Iterable[str]) -> None:
        """Keep that Nodes have contents for an owner."""
        self._ledger.write("INSERT OR IGNORE INTO artifact_owners VALUES (?, ?)", [(owner, node) for node in nodes])

    def disown(self, owner: str, node: str) -> None:
        """Keep that a Node has nothing for an owner any more."""
        self._ledger.write("DELETE FROM artifact_owners WHERE owner=? AND node=?", [(owner, node)])

    def owners(self) -> tuple[tuple[str, str], ...]:
        """Return owners and the Nodes that have contents for them."""
        return tuple(self._ledger.rows("SELECT owner, node FROM artifact_owners ORDER BY owner, node"))


def read_transfers(ledger: Path) -> tuple[TransferRecord, ...]:
    """Return what a Coordinator has recorded, while it runs or after, the oldest first; nothing is written.

    Raises SpecError for a file that is no ledger, DocumentError for a record that this version cannot read.
    """
    address = f"file:{quote(str(ledger.absolute()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
            if not connection.execute(_TABLES).fetchall():
                return ()
            return tuple(_read(connection, str(ledger)))
    except sqlite3.Error as error:
        raise SpecError("ledger", str(ledger), f"a swarm's ledger that can be read ({error})") from error


def _read(connection: sqlite3.Connection, source: str) -> Iterator[TransferRecord]:
    has_results = connection.execute(_HAS_RESULTS).fetchall()  # a ledger from before them is read as it is
    for row in connection.execute(_RECORDS).fetchall():
        generation, realization, at_ns, nodes, artifacts, serving_since = row
        events: list[tuple[Any, ...]] = connection.execute(_EVENTS, (generation,)).fetchall()
        yield TransferRecord(
            generation=generation,
            realization=realization,
            at_ns=at_ns,
            nodes=_nodes.decode(nodes),
            artifacts=read_document(PlanArtifacts, artifacts, f"{source}: artifacts of {realization}"),
            events=tuple(_event.decode(body) for (body,) in events),
            authorized=frozenset(connection.execute(_ALLOWED, (generation,)).fetchall()),
            serving_since_ns=serving_since,
            results=frozenset(
                result
                for (result,) in (connection.execute(_RESULTS, (generation,)).fetchall() if has_results else ())
            ),
        )
