"""`inferswarm verify`, and what people say about runs: statuses, refusals, and records that can be verified."""

from __future__ import annotations

import json
import shutil

import pytest

from inferswarm.cli_campaign_records import end_of_day
from inferswarm.errors import SpecError
from tests.unit.campaigns.made_runs import make_project, make_run


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    project = make_project(tmp_path_factory.mktemp("verify") / "project")
    for arm in ("first", "second"):
        make_run(project, project / "out" / "evidence", arm)
    return project


@pytest.fixture
def project(passed, tmp_path):
    return shutil.copytree(passed, tmp_path / "project")


def run_of(project):
    return next((project / "out" / "evidence" / "made").glob("first-*"))


def test_a_campaign_is_accepted_authorized_signed_and_verified_by_commands_alone(project, cli, tmp_path):
    where = ("--project", str(project))
    accepted = cli("campaign", "accept", "made", "--reason", "read them", "--by", "somebody", *where)
    assert accepted.status == 0
    digest = accepted.out.strip()
    said = ("--acceptance", digest, "--allows", "say so in public", "--expires", "2200-01-31")
    assert cli("campaign", "authorize", "made", *said, *where).status == 0
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    key = cli("campaign", "keys", "--private", str(private), "--public", str(public)).out.strip()
    for run in (project / "out" / "evidence" / "made").glob("*-2*"):
        assert cli("campaign", "sign", str(run), "--key", str(private)).out.strip() == key
    done = cli("verify", str(project / "out" / "evidence"), "--key", str(public), "--all")
    assert done.status == 6
    assert "PASS  made, edition 1, accepted: what is kept is kept" in done.out
    assert "  authorized: say so in public" in done.out
    assert f"signed by {key}" in done.out
    assert "unsigned" not in done.out
    assert "every record is sound" in done.out


def test_a_waiver_says_what_the_arm_would_be_without_it(project, cli):
    where = ("--project", str(project), "--evidence", str(project / "other"))
    make_run(project, project / "other", "first", kept=False)
    waiver = ("--reason", "known", "--expires", "2200-01-31", "--by", "somebody")
    assert cli("campaign", "waive", "made", "first", *waiver, *where).status == 0
    done = cli("verify", str(project / "other"))
    assert "  WAIVED      first, 1 attempt, FAIL without the waiver" in done.out


def test_the_status_says_what_it_is(project, cli):
    root = str(project / "out" / "evidence")
    assert cli("verify", root).status == 6
    assert cli("verify", root, "--require-pass", "made").status == 6
    assert cli("verify", root, "--require-pass", "made", "--require-pass", "other").status == 5
    assert cli("verify", str(run_of(project)), "--require-pass", "made").status == 5
    (run_of(project) / "more.txt").write_text("")
    done = cli("verify", root, "--json")
    assert done.status == 4
    assert json.loads(done.out)["is_sound"] is False
    done = cli("verify", root)
    assert "BROKEN    manifest: more.txt: needed every file listed" in done.out
    assert "BROKEN: a record is missing, altered or contradicts itself" in done.out


def test_what_is_no_evidence_is_refused(cli, tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        done = cli("verify", str(path))
        assert done.status == 1
        assert "SpecError: evidence: found" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("accept", "made", "--reason", " "), "an author"),
        (("accept", "other", "--reason", "x"), "an evidence root"),
        (("waive", "made", "third", "--reason", "x", "--expires", "2200-01-01"), "one of: first, second"),
        (("waive", "made", "first", "--reason", "x", "--expires", "2000-01-01"), "a time after"),
        (("waive", "made", "first", "--reason", "x", "--expires", "soon"), "a date as YYYY-MM-DD"),
        (
            ("authorize", "made", "--acceptance", "x", "--allows", "y", "--expires", "2200-01-01"),
            "one of: none is there",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_and_leaves_nothing(passed, cli, arguments, message):
    ledger = passed / "out" / "evidence" / "ledger.jsonl"
    before = ledger.read_bytes()
    done = cli("campaign", *arguments, "--project", str(passed))
    assert done.status == 1
    assert message in done.err
    assert ledger.read_bytes() == before


def test_a_term_holds_to_the_end_of_its_day():
    assert end_of_day("1970-01-01") == 86_400 * 10**9
    with pytest.raises(SpecError):
        end_of_day("1970-02-30")
