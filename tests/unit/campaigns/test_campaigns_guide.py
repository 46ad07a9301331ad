"""The guide for strangers: its lines of polars run on a real record, and it names every law and status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferswarm.campaigns import expectations
from inferswarm.campaigns.laws import LAWS
from inferswarm.cli_verify import EXIT_BROKEN, EXIT_NO_PROVENANCE, EXIT_NOT_PASSED
from tests.unit.campaigns.made_runs import make_project, make_run

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "guides" / "verify-our-claims.md").read_text(encoding="utf-8")


def test_a_number_is_read_back_to_its_samples_in_three_lines(tmp_path, capsys):
    run = make_run(make_project(tmp_path / "project"), tmp_path / "evidence", "first")
    (code,) = re.findall(r"```python\n(.+?)```", GUIDE, re.DOTALL)
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 3
    exec(code.replace("evidence/CAMPAIGN/RUN", str(run)))
    assert "seconds" in capsys.readouterr().out


@pytest.mark.parametrize("law", LAWS)
def test_every_law_is_explained(law):
    assert f"`{law}`" in GUIDE.split("## What is looked at")[1].split("##")[0]


def test_every_statistic_is_explained():
    names = {kind.__struct_config__.tag for kind in expectations.Expectation.__args__}
    judged = GUIDE.split("## How numbers are judged")[1].split("##")[0]
    assert {name for name in names if f"`{name}`" not in judged} == set()


def test_every_exit_status_is_explained():
    shown = {int(status) for status in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)}
    assert shown == {0, EXIT_BROKEN, EXIT_NOT_PASSED, EXIT_NO_PROVENANCE}
