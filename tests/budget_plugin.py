"""A pytest plugin that keeps each test folder within its budget of seconds (tests/budgets.toml).

After every run it prints what each folder took. A run of the whole suite fails when a folder took more than its
budget times the allowance, or has no budget; `--budgets=always` asks for that on a part of the suite too, `shown` for
the table alone, `never` for neither. Time is set-up, test and tear-down together, summed over processes when several
share the work.

Register it with `-p tests.budget_plugin`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest


class Budgets(NamedTuple):
    """Seconds for each folder, and the factor above which a folder fails the run."""

    allowance: float
    seconds: Mapping[str, float]


class FolderTime(NamedTuple):
    """What one folder took beside its budget; None when it has none."""

    folder: str
    taken: float
    budget: float | None

    def exceeds(self, allowance: float) -> bool:
        """Whether the folder is over its budget with the allowance, or has no budget."""
        return self.budget is None or self.taken > self.budget * allowance


def load_budgets(path: Path) -> Budgets:
    """Read the budgets. Raises ValueError unless every number is positive and all keys are known."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if set(data) != {"allowance", "seconds"}:
        raise ValueError(f"{path} has {sorted(data)}, needed: allowance, seconds")
    numbers = [data["allowance"], *data["seconds"].values()]
    if not all(isinstance(number, (int, float)) and number > 0 for number in numbers):
        raise ValueError(f"{path}: every budget and the allowance must be a positive number")
    return Budgets(float(data["allowance"]), {folder: float(limit) for folder, limit in data["seconds"].items()})


def folder_times(durations: Mapping[str, float], budgets: Budgets) -> tuple[FolderTime, ...]:
    """Sum durations by test file's folder; a folder without a budget counts to the nearest one above that has one."""
    taken: dict[str, float] = {}
    for path, seconds in durations.items():
        parents = [parent.as_posix() for parent in PurePosixPath(path).parents]
        folder = next((parent for parent in parents if parent in budgets.seconds), parents[0])
        taken[folder] = taken.get(folder, 0.0) + seconds
    return tuple(FolderTime(folder, taken[folder], budgets.seconds.get(folder)) for folder in sorted(taken))


DURATIONS = pytest.StashKey[dict[str, float]]()
TIMES = pytest.StashKey[tuple[FolderTime, ...]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--budgets`."""
    parser.addoption(
        "--budgets",
        choices=("auto", "always", "shown", "never"),
        default="auto",
        help="fail when a test folder is over its budget: when the whole suite ran (auto), always, never but say so "
        "(shown), or do not even count (never)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start counting, except in the processes that only run a share of the tests for another one."""
    if hasattr(config, "workerinput") or config.getoption("--budgets") == "never":
        return
    config.stash[DURATIONS] = {}
    config.pluginmanager.register(_Collector(config), "budget-collector")


class _Collector:
    """Counts the reports of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        durations = self.config.stash[DURATIONS]
        path = report.nodeid.partition("::")[0]
        durations[path] = durations.get(path, 0.0) + report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        budgets = load_budgets(self.config.rootpath / "tests" / "budgets.toml")
        times = folder_times(self.config.stash[DURATIONS], budgets)
        self.config.stash[TIMES] = times
        over = any(item.exceeds(budgets.allowance) for item in times)
        if over and is_enforced(self.config) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        times = self.config.stash.get(TIMES, ())
        if not times:
            return
        allowance = load_budgets(self.config.rootpath / "tests" / "budgets.toml").allowance
        terminalreporter.section("seconds by folder")
        for item in times:
            budget = "none" if item.budget is None else f"{item.budget:.0f}"
            mark = "  OVER BUDGET" if item.exceeds(allowance) else ""
            terminalreporter.line(f"{item.folder:<28}{item.taken:8.1f} of {budget:>4} × {allowance:g}{mark}")


def is_enforced(config: pytest.Config) -> bool:
    """Whether going over a budget fails this run: always or never on demand, else for a run of the whole suite."""
    asked = config.getoption("--budgets")
    if asked != "auto":
        return asked == "always"
    selected = any(config.getoption(name, False) for name in ("keyword", "lf", "deselect", "stepwise", "collectonly"))
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not selected
