"""A shipped arm, its notebook unchanged, as a run with a small model: by the real runner and the real verifier."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from inferswarm.campaigns.laws import State
from inferswarm.campaigns.runner import run_campaign
from inferswarm.campaigns.samples import read_outputs, read_samples
from inferswarm.documents import digest, read_document
from inferswarm.planner.plan import ExecutionPlan
from tests.models import write_small_llama

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = "notebooks/arms/feasibility/exactness.ipynb"
PLANS = ("plan-bf16-amber-birch-2.json", "plan-bf16-amber-birch-4.json")
CAMPAIGN = f"""
campaign = "feasibility"
edition = 1
edition_reason = "first"
title = "One arm"
claim = "A small model is cut in two ways."

[[arms]]
name = "exactness"
notebook = "{NOTEBOOK}"
deadline_seconds = 100
produces = ["{PLANS[0]}", "{PLANS[1]}"]
realizes = ["{PLANS[0]}", "{PLANS[1]}"]

[arms.parameters]
model = "MODEL"
cuts = "amber+birch:2 amber+birch:4"
representations = "bf16"
prompt_tokens = 200
max_tokens = 6
num_questions = 1
"""
EXPECTATIONS = """
campaign = "feasibility"
edition = 1

[[expect]]
id = "tokens"
arm = "exactness"
gate = "correctness"
claim = "tokens and logits are equal"
statistic = "tokens-equal"
left = "split"
right = "unsplit"
keys_min = 2
also_logits = true

[[expect]]
id = "replayed"
arm = "exactness"
gate = "correctness"
claim = "a recorded session comes out the same under another cut"
statistic = "tokens-equal"
left = "recorded"
right = "replayed"
keys_min = 1
also_logits = true

[[expect]]
id = "rows"
arm = "exactness"
gate = "correctness"
claim = "no row differs"
statistic = "zero"
series = "rows-differing"
unit = "rows"
samples_min = 2
"""


@pytest.mark.timeout(150)
def test_a_shipped_arm_proves_what_is_expected_of_it(tmp_path: Path) -> None:
    model = write_small_llama(tmp_path / "small.gguf", seed=5)
    project = tmp_path / "project"
    experiment = project / "experiments" / "feasibility"
    experiment.mkdir(parents=True)
    (experiment / "campaign.toml").write_text(CAMPAIGN.replace("MODEL", str(model)), encoding="utf-8")
    (experiment / "expectations.toml").write_text(EXPECTATIONS, encoding="utf-8")
    (project / NOTEBOOK).parent.mkdir(parents=True)
    shutil.copy(ROOT / NOTEBOOK, project / NOTEBOOK)
    said: list[str] = []
    report = run_campaign(
        "feasibility",
        project=project,
        evidence=tmp_path / "evidence",
        say=lambda arm, text: said.append(f"{arm}: {text}"),
        find_model=Path,
    )
    (run,) = report.runs
    wrong = [item for item in run.concluded.findings if item.state is not State.PROVEN]
    assert {item.law for item in wrong} <= {"expectations-committed", "package-at-commit"}, wrong  # no repository
    digests = [digest(read_document(ExecutionPlan, (run.directory / name).read_bytes(), name)) for name in PLANS]
    assert len({*digests}) == 2
    samples = read_samples(run.directory / "samples.parquet")
    assert samples.filter(pl.col("series") == "rows-differing")["value"].to_list() == [0.0, 0.0]
    assert {item.condition for item in read_outputs(run.directory / "outputs.jsonl")} == {
        "split",
        "unsplit",
        "recorded",
        "replayed",
    }
    assert any("bf16 amber-birch-4" in line for line in said)
