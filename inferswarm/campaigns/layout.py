"""Where everything lies: the names of a run's files, and the paths below an evidence root and a project."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

NANOSECONDS = 1_000_000_000
"""Of a second. Times of day are nanoseconds since 1970."""
LEDGER = "ledger.jsonl"
LEDGER_LOCK = "ledger.lock"
EXPERIMENTS = "experiments"
"""Folder of a project that holds its campaigns."""
RECORDS = "records"
"""Folder of a campaign that holds acceptances, waivers and authorizations, beside its runs."""

CAMPAIGN = "campaign.toml"
EXPECTATIONS = "expectations.toml"
NOTEBOOK = "notebook.ipynb"
PACKAGE = "package.json"
REQUEST = "request.json"
PARENT_ENVIRONMENT = "environment.parent.json"
ENVIRONMENT = "environment.json"
SAMPLES = "samples.parquet"
OUTPUTS = "outputs.jsonl"
RESULT = "result.json"
SEAL = "seal.json"
EXECUTED = "executed.ipynb"
STDOUT = "stdout.log"
STDERR = "stderr.log"
OUTCOME = "outcome.json"
MANIFEST = "manifest.json"
STATEMENT = "statement.json"
ENVELOPE = "statement.dsse.json"

FROZEN_FILES = (CAMPAIGN, EXPECTATIONS, NOTEBOOK, PACKAGE)
"""Copies of what was fixed before the run; they are there in every run, with the request and the outcome."""
ARM_FILES = (SAMPLES, OUTPUTS, RESULT)
"""What every arm writes, beside what its campaign says that it produces. The seal covers exactly these."""
PARENT_FILES = (*FROZEN_FILES, REQUEST, OUTCOME, PARENT_ENVIRONMENT)
"""What the parent writes in every run, whatever came of it."""
KERNEL_FILES = (ENVIRONMENT, EXECUTED, STDOUT, STDERR, SEAL)
"""What a process that was started leaves; each may be missing where the run did not come to its end."""
UNLISTED_FILES = (MANIFEST, STATEMENT, ENVELOPE)
"""What a manifest does not list: itself, and what is said about it."""
RESERVED_FILES = frozenset({*PARENT_FILES, *KERNEL_FILES, *ARM_FILES, *UNLISTED_FILES})
"""Names that no arm may use for documents of its own."""

PARTIAL = re.compile(r"\..+\.partial")
"""A file that was not whole yet when its writer was killed: it says nothing."""
RUN_ID = re.compile(r"(?P<arm>[a-z0-9][a-z0-9-]{0,59})-(?P<time>[0-9]{8}T[0-9]{6}Z)-(?P<nonce>[0-9a-f]{8})")
"""`<arm>-<YYYYmmddTHHMMSSZ>-<first 8 of the nonce>`, the name of a run's directory."""


def run_id_of(arm: str, requested_at: int, nonce: str) -> str:
    """Return the name of a run that was requested at a time of day in nanoseconds."""
    return f"{arm}-{datetime.fromtimestamp(requested_at // NANOSECONDS, UTC):%Y%m%dT%H%M%SZ}-{nonce[:8]}"


def partial_name(name: str) -> str:
    """Return the name of a record, or of a run's directory, before the ledger may have it."""
    return f".{name}.partial"


def ledger_path(root: Path) -> Path:
    """Return where the ledger of an evidence root is."""
    return root / LEDGER


def run_directory(root: Path, campaign: str, run_id: str) -> Path:
    """Return the directory of a run."""
    return root / campaign / run_id


def records_directory(root: Path, campaign: str) -> Path:
    """Return the folder of a campaign's acceptances, waivers and authorizations."""
    return root / campaign / RECORDS


def experiment_directory(project: Path, campaign: str) -> Path:
    """Return the folder of a project that holds a campaign's `campaign.toml` and `expectations.toml`."""
    return project / EXPERIMENTS / campaign


def campaign_names(project: Path) -> tuple[str, ...]:
    """Return the names of a project's campaigns, in their order."""
    return tuple(sorted(path.parent.name for path in (project / EXPERIMENTS).glob(f"*/{CAMPAIGN}")))
