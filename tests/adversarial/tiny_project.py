"""A project of its own with two tiny campaigns, committed, and the evidence that the runner really makes of them.

`green` passes: an arm, and one that comes after it; accepted and signed. `red` does not: an arm that fails and passes
when it is tried again, one that does not come to its end, and one that is therefore blocked.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from inferswarm.cli_campaign import EXIT_NOT_PASSED

ROOT = Path(__file__).resolve().parents[2]
HONEST, DOCTORED = "self._observe(series, (float(value),), TRUTH_UNIT", "self._observe(series, (1.0,), TRUTH_UNIT"
PARAMETERS = """\
run = ""  # the run's directory; "" for a rehearsal by hand, which proves nothing
token = 42  # what is answered
share = 0.5  # a number
label = "plain"  # a text
ends = True  # whether the arm comes to its end
marker = ""  # a file that makes the arm's truth false
"""
OPEN = """\
from inferswarm.campaigns.arm import Arm

arm = Arm.open(run, token=token, share=share, label=label, ends=ends, marker=marker)
"""
OBSERVE = """\
from pathlib import Path

from inferswarm.documents import digest

holds = not (marker and Path(marker).exists())
arm.sample("step-seconds", 9.0, "s", condition="left", key="k0", warm_up=True)
for index in range(12):
    for condition, step in (("left", 1000), ("right", 1100)):
        seconds = 0.1 + index * 5 % 12 / step
        arm.sample("step-seconds", seconds, "s", condition=condition, key=f"k{index}", block=index)
    arm.truth("holds", holds, key=f"k{index}")
    arm.sample("bytes-lost", 0, "B", key=f"k{index}")
assert ends
"""
ANSWER = """\
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import ResourceGraph


def placed(name, first, end):
    memory = MemoryAccount(memory_id=name, capacity_bytes=9, reserved_bytes=1, terms=())
    return Placement(
        participant=f"stage-{first}",
        node_id=name,
        node_name=name,
        compute_unit_id=name,
        threads=1,
        first_unit=first,
        end_unit=end,
        unit_ids=(f"unit-{first}",),
        states=(),
        memory=memory,
    )


graph = ResourceGraph(swarm_id=label, nodes=(), compute_units=(), memory_resources=(), links=())
plan = ExecutionPlan(
    problem_digest=digest("problem"),
    graph_digest=digest(graph),
    primitive="layers",
    representation="fp32",
    workload=Workload(prompt_tokens=3, output_tokens=2),
    chunk_positions=3,
    max_positions=5,
    sessions=1,
    placements=(placed("amber", 0, 1), placed("birch", 1, 2)),
    prediction=None,
)
for condition in ("split", "unsplit"):
    for key in ("p0", "p1"):
        arm.output(
            condition=condition,
            key=key,
            representation="fp32",
            prompt_ids=[1, 2, 3],
            token_ids=[token, token + 1],
            logits_digest=digest([key, token]),
        )
arm.document("resource_graph.json", graph)
arm.document("plan.json", plan)
arm.realized(digest(plan))
arm.progress("answered")
"""
EXPECTATIONS = """
[[expect]]
id = "{arm}.holds"
arm = "{arm}"
gate = "correctness"
claim = "it holds"
statistic = "all-true"
series = "holds"
unit = "bool"
samples_min = 12

[[expect]]
id = "{arm}.lost"
arm = "{arm}"
gate = "correctness"
claim = "no byte is lost"
statistic = "zero"
series = "bytes-lost"
unit = "B"
samples_min = 12

[[expect]]
id = "{arm}.answers"
arm = "{arm}"
gate = "correctness"
claim = "the answers are those of the unsplit execution"
statistic = "tokens-equal"
left = "split"
right = "unsplit"
keys_min = 2
also_logits = true

[[expect]]
id = "{arm}.step"
arm = "{arm}"
gate = "performance"
claim = "a step takes at most 0.2 s"
statistic = "median"
series = "step-seconds"
condition = "left"
unit = "s"
at_most = 0.2
confidence = 0.95
samples_min = 12

[[expect]]
id = "{arm}.ratio"
arm = "{arm}"
gate = "performance"
claim = "both sides take about as long"
statistic = "ratio"
left = {{ series = "step-seconds", condition = "left" }}
right = {{ series = "step-seconds", condition = "right" }}
unit = "s"
samples_min = 12
low = 0.8
high = 1.25
confidence = 0.95
resamples = 999
seed = 1
of = "median"
paired_by = "block"
"""
ARM = """
[[arms]]
name = "{name}"
notebook = "notebooks/arms/tiny.ipynb"
deadline_seconds = 120
after = {after}
produces = ["plan.json", "resource_graph.json"]
realizes = ["plan.json"]

[arms.parameters]
token = 42
share = 0.5
label = "plain"
ends = {ends}
marker = "{marker}"
"""


def make_project(directory: Path) -> Path:
    """Write the project and commit it, with a copy of the package as it is here. Returns its directory."""
    shutil.copytree(ROOT / "inferswarm", directory / "inferswarm", ignore=shutil.ignore_patterns("__pycache__"))
    marker = directory.with_name("marker")
    _write_campaign(directory, "green", [("first", [], True, ""), ("second", ["first"], True, "")])
    arms = [("flaky", [], True, str(marker)), ("halted", [], False, ""), ("blocked", ["halted"], True, "")]
    _write_campaign(directory, "red", arms)
    notebook = directory / "notebooks" / "arms" / "tiny.ipynb"
    notebook.parent.mkdir(parents=True)
    notebook.write_text(json.dumps(make_notebook(), indent=1) + "\n", encoding="utf-8")
    (directory / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    git(directory, "init", "--quiet")
    git(directory, "add", "--all")
    commit(directory, "the project")
    return directory


def doctor_a_cache(project: Path) -> None:
    """Put bytecode beside an untouched source of the package, as its cache, that makes every truth true."""
    source = project / "inferswarm" / "campaigns" / "arm.py"
    text = source.read_text(encoding="utf-8")
    assert HONEST in text
    code = compile(text.replace(HONEST, DOCTORED), str(source), "exec")
    there = source.stat()
    cache = Path(importlib.util.cache_from_source(str(source)))
    cache.parent.mkdir(exist_ok=True)
    header = struct.pack("<4sIII", importlib.util.MAGIC_NUMBER, 0, int(there.st_mtime), there.st_size)
    cache.write_bytes(header + marshal.dumps(code))


def make_notebook() -> dict[str, object]:
    """Return the notebook of every arm, as it is committed."""
    code = [(PARAMETERS, ["parameters"]), (OPEN, []), (OBSERVE, []), (ANSWER, []), ("arm.finish()", [])]
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {"tags": tags} if tags else {},
            "outputs": [],
            "source": text.splitlines(keepends=True),
        }
        for number, (text, tags) in enumerate(code)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def run_green(project: Path) -> Path:
    """Run the green campaign. Returns its evidence root."""
    return _run_arms(project, "green")


def run_red(project: Path) -> Path:
    """Run the red campaign, its flaky arm once before. Returns its evidence root."""
    marker = project.with_name("marker")
    marker.touch()
    _run_arms(project, "red", "--arm", "flaky")
    marker.unlink()
    return _run_arms(project, "red")


def _run_arms(project: Path, campaign: str, *options: str) -> Path:
    evidence = project / f"evidence-{campaign}"
    run_command(project, "run", campaign, *options, "--evidence", str(evidence))
    return evidence


def run_command(project: Path, *arguments: str) -> None:
    """Run `inferswarm campaign` with the project's own copy of the package; what it comes to is in its records."""
    command = [sys.executable, "-m", "inferswarm", "campaign", *arguments, "--project", str(project)]
    copied = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=copied, cwd=project)
    assert done.returncode in (0, EXIT_NOT_PASSED), done.stdout + done.stderr


def git(directory: Path, *arguments: str) -> None:
    """Ask git for something, without this machine's settings."""
    settings = {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    subprocess.run(
        ["git", "-C", str(directory), *arguments], check=True, capture_output=True, timeout=60, env=settings
    )


def commit(directory: Path, message: str) -> None:
    """Commit everything that is staged."""
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false"]
    git(directory, *who, "commit", "--quiet", "--allow-empty", "-m", message)


def _write_campaign(directory: Path, name: str, arms: list[tuple[str, list[str], bool, str]]) -> None:
    folder = directory / "experiments" / name
    folder.mkdir(parents=True)
    head = f'campaign = "{name}"\nedition = 1\n'
    described = f'edition_reason = "first"\ntitle = "{name.title()}"\nclaim = "tiny arms do what they do"\n'
    parts = [
        ARM.format(name=arm, after=json.dumps(after), ends=json.dumps(ends), marker=marker)
        for arm, after, ends, marker in arms
    ]
    (folder / "campaign.toml").write_text(head + described + "".join(parts), encoding="utf-8")
    expected = "".join(EXPECTATIONS.format(arm=arm) for arm, *_ in arms)
    (folder / "expectations.toml").write_text(head + expected, encoding="utf-8")
