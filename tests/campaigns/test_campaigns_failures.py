"""What papermill reports as a success, or fails at without a trace, and what a run of it comes to here.

Each arm is a real notebook under papermill. None of them may be a PASS. The inputs that never get that far, because
they are refused before anything starts, are in tests/unit/campaigns.
"""

from __future__ import annotations

import psutil
import pytest

from inferswarm.campaigns.handover import RUN_NONCE
from inferswarm.campaigns.layout import EXECUTED, SEAL
from inferswarm.campaigns.processes import marked_processes
from tests.campaigns.campaigns_support import FINISH, OBSERVING, TinyArm, run, write_project

SIGNALS = "import os, signal, time\n"
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
HANG = "time.sleep(600)"
AT_THE_SEAL = "arm._say = lambda text: {what} if text.startswith('sealed') else None"
FAILED_THREAD = "import threading\nfailing = threading.Thread(target=lambda: 1 / 0)\nfailing.start()\nfailing.join()"
FAILED_TASK = """import asyncio

async def fail():
    raise ValueError("in a task")

held = asyncio.create_task(fail())
await asyncio.sleep(0.01)"""
LEFT_BEHIND = "__import__('subprocess').Popen(['sleep', '600'], env={}, start_new_session=True)"
"""Behind the scan's back; without the run's nonce, and in a session of its own."""
UNSUPERVISED = """import psutil
__import__('subprocess').Popen(['sleep', '600'], start_new_session=True)
psutil.Process().parent().parent().kill()
"""
STRAY_FILE = "open(os.environ['INFERSWARM_RUN_DIRECTORY'] + '/more.json', 'w').write('{}')"


def slow(*values, id):
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


CASES = [
    pytest.param(
        TinyArm("killed", [OBSERVING, SIGNALS + "os.kill(os.getpid(), signal.SIGKILL)"]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal", "notebook-scan"}),
        id="the kernel is killed",
    ),
    pytest.param(
        TinyArm("sealed", [OBSERVING, SIGNALS + AT_THE_SEAL.format(what="os.kill(os.getpid(), signal.SIGKILL)")]),
        ("INCOMPLETE", "exited", True, {"outcome", "witnesses-agree"}),
        id="the kernel is killed in the last cell, after the seal",
    ),
    slow(
        TinyArm("last", [OBSERVING], last=SIGNALS + "os.kill(os.getpid(), signal.SIGKILL)\n" + FINISH),
        ("INCOMPLETE", "exited", False, {"outcome", "seal"}),
        id="the kernel is killed in the last cell, before the seal",
    ),
    pytest.param(
        TinyArm(
            "late", [OBSERVING, SIGNALS + "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + HANG], deadline_seconds=5
        ),
        ("INCOMPLETE", "deadline", False, {"outcome", "seal", "notebook-scan"}),
        id="a cell that ignores SIGINT is over the deadline",
    ),
    pytest.param(
        TinyArm("interrupted", [OBSERVING, SIGNALS + "os.kill(os.getppid(), signal.SIGINT)\n" + HANG]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="SIGINT to papermill",
    ),
    slow(
        TinyArm("terminated", [OBSERVING, SIGNALS + "os.kill(os.getppid(), signal.SIGTERM)\n" + HANG]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="SIGTERM to papermill",
    ),
    pytest.param(
        TinyArm("orphaned", [OBSERVING, SIGNALS + "os.kill(os.getppid(), signal.SIGKILL)\n" + HANG]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="SIGKILL to papermill",
    ),
    pytest.param(
        TinyArm("exited", ["import sys\nsys.exit(0)", OBSERVING]),
        ("INCOMPLETE", "exited", False, {"seal", "notebook-scan"}),
        id="sys.exit(0) in a cell",
    ),
    slow(
        TinyArm("exited-late", [OBSERVING], last="import sys\nsys.exit(0)\n" + FINISH),
        ("INCOMPLETE", "exited", False, {"seal"}),
        id="sys.exit(0) in the last cell",
    ),
    slow(
        TinyArm("raised", [OBSERVING, "raise ValueError('a gate')"]),
        ("INCOMPLETE", "exited", False, {"outcome", "seal", "notebook-scan"}),
        id="an exception in a cell",
    ),
    pytest.param(
        TinyArm("background", [OBSERVING, FAILED_THREAD, FAILED_TASK]),
        ("FAIL", "exited", True, {"background-failures"}),
        id="exceptions in a thread and in a task",
    ),
    slow(
        TinyArm("afterwards", [OBSERVING, AT_THE_SEAL.format(what=f"exec({FAILED_THREAD!r})")]),
        ("INCOMPLETE", "exited", False, {"seal"}),
        id="an exception in a thread after the seal",
    ),
    pytest.param(
        TinyArm("left", [OBSERVING, LEFT_BEHIND]),
        ("INCOMPLETE", "exited", True, {"outcome"}),
        id="a process is left behind",
    ),
    pytest.param(
        TinyArm("unsupervised", [OBSERVING, UNSUPERVISED + SIGNALS + HANG]),
        ("INCOMPLETE", "signalled", False, {"outcome", "seal"}),
        id="what supervises is killed, and a process is left behind",
    ),
    slow(
        TinyArm("stray", [OBSERVING, SIGNALS + STRAY_FILE]),
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
    assert outcome.kernel_pid is not None
    assert is_gone(outcome.kernel_pid)
    if arm.name in ("left", "unsupervised"):
        assert outcome.survivors >= 1
    if arm.name == "late":
        assert (ran.directory(arm.name) / EXECUTED).exists()
