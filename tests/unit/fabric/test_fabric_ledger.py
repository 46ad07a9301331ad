"""The ledger: what is written stays, contradictions are refused, a kill loses nothing that was acknowledged."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferswarm.documents import digest
from inferswarm.errors import AuthorityUncertain, SpecError
from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, Member
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow
from inferswarm.planner.problem import Workload
from inferswarm.strategies.sampling import Sampling, choose_sampling
from tests.unit.fabric.fabric_samples import PLAN

LONG = 60.0
SAMPLED = choose_sampling(temperature=0.1, top_p=0.9, logit_bias={3: -100.0}, seed=2**64 - 1, logprobs=1)
LOGPROBS = ((9, -0.1), (9, -0.1), (2**31 - 1, -1e-300))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path)
    yield opened
    opened.close()


def session_row(number: int = 1, **changes: object) -> SessionRow:
    row = SessionRow(
        number=number,
        epoch=1,
        state="OPEN",
        reason="",
        prompt=(5, 6, 7),
        max_tokens=10,
        stop=(2, 3),
        partition=b'{"steps":[]}',
        replay_of=0,
        at_ns=1_700_000_000_000_000_001,
    )
    return row._replace(**changes)  # type: ignore[arg-type]


def commit_row(position: int, token: int = 9) -> CommitRow:
    return CommitRow(position, token, 1, f"{position:032x}", 0.25, 1_700_000_000_000_000_002)


def test_everything_is_there_after_reopening(path: Path) -> None:
    first = Ledger(path)
    term = first.acquire_lease("scope", "a", LONG)
    events = [ev.EpochActivated(epoch=1, realization_id="r1", plan_digest=PLAN), ev.ClockAdvanced()]
    first.record(term, events)
    plan_digest = first.save_plan(Workload())
    first.save_epoch(1, "r1", PLAN, "ACTIVE")
    first.open_session(session_row(1))
    first.open_session(session_row(2, prompt=(), stop=(), replay_of=1))
    first.open_session(session_row(3, sampling=SAMPLED, stop_strings=("\u2603", "a"), model="sha256:m"))
    for position in (3, 4):
        first.commit(1, commit_row(position, token=position * 10))
    first.commit(3, commit_row(3)._replace(logprobs=LOGPROBS))
    first.commit(3, commit_row(4)._replace(logprobs=()))
    first.end_session(1, "COMPLETED", "length", b'{"steps":[1]}')
    first.end_session(3, "COMPLETED", "stop", None, "\u2603")
    first.refuse("SESSION_MISMATCH", "session 9")
    audit = first.audit()
    first.close()

    second = Ledger(path)
    assert second.session(1) == session_row(1, state="COMPLETED", reason="length", partition=b'{"steps":[1]}')
    assert second.session(2) == session_row(2, prompt=(), stop=(), replay_of=1)
    assert second.commits(1) == (commit_row(3, 30), commit_row(4, 40))
    assert second.session(3) == session_row(
        3,
        state="COMPLETED",
        reason="stop",
        sampling=SAMPLED,
        stop_strings=("\u2603", "a"),
        matched="\u2603",
        model="sha256:m",
    )
    assert second.commits(2) == ()
    assert [row.logprobs for row in second.commits(3)] == [LOGPROBS, ()]
    assert second.audit() == audit
    assert [kind for kind, _ in audit] == ["EpochActivated", "ClockAdvanced"]
    assert second.refusals() == {"SESSION_MISMATCH": 1}
    assert second.next_numbers() == (4, 2)
    assert plan_digest == digest(Workload())
    second.close()


def test_a_position_is_committed_once(ledger: Ledger) -> None:
    ledger.open_session(session_row())
    ledger.commit(1, commit_row(3, token=1))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit(1, commit_row(3, token=2))
    assert [row.token for row in ledger.commits(1)] == [1]


def test_a_commit_needs_its_session(ledger: Ledger) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit(1, commit_row(3))


def test_commits_are_listed_by_position_and_by_session(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.open_session(session_row(number))
    for position in (4, 3, 5):
        ledger.commit(1, commit_row(position))
    ledger.commit(2, commit_row(3))
    assert [row.position for row in ledger.commits(1)] == [3, 4, 5]
    assert [row.position for row in ledger.commits(2)] == [3]


def test_a_session_number_and_a_realization_are_used_once(ledger: Ledger) -> None:
    ledger.open_session(session_row())
    with pytest.raises(sqlite3.IntegrityError):
        ledger.open_session(session_row(prompt=(1,)))
    ledger.save_epoch(1, "r1", PLAN, "ACTIVE")
    with pytest.raises(sqlite3.IntegrityError):
        ledger.save_epoch(2, "r1", PLAN, "ACTIVE")


def test_an_unknown_session_is_the_callers_mistake(ledger: Ledger) -> None:
    with pytest.raises(SpecError) as caught:
        ledger.session(4)
    assert (caught.value.field, caught.value.found) == ("session", 4)
    assert ledger.commits(4) == ()


# -- the lease --


def test_each_taking_of_the_lease_has_a_higher_term(ledger: Ledger) -> None:
    terms = [ledger.acquire_lease("scope", "a", LONG), ledger.acquire_lease("scope", "a", LONG)]
    ledger.release_lease("scope", "a")
    terms.append(ledger.acquire_lease("scope", "b", LONG))
    assert terms == [1, 2, 3]
    assert ledger.acquire_lease("another scope", "b", LONG) == 1


def test_a_running_lease_keeps_a_second_holder_out(path: Path, ledger: Ledger) -> None:
    term = ledger.acquire_lease("scope", "a", LONG)
    other = Ledger(path)
    with pytest.raises(AuthorityUncertain, match="held by a"):
        other.acquire_lease("scope", "b", LONG)
    ledger.renew_lease("scope", "a", term, LONG)
    other.close()


def test_a_lapsed_lease_can_be_taken_and_its_old_holder_notices(path: Path, ledger: Ledger) -> None:
    term = ledger.acquire_lease("scope", "a", 0.05)
    other = Ledger(path)
    time.sleep(0.1)
    assert other.acquire_lease("scope", "b", LONG) == term + 1
    with pytest.raises(AuthorityUncertain, match="somebody else"):
        ledger.renew_lease("scope", "a", term, LONG)
    with pytest.raises(AuthorityUncertain, match="held by b"):
        ledger.acquire_lease("scope", "a", LONG)
    other.close()


def test_a_lapsed_lease_that_nobody_took_can_be_renewed(ledger: Ledger) -> None:
    term = ledger.acquire_lease("scope", "a", 0.01)
    time.sleep(0.05)
    ledger.renew_lease("scope", "a", term, LONG)


@pytest.mark.parametrize(("holder", "term_off"), [("b", 0), ("a", 1), ("a", -1)])
def test_only_the_holder_renews_and_only_in_its_term(ledger: Ledger, holder: str, term_off: int) -> None:
    term = ledger.acquire_lease("scope", "a", LONG)
    with pytest.raises(AuthorityUncertain):
        ledger.renew_lease("scope", holder, term + term_off, LONG)


def test_releasing_is_for_the_holder(ledger: Ledger) -> None:
    ledger.acquire_lease("scope", "a", LONG)
    ledger.release_lease("scope", "b")
    with pytest.raises(AuthorityUncertain):
        ledger.acquire_lease("scope", "b", LONG)
    ledger.release_lease("scope", "a")
    assert ledger.acquire_lease("scope", "b", LONG) == 2


# -- orphans, deletion, refusals --


def test_what_the_kept_state_does_not_know_fails_and_what_had_ended_stays(ledger: Ledger) -> None:
    for number, state in ((1, "OPEN"), (2, "COMPLETED"), (3, "OPEN"), (4, "OPEN")):
        ledger.open_session(session_row(number, state=state))
    ledger.commit(1, commit_row(3))
    ledger.save_epoch(1, "r1", PLAN, "RECLAIMED")
    ledger.save_epoch(2, "r2", PLAN, "ACTIVE")
    assert ledger.open_sessions() == ((1, 4), (3, 3), (4, 3))
    assert ledger.close_unknown([4], "its Coordinator ended") == 2
    assert [ledger.session(number).state for number in (1, 2, 3, 4)] == ["FAILED", "COMPLETED", "FAILED", "OPEN"]
    assert ledger.session(1).reason == "its Coordinator ended"
    assert [row.position for row in ledger.commits(1)] == [3]
    with sqlite3.connect(ledger.path) as reader:
        states = reader.execute("SELECT number, state FROM epochs ORDER BY number").fetchall()
    reader.close()
    assert states == [(1, "RECLAIMED"), (2, "NON_EXECUTABLE")]
    assert ledger.close_unknown([4], "again") == 0


def test_the_state_of_authority_and_the_order_are_read_back_as_they_were_kept(path: Path) -> None:
    state = AuthorityState(scope="s", term=3, members=(Member(node_id="n", incarnation="i", lease_until=0.1),))
    for kept, order in ((state, b"first"), (msgspec.structs.replace(state, next_epoch=9), b"second")):
        ledger = Ledger(path)
        ledger.keep_authority(kept)
        ledger.keep_order("s", order)
        ledger.close()
        ledger = Ledger(path)
        assert (ledger.authority("s"), ledger.authority("other")) == (kept, None)
        assert (ledger.order("s"), ledger.order("other")) == (order, None)
        ledger.keep_order("s", None)
        assert ledger.order("s") is None
        ledger.close()


def test_who_lost_the_lease_writes_nothing_more(ledger: Ledger, path: Path) -> None:
    ledger.acquire_lease("s", "first", 0.0)
    ledger.open_session(session_row(1))
    ledger.commit(1, commit_row(3))
    heir = Ledger(path)
    heir.acquire_lease("s", "heir", LONG)
    state = AuthorityState(scope="s")
    for write in (
        lambda: ledger.commit(1, commit_row(4)),
        lambda: ledger.open_session(session_row(2)),
        lambda: ledger.end_session(1, "COMPLETED", "length"),
        lambda: ledger.keep_authority(state),
        lambda: ledger.record(1, [ev.ClockAdvanced()]),
        lambda: ledger.save_epoch(1, "r", PLAN, "ACTIVE"),
        lambda: ledger.refuse("A", "detail"),
        lambda: ledger.delete_session(1),
        lambda: ledger.close_unknown([], "reason"),
    ):
        with pytest.raises(AuthorityUncertain, match="somebody else"):
            write()
    assert (heir.session(1).state, len(heir.commits(1)), heir.authority("s"), heir.audit()) == ("OPEN", 1, None, ())
    heir.commit(1, commit_row(4))
    heir.close()


def test_a_transaction_that_fails_leaves_nothing_of_what_was_written_in_it(ledger: Ledger) -> None:
    def write_twice() -> None:
        with ledger.transaction():
            ledger.open_session(session_row(1))
            ledger.open_session(session_row(1))

    with pytest.raises(sqlite3.IntegrityError):
        write_twice()
    with pytest.raises(SpecError):
        ledger.session(1)
    ledger.open_session(session_row(1))


def test_a_deleted_session_leaves_no_text_and_its_number_stays_used(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.open_session(session_row(number, sampling=SAMPLED, stop_strings=("secret",)))
        ledger.commit(number, commit_row(3))
        ledger.end_session(number, "COMPLETED", "stop", None, "secret")
    ledger.delete_session(2)
    deleted = ledger.session(2)
    assert (deleted.prompt, deleted.stop, deleted.state) == ((), (), "DELETED")
    assert (deleted.sampling, deleted.stop_strings, deleted.matched) == (Sampling(), (), None)
    assert ledger.commits(2) == ()
    assert len(ledger.commits(1)) == 1
    assert ledger.next_numbers()[0] == 3


def test_refusals_are_counted_by_code(ledger: Ledger) -> None:
    for code in ("B", "A", "B"):
        ledger.refuse(code, "detail")
    assert ledger.refusals() == {"A": 1, "B": 2}


def test_a_record_of_several_items_is_written_whole_or_not_at_all(ledger: Ledger) -> None:
    class Unwritable(ev.ClockAdvanced, frozen=True, kw_only=True, tag=True):
        number: int

    with pytest.raises(Exception, match="canonical form"):
        ledger.record(1, [ev.ClockAdvanced(), Unwritable(number=2**60)])
    assert ledger.audit() == ()
    ledger.record(1, [ev.ClockAdvanced()])
    assert ledger.audit() == (("ClockAdvanced", '{"type":"ClockAdvanced"}'),)


# -- files that are no ledger --


@pytest.mark.parametrize("content", [b"not a database", b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_of_something_else_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        Ledger(path)
    assert caught.value.field == "ledger"
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["", "missing/ledger", "file/ledger"], ids=["directory", "no parent", "in a file"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SpecError) as caught:
        Ledger(tmp_path / name)
    assert str(tmp_path) in str(caught.value.found)


@pytest.mark.parametrize("schema", [1, 99])
def test_a_ledger_of_another_schema_is_refused(path: Path, schema: int) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as writer:
        writer.execute("UPDATE meta SET value=? WHERE key='schema'", (str(schema),))
    writer.close()
    with pytest.raises(SpecError, match=f"schema {schema}"):
        Ledger(path)


BEFORE_MODELS = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    prompt BLOB NOT NULL, max_tokens INTEGER NOT NULL, stop BLOB NOT NULL, partition BLOB NOT NULL,
    replay_of INTEGER NOT NULL, at_ns INTEGER NOT NULL, sampling BLOB NOT NULL, stop_strings BLOB NOT NULL,
    matched TEXT) STRICT;
"""


def test_a_ledger_from_before_models_were_recorded_is_read_on_and_written_on(path: Path) -> None:
    Ledger(path).close()
    with sqlite3.connect(path) as writer:
        writer.execute("DROP TABLE sessions")
        writer.execute(BEFORE_MODELS)
        writer.execute(
            "INSERT INTO sessions VALUES (1, 1, 'OPEN', '', ?, 10, ?, ?, 0, 1700000000000000001, ?, ?, NULL)",
            (b"[5,6,7]", b"[2,3]", b'{"steps":[]}', b"{}", b"[]"),
        )
        writer.execute("UPDATE meta SET value='2' WHERE key='schema'")
    writer.close()
    for _ in range(2):  # the second time it is up to date already
        ledger = Ledger(path)
        assert ledger.session(1) == session_row(1)
        ledger.close()
    ledger = Ledger(path)
    ledger.open_session(session_row(2, model="sha256:m"))
    assert ledger.session(2).model == "sha256:m"
    ledger.close()


# -- death between two commits --

WRITER = """
import sys
from pathlib import Path
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow
ledger = Ledger(Path(sys.argv[1]))
ledger.acquire_lease("scope", "victim", 60.0)
ledger.open_session(SessionRow(1, 1, "OPEN", "", (5,), 10**6, (), b"{}", 0, 1))
for position in range(1, 10**6):
    ledger.commit(1, CommitRow(position, position * 7 % 1000, 1, "digest", 0.5, position))
    sys.stdout.write(f"{position}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_between_commits_keeps_all_that_were_acknowledged(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    victim = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    acknowledged = 0
    for _ in range(chance.randrange(1, 200)):
        acknowledged = int(victim.stdout.readline())
    time.sleep(chance.uniform(0.0, 0.02))
    os.kill(victim.pid, signal.SIGKILL)
    rest = victim.stdout.read().splitlines()
    victim.wait()
    victim.stdout.close()
    if len(rest) > 1:  # the last line may be cut
        acknowledged = int(rest[-2])

    with sqlite3.connect(path) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    reader.close()
    survivor = Ledger(path)
    commits = survivor.commits(1)
    assert [row.position for row in commits] == list(range(1, len(commits) + 1))
    assert all(row.token == row.position * 7 % 1000 for row in commits)
    assert len(commits) >= acknowledged
    assert survivor.session(1).state == "OPEN"
    with pytest.raises(AuthorityUncertain, match="held by victim"):
        survivor.acquire_lease("scope", "heir", LONG)
    assert survivor.close_unknown([], "killed") == 1
    survivor.close()
