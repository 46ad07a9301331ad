"""Running a notebook under papermill, and believing nothing that papermill says of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


class Executed(NamedTuple):
    """What an executed notebook shows: its outputs in order, their text, and how many are pictures."""

    outputs: list[Any]
    text: str
    num_pictures: int


def execute(name: str, directory: Path, deadline_seconds: float, **parameters: str | int | float) -> Executed:
    """Run notebooks/NAME in `directory` and return what it shows.

    Parameters are literal and must be among the notebook's own: papermill takes a misspelled one silently. Fails when
    the process does, when a cell did not run in its order, or when one ended with an error.
    """
    source = NOTEBOOKS / name
    declared = next(
        cell.source
        for cell in nbformat.read(source, as_version=4).cells
        if "parameters" in cell.metadata.get("tags", ())
    )
    known = {line.partition(" = ")[0] for line in declared.splitlines()}
    assert set(parameters) <= known, (
        f"{name} has the parameters {sorted(known)}, not {sorted(set(parameters) - known)}"
    )
    executed = directory / name
    command = [sys.executable, "-m", "papermill", str(source), str(executed)]
    command += ["--kernel", "python3", "--language", "python", "--cwd", str(directory), "--no-progress-bar"]
    for key, value in parameters.items():
        command += ["-r" if isinstance(value, str) else "-p", key, str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_seconds)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    code = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
    # papermill calls a notebook complete that was not: every cell must have run, in order, without an error.
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    text = "".join(output.get("text", "") for output in outputs)
    return Executed(outputs, text, sum("image/png" in output.get("data", {}) for output in outputs))
