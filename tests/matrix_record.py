"""The record of the equality matrix: what each case compared, and what it found.

Every test that carries the mark `matrix` adds its numbers after its last assertion, so a case that failed, was left
out or was never reached is missing. A run that is asked for the mark (`make matrix`) writes out/matrix/families.json
at its end; which cases a whole record has is known without running them (`expected_cases`).
"""

from __future__ import annotations

import datetime
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests import families, hosted

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "out" / "matrix" / "families.json"
LIBRARIES = ("torch", "transformers", "numpy", "safetensors", "gguf")
GEMMA = "gemma-3-270m"
NUM_GEMMA_TEXTS = 6


class CaseName(NamedTuple):
    """Which case: the model, the format that it was read from, who computed it, and what was asked of it."""

    model: str
    form: str
    backend: str
    case: str


class CaseResult(NamedTuple):
    """What one case compared with transformers, and with itself cut in two or more."""

    num_positions: int
    """Positions that were computed."""
    num_tokens: int
    """Tokens that were compared."""
    near_ties: int
    """Tokens that differ where the two best logits are closer than the two computations."""
    max_difference: float | None
    """Largest difference of a logit; 0 when the bits were compared and equal, None when logits were not compared."""
    num_splits: int
    """Chains with cuts whose tokens and logits have the bits of the whole."""


FIELDS = (*CaseName._fields, *CaseResult._fields)


class MatrixRecorder:
    """Collects the results of one run."""

    def __init__(self) -> None:
        self.results: dict[CaseName, CaseResult] = {}

    def add(self, name: CaseName, result: CaseResult) -> None:
        """Keep a case's result. Raises ValueError for a case that is not expected, or is there already."""
        if name not in expected_cases():
            raise ValueError(f"{name} is not among the expected cases")
        if name in self.results:
            raise ValueError(f"{name} is recorded twice")
        self.results[name] = result

    def write(self, path: Path = RECORD) -> None:
        """Write the record: the conditions that it was made under, and one line for each case."""
        lines = ",\n".join(json.dumps([*name, *result]) for name, result in sorted(self.results.items()))
        head = json.dumps({"conditions": conditions(), "fields": FIELDS})[:-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def read_record(path: Path) -> tuple[dict[str, str], dict[CaseName, CaseResult]]:
    """Return the conditions and the results of a record.

    Raises ValueError for a record of other fields, and for a case that is not expected or there twice.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    if set(record) != {"conditions", "fields", "cases"} or record["fields"] != list(FIELDS):
        raise ValueError(f"{path} is not a record of the fields {', '.join(FIELDS)}")
    recorder = MatrixRecorder()
    num_names = len(CaseName._fields)
    for case in record["cases"]:
        recorder.add(CaseName(*case[:num_names]), CaseResult(*case[num_names:]))
    return record["conditions"], recorder.results


def expected_cases() -> frozenset[CaseName]:
    """Return every case of a whole record."""
    described = [(name, "directory") for name in families.FAMILIES] + [
        (name, "gguf") for name in families.IN_BOTH_FORMATS
    ]
    return frozenset(
        {CaseName(name, form, "torch", f"{length} tokens") for name, form in described for length in families.LENGTHS}
        | {CaseName(name, "directory", "transformers", kind) for name in hosted.FAMILIES for kind in hosted.DTYPES}
        | {CaseName(GEMMA, "gguf", "torch", f"text {index}") for index in range(NUM_GEMMA_TEXTS)}
        | {CaseName(GEMMA, "gguf", "torch", "split")}
    )


def conditions() -> dict[str, str]:
    """Return what a record was made with and when."""
    from inferswarm.resources.cpuinfo import read_cpu

    cpu = read_cpu().model_name
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "cpu": str(cpu.value) if cpu.value else f"unknown ({platform.machine()})",
        "threads": "1",
    }
