"""`inferswarm campaign report` and `compare`: on the screen, and as pages."""

from __future__ import annotations

import pytest

from tests.unit.campaigns.made_runs import make_project, make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two attempts of one arm, of which the second fails."""
    directory = tmp_path_factory.mktemp("made")
    project = make_project(directory / "project")
    return [make_run(project, directory / "evidence", "first", kept=kept) for kept in (True, False)]


def test_a_run_and_a_root_are_shown(cli, runs):
    one = cli("campaign", "report", str(runs[1]))
    assert one.status == 0
    assert f"{runs[1].name}: FAIL" in one.out
    assert "BROKEN    first.kept" in one.out
    everything = cli("campaign", "report", str(runs[0].parents[1]))
    assert "made FAIL" in everything.out


def test_reports_are_written_as_one_page_each(cli, runs, tmp_path):
    for command, paths in (("report", runs[:1]), ("report", [runs[0].parents[1]]), ("compare", runs)):
        page = tmp_path / "page.html"
        done = cli("campaign", command, *map(str, paths), "--html", str(page))
        assert (done.status, done.err) == (0, "")
        assert str(page) in done.out
        text = page.read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert runs[0].name in text
        page.unlink()


def test_two_runs_are_compared(cli, runs):
    shown = cli("campaign", "compare", *map(str, runs)).out
    assert "3 of 3 true" in shown
    assert "2 of 3 true" in shown
    assert "seconds" in shown


@pytest.mark.parametrize("command", ["report", "compare"])
def test_what_is_no_run_is_refused(cli, runs, tmp_path, command):
    missing = str(tmp_path / "nothing")
    done = cli("campaign", command, *([missing] if command == "report" else [missing, missing]))
    assert done.status == 1
    assert done.err.startswith("inferswarm: SpecError")
    unwritable = tmp_path / "no" / "page.html"
    paths = runs[:1] if command == "report" else runs
    done = cli("campaign", command, *map(str, paths), "--html", str(unwritable))
    assert done.status == 1
    assert "a file that can be written" in done.err
