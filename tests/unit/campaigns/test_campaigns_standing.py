"""All attempts count, a waiver is no PASS, and what people say must be true when they say it."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest

from inferswarm.campaigns.acceptance import read_records, record_name
from inferswarm.campaigns.ledger import NOTHING, Ledger
from inferswarm.campaigns.records import SCHEMA, LedgerEntry, Waiver
from inferswarm.campaigns.saying import accept_campaign, authorize, saying, waive_arm
from inferswarm.campaigns.spec import parse_campaign
from inferswarm.campaigns.standing import GivenWaiver, footing_of, standing_of
from inferswarm.campaigns.verify import verify_root
from inferswarm.documents import digest_bytes
from inferswarm.errors import EvidenceError, SpecError
from tests.adversarial.forging import Forgery
from tests.unit.campaigns.made_runs import CAMPAIGN, SECOND, make_project, make_run

SUBJECT = digest_bytes(b"subject")
STATES = ("PASS", "FAIL", "INCOMPLETE", "BLOCKED", None)
"""What an attempt may have come to; None: it was requested and never finished."""


def lines(*attempts: str | None, edition: int = 1, arm: str = "first") -> list[LedgerEntry]:
    """Return the ledger's lines of so many attempts."""
    entries = []
    for number, disposition in enumerate(attempts):
        for kind in ("requested", "finished")[: 1 if disposition is None else 2]:
            entries.append(
                LedgerEntry(
                    schema=SCHEMA,
                    sequence=len(entries),
                    previous=NOTHING,
                    kind=kind,
                    campaign="made",
                    edition=edition,
                    arm=arm,
                    run_id=f"{arm}-{number}",
                    subject=SUBJECT,
                    disposition=disposition if kind == "finished" else None,
                    at="1000",
                )
            )
    return entries


def waiver(**fields: object) -> GivenWaiver:
    usual = {"campaign": "made", "edition": 1, "arm": "first", "at": "10", "expires_at": "20"}
    said = Waiver(schema=SCHEMA, reason="no machine", author="somebody", **{**usual, **fields})
    return GivenWaiver(said, SUBJECT, 0)


@pytest.mark.parametrize(
    ("attempts", "state"),
    [
        ((), "INCOMPLETE"),
        (("PASS",), "PASS"),
        ((None,), "INCOMPLETE"),
        (("INCOMPLETE", "PASS"), "PASS"),
        (("PASS", "INCOMPLETE"), "PASS"),
        (("PASS", None), "PASS"),
        (("FAIL", "PASS", "PASS"), "FAIL"),
        (("PASS", "FAIL"), "FAIL"),
        (("INCOMPLETE", "BLOCKED"), "BLOCKED"),
        (("BLOCKED", None), "INCOMPLETE"),
    ],
)
def test_one_fail_is_the_arms_and_best_of_does_not_exist(attempts, state):
    standing = standing_of("first", "made", 1, lines(*attempts), (), 0)
    assert (standing.state, standing.attempts) == (state, len(attempts))


def test_losing_a_line_never_makes_a_pass_of_anything_else():
    for attempts in itertools.product(STATES, repeat=3):
        entries = lines(*attempts)
        if "FAIL" in attempts or standing_of("first", "made", 1, entries, (), 0).state == "PASS":
            continue
        for lost in range(len(entries)):
            left = entries[:lost] + entries[lost + 1 :]
            assert standing_of("first", "made", 1, left, (), 0).state != "PASS", attempts


def test_two_ends_of_one_run_are_no_better_than_the_worse():
    entries = lines("FAIL")
    twice = [*entries, *lines("PASS")[1:]]
    assert standing_of("first", "made", 1, twice, (), 0).state == "FAIL"
    assert standing_of("first", "made", 1, lines("PASS")[1:], (), 0).state == "INCOMPLETE"


@pytest.mark.parametrize(
    ("given", "at", "state"),
    [
        (waiver(), 10, "WAIVED"),
        (waiver(), 19, "WAIVED"),
        (waiver(), 20, "FAIL"),
        (waiver(), 9, "FAIL"),
        (waiver(arm="second"), 10, "FAIL"),
        (waiver(edition=2), 10, "FAIL"),
        (waiver(campaign="other"), 10, "FAIL"),
        (waiver()._replace(sequence=9), 10, "FAIL"),
    ],
)
def test_a_waiver_holds_for_its_arm_and_its_time(given, at, state):
    standing = standing_of("first", "made", 1, lines("FAIL"), (given,), at)
    assert (standing.state, standing.without_waiver) == (state, "FAIL")


def test_an_arm_rests_on_any_pass_of_those_before_it_and_on_nothing_less():
    spec = parse_campaign(CAMPAIGN.encode(), "test")
    footing = footing_of(spec.arm("second"), spec, lines("PASS", "PASS"), (), 0)
    assert (footing.named, footing.lacking) == (("first-1",), ())
    assert [footing.allows(names) for names in (("first-0",), ("first-1",), (), ("first-2",), ("first-0",) * 2)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert footing_of(spec.arm("second"), spec, lines("PASS", edition=2), (), 0).lacking == (
        "first (INCOMPLETE, 0 attempts)",
    )
    waived = footing_of(spec.arm("second"), spec, lines("FAIL"), (waiver(),), 10)
    assert waived.named == (f"waiver:{SUBJECT}",)
    assert footing_of(spec.arm("first"), spec, (), (), 0).allows(())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("standing") / "project")


@pytest.fixture(scope="module")
def passed(project: Path) -> Path:
    """A root in which both arms passed."""
    root = project.parent / "passed"
    make_run(project, root, "first")
    make_run(project, root, "second")
    return root


@pytest.fixture
def root(passed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(passed, tmp_path / "evidence"))


@pytest.fixture(scope="module")
def accepted_root(project: Path, passed: Path) -> Path:
    """The same, accepted."""
    root = Path(shutil.copytree(passed, project.parent / "accepted"))
    accept_campaign(root, "made", project, saying("somebody", "read them"))
    return root


@pytest.fixture
def accepted(accepted_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(accepted_root, tmp_path / "evidence"))


def found_of(root: Path) -> list[str]:
    """Return what the law of these records finds that is not proven."""
    findings = read_records(root, "made", Ledger(root).read()).findings
    assert {finding.law for finding in findings} == {"acceptance"}
    return [finding.found for finding in findings if finding.state != "PROVEN"]


def test_an_acceptance_binds_the_ledger_up_to_its_head_and_carries_an_authorization(root, project):
    said = saying("somebody", "read them")
    accepted = accept_campaign(root, "made", project, said)
    tomorrow = time.time_ns() + 86_400 * SECOND
    authorize(root, "made", accepted, tomorrow, saying("somebody", "say so in public"))
    verdict = verify_root(root, project)
    assert verdict.is_sound
    (campaign,) = verdict.campaigns
    assert (campaign.accepted, campaign.authorizations) == ((accepted,), ("say so in public",))
    (later,) = verify_root(root, project, now=tomorrow).campaigns
    assert (later.state, later.authorizations) == ("PASS", ())


def test_an_acceptance_says_what_every_arm_came_to(accepted_root):
    (record,) = read_records(accepted_root, "made", Ledger(accepted_root).read()).by_digest.values()
    assert [(item.arm, item.disposition, item.attempts) for item in record.dispositions] == [
        ("first", "PASS", 1),
        ("second", "PASS", 1),
    ]


def rewritten(root: Path, **fields: object) -> None:
    """Change the one record of a root, its name and its line in the ledger."""
    forgery = Forgery(root)
    (path,) = (root / "made" / "records").iterdir()
    forgery.record(path, lambda record: record.update(fields))
    subject = digest_bytes(path.read_bytes())
    path.rename(path.with_name(record_name(subject)))
    forgery.lines(lambda entries: [*entries[:-1], {**entries[-1], "subject": subject}])


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"dispositions": [{"arm": "first", "disposition": "PASS", "attempts": 1}]}, "not a word of second"),
        ({"dispositions": [{"arm": "first", "disposition": "WAIVED", "attempts": 1}]}, "the ledger says"),
        ({"head": SUBJECT}, "which no line before it has"),
        ({"author": " "}, "an author"),
        ({"reason": ""}, "what is said in words"),
        ({"edition": 2}, "schema, campaign, edition"),
        ({"at": "5"}, "schema, campaign, edition"),
        ({"schema": 2}, "schema, campaign, edition"),
        ({"allows": "everything"}, "unknown field"),
    ],
)
def test_an_acceptance_that_was_never_true_breaks_the_law(accepted, fields, found):
    rewritten(accepted, **fields)
    (text,) = found_of(accepted)
    assert found in text
    assert read_records(accepted, "made", Ledger(accepted).read()).by_digest == {}


def test_a_record_that_is_gone_changed_or_never_entered_breaks_the_law(accepted, project):
    assert found_of(accepted) == []
    (path,) = (accepted / "made" / "records").iterdir()
    data = path.read_bytes()
    path.write_bytes(data + b"\n")
    assert "bytes with the digest" in found_of(accepted)[0]
    path.unlink()
    assert "no file that can be read" in found_of(accepted)[0]
    assert not verify_root(accepted, project).is_sound
    path.write_bytes(data)
    path.with_name("other.json").write_bytes(data)
    assert "never said" in found_of(accepted)[0]


def test_what_cannot_be_said_leaves_nothing_behind(root, project):
    before = (root / "ledger.jsonl").read_bytes()
    now = time.time_ns()
    for call in (
        lambda: accept_campaign(root, "made", project, saying("", "read them")),
        lambda: waive_arm(root, "made", "first", project, now - SECOND, saying("somebody", "why")),
        lambda: waive_arm(root, "made", "third", project, now + SECOND, saying("somebody", "why")),
        lambda: waive_arm(root, "other", "first", project, now + SECOND, saying("somebody", "why")),
        lambda: authorize(root, "made", SUBJECT, now + SECOND, saying("somebody", "why")),
    ):
        with pytest.raises(SpecError):
            call()
    assert (root / "ledger.jsonl").read_bytes() == before
    assert not list((root / "made").glob("records/*"))


def test_nothing_is_accepted_where_a_record_is_broken(root, project):
    next((root / "made").glob("first-*/stdout.log")).write_text("more")
    with pytest.raises(EvidenceError, match=r"nothing is accepted: .*stdout\.log"):
        accept_campaign(root, "made", project, saying("somebody", "read them"))


def test_a_waived_arm_lets_the_next_one_run_and_never_makes_a_pass(project, tmp_path):
    root = tmp_path / "evidence"
    make_run(project, root, "first", kept=False)
    blocked = make_run(project, root, "second")
    verdict = verify_root(root, project)
    assert [run.disposition for run in verdict.runs if run.run_id == blocked.name] == ["BLOCKED"]
    expires = time.time_ns() + 3600 * SECOND
    waive_arm(root, "made", "first", project, expires, saying("somebody", "known"))
    make_run(project, root, "second")
    (campaign,) = verify_root(root, project).campaigns
    assert (campaign.state, [(arm.state, arm.without_waiver) for arm in campaign.arms]) == (
        "WAIVED",
        [("WAIVED", "FAIL"), ("PASS", "PASS")],
    )
    accepted = accept_campaign(root, "made", project, saying("somebody", "with the waiver"))
    authorize(root, "made", accepted, expires, saying("somebody", "go on"))
    later = verify_root(root, project, now=expires)
    assert later.is_sound
    assert later.campaigns[0].state == "FAIL"
    (waived,) = (path for path in (root / "made" / "records").iterdir() if b'"known"' in path.read_bytes())
    waived.unlink()
    lost = verify_root(root, project)
    assert not lost.is_sound
    broken = {finding.law for run in lost.runs for finding in run.findings if finding.state == "BROKEN"}
    assert "predecessors" in broken


def test_nothing_is_authorized_on_the_strength_of_a_fail(project, tmp_path):
    root = tmp_path / "evidence"
    make_run(project, root, "first", kept=False)
    accepted = accept_campaign(root, "made", project, saying("somebody", "a result too"))
    with pytest.raises(SpecError, match="of first as FAIL, second as INCOMPLETE"):
        authorize(root, "made", accepted, time.time_ns() + SECOND, saying("somebody", "go on"))
