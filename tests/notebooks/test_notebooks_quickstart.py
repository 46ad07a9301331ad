"""The notebooks run from top to bottom under papermill, with the outputs that they promise."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.notebooks.executing import NOTEBOOKS, execute

DEADLINE_SECONDS = 420


@pytest.mark.notebook
@pytest.mark.timeout(DEADLINE_SECONDS + 30)
def test_quickstart_runs_under_papermill_and_shows_its_pictures(tmp_path: Path) -> None:
    shown = execute("00_quickstart.ipynb", tmp_path, DEADLINE_SECONDS, max_tokens=24, state=str(tmp_path / "state"))
    assert shown.num_pictures >= 3
    assert "tokens and logits digests equal" in shown.text
    assert "technically infeasible" in shown.text


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
