"""Every test folder has a budget of seconds, and going over it is seen, or fails the run where that is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.budget_plugin import Budgets, FolderTime, folder_times, load_budgets
from tests.suite import COMPUTING, TIMED, commands

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]
BUDGETS = Budgets(1.5, {"tests/unit": 4.0, "tests/unit/views": 10.0})


def test_every_folder_with_tests_has_a_budget():
    budgets = load_budgets(ROOT / "tests" / "budgets.toml")
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders - set(budgets.seconds) - {"tests/bench", "tests/gpu"} == set()


def test_the_parts_of_the_suite_hold_each_test_once():
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    timed, computing, others = commands().values()
    for folder in folders - {"tests/bench", "tests/gpu"}:
        named = [part for part in (TIMED, COMPUTING) if any(f"{folder}/".startswith(f"{each}/") for each in part)]
        ignored = any(f"{folder}/".startswith(f"{each}/") for each in TIMED + COMPUTING)
        assert len(named) == int(ignored), folder
    assert set(TIMED) < set(timed)
    assert set(COMPUTING) < set(computing)
    assert {f"--ignore={each}" for each in TIMED + COMPUTING} < set(others)
    assert others[-1] == "tests"


def test_what_all_parts_may_take_is_bounded():
    seconds = load_budgets(ROOT / "tests" / "budgets.toml").seconds
    timed, computing = (sum(seconds[key] for key in seconds if key.startswith(part)) for part in (TIMED, COMPUTING))
    others = sum(seconds.values()) - timed - computing
    assert max(timed, computing / 2) + others / 2 <= 600  # seconds: ten minutes


def test_times_are_summed_by_the_nearest_folder_with_a_budget():
    durations = {
        "tests/unit/test_a.py": 1.0,
        "tests/unit/other/test_b.py": 2.0,
        "tests/unit/views/test_c.py": 3.0,
        "tests/unit/views/deep/test_d.py": 4.0,
        "elsewhere/test_e.py": 5.0,
    }
    assert folder_times(durations, BUDGETS) == (
        FolderTime("elsewhere", 5.0, None),
        FolderTime("tests/unit", 3.0, 4.0),
        FolderTime("tests/unit/views", 7.0, 10.0),
    )


@pytest.mark.parametrize(
    ("taken", "budget", "exceeds"), [(5.9, 4.0, False), (6.0, 4.0, False), (6.1, 4.0, True), (0.0, None, True)]
)
def test_a_folder_exceeds_above_its_budget_with_the_allowance(taken, budget, exceeds):
    assert FolderTime("tests/unit", taken, budget).exceeds(1.5) is exceeds


@pytest.mark.parametrize(
    "text",
    [
        "[seconds]\n'tests' = 1\n",
        "allowance = 1.5\n[seconds]\n'tests' = 0\n",
        "allowance = 0\n[seconds]\n'tests' = 1\n",
    ],
)
def test_budgets_that_could_not_be_exceeded_are_refused(tmp_path, text):
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="budgets"):
        load_budgets(path)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), pytest.ExitCode.TESTS_FAILED),
        (("tests/test_slow.py",), pytest.ExitCode.OK),
        (("-k", "slow"), pytest.ExitCode.OK),
        (("--budgets=always", "tests/test_slow.py"), pytest.ExitCode.TESTS_FAILED),
        (("--budgets=shown",), pytest.ExitCode.OK),
        (("--budgets=never",), pytest.ExitCode.OK),
    ],
)
def test_a_run_of_the_whole_suite_fails_when_a_folder_is_over_its_budget(pytester, arguments, status):
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    tests = pytester.mkdir("tests")
    (tests / "budgets.toml").write_text("allowance = 1\n[seconds]\ntests = 0.01\n")
    (tests / "test_slow.py").write_text("import time\ndef test_slow():\n    time.sleep(0.05)\n")
    result = pytester.runpytest_inprocess("-p", "tests.budget_plugin", "-p", "no:cacheprovider", *arguments)
    assert result.ret == status


def test_a_failed_run_stays_failed_and_the_table_is_printed(pytester):
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    tests = pytester.mkdir("tests")
    (tests / "budgets.toml").write_text("allowance = 1\n[seconds]\ntests = 60\n")
    (tests / "test_red.py").write_text("def test_red():\n    assert False\n")
    result = pytester.runpytest_inprocess("-p", "tests.budget_plugin", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*seconds by folder*", "tests * of   60 × 1"])
