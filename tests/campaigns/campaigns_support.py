"""Small campaigns for tests: a project directory with arms whose notebooks are written here, and how they are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.ledger import read_ledger
from inferswarm.campaigns.records import LedgerEntry, Outcome
from inferswarm.campaigns.runner import RunReport, run_campaign
from inferswarm.campaigns.watching import Clock
from inferswarm.documents import read_document
from inferswarm.errors import SpecError

CAMPAIGN = "tiny"
OPENING = "from inferswarm.campaigns.arm import Arm\n\narm = Arm.open({arguments})"
OBSERVING = 'arm.truth("works", True)'
FINISH = "arm.finish()"
DEADLINE_SECONDS = 60.0


class TinyArm(NamedTuple):
    """An arm: what is between its opening and its end, and what its campaign says of it."""

    name: str
    cells: Sequence[str] = (OBSERVING,)
    parameters: Mapping[str, str | int | float | bool] = {}
    defaults: Mapping[str, str | int | float | bool] | None = None
    """Those of the notebook; None: the campaign's."""
    deadline_seconds: float = DEADLINE_SECONDS
    after: Sequence[str] = ()
    produces: Sequence[str] = ()
    requires: str = ""
    last: str = FINISH
    tags: Mapping[int, Sequence[str]] = {}
    """Of cells of code, by their number from 0 (the parameters)."""


def code_cell(number: int, text: str, tags: Sequence[str] = ()) -> dict[str, Any]:
    """Return a cell as it is committed."""
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "metadata": {"tags": list(tags)} if tags else {},
        "execution_count": None,
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }


def make_notebook(
    cells: Sequence[str],
    parameters: Mapping[str, str | int | float | bool] | None = None,
    *,
    last: str = FINISH,
    tags: Mapping[int, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return an arm's notebook with these cells between its opening and its end."""
    values = parameters or {}
    lines = ['run = ""  # the run', *(f"{name} = {value!r}  # a parameter" for name, value in values.items())]
    arguments = ", ".join(["run", *(f"{name}={name}" for name in values)])
    texts = ["\n".join(lines), OPENING.format(arguments=arguments), *cells, last]
    marks = {0: ["parameters"], **(tags or {})}
    code = [code_cell(number, text, marks.get(number, ())) for number, text in enumerate(texts)]
    introduction = {"cell_type": "markdown", "id": "introduction", "metadata": {}, "source": ["# A tiny arm\n"]}
    return {
        "cells": [introduction, *code],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def notebook_bytes(*arguments: Any, **options: Any) -> bytes:
    """Return the bytes of `make_notebook`."""
    return (json.dumps(make_notebook(*arguments, **options), indent=1) + "\n").encode()


def write_project(directory: Path, *arms: TinyArm, expectations: str | None = None) -> Path:
    """Write a project with one campaign, which expects of each arm that its series `works` is all true."""
    experiment = directory / "experiments" / CAMPAIGN
    notebooks = directory / "notebooks" / "arms" / CAMPAIGN
    for path in (experiment, notebooks):
        path.mkdir(parents=True, exist_ok=True)
    lines = [
        f'campaign = "{CAMPAIGN}"',
        "edition = 1",
        'edition_reason = "first"',
        'title = "Tiny"',
        'claim = "It works."',
    ]
    expected = [f'campaign = "{CAMPAIGN}"', "edition = 1"]
    for arm in arms:
        defaults = arm.parameters if arm.defaults is None else arm.defaults
        path = notebooks / f"{arm.name}.ipynb"
        path.write_bytes(notebook_bytes(arm.cells, defaults, last=arm.last, tags=arm.tags))
        lines += [
            "[[arms]]",
            f"name = {json.dumps(arm.name)}",
            f'notebook = "notebooks/arms/{CAMPAIGN}/{arm.name}.ipynb"',
            f"deadline_seconds = {arm.deadline_seconds}",
            f"after = {json.dumps(list(arm.after))}",
            f"produces = {json.dumps(list(arm.produces))}",
            *([f"requires = {arm.requires}"] if arm.requires else []),
            "[arms.parameters]",
            *(f"{json.dumps(name, ensure_ascii=False)} = {_toml(value)}" for name, value in arm.parameters.items()),
        ]
        expected += [
            "[[expect]]",
            f'id = "{arm.name}.works"',
            f"arm = {json.dumps(arm.name)}",
            'gate = "correctness"',
            'claim = "it works"',
            'statistic = "all-true"',
            'series = "works"',
            'unit = "bool"',
            "samples_min = 1",
        ]
    (experiment / "campaign.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = "\n".join(expected) + "\n" if expectations is None else expectations
    (experiment / "expectations.toml").write_text(text, encoding="utf-8")
    return directory


def _toml(value: str | float | bool) -> str:
    """Return a value as TOML; its basic strings escape as JSON's do, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def no_model(name: str) -> object:
    """Resolve no model at all."""
    raise SpecError("model", name, "none: tests have none")


class Ran(NamedTuple):
    """What one call of the runner left."""

    root: Path
    runs: dict[str, RunReport]
    said: list[tuple[str, str]]

    def disposition(self, arm: str) -> str:
        return self.runs[arm].concluded.disposition

    def directory(self, arm: str) -> Path:
        return self.runs[arm].directory

    def outcome(self, arm: str) -> Outcome:
        return read_outcome(self.directory(arm))

    def not_proven(self, arm: str) -> dict[str, list[Finding]]:
        """Return the findings that are not PROVEN, by their law."""
        found: dict[str, list[Finding]] = {}
        for finding in self.runs[arm].concluded.findings:
            if finding.state is not State.PROVEN:
                found.setdefault(finding.law, []).append(finding)
        return found


def run(project: Path, *arms: str, root: Path | None = None, clock: Clock | None = None) -> Ran:
    """Run arms of the tiny campaign in this process."""
    evidence = root or project / "out" / "evidence"
    said: list[tuple[str, str]] = []
    report = run_campaign(
        CAMPAIGN,
        project=project,
        evidence=evidence,
        say=lambda arm, text: said.append((arm, text)),
        find_model=no_model,
        arms=arms,
        clock=clock,
    )
    return Ran(evidence, {item.arm: item for item in report.runs}, said)


def read_outcome(directory: Path) -> Outcome:
    return read_document(Outcome, (directory / "outcome.json").read_bytes(), "outcome.json")


def ledger_lines(root: Path) -> tuple[LedgerEntry, ...]:
    return read_ledger(root).entries


def start_command(project: Path, *arguments: str, root: Path, **options: Any) -> subprocess.Popen[str]:
    """Start `inferswarm campaign run` in a process of its own, which leads a session of its own."""
    command = [sys.executable, "-m", "inferswarm", "campaign", "run", CAMPAIGN, "--project", str(project)]
    command += ["--evidence", str(root), *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **options,
    )
