"""What a soak checks can be found to be broken: each check sees a planted defect, and none sees one where none is."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority import SessionState
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow
from inferswarm.strategies.sampling import GREEDY_SAMPLING
from tests.soak.beds import Wanted
from tests.soak.checks import (
    Sample,
    check_answer,
    check_ended,
    check_gone,
    check_refusals,
    growth_of,
)
from tests.soak.ledger_replay import replay_ledger
from tests.unit.fabric.fabric_samples import activate, join, lease, lose, ready, result, start
from tests.unit.fabric.processes import identify
from tests.unit.fabric.recovery_samples import R1, R2, M, attempt, change, planned, resume, switch

MIB = 2**20
WANTED = Wanted((5, 6, 7), ("a", "b", "c"))
RESUMABLE = ev.SessionRequested(prompt_tokens=3, resumable=True, max_tokens=9)


def record(**changed: object) -> m.SessionRecord:
    fields = {
        "session": 1, "epoch": 1, "state": "COMPLETED", "reason": "length", "prompt_ids": (1, 2), "tokens": (5, 6, 7),
        "logits_digests": ("a", "b", "c"), "margins": (), "commit_seconds": (), "partition": "", "replay_of": 0,
        "max_tokens": 3, "sampling": GREEDY_SAMPLING, "stop": (), "matched_stop": None, "logprobs": None,
    }  # fmt: skip
    return m.SessionRecord(**(fields | changed))


@pytest.mark.parametrize(
    ("changed", "seen", "finding"),
    [
        ({}, {2: 5, 3: 6, 4: 7}, None),
        ({"tokens": (5, 9, 7)}, {2: 5, 3: 9, 4: 7}, "another answer from token 1 on"),
        ({"logits_digests": ("a", "b", "x")}, {2: 5, 3: 6, 4: 7}, "another answer from token 2 on"),
        ({}, {2: 5, 4: 7}, "not each of 3 once"),
        ({}, {2: 5, 3: 8, 4: 7}, "other tokens than the ledger"),
        ({"state": "FAILED", "tokens": (5,), "logits_digests": ("a",)}, {2: 5}, "FAILED with 1 of 3"),
    ],
)
def test_an_answer_is_its_reference_and_every_position_of_it_was_seen_once(
    changed: dict[str, object], seen: dict[int, int], finding: str | None
) -> None:
    found = check_answer(WANTED, record(**changed), seen, whole=True)
    assert [item for item in found if finding is None or finding not in item] == []
    assert bool(found) is (finding is not None)


def series(bytes_each: Callable[[int], float], descriptors: Callable[[int], int] = lambda at: 20) -> list[Sample]:
    return [Sample(float(at), int(bytes_each(at)), descriptors(at)) for at in range(0, 400, 2)]


def test_memory_that_grows_after_its_warm_up_is_no_flat_memory() -> None:
    flat = growth_of("agent", 1, series(lambda at: 40 * MIB + min(at, 30) * MIB + at % 7 * 1000))
    assert flat is not None
    assert flat.findings == ()
    leaking = growth_of("agent", 1, series(lambda at: 40 * MIB + at * MIB / 20))
    assert leaking is not None
    assert "grew from" in leaking.findings[0]
    open_files = growth_of("agent", 1, series(lambda at: 40 * MIB, lambda at: 20 + at // 10))
    assert open_files is not None
    assert "descriptors" in open_files.findings[0]
    assert growth_of("agent", 1, series(lambda at: 40 * MIB)[:40]) is None, "80 s are not long enough to judge"


def test_refusals_are_what_the_ledger_has_of_known_kinds_and_never_fewer() -> None:
    late = {"NO_ACTIVE_AUTHORITY": 3}
    assert check_refusals(late, late, {"NO_ACTIVE_AUTHORITY": 2}) == []
    assert "counts" in check_refusals({}, late, {})[0]
    assert "went down" in check_refusals(late, late, {"NO_ACTIVE_AUTHORITY": 4})[0]
    assert "no loss explains" in check_refusals({"BAD_CHECKSUM": 1}, {"BAD_CHECKSUM": 1}, {})[0]


def test_a_process_that_is_left_is_named() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identify(child.pid)
    assert check_gone([process]) == [f"process {child.pid} is left"]
    child.communicate(b"\n")
    assert check_gone([process]) == []


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ledger in which an epoch was lost and replaced, a Coordinator ended, and a session completed."""
    path = tmp_path_factory.mktemp("lived") / "ledger"
    ledger = Ledger(path)
    keeper = AuthorityKeeper("scope", ledger, lambda effect: None)

    def commit(position: int, epoch: int, realization: str) -> None:
        keeper.demand(result(position, epoch=epoch, realization=realization))
        ledger.commit(1, CommitRow(position, position, epoch, "", 0.5, 1))

    for event in (lease(), join("n1"), join("n2"), start(R1), ready(R1), activate(R1), RESUMABLE):
        keeper.demand(event)
    ledger.open_session(SessionRow(1, 1, "OPEN", "", (1, 2, 3), 9, (), b"{}", 0, 1))
    commit(3, 1, R1)
    commit(4, 1, R1)
    keeper.demand(lose(R1))
    ledger.close()
    ledger = Ledger(path)
    keeper = AuthorityKeeper("scope", ledger, lambda effect: None)
    for event in (
        *(lease(2), join("n1"), join("n2"), change(), planned(M.REPLAY)),
        *(attempt(R2), ready(R2), switch(R2), resume()),
    ):
        keeper.demand(event)
    for position in range(5, 12):
        commit(position, 2, R2)
    keeper.demand(ev.SessionEnded(session=1, state=SessionState.COMPLETED, reason="length"))
    keeper.demand(ev.EpochRetired(epoch=2, reason="retired"))
    ledger.close()
    return path


PLANTED = {
    "none": ("", None),
    "a commit by an epoch that had gone": ("UPDATE commits SET epoch=1 WHERE position=6", "by epoch 1"),
    "a commit that is missing": ("DELETE FROM commits WHERE position=4", "position 5"),
    "an event that was never written": ("DELETE FROM audit WHERE kind='EpochRequested' AND number>12", "record"),
    "an effect without an event": (
        "INSERT INTO audit (at_ns, term, kind, body) "
        "SELECT at_ns, term, kind, body FROM audit WHERE kind='EpochLost'",
        "recorded is EpochLost, EpochLost",
    ),
    "another state than the events make": (
        "UPDATE authority SET body="
        "CAST(replace(CAST(body AS TEXT), '\"next_session\":2', '\"next_session\":7') AS BLOB)",
        "the state that was kept",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_replayed_ledger_comes_to_its_state_and_whatever_was_altered_is_found(
    lived: Path, tmp_path: Path, name: str
) -> None:
    statement, finding = PLANTED[name]
    path = tmp_path / "ledger"
    shutil.copy(lived, path)
    with sqlite3.connect(path) as database:
        assert database.execute(statement).rowcount != 0
    database.close()
    replayed = replay_ledger(path, "scope")
    assert replayed.num_commits == 9 - ("DELETE FROM commits" in statement)
    if finding is None:
        assert replayed.findings == ()
    else:
        assert any(finding in item for item in replayed.findings), replayed.findings


def test_what_is_left_open_in_a_ledger_is_named(lived: Path, tmp_path: Path) -> None:
    assert check_ended(lived) == []
    path = tmp_path / "ledger"
    shutil.copy(lived, path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE sessions SET state='OPEN'")
        database.execute("UPDATE epochs SET state='ACTIVE' WHERE number=2")
    database.close()
    assert check_ended(path) == ["session 1 is open after the end", "epoch 2 is ACTIVE after the end"]
