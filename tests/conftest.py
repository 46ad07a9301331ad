"""Fixtures that every test folder may use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command_line import Outcome
    from tests.matrix_record import MatrixRecorder

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:  # tests import their shared helpers as `tests.models`
    sys.path.insert(0, ROOT)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process."""
    from tests.command_line import run_command

    return functools.partial(run_command, capsys)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model's file inside its installed package; a missing package is an error, never a skip."""
    from inferswarm.strategies.catalog import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest) -> Iterator[MatrixRecorder]:
    """The recorder of the equality matrix; its record is written when the run was asked for the mark `matrix`."""
    from tests.matrix_record import MatrixRecorder

    recorder = MatrixRecorder()
    yield recorder
    if "matrix" in request.config.option.markexpr:
        recorder.write()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many of the defects that were made in evidence were noticed, where any were made."""
    counts = {
        kind: sum("test_a_defect_is_noticed" in report.nodeid for report in terminalreporter.getreports(kind))
        for kind in ("passed", "failed")
    }
    if total := sum(counts.values()):
        terminalreporter.line(f"adversarial: {counts['passed']} of {total} defects in evidence were noticed")
