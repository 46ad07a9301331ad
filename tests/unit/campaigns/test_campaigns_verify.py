"""What evidence comes to: every law of a run, of a root, and of what is missing; and the status that says so."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferswarm.campaigns import layout
from inferswarm.campaigns.findings import broken, proven, unproven
from inferswarm.campaigns.laws import LAWS, Finding, State
from inferswarm.campaigns.verdicts import DECISIVE_LAWS, RECORD_LAWS, RootVerdict, RunVerdict, disposition_of
from inferswarm.campaigns.verify import project_of, scope_of, verify_root, verify_run
from inferswarm.cli_verify import exit_status, verdict_lines
from inferswarm.documents import digest_bytes, read_document, write_document
from inferswarm.errors import SpecError
from tests.adversarial.forging import Forgery
from tests.unit.campaigns.made_runs import PLAN, make_project, make_run, request

FOLDER = "experiments/made"
EXPECTED = f"{FOLDER}/expectations.toml"
FAILURE = {"where": "thread t", "error": "E"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("verify") / "project")


@pytest.fixture(scope="module")
def passed(project: Path) -> Path:
    """A root in which the first arm passed."""
    root = project / "evidence"
    make_run(project, root, "first")
    return root


@pytest.fixture
def root(passed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(passed, tmp_path / "evidence"))


def run_of(root: Path) -> Path:
    (found,) = (root / "made").glob("first-*")
    return found


def states(findings: tuple[Finding, ...], law: str) -> set[State]:
    return {finding.state for finding in findings if finding.law == law}


def broken_laws(verdict: RunVerdict) -> set[str]:
    return {finding.law for finding in verdict.findings if finding.state is State.BROKEN}


def test_a_run_that_is_all_there_is_a_pass_by_every_law_in_their_order(passed):
    verdict = verify_run(run_of(passed))
    assert (verdict.disposition, verdict.recorded, verdict.is_sound) == ("PASS", "PASS", True)
    assert (verdict.correctness, verdict.performance) == ("PROVEN", "PROVEN")
    laws = [finding.law for finding in verdict.findings]
    assert laws == sorted(laws, key=list(LAWS).index)
    assert set(laws) == set(LAWS) - {"acceptance"}
    assert {finding.law for finding in verdict.findings if finding.state is not State.PROVEN} == {
        "signature",
        "expectations-committed",
        "package-at-commit",
    }


def seal(run: Path, **fields: Any) -> None:
    """Change the seal, and everything above it that would show that."""
    forgery = Forgery(run.parent.parent)
    forgery.reseal(run, layout.SEAL, lambda record: record.update(fields))
    forgery.carry(run)


def outcome(run: Path, **fields: Any) -> None:
    forgery = Forgery(run.parent.parent)
    forgery.record(run / layout.OUTCOME, lambda record: record.update(fields))
    forgery.carry(run)


def ask(run: Path, **fields: Any) -> None:
    """Change the request, and everything that names it."""
    forgery = Forgery(run.parent.parent)
    forgery.record(run / layout.REQUEST, lambda record: record.update(fields))
    forgery.carry(run, request=True)


def put(name: str, data: bytes, *, carry: bool = True, sealed: bool = False):
    """Return what writes a file, and carries it up to the ledger."""

    def change(run: Path) -> None:
        (run / name).write_bytes(data)
        if carry:
            Forgery(run.parent.parent).carry(run, seal=sealed)

    return change


def drop(name: str, *, carry: bool = True):
    """Return what removes a file, and carries that up to the ledger."""

    def change(run: Path) -> None:
        (run / name).unlink()
        if carry:
            Forgery(run.parent.parent).carry(run)

    return change


def lines(change):
    return lambda run: Forgery(run.parent.parent).lines(change)


def each_line(**fields: Any):
    """Return what changes a field of every line, and chains them again."""
    return lines(lambda entries: [{**entry, **fields} for entry in entries])


def text(name: str, old: str, new: str):
    """Return what puts one text in the place of another, in a file of the run or above it, and carries nothing."""
    return lambda run: Forgery(run.parent.parent).text(run / name, old, new)


def link(run: Path) -> None:
    """Put a link in the place of a file."""
    away = run.parents[3] / "stdout.log"
    os.replace(run / "stdout.log", away)
    (run / "stdout.log").symlink_to(away)


def say_fail(run: Path) -> None:
    Forgery(run.parents[1]).disposition(run, "FAIL")


def unshown(run: Path) -> None:
    """Take the seal's digest out of the executed notebook."""
    put(layout.EXECUTED, (run / layout.EXECUTED).read_bytes().replace(b"sealed: sha256:", b"sealed: "))(run)


def in_project(name: str, old: str, new: str):
    """Return what changes a text of the project."""
    return lambda root, project: Forgery(root).text(project / name, old, new)


def statement(**fields: Any):
    def change(run: Path) -> None:
        Forgery(run.parent.parent).record(run / layout.STATEMENT, lambda record: record["predicate"].update(fields))

    return change


def other_plan(**fields: Any) -> bytes:
    """Return the document of a plan that is not the recorded one."""
    return write_document(msgspec.structs.replace(PLAN, **fields)).encode()


MUTATIONS = [
    ("a line dropped from the middle", "ledger-run", lines(lambda entries: entries[1:])),
    ("the request twice", "ledger-run", lines(lambda entries: [entries[0], *entries])),
    ("the end twice", "ledger-run", lines(lambda entries: [*entries, entries[1]])),
    ("the end before the request", "ledger-run", lines(lambda entries: entries[::-1])),
    ("another arm in the ledger", "ledger-run", each_line(arm="second")),
    ("another edition in the ledger", "ledger-run", each_line(edition=2)),
    ("a byte of the ledger", "ledger-chain", text("../../ledger.jsonl", '"at":"1', '"at":"2')),
    ("no ledger", "ledger-chain", lambda run: (run.parents[1] / "ledger.jsonl").unlink()),
    ("a file more", "manifest", put("more.json", b"{}", carry=False)),
    ("a file more, listed", "files-closed", put("more.json", b"{}")),
    ("a folder", "manifest", lambda run: (run / "more").mkdir()),
    ("a link", "manifest", link),
    ("no manifest", "manifest", drop(layout.MANIFEST, carry=False)),
    ("a manifest with a key twice", "manifest", text(layout.MANIFEST, '"schema": 1', '"schema": 1, "schema": 1')),
    ("a file changed", "file-digest", put("stdout.log", b"other", carry=False)),
    ("a file gone", "file-digest", drop("stderr.log", carry=False)),
    ("a plan with a key twice", "schema", put("plan.json", b'{"a": 1, "a": 1}', sealed=True)),
    ("a plan with NaN", "schema", put("plan.json", b'{"a": NaN}', sealed=True)),
    ("a record of another schema", "schema", lambda run: outcome(run, schema=2)),
    ("a record with another field", "schema", lambda run: outcome(run, verdict="PASS")),
    ("samples that are no table", "schema", put(layout.SAMPLES, b"PAR1", sealed=True)),
    ("a request of another campaign", "request", lambda run: ask(run, campaign="other")),
    ("a request with another nonce", "request", lambda run: ask(run, nonce="0" * 32)),
    ("a short nonce", "request", lambda run: ask(run, nonce=run.name[-8:])),
    ("another package", "request", lambda run: ask(run, package_digest=digest_bytes(b""))),
    ("a longer deadline", "request", lambda run: ask(run, deadline_seconds=3600)),
    ("an attempt too many", "request", lambda run: ask(run, attempt=2)),
    ("an unknown arm", "arms-closed", lambda run: ask(run, arm="third")),
    ("a campaign of another edition", "arms-closed", lambda run: ask(run, edition=2)),
    ("a seal of another run", "seal", lambda run: seal(run, nonce="0" * 32)),
    ("a seal that counts otherwise", "seal", lambda run: seal(run, num_samples=3)),
    ("a seal of fewer files", "seal", lambda run: seal(run, files=[])),
    ("another process", "witnesses-agree", lambda run: seal(run, kernel_pid=1)),
    ("another interpreter", "witnesses-agree", lambda run: seal(run, executable="/bin/python")),
    ("another package in the kernel", "witnesses-agree", lambda run: seal(run, package_digest=digest_bytes(b""))),
    ("other parameters", "parameters", lambda run: seal(run, parameters=[{"name": "num", "value": 4}])),
    ("a failure in the background", "background-failures", lambda run: seal(run, background_failures=[FAILURE])),
    ("another plan", "plan-realized", put("plan.json", other_plan(chunk_positions=2), sealed=True)),
    ("no plan at all", "plan-realized", put("plan.json", b"{}", sealed=True)),
    ("a plan that places nothing", "plan-realized", put("plan.json", other_plan(placements=()), sealed=True)),
    (
        "a plan of a workload that cannot be",
        "plan-realized",
        put("plan.json", other_plan().replace(b'"prompt_tokens": 256', b'"prompt_tokens": 0'), sealed=True),
    ),
    ("a plan more", "plan-realized", lambda run: seal(run, realized_plans=[digest_bytes(b"a"), digest_bytes(b"b")])),
    ("no plan", "plan-realized", lambda run: seal(run, realized_plans=[])),
    ("an outcome of another run", "outcome", lambda run: outcome(run, run_id="first-20260101T000000Z-00000000")),
    ("longer than the deadline", "outcome", lambda run: outcome(run, seconds=61.0)),
    ("blocked by nothing", "predecessors", lambda run: outcome(run, end="blocked", exit_status=None)),
    ("predecessors that it has not", "predecessors", lambda run: ask(run, predecessors=["first-0"])),
    ("no statement", "statement", drop(layout.STATEMENT, carry=False)),
    ("a statement of another result", "statement", statement(result="FAILED")),
    ("a statement of a law that is not proven", "statement", statement(passedTests=[*DECISIVE_LAWS, "signature"])),
    ("a statement without configuration", "statement", statement(configuration=[])),
    ("a disposition that is not its own", "disposition-recorded", say_fail),
]  # fmt: skip


@pytest.mark.parametrize(("law", "change"), [item[1:] for item in MUTATIONS], ids=[item[0] for item in MUTATIONS])
def test_each_change_breaks_its_law_and_the_record(root, law, change):
    run = run_of(root)
    change(run)
    verdict = verify_run(run)
    assert law in broken_laws(verdict)
    assert not verdict.is_sound


UNKNOWN = [
    ("killed", "outcome", lambda run: outcome(run, end="signalled", exit_status=None, signal=9)),
    ("ended with 1", "outcome", lambda run: outcome(run, exit_status=1)),
    ("left something running", "outcome", lambda run: outcome(run, survivors=1)),
    ("never sealed", "seal", drop(layout.SEAL)),
    ("no answers", "seal", drop(layout.OUTPUTS)),
    ("nobody saw the kernel", "witnesses-agree", lambda run: outcome(run, kernel_pid=None)),
    ("the seal is not in the notebook", "witnesses-agree", unshown),
    ("no executed notebook", "notebook-scan", drop(layout.EXECUTED)),
    ("no environment", "environment", drop(layout.ENVIRONMENT)),
    ("the clock went back", "chronology", lambda run: outcome(run, ended_at="1")),
    ("the clock was set", "chronology", lambda run: outcome(run, seconds=50.0)),
]  # fmt: skip


@pytest.mark.parametrize(("law", "change"), [item[1:] for item in UNKNOWN], ids=[item[0] for item in UNKNOWN])
def test_what_is_not_known_is_no_pass_and_the_record_of_a_pass_is_broken_by_it(root, law, change):
    run = run_of(root)
    change(run)
    verdict = verify_run(run)
    assert states(verdict.findings, law) - {State.PROVEN}
    assert verdict.disposition != "PASS"
    assert "disposition-recorded" in broken_laws(verdict)


def test_what_did_not_come_to_its_end_is_incomplete_and_its_record_is_sound(project, tmp_path):
    run = make_run(project, tmp_path / "evidence", "first", ends=False)
    verdict = verify_run(run)
    assert (verdict.disposition, verdict.recorded, verdict.is_sound) == ("INCOMPLETE", "INCOMPLETE", True)
    assert broken_laws(verdict) == set()


def test_what_fails_is_a_fail_and_its_record_is_sound(project, tmp_path):
    run = make_run(project, tmp_path / "evidence", "first", kept=False)
    verdict = verify_run(run)
    assert (verdict.disposition, verdict.recorded, verdict.is_sound) == ("FAIL", "FAIL", True)
    assert broken_laws(verdict) == {"correctness-gate"}


def test_a_request_that_nobody_concluded_is_incomplete_whatever_lies_there(project, passed, tmp_path):
    root = tmp_path / "evidence"
    requested = request(project, root, "first")
    verdict = verify_run(requested.directory)
    assert (verdict.disposition, verdict.recorded, verdict.is_sound) == ("INCOMPLETE", None, True)
    copied = Path(shutil.copytree(passed, tmp_path / "copied"))
    Forgery(copied).lines(lambda entries: entries[:1])
    verdict = verify_run(run_of(copied))
    assert (verdict.disposition, verdict.recorded, verdict.is_sound) == ("INCOMPLETE", None, True)


def test_a_directory_whose_request_never_came_into_the_ledger_holds_nothing_but_what_was_frozen(root):
    run = run_of(root)
    Forgery(root).lines(lambda entries: [{**entries[0], "run_id": "first-20200101T000000Z-00000000"}])
    assert "ledger-run" in broken_laws(verify_run(run))
    for path in run.iterdir():
        if path.name not in (*layout.FROZEN_FILES, layout.REQUEST):
            path.unlink()
    assert states(verify_run(run).findings, "ledger-run") == {State.UNPROVEN}


def test_losing_any_file_or_line_never_makes_a_pass_of_a_fail(project, tmp_path):
    root = tmp_path / "evidence"
    failed = make_run(project, root, "first", kept=False)
    make_run(project, root, "first")
    assert {arm.arm: arm.state for arm in verify_root(root, None).campaigns[0].arms}["first"] == "FAIL"
    kept = Path(shutil.copytree(root, tmp_path / "kept"))
    forgery = Forgery(kept)
    files = [kept / "made" / failed.name / path.name for path in failed.iterdir()]
    for path in files:
        data = path.read_bytes()
        path.unlink()
        assert_no_pass(kept, path.name)
        path.write_bytes(data)
    for number in range(len(forgery.entries())):
        before = forgery.ledger.read_bytes()
        forgery.lines(lambda entries, number=number: entries[:number] + entries[number + 1 :])
        assert_no_pass(kept, f"line {number}")
        forgery.ledger.write_bytes(before)


def assert_no_pass(root: Path, lost: str) -> None:
    verdict = verify_root(root, None)
    states = [campaign.state for campaign in verdict.campaigns]
    arms = [arm.state for arm in verdict.campaigns[0].arms if arm.arm == "first"]
    assert not (verdict.is_sound and (states == ["PASS"] or arms == ["PASS"])), lost


@pytest.mark.parametrize("law", DECISIVE_LAWS)
def test_a_pass_needs_proof_of_every_law(law):
    findings = tuple(proven(item, "", "") for item in DECISIVE_LAWS)
    assert disposition_of(findings, "exited") == "PASS"
    others = tuple(finding for finding in findings if finding.law != law)
    assert disposition_of(others, "exited") == "INCOMPLETE"
    assert disposition_of((*others, unproven(law, "", "", "")), "exited") == "INCOMPLETE"
    assert disposition_of((*findings, unproven(law, "", "", "")), "exited") == "INCOMPLETE"
    assert disposition_of((*findings, broken(law, "", "", "")), "exited") == "FAIL"
    assert disposition_of(findings, "blocked") == "BLOCKED"


def test_the_lists_of_laws_are_lists_of_laws():
    assert set(LAWS) >= RECORD_LAWS
    assert set(LAWS) >= set(DECISIVE_LAWS)


def roots_laws(verdict: RootVerdict) -> set[str]:
    return {finding.law for finding in verdict.findings if finding.state is State.BROKEN}


def renamed_campaign(root: Path, project: Path) -> None:
    (root / "made").rename(root / "other")


ROOTS = [
    ("another folder in the root", "arms-closed", lambda root, project: (root / "made" / "more").mkdir()),
    ("a file in the root", "arms-closed", lambda root, project: (root / "notes.txt").write_text("")),
    ("a link to a campaign", "arms-closed", lambda root, project: (root / "also").symlink_to(root / "made")),
    ("a run is gone", "ledger-run", lambda root, project: shutil.rmtree(run_of(root))),
    ("a campaign is renamed", "ledger-run", renamed_campaign),
    ("other expectations today", "expectations-unchanged", in_project(EXPECTED, "at_most = 0.5", "at_most = 0.6")),
    ("another campaign today", "expectations-unchanged", in_project(f"{FOLDER}/campaign.toml", "is kept", "stays")),
    ("no campaign today", "expectations-unchanged", lambda root, project: shutil.rmtree(project / FOLDER)),
    ("another notebook today", "notebook-source", in_project("notebooks/arms/made/first.ipynb", "finish", "finish ")),
    ("an older edition today", "expectations-unchanged", lambda root, project: ask(run_of(root), edition=2)),
]  # fmt: skip


@pytest.mark.parametrize(("law", "change"), [item[1:] for item in ROOTS], ids=[item[0] for item in ROOTS])
def test_each_change_of_a_root_or_a_project_breaks_its_law(root, project, tmp_path, law, change):
    there = tmp_path / "project"
    shutil.copytree(project, there, ignore=shutil.ignore_patterns("evidence"))
    assert verify_root(root, there).is_sound
    change(root, there)
    verdict = verify_root(root, there)
    assert law in roots_laws(verdict)
    assert exit_status(verdict, ()) == 4


def test_two_texts_of_one_edition_break_its_laws(project, passed, tmp_path):
    root = Path(shutil.copytree(passed, tmp_path / "evidence"))
    there = tmp_path / "project"
    shutil.copytree(project, there, ignore=shutil.ignore_patterns("evidence"))
    Forgery(root).text(there / EXPECTED, "at_most = 0.5", "at_most = 0.9")
    Forgery(root).text(there / "notebooks/arms/made/first.ipynb", "for a rehearsal", "for nothing")
    make_run(there, root, "first")
    assert {"expectations-unchanged", "notebook-source"} <= roots_laws(verify_root(root, None))


def test_a_new_edition_starts_afresh_and_what_was_is_still_verified(project, passed, tmp_path):
    root = Path(shutil.copytree(passed, tmp_path / "evidence"))
    there = tmp_path / "project"
    shutil.copytree(project, there, ignore=shutil.ignore_patterns("evidence"))
    for name in ("campaign.toml", "expectations.toml"):
        Forgery(root).text(there / FOLDER / name, "edition = 1", "edition = 2")
    verdict = verify_root(root, there)
    assert verdict.is_sound
    (campaign,) = verdict.campaigns
    assert (campaign.edition, campaign.earlier_editions, campaign.state) == (2, (1,), "INCOMPLETE")
    assert [arm.attempts for arm in campaign.arms] == [0, 0]
    make_run(there, root, "first", kept=False)
    verdict = verify_root(root, there)
    assert verdict.is_sound
    assert sorted(run.disposition for run in verdict.runs) == ["FAIL", "PASS"]
    assert verdict.campaigns[0].arms[0].state == "FAIL"


def test_a_path_may_be_a_root_a_campaign_or_a_run_and_nothing_else(passed, project, tmp_path):
    run = run_of(passed)
    for path, num_campaigns in ((passed, 1), (passed / "made", 1), (run, 0)):
        verdict = verify_root(path, project)
        assert (verdict.is_sound, len(verdict.runs), len(verdict.campaigns)) == (True, 1, num_campaigns)
    assert [scope_of(path)[1:] for path in (passed, passed / "made", run)] == [
        ("", ""),
        ("made", ""),
        ("made", run.name),
    ]
    with pytest.raises(SpecError, match="an evidence root"):
        verify_root(tmp_path, None)
    assert project_of(passed) == project.resolve()


def test_without_its_ledger_a_root_is_still_one_and_broken(root, project):
    (root / "ledger.jsonl").unlink()
    for path in (root, root / "made", run_of(root)):
        verdict = verify_root(path, project)
        assert not verdict.is_sound
        assert "ledger-chain" in roots_laws(verdict)


def test_the_status_says_what_is_broken_before_what_is_required_and_that_before_what_is_not_known(root, project):
    verdict = verify_root(root, project)
    assert [exit_status(verdict, required) for required in ((), ("made",), ("other",))] == [6, 5, 5]
    put("stdout.log", b"other", carry=False)(run_of(root))
    assert exit_status(verify_root(root, project), ("made",)) == 4


def test_a_verdict_is_a_document_and_lines_that_name_the_verifier_and_each_finding(root, project):
    put("stdout.log", b"other", carry=False)(run_of(root))
    verdict = verify_root(root, project)
    assert read_document(RootVerdict, write_document(verdict), "verdict") == verdict
    text = "\n".join(verdict_lines(verdict))
    assert f"package {verdict.verifier.package_digest}" in text
    assert "BROKEN    file-digest: stdout.log: needed 80 B, sha256:" in text
    assert "FAIL (recorded: PASS)" in text
    assert "unsigned: shows alteration after the fact" in text


def altered(data: bytes, chance: random.Random) -> bytes:
    """Return bytes of which one is another, or the last are missing, or a value is one that it must not be."""
    how = chance.randrange(3)
    place = chance.randrange(len(data) or 1)
    if how == 0 or not data:
        return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
    if how == 1:
        return data[:place]
    values = re.findall(rb': ("[^"]*"|[0-9.]+|true|null)', data)
    new = chance.choice([b"null", b"-1", b"1e999", b'""', b"[]", b"{}", b"1" + b"0" * 400, b'"' + b"9" * 5000 + b'"'])
    return data.replace(chance.choice(values), new, 1) if values else data + b"0"


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_done_to_whichever_file_there_is_a_verdict_and_it_is_no_sound_pass(root, seed):
    chance = random.Random(seed)
    run = run_of(root)
    path = chance.choice(sorted([*run.iterdir(), root / "ledger.jsonl"]))
    data = path.read_bytes()
    path.write_bytes(altered(data, chance))
    verdict = verify_root(root, None)
    assert not verdict.is_sound or path.read_bytes() == data
    if path.parent == run and path.name not in layout.UNLISTED_FILES and chance.random() < 0.7:
        Forgery(root).manifest(run)
        Forgery(root).bind(run)
        verify_root(root, None)


def test_a_copy_of_a_run_under_another_name_is_no_second_attempt(root, project):
    run = run_of(root)
    copied = Path(shutil.copytree(run, run.with_name(f"first-20200101T000000Z-{run.name[-8:]}")))
    Forgery(root).lines(lambda entries: [*entries, *({**entry, "run_id": copied.name} for entry in entries)])
    ask(copied, run_id=copied.name)
    verdict = verify_root(root, project)
    assert [finding.expected for finding in verdict.findings if finding.law == "request"] == ["a nonce of its own"]
    assert not verdict.is_sound
