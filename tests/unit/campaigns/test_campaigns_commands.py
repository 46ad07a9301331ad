"""`inferswarm campaign run`, `list` and `show`: what they print, and how they exit. No notebook is executed here."""

from __future__ import annotations

import signal
import typing

import pytest

from inferswarm.campaigns import runner
from inferswarm.campaigns.concluding import Concluded
from inferswarm.campaigns.requirements import EXTRA_MODULES
from inferswarm.campaigns.runner import CampaignReport, RunReport
from inferswarm.campaigns.spec import Extra
from inferswarm.campaigns.watching import StopSignals
from tests.campaigns.campaigns_support import CAMPAIGN, TinyArm, run, write_project


@pytest.fixture
def project(tmp_path):
    return write_project(
        tmp_path,
        TinyArm("good", parameters={"count": 1}, requires="{ cpus = 100000 }", produces=("plan.json",)),
        TinyArm("next", after=("good",)),
    )


def test_arms_that_cannot_pass_are_told_of_and_the_status_says_so(cli, project):
    done = cli("campaign", "run", CAMPAIGN, "--project", str(project))
    assert done.status == 5
    lines = done.out.splitlines()
    assert any("good: needs 100000 CPUs" in line for line in lines)
    assert [line.split()[:2] for line in lines[-2:]] == [["INCOMPLETE", "good"], ["BLOCKED", "next"]]


def test_a_refusal_is_one_line_and_leaves_nothing(cli, project):
    done = cli("campaign", "run", CAMPAIGN, "--project", str(project), "--arm", "godo")
    assert (done.status, done.out) == (1, "")
    expected = f"inferswarm: SpecError: arm of campaign '{CAMPAIGN}': found 'godo', needed one of: good, next\n"
    assert done.err == expected
    assert not (project / "out").exists()


@pytest.mark.parametrize(
    ("dispositions", "stopped_by", "status"),
    [
        (("PASS", "PASS"), None, 0),
        (("PASS", "INCOMPLETE"), None, 5),
        (("FAIL",), None, 5),
        (("INCOMPLETE",), "SIGINT", 130),
        (("PASS",), "SIGTERM", 143),
    ],
)
def test_the_status_is_0_for_passes_alone(cli, project, monkeypatch, dispositions, stopped_by, status):
    runs = tuple(RunReport("arm", "run", project, Concluded(item, (), ())) for item in dispositions)
    monkeypatch.setattr(runner, "run_campaign", lambda *_, **__: CampaignReport(runs, stopped_by))
    assert cli("campaign", "run", CAMPAIGN).status == status


def test_a_campaign_is_shown_with_what_it_expects_and_every_attempt(cli, project):
    where = ("--project", str(project))
    assert cli("campaign", "list", *where).out.splitlines() == [
        f"{CAMPAIGN} (edition 1): Tiny; good never run (0 attempts), next never run (0 attempts)",
        "    It works.",
    ]
    assert not (project / "out").exists()
    first, second = run(project, "good"), run(project, "good")
    shown = cli("campaign", "show", CAMPAIGN, *where)
    assert shown.status == 0
    for expected in (
        "good INCOMPLETE (2 attempts)",
        "    parameters: count = 1",
        "    needs: 100000 CPUs, 0 B of memory",
        "    produces: plan.json",
        "    expects (correctness) good.works: it works",
        "        statistic all-true, series works, unit bool, samples_min 1",
        f"    {first.runs['good'].run_id}: INCOMPLETE",
        f"    {second.runs['good'].run_id}: INCOMPLETE",
        "    after: good",
    ):
        assert expected in shown.out.splitlines()
    assert cli("campaign", "show", "other", *where).status == 1


def test_every_extra_that_a_campaign_can_require_can_be_looked_for():
    assert set(EXTRA_MODULES) == set(typing.get_args(Extra))


def test_the_first_signal_is_noted_and_the_second_one_ends_the_process():
    earlier = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        assert stop.received is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is earlier


def test_signals_that_are_ignored_stay_ignored():
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, earlier)
