"""Runs the tests that belong to a change, in about nine minutes on two cores: what `make test` calls.

Tests of leases and losses wait more than they compute, but are timed: they come first, one at a time. What only
computes, and asks for no time, runs beside them at the lowest priority, two files at a time. Then come whole swarms,
the command line and everything else, two files at a time. Each part goes to its end, also when one before it has
failed. A test of running Nodes that failed is run once more, alone: what a busy machine disturbed passes then, and is
named either way. The last lines name every test that failed, and why.

With `--long` it does the same with the tests that are marked so: `make test-long`, five minutes, which a change is
checked by as well.

    python -m tests.suite [--long] [further arguments of pytest, such as -x]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.failures import Failure, failures_of, lines_of

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
OF_RUNNING_NODES = (*TIMED, "tests/answers", "tests/campaigns", "tests/cli")
OUTPUT = Path("out", "tests")
_TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile")
_ALL = ("-p", "tests.budget_plugin", "--budgets=shown", "-m")
_USUAL, _LONG = "not long and not slow and not notebook", "long and not slow and not notebook"
_MOST_REPEATED = 5  # more than that is no disturbance of the machine
_LOWEST_PRIORITY = 19


def commands(marked: str = _USUAL) -> dict[str, tuple[str, ...]]:
    """Return the arguments of pytest for the timed tests, those that compute, and all others: each test in one."""
    others = tuple(f"--ignore={folder}" for folder in TIMED + COMPUTING)
    return {
        "timed": (*_ALL, marked, *TIMED),
        "computing": (*_ALL, marked, *_TWO_AT_A_TIME, *COMPUTING),
        "others": (*_ALL, marked, *_TWO_AT_A_TIME, *others, "tests"),
    }


def main(arguments: Sequence[str]) -> int:
    """Run the three parts and what is to be repeated; return 0 when all of it passed, else 1."""
    marked = _LONG if "--long" in arguments else _USUAL
    further = [argument for argument in arguments if argument != "--long"]
    parts = {name: (*part, *further) for name, part in commands(marked).items()}
    log = OUTPUT / "computing.log"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    print(f"{' '.join(TIMED)}; beside it {', '.join(COMPUTING)} (output: {log})", flush=True)
    status = {}
    with log.open("w") as output:
        beside = subprocess.Popen(
            _pytest("computing", parts["computing"]),
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=_at_lowest_priority,
        )
        try:
            status["timed"] = subprocess.call(_pytest("timed", parts["timed"]))
            status["computing"] = beside.wait()
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
    print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
    status["others"] = subprocess.call(_pytest("others", parts["others"]))
    failed = [failure for name in parts for failure in failures_of(_record(name), status[name])]
    folders = tuple(f"{folder}/" for folder in OF_RUNNING_NODES)
    disturbed = [failure for failure in failed if failure.test.startswith(folders)]
    if 0 < len(disturbed) <= _MOST_REPEATED:
        print(f"\nonce more, alone: {len(disturbed)} tests of running Nodes", flush=True)
        again = subprocess.call(_pytest("again", (*_ALL, marked, *(failure.test for failure in disturbed))))
        _say("failed beside other work and was repeated alone", disturbed)
        failed = [failure for failure in failed if failure not in disturbed] + [*failures_of(_record("again"), again)]
    _say("failed", failed)
    return int(bool(failed))


def _pytest(name: str, arguments: Sequence[str]) -> list[str]:
    _record(name).unlink(missing_ok=True)
    return [sys.executable, "-m", "pytest", f"--junitxml={_record(name)}", *arguments]


def _record(name: str) -> Path:
    return OUTPUT / f"{name}.xml"


def _say(what: str, failures: Sequence[Failure]) -> None:
    for failure in failures:
        print(f"\n{what}: {failure.test or 'a part of the suite'}", *lines_of(failure), sep="\n    ", flush=True)


def _at_lowest_priority() -> None:
    os.nice(_LOWEST_PRIORITY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
