"""`python -m tests.campaign_smoke`: a real arm over two Nodes, run, verified, tampered with, and verified again.

Every exit status is checked. From a tree that differs from its commit the run can be sound and a PASS, and its
provenance is honestly not proven (status 6); from a clean one it must be proven too (0).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from inferswarm.campaigns.repository import read_repository
from inferswarm.cli_verify import EXIT_BROKEN, EXIT_NO_PROVENANCE, EXIT_NOT_PASSED
from tests.adversarial.forging import Forgery

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "campaign-smoke"
CAMPAIGN, ARM = "smoke", "two-nodes"
DEADLINE_SECONDS = 280.0
"""Of everything that is started here."""


def inferswarm(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in the project."""
    command = [sys.executable, "-m", "inferswarm", *map(str, arguments)]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def step(what: str, needed: int, done: subprocess.CompletedProcess[str]) -> None:
    """Say what came of a step, and end with status 1 where it is not what it must be."""
    print(f"{'ok' if done.returncode == needed else 'NOT OK':<7}{what}: exit status {done.returncode}", flush=True)
    if done.returncode != needed:
        print(done.stdout + done.stderr, file=sys.stderr)
        print(f"needed exit status {needed}", file=sys.stderr)
        raise SystemExit(1)


def wrong_rows(forgery: Forgery) -> None:
    """A row of logits differs, and every digest is fixed up to the ledger's last line."""
    run = forgery.run(ARM)
    forgery.samples(run, lambda rows: rows.with_columns(value=pl.col("value") + 1))
    forgery.carry(run, seal=True)


def no_seal(forgery: Forgery) -> None:
    """The seal is gone, and the manifest does not list it."""
    run = forgery.run(ARM)
    (run / "seal.json").unlink()
    forgery.carry(run)


def no_run(forgery: Forgery) -> None:
    """The run is gone, and the ledger still has it."""
    shutil.rmtree(forgery.run(ARM))


def softer(forgery: Forgery) -> None:
    """Less is expected than was, and every digest is fixed."""
    run = forgery.run(ARM)
    forgery.text(run / "expectations.toml", "also_logits = true", "also_logits = false")
    forgery.carry(run, request=True)


TAMPERING: tuple[Callable[[Forgery], object], ...] = (wrong_rows, no_seal, no_run, softer)


def main() -> None:
    """Run, verify, tamper, verify."""
    started = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    evidence = OUT / "evidence"
    is_clean = not read_repository(ROOT).dirty
    step("run", 0, inferswarm("campaign", "run", CAMPAIGN, "--evidence", evidence))
    sound = 0 if is_clean else EXIT_NO_PROVENANCE
    step("verify", sound, inferswarm("verify", evidence, "--require-pass", CAMPAIGN))
    step("require what was not run", EXIT_NOT_PASSED, inferswarm("verify", evidence, "--require-pass", "feasibility"))
    run = Forgery(evidence).run(ARM)
    step("report", 0, inferswarm("campaign", "report", run, "--html", OUT / "report.html"))
    for change in TAMPERING:
        copy = Path(shutil.copytree(evidence, OUT / change.__name__ / "evidence"))
        change(Forgery(copy))
        step(f"verify after tampering ({change.__name__})", EXIT_BROKEN, inferswarm("verify", copy))
    print(f"the report is {OUT / 'report.html'}; {time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
