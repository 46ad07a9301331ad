"""The notebooks run from top to bottom under papermill, with the outputs that they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DEADLINE_SECONDS = 420


@pytest.mark.notebook
@pytest.mark.timeout(DEADLINE_SECONDS + 30)
def test_quickstart_runs_under_papermill_and_shows_its_pictures(tmp_path: Path) -> None:
    executed = tmp_path / "00_quickstart.ipynb"
    command = [sys.executable, "-m", "papermill", str(NOTEBOOKS / "00_quickstart.ipynb"), str(executed)]
    command += ["--kernel", "python3", "--language", "python", "--cwd", str(tmp_path)]
    command += ["-p", "max_tokens", "24", "-p", "state", str(tmp_path / "state"), "--no-progress-bar"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    notebook = nbformat.read(executed, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # papermill calls a notebook complete that was not: every cell must have run, in order, without an error.
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 3
    text = "".join(output.get("text", "") for output in outputs)
    assert "tokens and logits digests equal" in text
    assert "technically infeasible" in text


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: path.name)
def test_committed_notebooks_are_stripped_and_parameterized(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is None and not cell.outputs for cell in code)
    assert sum("parameters" in cell.metadata.get("tags", ()) for cell in code) == 1
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info.name == "python"
    for cell in code:
        assert not [line for line in cell.source.splitlines() if line.lstrip().startswith(("!", "%"))]
