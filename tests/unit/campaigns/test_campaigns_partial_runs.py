"""Runs that were cut short: what their journals break, and the files that were not whole."""

from __future__ import annotations

import os

import pytest

from inferswarm.campaigns.expectations import parse_expectations
from inferswarm.campaigns.journal import Journal, Sampled
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.partial_runs import judge_journal
from inferswarm.campaigns.plain_files import read_plain
from inferswarm.campaigns.samples import TRUTH_UNIT, Output
from inferswarm.campaigns.verify import verify_root
from inferswarm.cli_verify import exit_status
from tests.adversarial.forging import Forgery
from tests.unit.campaigns.made_runs import make_project, make_run

HEAD = 'campaign = "a"\nedition = 1\n[[expect]]\nid = "x"\narm = "a"\nclaim = "c"\n'
TRUE = 'statistic = "all-true"\nseries = "works"\nunit = "bool"\nsamples_min = 2\n'
SERIES = 'statistic = "{}"\nseries = "seconds"\nunit = "s"\nsamples_min = 2\n'
EQUAL = 'statistic = "tokens-equal"\nleft = "one"\nright = "two"\nkeys_min = 2\nalso_logits = false\n'


def journal(tmp_path, *observed: tuple[str, float] | Output) -> bytes:
    kept = Journal(tmp_path / "journal.jsonl")
    for item in observed:
        if isinstance(item, Output):
            kept.answer(item)
            continue
        series, value = item
        unit = TRUTH_UNIT if series == "works" else "s"
        fields = {"condition": "", "key": "k", "block": 0, "at_seconds": 1.0, "warm_up": False}
        kept.observe(Sampled(series=series, values=(value,), unit=unit, **fields))
    kept.note("progress", "so far")
    kept.stop()
    return kept.path.read_bytes()


def answer(condition: str, token: int) -> Output:
    return Output(
        condition=condition, key="p", representation="fp32", prompt_ids=(1,), token_ids=(token,), logits_digest=""
    )


def judged(text: str, data: bytes, gate: str = "correctness") -> State:
    expectations = parse_expectations(f'{HEAD}gate = "{gate}"\n{text}'.encode(), "expectations.toml").expect
    (found, *_) = (item for item in judge_journal(expectations, data) if item.path.endswith("#x"))
    return found.state


@pytest.mark.parametrize(
    ("text", "observed", "state"),
    [
        (TRUE, [("works", 0.0)], State.BROKEN),
        (TRUE, [("works", 1.0)] * 3, State.UNPROVEN),
        (TRUE, [], State.UNPROVEN),
        (EQUAL, [answer("one", 1), answer("two", 2)], State.BROKEN),
        (EQUAL, [answer("one", 1)], State.UNPROVEN),
        (SERIES.format("value") + "at_most = 1.0\n", [("seconds", 2.0)], State.BROKEN),
        (SERIES.format("count") + "equals = 3\n", [("seconds", 2.0)] * 2, State.UNPROVEN),
        (SERIES.format("count") + "equals = 3\n", [("seconds", 2.0)] * 4, State.BROKEN),
        (SERIES.format("count") + "at_least = 3\n", [("seconds", 2.0)] * 2, State.UNPROVEN),
    ],
)
def test_a_journal_breaks_what_no_further_sample_could_mend_and_proves_nothing(tmp_path, text, observed, state):
    data = journal(tmp_path, *observed)
    assert judged(text, data) is state
    assert judged(text, data + b'{"samples":{"series":"wor') is state
    assert judged(text, b'{"progress": oops\n[1]\n{}\n' + data) is state
    assert judged(text, data, "performance") is State.UNPROVEN


def test_an_arm_cannot_be_interrupted_once_its_gate_has_failed(tmp_path):
    project = make_project(tmp_path / "project")
    run = make_run(project, project / "evidence", "first", ends=False)
    forgery = Forgery(project / "evidence")
    assert arms(project) == {"first": "INCOMPLETE", "second": "INCOMPLETE"}
    (run / "journal.jsonl").write_bytes(journal(tmp_path, ("kept", 0.0)).replace(b'"s"', b'"bool"'))
    forgery.carry(run)
    assert arms(project)["first"] == "FAIL"


@pytest.mark.parametrize("name", [".manifest.json.partial", ".statement.json.partial", ".outcome.json.partial"])
def test_a_file_that_was_being_written_when_the_runner_was_killed_says_nothing(tmp_path, name):
    project = make_project(tmp_path / "project")
    run = make_run(project, project / "evidence", "first")
    forgery = Forgery(project / "evidence")
    written = ["outcome.json", "manifest.json", "statement.json"]
    for path in written[written.index(name[1:].removesuffix(".partial")) :]:
        (run / path).unlink()
    (run / name).write_text("{")
    forgery.lines(lambda entries: [entry for entry in entries if entry["kind"] != "finished"])
    verdict = verify_root(project / "evidence", project)
    assert (verdict.runs[0].disposition, exit_status(verdict, ())) == ("INCOMPLETE", 0)
    assert any(finding.path == name for finding in verdict.runs[0].findings)


def arms(project) -> dict[str, str]:
    verdict = verify_root(project / "evidence", project)
    return {arm.arm: arm.state for campaign in verdict.campaigns for arm in campaign.arms}


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_only_plain_files_are_read_and_nobody_is_waited_for(tmp_path, kind):
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"plain|symbolic"):
        read_plain(path)
