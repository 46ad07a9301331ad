"""A writer that is killed, or whose disk is full, at whatever step; and files that would keep a reader waiting."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inferswarm.campaigns import ledger_lock, requesting, verify
from inferswarm.campaigns.acceptance import accept, read_records, write_record
from inferswarm.campaigns.ledger import Ledger
from inferswarm.campaigns.ledger_lock import LockHeldError
from inferswarm.campaigns.preflight import PreparedArm
from inferswarm.campaigns.repository import Repository
from inferswarm.campaigns.saying import saying
from inferswarm.campaigns.verdicts import RootVerdict
from inferswarm.campaigns.verify import verify_root
from inferswarm.cli_verify import EXIT_BROKEN, EXIT_NO_PROVENANCE, exit_status, verdict_lines
from inferswarm.documents import write_document
from inferswarm.errors import EvidenceError, SpecError
from tests.unit.campaigns.made_runs import make_project, make_run, prepare

STEPS = ("mkdir", "rename", "replace", "fsync")
MOST_STEPS = 40
FIRST_STEP = 15
"""Of those that differ: before it, a request's files are copied one by one."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("interrupted") / "project")


@pytest.fixture(scope="module")
def passed(project: Path) -> Path:
    """A root in which both arms passed."""
    for arm in ("first", "second"):
        make_run(project, project / "evidence", arm)
    return project / "evidence"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long and is the same every time is found out once."""
    monkeypatch.setattr(verify, "this_verifier", functools.cache(verify.this_verifier))
    monkeypatch.setattr(requesting, "package_tree", functools.cache(requesting.package_tree))
    nowhere = Repository(commit="", dirty=True, diff_digest="", reason="not asked")
    monkeypatch.setattr(requesting, "read_repository", lambda project: nowhere)


def request(project: Path, root: Path) -> None:
    prepared = prepare(project, root)
    arm = prepared.spec.arm("first")
    notebook = (project / arm.notebook).read_bytes()
    requesting.request_run(prepared, PreparedArm(arm, notebook), time.time_ns())


def say(project: Path, root: Path) -> None:
    ledger = Ledger(root)
    chain = ledger.read()
    waivers = read_records(root, "made", chain).waivers
    said = saying("somebody", "read them")
    write_record(ledger, accept(chain, waivers, ("first", "second"), campaign="made", edition=1, said=said))


def interrupted(step: int, kill: bool, work: Callable[[], None]) -> bool:
    """Do some work in a process that is killed before its step, or whose disk is full there; say if it came there."""
    child = os.fork()
    if child == 0:
        count = 0

        def before(call):
            def counted(*arguments, **options):
                nonlocal count
                count += 1
                if count == step and kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                if count == step:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return call(*arguments, **options)

            return counted

        for name in STEPS:
            setattr(os, name, before(getattr(os, name)))
        status = 9
        try:
            with contextlib.suppress(SpecError, EvidenceError):
                work()
            status = 0 if count < step else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1, -signal.SIGKILL)
    return status != 0


def looked_at(root: Path, project: Path) -> RootVerdict | None:
    """Return what is there; None where it is nothing yet."""
    try:
        return verify_root(root, project)
    except SpecError:
        return None


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "full"])
def test_a_request_is_there_or_was_never_made_wherever_its_writer_ends(project, tmp_path, kill):
    for step in (*range(1, FIRST_STEP, 6 if kill else FIRST_STEP), *range(FIRST_STEP, MOST_STEPS)):
        root = tmp_path / str(step)
        went_so_far = interrupted(step, kill, lambda root=root: request(project, root))
        there = looked_at(root, project)
        assert there is None or exit_status(there, ()) in (0, EXIT_NO_PROVENANCE), (step, there.findings)
        if step < FIRST_STEP and went_so_far:
            continue
        request(project, root)
        after = verify_root(root, project)
        assert exit_status(after, ()) == 0, (step, [item for item in after.findings if item.state != "PROVEN"])
        assert not list((root / "made").glob(".*"))
        if not went_so_far:
            break
    assert FIRST_STEP < step < MOST_STEPS - 1


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "full"])
def test_an_acceptance_is_there_or_was_never_said_wherever_its_writer_ends(project, passed, tmp_path, kill):
    for step in range(1, MOST_STEPS):
        root = Path(shutil.copytree(passed, tmp_path / str(step)))
        went_so_far = interrupted(step, kill, lambda root=root: say(project, root))
        assert exit_status(verify_root(root, None), ()) != EXIT_BROKEN, step
        say(project, root)
        there = read_records(root, "made", Ledger(root).read())
        assert 1 <= len(there.by_digest) <= 2
        assert "BROKEN" not in {finding.state for finding in there.findings}
        if not went_so_far:
            break
    assert 3 < step < MOST_STEPS - 1


def test_what_was_not_said_to_its_end_is_told(passed, tmp_path):
    root = Path(shutil.copytree(passed, tmp_path / "evidence"))
    (root / "made" / "records").mkdir()
    (root / "made" / "records" / f".{'a' * 64}.json.partial").write_text("{")
    (finding,) = read_records(root, "made", Ledger(root).read()).findings
    assert (finding.state, finding.found) == ("UNPROVEN", "one that was not said to its end: it says nothing")


def test_nobody_waits_without_an_end_for_whoever_holds_a_ledger(passed, tmp_path, monkeypatch):
    root = Path(shutil.copytree(passed, tmp_path / "evidence"))
    monkeypatch.setattr(ledger_lock, "LOCK_SECONDS", 0.1)
    with open(root / "ledger.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockHeldError, match="another process has held it"):
            verify_root(root, None)
        with pytest.raises(LockHeldError), Ledger(root).held():
            pass
    assert verify_root(root, None).is_sound


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.lock"])
def test_a_pipe_in_the_place_of_a_ledgers_file_is_refused_by_who_would_write(passed, tmp_path, name):
    root = Path(shutil.copytree(passed, tmp_path / "evidence"))
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises((SpecError, EvidenceError), match="no plain file"), Ledger(root).held():
        pass


def test_a_pipe_in_the_place_of_a_campaign_is_no_campaign(project, passed, tmp_path):
    there = Path(shutil.copytree(project, tmp_path / "project", ignore=shutil.ignore_patterns("evidence")))
    path = there / "experiments" / "made" / "campaign.toml"
    path.unlink()
    os.mkfifo(path)
    assert not verify_root(passed, there).is_sound


def test_names_that_are_no_text_can_be_written_down(passed, tmp_path):
    root = Path(shutil.copytree(passed, tmp_path / "evidence"))
    run = next((root / "made").glob("first-*"))
    (run / os.fsdecode(b"\xff\xfe")).write_text("")
    (root / os.fsdecode(b"\xfd")).mkdir()
    verdict = verify_root(root, None)
    assert not verdict.is_sound
    assert r"\\udcff\\udcfe" in write_document(verdict)
    assert "\n".join(verdict_lines(verdict)).encode()


def test_a_time_that_has_not_come_yet_proves_nothing(passed, monkeypatch):
    two_days_ago = time.time_ns() - 2 * 86_400 * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: two_days_ago)
    findings = [item for run in verify_root(passed, None).runs for item in run.findings]
    found = [item.found for item in findings if item.law == "chronology"]
    assert len(found) == 2
    assert all(text.endswith("at a time that has not come yet") for text in found)
