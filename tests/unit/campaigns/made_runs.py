"""Runs whose notebook nobody executed: the parent's part is the real one, the kernel's files are written by hand.

A project with one campaign of two arms, of which the second comes after the first. Everything that lies in a run's
directory is what a real run leaves, so that a verifier finds a PASS; it takes tenths of a second, not a kernel.
"""

from __future__ import annotations

import functools
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from inferswarm.campaigns.concluding import conclude
from inferswarm.campaigns.environment import Environment, capture_environment
from inferswarm.campaigns.expectations import parse_expectations
from inferswarm.campaigns.layout import ENVIRONMENT, PARENT_ENVIRONMENT, SEAL
from inferswarm.campaigns.ledger import Ledger
from inferswarm.campaigns.notebooks import scan_source
from inferswarm.campaigns.preflight import Prepared, PreparedArm
from inferswarm.campaigns.records import SCHEMA, FileEntry, Seal
from inferswarm.campaigns.repository import read_repository
from inferswarm.campaigns.requesting import Requested, request_run
from inferswarm.campaigns.results import make_result
from inferswarm.campaigns.samples import Output, RunIdentity, write_outputs, write_samples
from inferswarm.campaigns.spec import parse_campaign
from inferswarm.campaigns.watching import Clock, Ended
from inferswarm.documents import digest, digest_bytes, read_document, write_document
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from tests.unit.campaigns.sample_runs import make_samples

CAMPAIGN = """\
campaign = "made"
edition = 1
edition_reason = "first"
title = "Made"
claim = "what is kept is kept"

[[arms]]
name = "first"
notebook = "notebooks/arms/made/first.ipynb"
deadline_seconds = 60
produces = ["plan.json"]
realizes = ["plan.json"]
[arms.parameters]
num = 3

[[arms]]
name = "second"
notebook = "notebooks/arms/made/first.ipynb"
deadline_seconds = 60
after = ["first"]
produces = ["plan.json"]
realizes = ["plan.json"]
[arms.parameters]
num = 3
"""
EXPECTATION = """
[[expect]]
id = "{arm}.kept"
arm = "{arm}"
gate = "correctness"
claim = "everything is kept"
statistic = "all-true"
series = "kept"
unit = "bool"
samples_min = 3

[[expect]]
id = "{arm}.fast"
arm = "{arm}"
gate = "performance"
claim = "it is fast"
statistic = "median"
series = "seconds"
unit = "s"
samples_min = 10
at_most = 0.5
confidence = 0.95
"""
EXPECTATIONS = 'campaign = "made"\nedition = 1\n' + "".join(
    EXPECTATION.format(arm=arm) for arm in ("first", "second")
)
CELLS = (
    'run = ""  # the run; "" for a rehearsal\nnum = 3  # how many',
    "from inferswarm.campaigns.arm import Arm\narm = Arm.open(run, num=num)",
    'arm.truth("kept", True)',
    "arm.finish()",
)
PLAN = ExecutionPlan(
    problem_digest=digest("problem"),
    graph_digest=digest("graph"),
    primitive="layers",
    representation="fp32",
    workload=Workload(),
    chunk_positions=1,
    max_positions=1,
    sessions=1,
    placements=(
        Placement(
            participant="stage-0",
            node_id="amber",
            node_name="amber",
            compute_unit_id="amber",
            threads=1,
            first_unit=0,
            end_unit=1,
            unit_ids=("unit-0",),
            states=(),
            memory=MemoryAccount(memory_id="amber", capacity_bytes=None, reserved_bytes=None, terms=()),
        ),
    ),
    prediction=None,
)
PID = 4242
SECOND = 1_000_000_000


def make_project(directory: Path) -> Path:
    """Write the project's campaign and notebook."""
    experiments, notebooks = directory / "experiments" / "made", directory / "notebooks" / "arms" / "made"
    experiments.mkdir(parents=True)
    notebooks.mkdir(parents=True)
    (experiments / "campaign.toml").write_text(CAMPAIGN)
    (experiments / "expectations.toml").write_text(EXPECTATIONS)
    (notebooks / "first.ipynb").write_bytes(source_notebook())
    return directory


def source_notebook() -> bytes:
    """Return the arms' notebook as it is committed."""
    data = json.dumps(_notebook([_cell(number, text) for number, text in enumerate(CELLS)])).encode()
    assert {finding.state for finding in scan_source(data)} == {"PROVEN"}
    return data


def _cell(number: int, text: str) -> dict[str, Any]:
    metadata = {} if number else {"tags": ["parameters"]}
    cell = {"cell_type": "code", "id": f"c{number}", "metadata": metadata, "execution_count": None}
    return {**cell, "outputs": [], "source": text}


def _notebook(cells: list[dict[str, Any]], **metadata: Any) -> dict[str, Any]:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    language = {"language_info": {"name": "python"}}
    return {"cells": cells, "metadata": {**kernel, **language, **metadata}, "nbformat": 4, "nbformat_minor": 5}


def executed_notebook(requested: Requested, said: str) -> bytes:
    """Return the notebook as papermill leaves it, its last cell having printed `said`."""
    parameters = {"run": requested.request.run_id, "num": 3}
    cells = [_cell(number, text) for number, text in enumerate(CELLS)]
    injected = {**_cell(9, "\n".join(f"{name} = {value!r}" for name, value in parameters.items()))}
    injected["metadata"] = {"tags": ["injected-parameters"]}
    cells.insert(1, injected)
    times = dict.fromkeys(("start_time", "end_time"), datetime.now(UTC).isoformat())
    for count, cell in enumerate(cells, start=1):
        cell["execution_count"] = count
        cell["metadata"] = {**cell["metadata"], "papermill": {"status": "completed", "exception": False, **times}}
    cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": f"{said}\n"}]
    said_of = {"parameters": parameters, "exception": None, **times}
    return json.dumps(_notebook(cells, papermill=said_of)).encode()


@functools.cache
def this_environment() -> Environment:
    """Return this process's environment, which takes half a second to find out."""
    return capture_environment()


def environment_at(project: Path) -> Environment:
    """Return that environment at this moment, with where the project stands."""
    now = str(time.time_ns())
    return msgspec.structs.replace(this_environment(), repository=read_repository(project), captured_at=now)


def make_run(project: Path, root: Path, arm: str, *, kept: bool = True, ends: bool = True) -> Path:
    """Make one attempt of an arm, and return its directory.

    Not `kept`: a sample that must be true is false. Not `ends`: the process is killed before anything is sealed.
    """
    return finish(project, root, request(project, root, arm), kept=kept, ends=ends)


def request(project: Path, root: Path, arm: str) -> Requested:
    """Request one attempt of an arm, as the runner does, and write what its parent ran in."""
    prepared = prepare(project, root)
    spec = prepared.spec.arm(arm)
    requested = request_run(prepared, PreparedArm(spec, (project / spec.notebook).read_bytes()), time.time_ns())
    (requested.directory / PARENT_ENVIRONMENT).write_text(write_document(environment_at(project)))
    return requested


def prepare(project: Path, root: Path) -> Prepared:
    """Return the campaign as the runner reads it."""
    folder = project / "experiments" / "made"
    campaign = (folder / "campaign.toml").read_bytes()
    spec = parse_campaign(campaign, "campaign.toml")
    return Prepared(project, Ledger(root), spec, campaign, (folder / "expectations.toml").read_bytes(), ())


def finish(project: Path, root: Path, requested: Requested, *, kept: bool, ends: bool) -> Path:
    """Write what the kernel of a requested run leaves, and conclude it as the runner does."""
    path = requested.directory / PARENT_ENVIRONMENT
    parent = read_document(Environment, path.read_bytes(), path.name)
    started = time.time_ns()
    if not requested.lacking:
        (requested.directory / ENVIRONMENT).write_text(write_document(environment_at(project)))
        for name in ("stdout.log", "stderr.log"):
            (requested.directory / name).write_text("")
    if requested.lacking:
        ended = Ended("blocked", None, None, started, started, 0.0, None, 0, "not passed", None)
    elif not ends:
        ended = Ended("signalled", None, 9, started, started + SECOND // 10, 0.1, PID, 0, "SIGKILL", None)
    else:
        seal = write_arm_files(project, requested, kept)
        (requested.directory / "stdout.log").write_text(f"sealed: {seal}\n")
        executed = executed_notebook(requested, f"sealed: {seal}")
        seconds = (time.time_ns() - started) / SECOND
        ended = Ended("exited", 0, None, started, time.time_ns(), seconds, PID, 0, "", executed)
    conclude(prepare(project, root), requested, parent, ended, Clock())
    return requested.directory


def write_arm_files(project: Path, requested: Requested, kept: bool) -> str:
    """Write samples, answers, result, plan and seal; return the seal's digest."""
    directory, run = requested.directory, requested.request
    truth = {"series": "kept", "unit": "bool"}
    rows = [{**truth, "key": f"k{index}", "value": float(kept or index > 0)} for index in range(3)]
    rows += [{"series": "seconds", "key": f"k{index}", "value": 0.1 + index / 100} for index in range(12)]
    samples: pl.DataFrame = make_samples(*({**row, "at_seconds": 0.0} for row in rows))
    identity = RunIdentity(run_id=run.run_id, nonce=run.nonce)
    outputs: tuple[Output, ...] = ()
    expected = parse_expectations((project / "experiments/made/expectations.toml").read_bytes(), "e").of_arm(run.arm)
    write_samples(directory / "samples.parquet", samples, identity)
    write_outputs(directory / "outputs.jsonl", outputs, identity)
    (directory / "plan.json").write_text(write_document(PLAN))
    result = make_result(run.run_id, expected, samples, outputs)
    (directory / "result.json").write_text(write_document(result))
    names = ("outputs.jsonl", "plan.json", "result.json", "samples.parquet")
    sealed = [(name, (directory / name).read_bytes()) for name in names]
    seal = Seal(
        schema=SCHEMA,
        run_id=run.run_id,
        nonce=run.nonce,
        request_digest=requested.digest,
        parameters=run.parameters,
        files=tuple(FileEntry(name, len(data), digest_bytes(data)) for name, data in sealed),
        num_samples=len(samples),
        num_outputs=0,
        realized_plans=(digest(PLAN),),
        kernel_pid=PID,
        executable=this_environment().executable,
        package_digest=run.package_digest,
        background_failures=(),
        sealed_at=str(time.time_ns()),
    )
    data = write_document(seal).encode()
    (directory / SEAL).write_bytes(data)
    return digest_bytes(data)
