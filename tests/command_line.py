"""The command line run in this process, as the fixture `cli` offers it to tests."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from inferswarm.cli import main


class Outcome(NamedTuple):
    """How one command ended, and what it wrote."""

    status: int
    out: str
    err: str


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """Run a command to its end and return how it ended."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return Outcome(int(ended.value.code or 0), captured.out, captured.err)
