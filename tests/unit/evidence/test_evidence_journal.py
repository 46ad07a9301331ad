from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import pytest

from inferswarm.documents import canonical_bytes, digest_bytes
from inferswarm.errors import EvidenceError, SpecError
from inferswarm.evidence.alerts import review
from inferswarm.evidence.baselines import accept_baseline
from inferswarm.evidence.events import Scope
from inferswarm.evidence.journal import Journal
from tests.unit.evidence.evidence_samples import NOW, SECOND, make_baseline, make_event, make_record, noisy

PATH = Scope("path", "node-1->node-2")
BASELINE = make_baseline()
SLOW = [make_record(samples=noisy(1.5e-3, seed=seed), at_ns=NOW + seed * SECOND) for seed in (1, 2)]
ALERT = review(BASELINE, SLOW, None, now_ns=NOW + 3 * SECOND).alert


def change(directory: Path, statement: str) -> None:
    connection = sqlite3.connect(directory / "journal.sqlite")
    with connection:
        connection.execute(statement)
    connection.close()


def test_what_was_written_is_in_force_after_a_restart(tmp_path: Path) -> None:
    assert ALERT is not None
    event = make_event("checksum-mismatch", PATH)
    assert Journal(tmp_path).append([BASELINE, ALERT, event]) == (1, 2, 3)
    again = Journal(tmp_path)
    assert [(entry.sequence, entry.document) for entry in again.entries()] == [(1, BASELINE), (2, ALERT), (3, event)]
    assert again.baseline(make_record()) == BASELINE
    assert again.baseline(make_record("gpu-1")) is None
    assert again.open_alerts() == (ALERT,)
    assert again.health(PATH).integrity.state == "quarantined"
    assert [item.scope for item in again.quarantines().active] == [PATH]
    assert again.events() == (event,)


def test_an_alert_is_open_until_its_end_is_written(tmp_path: Path) -> None:
    assert ALERT is not None
    journal = Journal(tmp_path)
    journal.append([BASELINE, ALERT])
    well = [make_record(samples=noisy(1e-3, seed=seed), at_ns=NOW + (seed + 10) * SECOND) for seed in (1, 2)]
    cleared = review(BASELINE, well, ALERT, now_ns=NOW + 60 * SECOND).cleared
    assert cleared is not None
    journal.append([cleared])
    assert journal.open_alerts() == ()
    with pytest.raises(SpecError, match="was not open"):
        journal.append([cleared])
    assert len(journal.entries()) == 3


def test_versions_of_a_baseline_follow_each_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    fields = {"accepted_by": "operator", "accepted_at_ns": str(NOW + SECOND), "reason": "another card"}
    record = make_record(samples=noisy(2e-3))
    second = accept_baseline([record], previous=BASELINE, **fields)  # type: ignore[arg-type]
    rival = msgspec.structs.replace(second, reason="I know better")
    with pytest.raises(SpecError, match="an acceptance of version 1"):
        journal.append([second])
    journal.append([BASELINE])
    with pytest.raises(SpecError, match="an acceptance of version 2"):
        journal.append([msgspec.structs.replace(BASELINE, reason="again")])
    journal.append([second])
    with pytest.raises(SpecError, match="an acceptance of version 3"):
        journal.append([rival])
    assert journal.baseline(make_record()) == second


def test_documents_are_added_all_or_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(SpecError):
        journal.append([make_event("slowed"), msgspec.structs.replace(BASELINE, version=2, replaces=BASELINE.id)])
    assert journal.entries() == ()
    assert journal.append([]) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET document = replace(document, 'frame', 'Frame') WHERE sequence = 2",
        "DELETE FROM entry WHERE sequence = 2",
        "UPDATE entry SET sequence = 9 WHERE sequence = 3",
        "UPDATE entry SET chain = 'sha256:' || substr(chain, 9) || '0' WHERE sequence = 1",
    ],
)
def test_an_altered_entry_breaks_the_chain(tmp_path: Path, statement: str) -> None:
    journal = Journal(tmp_path)
    journal.append([make_event("slowed"), make_event("checksum-mismatch", detail="frame 9"), make_event("left")])
    change(tmp_path, statement)
    with pytest.raises(EvidenceError, match=r"entry \d is missing or altered"):
        journal.entries()
    with pytest.raises(EvidenceError, match=r"entry \d is missing or altered"):
        journal.append([make_event("left")])


def test_a_journal_of_another_format_or_kind_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "a")
    change(tmp_path / "a", "PRAGMA user_version = 9")
    with pytest.raises(EvidenceError, match="format 9, needed 1"):
        Journal(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "journal.sqlite").write_text("not a database, and long enough to be seen as none " * 20)
    with pytest.raises(EvidenceError, match=r"journal\.sqlite"):
        Journal(tmp_path / "b")
    (tmp_path / "c").write_text("")
    with pytest.raises(SpecError, match="evidence journal"):
        Journal(tmp_path / "c" / "d")


def test_an_entry_takes_its_place_behind_what_is_being_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    first, second = make_event("slowed"), make_event("left")
    text = canonical_bytes(first).decode()
    chain = digest_bytes(f"sha256:{'0' * 64}\n{text}".encode())
    writing = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    writing.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(max_workers=1) as executor:
        waiting = executor.submit(journal.append, [second])
        assert not wait([waiting], timeout=0.2).done
        writing.execute("INSERT INTO entry VALUES (1, ?, ?)", (chain, text))
        writing.execute("COMMIT")
        assert waiting.result(timeout=30) == (2,)
    writing.close()
    assert journal.events() == (first, second)


WRITER = """
import sys
from pathlib import Path
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.journal import Journal

journal = Journal(Path(sys.argv[1]))
for number in range(15):
    scope = Scope("node", sys.argv[2])
    journal.append([HealthEvent(kind="slowed", implicated=(scope,), at_ns=str(number), detail="seen")])
"""


def test_two_processes_may_write_one_journal_at_once(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in ("a", "b")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    entries = Journal(tmp_path).entries()
    assert [entry.sequence for entry in entries] == list(range(1, 31))
    for name in ("a", "b"):
        times = [item.at_ns for item in Journal(tmp_path).events() if item.implicated[0].id == name]
        assert times == [str(number) for number in range(15)]
