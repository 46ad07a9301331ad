"""Runs every test that belongs to a change, in about thirteen minutes on two cores: what `make test` calls.

Tests of leases and losses wait more than they compute, but are timed: they come first, one at a time. What only
computes, and asks for no time, runs beside them at the lowest priority, two files at a time. Then come whole swarms,
the command line and everything else, two files at a time. Each part goes to its end, also when one before it has
failed.

    python -m tests.suite [further arguments of pytest, such as -x]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TIMED = ("tests/integration",)
COMPUTING = (
    "tests/numerics",
    "tests/unit/backends",
    "tests/unit/campaigns",
    "tests/unit/evidence",
    "tests/unit/planner",
    "tests/unit/resources",
    "tests/unit/strategies",
    "tests/unit/views",
)
_TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile")
_ALL = ("-p", "tests.budget_plugin", "--budgets=always", "-m", "not slow and not notebook")
_LOG = Path("out", "tests", "computing.log")
_LOWEST_PRIORITY = 19


def commands() -> tuple[tuple[str, ...], ...]:
    """Return the arguments of pytest for the timed tests, those that compute, and all others: each test in one."""
    others = tuple(f"--ignore={folder}" for folder in TIMED + COMPUTING)
    return ((*_ALL, *TIMED), (*_ALL, *_TWO_AT_A_TIME, *COMPUTING), (*_ALL, *_TWO_AT_A_TIME, *others, "tests"))


def main(arguments: Sequence[str]) -> int:
    """Run the three parts and return 0 when all of them passed, else 1."""
    timed, computing, others = ([sys.executable, "-m", "pytest", *part, *arguments] for part in commands())
    _LOG.parent.mkdir(parents=True, exist_ok=True)
    print(f"{' '.join(TIMED)}; beside it {', '.join(COMPUTING)} (output: {_LOG})", flush=True)
    with _LOG.open("w") as log:
        beside = subprocess.Popen(computing, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_at_lowest_priority)
        try:
            failed = [subprocess.call(timed)]
            failed.append(beside.wait())
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
    print(_LOG.read_text(encoding="utf-8", errors="replace"), flush=True)
    failed.append(subprocess.call(others))
    return int(any(failed))


def _at_lowest_priority() -> None:
    os.nice(_LOWEST_PRIORITY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
