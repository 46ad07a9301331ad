"""What arms' notebooks do behind the scan's back: it reads their code, and not that of what they import.

Found by kernels through PYTHONPATH; nothing here is imported by the tests themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

RUN = "INFERSWARM_RUN_DIRECTORY"


def kill_kernel() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_papermill(name: str) -> None:
    os.kill(os.getppid(), signal.Signals[name])
    time.sleep(600)


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)


def at_the_seal(arm: Any, act: Callable[[], object]) -> None:
    """Act when the arm says that it is sealed, and say nothing."""
    arm._say = lambda text: act() if text.startswith("sealed") else None


def at_the_finish(arm: Any, act: Callable[[], object]) -> None:
    """Act in the place of the arm's end."""
    arm.finish = act


def leave() -> None:
    sys.exit(0)


def fail_in_a_thread() -> None:
    failing = threading.Thread(target=lambda: 1 / 0)
    failing.start()
    failing.join()


def leave_a_process() -> None:
    """Without the run's nonce, and in a session of its own."""
    subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)


def kill_supervisor() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    psutil.Process().parent().parent().kill()  # type: ignore[union-attr]
    time.sleep(600)


def write_a_file() -> None:
    Path(os.environ[RUN], "more.json").write_text("{}")


def make_a_link() -> None:
    Path(os.environ[RUN], "samples.parquet").symlink_to("/etc/hostname")


def make_pipes() -> None:
    """Put pipes, which nobody writes into, in the places that the parent looks at."""
    for path in (Path(os.environ[RUN], "journal.jsonl"), Path("../kernel.pid"), Path("../executed.ipynb")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    kill_papermill("SIGKILL")


def spoil_the_journal() -> None:
    with Path(os.environ[RUN], "journal.jsonl").open("ab") as file:
        file.write(b'{"progress": oops\n{"progress":[1]}\n')


def rewrite_the_parents_environment() -> None:
    path = Path(os.environ[RUN], "environment.parent.json")
    path.write_text(path.read_text().replace('"optimize": 0', '"optimize": 2'))
