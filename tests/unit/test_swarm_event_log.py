"""The sequence of what happened in a swarm: complete, in order, typed, read as it is asked for."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferswarm.cli_events import read_since
from inferswarm.errors import DocumentError, SpecError
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.journal import Journal
from inferswarm.fabric import audit
from inferswarm.fabric import events as ev
from inferswarm.fabric.acquisition_log import STEPS, AcquisitionLog, AcquisitionReported
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.transfer_records import TransferRecords
from inferswarm.swarm.event_log import SwarmEvent, swarm_events
from tests.command_line import Outcome

JOINED = ev.NodeJoined(node_id="node-1", incarnation="i", lease_until=1.5)
ACTIVATED = ev.EpochActivated(epoch=1, realization_id="realization-1", plan_digest="p")
LOST = ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason="a participant was lost")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[itertools.count[int]]:
    """Times of the ledger: 1 s, 2 s, 3 s and so on after 1970."""
    seconds = itertools.count(1)
    monkeypatch.setattr("inferswarm.fabric.ledger.time.time_ns", lambda: next(seconds) * 10**9)
    return seconds


@pytest.fixture
def ledger(tmp_path: Path, clock: object) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "home.ledger")
    yield opened
    opened.close()


def left(at_seconds: float) -> HealthEvent:
    scope = Scope("node", "node-1")
    return HealthEvent(kind="left", implicated=(scope,), at_ns=str(int(at_seconds * 1e9)), detail="its lease ran out")


def kinds(events: Iterator[SwarmEvent]) -> list[str]:
    return [event.kind for event in events]


def test_three_sources_are_one_sequence_in_the_order_of_their_clocks(tmp_path: Path, ledger: Ledger) -> None:
    ledger.record(1, [JOINED, ACTIVATED])
    ledger.refuse("STALE_EPOCH", "a token of epoch 0")
    ledger.record(1, [LOST])
    Journal(tmp_path).append([left(2.5)])
    found = list(swarm_events(ledger.path, tmp_path))
    assert [event.kind for event in found] == ["NodeJoined", "EpochActivated", "left", "RefusedWork", "EpochLost"]
    assert [event.document for event in found][:2] == [JOINED, ACTIVATED]
    assert found[3].document == audit.RefusedWork(code="STALE_EPOCH", detail="a token of epoch 0")
    assert [int(event.at_ns) / 1e9 for event in found] == [1, 2, 2.5, 3, 4]
    assert (
        str(found[0])
        == "1970-01-01 00:00:01.000000Z  authority  NodeJoined                node_id=node-1 incarnation=i"
    )
    assert str(found[2]).endswith("health     left                      node node-1: its lease ran out")


def test_acquisitions_say_how_far_they_were_a_bounded_number_of_times(tmp_path: Path, ledger: Ledger) -> None:
    """Mutation: write every report, or none of the end."""
    records, now = TransferRecords(ledger), itertools.count()
    ledger.record(1, [JOINED])
    log = AcquisitionLog(records.report, "realization-1", 3, 10**6, lambda: float(next(now)))
    log.begun()
    for done in range(0, 10**6 + 1, 10**4):
        log.moved(done)
    log.ended(None)
    found = [event for event in swarm_events(ledger.path, tmp_path) if event.source == "acquisition"]
    assert [event.number for event in found] == list(range(1, STEPS + 2))
    reports = [event.document for event in found]
    assert [(item.state, item.done_bytes) for item in reports if isinstance(item, AcquisitionReported)] == [
        ("begun", 0),
        *(("under-way", tenths * 10**5) for tenths in range(1, STEPS)),
        ("complete", 10**6),
    ]
    assert "realization-1 under-way: 500 kB of 1.00 MB in place (50%), " in str(found[5])
    assert " left" in str(found[5])
    AcquisitionLog(records.report, "realization-2", 4, 10).ended("its source has gone")
    *_, last = swarm_events(ledger.path, tmp_path, since_ns=int(found[-1].at_ns))
    assert str(last).endswith("realization-2 failed: 0 B of 10 B in place (0%); its source has gone")


def test_quick_acquisitions_are_written_down_twice() -> None:
    reports: list[AcquisitionReported] = []
    log = AcquisitionLog(reports.append, "realization-1", 3, 100, lambda: 7.0)
    log.begun()
    for done in (20, 40, 10, 60, 100):
        log.moved(done)
    log.ended(None)
    assert [item.state for item in reports] == ["begun", "complete"]


def test_only_what_is_not_older_is_returned(tmp_path: Path, ledger: Ledger) -> None:
    ledger.record(1, [JOINED, ACTIVATED, LOST])
    Journal(tmp_path).append([left(0.5), left(3.0)])
    assert kinds(swarm_events(ledger.path, tmp_path, since_ns=3 * 10**9)) == ["left", "EpochLost"]
    assert kinds(swarm_events(None, tmp_path, since_ns=3 * 10**9)) == ["left"]


def test_the_sequence_is_read_in_batches_as_it_is_asked_for(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "BATCH_ROWS", 2)
    ledger.record(1, [JOINED] * 5)
    entries = audit.read_audit(ledger.path)
    assert [next(entries).number for _ in range(3)] == [1, 2, 3]
    ledger.record(1, [LOST])  # nobody holds the file between two batches, and what comes is read too
    assert [entry.number for entry in entries] == [4, 5, 6]


def test_a_followed_swarm_tells_everything_once(tmp_path: Path, ledger: Ledger) -> None:
    later: list[Callable[[], object]] = [
        lambda: ledger.record(1, [LOST]),
        lambda: None,
        lambda: Journal(tmp_path).append([left(9.0)]),
        lambda: ledger.refuse("STALE_EPOCH", "late"),
    ]

    class Enough(Exception):
        pass

    def pause(seconds: float) -> None:
        if not later:
            raise Enough
        later.pop(0)()

    ledger.record(1, [JOINED])
    events = swarm_events(ledger.path, tmp_path, follow=True, pause=pause)
    assert kinds(itertools.islice(events, 4)) == ["NodeJoined", "EpochLost", "left", "RefusedWork"]
    with pytest.raises(Enough):
        next(events)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("NodeJoined", '{"type":"NodeJoined","node_id":"x"}'),
        ("EpochLost", '{"type":"NodeLeft","node_id":"x","reason":"y"}'),
        ("Unheard", '{"type":"Unheard"}'),
        ("NodeLeft", "no JSON"),
    ],
    ids=["field missing", "another kind", "unknown kind", "damaged"],
)
def test_a_record_that_cannot_be_read_is_an_error_with_its_number(
    tmp_path: Path, ledger: Ledger, kind: str, body: str
) -> None:
    ledger.record(1, [JOINED])
    with sqlite3.connect(ledger.path) as database:
        values = (5, 1, kind, body.encode())
        database.execute("INSERT INTO audit (at_ns, term, kind, body) VALUES (?, ?, ?, ?)", values)
    events = swarm_events(ledger.path, tmp_path)
    with pytest.raises(DocumentError, match="record 2"):
        list(events)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ledger").write_text("no ledger, and long enough to be looked at as a database header")
    with pytest.raises(SpecError, match="ledger"):
        list(swarm_events(tmp_path / "x.ledger", tmp_path))


def test_the_command_prints_lines_or_documents(tmp_path: Path, ledger: Ledger, cli: Callable[..., Outcome]) -> None:
    ledger.record(1, [JOINED, LOST])
    done = cli("events", "home", "--state", str(tmp_path), "--json")
    documents = [json.loads(line) for line in done.out.splitlines()]
    assert [item["document"]["type"] for item in documents] == ["NodeJoined", "EpochLost"]
    assert documents[0]["at_ns"] == "1000000000"
    shown = cli("events", "home", "--state", str(tmp_path), "--since", "1970-01-01T00:00:02+00:00").out
    assert shown.split()[3:6] == ["EpochLost", "epoch=1", "state=NON_EXECUTABLE"]


def test_a_swarm_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, ledger: Ledger, cli: Callable[..., Outcome]
) -> None:
    done = cli("events", "else", "--state", str(tmp_path))
    assert done.status == 1
    assert "['home']" in done.err


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10x", "2026-01-31", "2026-01-31T12:00:00"])
def test_a_moment_that_none_is_or_without_its_zone_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="since"):
        read_since(text)


def test_moments_are_ages_or_times_with_a_zone() -> None:
    assert read_since(None) == 0
    assert read_since("2h", 7201 * 10**9) == 10**9
    assert read_since("1d", 5) == 0
    assert read_since("1970-01-01T01:00:01.5+01:00") == 1_500_000_000
