"""What papermill reports as a success, or fails at without a trace, and what a run of it comes to here.

Each arm is a real notebook under papermill. None of them may be a PASS. The inputs that never get that far, because
they are refused before anything starts, are in tests/unit/campaigns.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from inferswarm.campaigns.handover import RUN_NONCE
from inferswarm.campaigns.layout import EXECUTED, SEAL
from inferswarm.campaigns.processes import marked_processes
from tests.campaigns.campaigns_support import OBSERVING, TinyArm, run, write_project

pytestmark = pytest.mark.long

DECEITS = "import deceits\n"
FAILED_TASK = """import asyncio

async def fail():
    raise ValueError("in a task")

held = asyncio.create_task(fail())
await asyncio.sleep(0.01)"""
AT_THE_SEAL = DECEITS + "deceits.at_the_seal(arm, deceits.{})"
AT_THE_FINISH = DECEITS + "deceits.at_the_finish(arm, deceits.{})"


@pytest.fixture(autouse=True)
def _find_deceits(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def slow(*values, id):
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


CASES = [
    pytest.param(
        TinyArm("killed", [OBSERVING, DECEITS + "deceits.kill_kernel()"]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal", "notebook-scan"}),
        id="the kernel is killed",
    ),
    pytest.param(
        TinyArm("sealed", [OBSERVING, AT_THE_SEAL.format("kill_kernel")]),
        ("INCOMPLETE", "exited", True, {"outcome", "witnesses-agree"}),
        id="the kernel is killed in the last cell, after the seal",
    ),
    slow(
        TinyArm("last", [OBSERVING, AT_THE_FINISH.format("kill_kernel")]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal"}),
        id="the kernel is killed in the last cell, before the seal",
    ),
    pytest.param(
        TinyArm("late", [OBSERVING, DECEITS + "deceits.ignore_interrupts()"], deadline_seconds=10),
        ("INCOMPLETE", "deadline", False, {"outcome", "seal", "notebook-scan"}),
        id="a cell that ignores SIGINT is over the deadline",
    ),
    pytest.param(
        TinyArm("interrupted", [OBSERVING, DECEITS + "deceits.kill_papermill('SIGINT')"]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="SIGINT to papermill",
    ),
    slow(
        TinyArm("terminated", [OBSERVING, DECEITS + "deceits.kill_papermill('SIGTERM')"]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="SIGTERM to papermill",
    ),
    pytest.param(
        TinyArm("orphaned", [OBSERVING, DECEITS + "deceits.kill_papermill('SIGKILL')"]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="SIGKILL to papermill",
    ),
    pytest.param(
        TinyArm("exited", ["import sys\nsys.exit(0)", OBSERVING]),
        ("INCOMPLETE", "exited", False, {"seal", "notebook-scan"}),
        id="sys.exit(0) in a cell",
    ),
    slow(
        TinyArm("exited-late", [OBSERVING, AT_THE_FINISH.format("leave")]),
        ("INCOMPLETE", "exited", False, {"seal"}),
        id="sys.exit(0) in the last cell",
    ),
    slow(
        TinyArm("raised", [OBSERVING, "raise ValueError('a gate')"]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal", "notebook-scan"}),
        id="an exception in a cell",
    ),
    pytest.param(
        TinyArm("background", [OBSERVING, DECEITS + "deceits.fail_in_a_thread()", FAILED_TASK]),
        ("FAIL", "exited", True, {"background-failures"}),
        id="exceptions in a thread and in a task",
    ),
    slow(
        TinyArm("afterwards", [OBSERVING, AT_THE_SEAL.format("fail_in_a_thread")]),
        ("INCOMPLETE", "exited", False, {"seal"}),
        id="an exception in a thread after the seal",
    ),
    pytest.param(
        TinyArm("left", [OBSERVING, DECEITS + "deceits.leave_a_process()"]),
        ("INCOMPLETE", "exited", True, {"outcome"}),
        id="a process is left behind",
    ),
    pytest.param(
        TinyArm("unsupervised", [OBSERVING, DECEITS + "deceits.kill_supervisor()"]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="what supervises is killed, and a process is left behind",
    ),
    slow(
        TinyArm("stray", [OBSERVING, DECEITS + "deceits.write_a_file()"]),
        ("FAIL", "exited", True, {"files-closed"}),
        id="a file that the campaign does not name",
    ),
    slow(
        TinyArm("wrong", ["arm.truth('works', False)"]),
        ("FAIL", "exited", True, {"correctness-gate"}),
        id="a gate that does not hold",
    ),
    slow(
        TinyArm("silent", ["pass"]),
        ("INCOMPLETE", "exited", True, {"correctness-gate"}),
        id="nothing is observed",
    ),
    slow(
        TinyArm("unnumbered", ["arm.sample('seconds', float('nan'), 's')"]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal"}),
        id="a sample is no number",
    ),
    slow(
        TinyArm(
            "full",
            [
                "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))",
                "arm.samples('seconds', [0.5] * 100_000, 's')",
                OBSERVING,
            ],
        ),
        ("INCOMPLETE", "exited", False, {"outcome", "seal"}),
        id="no room for the samples",
    ),
    pytest.param(
        TinyArm("piped", [OBSERVING, DECEITS + "deceits.make_pipes()"]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="pipes where the parent reads",
    ),
    pytest.param(
        TinyArm(
            "rewritten",
            [
                DECEITS + "deceits.spoil_the_journal()\ndeceits.rewrite_the_parents_environment()",
                OBSERVING,
                "import traceback\ntry:\n    assert False\nexcept AssertionError:\n    traceback.print_exc()",
            ],
        ),
        ("INCOMPLETE", "exited", True, {"notebook-scan"}),
        id="a traceback on stderr, and the parent's environment rewritten",
    ),
    slow(
        TinyArm("linked", [OBSERVING, DECEITS + "deceits.make_a_link()\nassert False"]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal"}),
        id="a link in the place of the samples",
    ),
]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; what is left of it may wait for its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("arm", "expected"), CASES)
def test_what_papermill_does_not_see_is_no_pass(tmp_path, arm, expected):
    disposition, end, is_sealed, laws = expected
    ran = run(write_project(tmp_path, arm))
    outcome = ran.outcome(arm.name)
    missing = laws - set(ran.not_proven(arm.name))
    assert (ran.disposition(arm.name), outcome.end, missing) == (disposition, end, set()), ran.said
    assert (ran.directory(arm.name) / SEAL).exists() is is_sealed
    assert marked_processes(RUN_NONCE, outcome.nonce) == ()
    if arm.name == "piped":
        assert (outcome.kernel_pid, outcome.reason.partition("; removed ")[2]) == (
            None,
            "journal.jsonl: no plain files",
        )
    else:
        assert outcome.kernel_pid is not None
        assert is_gone(outcome.kernel_pid)
    if arm.name in ("left", "unsupervised"):
        assert outcome.survivors >= 1
    if arm.name == "rewritten":
        assert "environment" not in ran.not_proven(arm.name)
    if arm.name == "late":
        assert (ran.directory(arm.name) / EXECUTED).exists()
