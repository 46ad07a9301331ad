"""The parent's part in a run: it starts what executes the notebook, and says how that ended, and nothing else.

Nothing in the run can keep the parent from ending it: at the deadline, at Ctrl-C, and when the parent itself is
killed, everything that the run started goes, wherever it went.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple, Self

import msgspec

from inferswarm.campaigns import child_layout
from inferswarm.campaigns.handover import RUN_NONCE, handed_over
from inferswarm.campaigns.journal import JOURNAL
from inferswarm.campaigns.layout import EXECUTED, STDERR, STDOUT
from inferswarm.campaigns.plain_files import open_plain, read_plain
from inferswarm.campaigns.processes import kill_all, marked_processes
from inferswarm.campaigns.records import End, Parameter
from inferswarm.campaigns.supervising import Orders, Seen
from inferswarm.documents import canonical_bytes, read_document
from inferswarm.errors import DocumentError

Say = Callable[[str], None]
_POLL_SECONDS = 0.05
STOP_SECONDS = 20.0
"""For the supervising process to kill what is left and to say so; it has 2 s for grace and 10 s for killing."""
MAX_REASON = 300


class Clock(NamedTuple):
    """The two clocks of a parent: the time of day in nanoseconds since 1970, and seconds that never go back."""

    time_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic


class Task(NamedTuple):
    """What is to be executed."""

    project: Path
    directory: Path
    run_id: str
    nonce: str
    notebook: bytes
    parameters: tuple[Parameter, ...]
    """With the types of the campaign; `run` is added."""
    deadline_seconds: float


class Ended(NamedTuple):
    """How it ended, as the parent saw it. `executed` is None where there is no notebook that can be read."""

    end: End
    exit_status: int | None
    signal: int | None
    started_at: int
    ended_at: int
    seconds: float
    kernel_pid: int | None
    survivors: int
    reason: str
    executed: bytes | None


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted instead of ending this process; the second one ends it.

    Only the main thread may say what a signal does: elsewhere nothing is noted.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Start to note."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
                    self._earlier[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Do with signals what was done before."""
        self._restore()

    def _restore(self) -> None:
        while self._earlier:
            signal.signal(*self._earlier.popitem())

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name


def execute(task: Task, stop: StopSignals, clock: Clock, say: Say) -> Ended:
    """Execute a notebook to its end, its deadline or a signal. Raises OSError when it cannot even be started."""
    with tempfile.TemporaryDirectory(prefix="inferswarm-run-", ignore_cleanup_errors=True) as name:
        work = Path(name).resolve()
        orders = child_layout.lay_out(work, task.notebook, task.run_id, task.parameters)
        started_at, started = clock.time_ns(), clock.monotonic()
        with _start(task, work, orders) as process:
            end, lines = _wait(process, task, stop, started + task.deadline_seconds, clock, say)
            seen = _seen(lines)
        seconds, ended_at = clock.monotonic() - started, clock.time_ns()
        if end is None and seconds > task.deadline_seconds:
            end = "deadline"  # it ended by itself, and too late
        survivors = kill_all(lambda: marked_processes(RUN_NONCE, task.nonce), 0.0)
        executed = _notebook(work)
        pid = _kernel_pid(work)
    if seen is None:
        status = process.returncode
        seen = Seen(exit_status=status if status > 0 else None, signal=-status if status < 0 else None, survivors=0)
        reason = f"the supervising process ended with {status} and said nothing"
        end = end or ("signalled" if status <= 0 else "exited")
    else:
        reason = _reason(end, seen, task, stop)
        end = end or ("exited" if seen.signal is None else "signalled")
    return Ended(
        end=end,
        exit_status=seen.exit_status,
        signal=seen.signal,
        started_at=started_at,
        ended_at=ended_at,
        seconds=seconds,
        kernel_pid=pid,
        survivors=seen.survivors + survivors,
        reason=reason if executed is not None else f"{reason}; no executed notebook that can be read".lstrip("; "),
        executed=executed,
    )


def _start(task: Task, work: Path, orders: tuple[str, ...]) -> subprocess.Popen[bytes]:
    path = work / "supervising.json"
    given = Orders(
        command=orders,
        directory=str(work / child_layout.SCRATCH),
        stdout=str(task.directory / STDOUT),
        stderr=str(task.directory / STDERR),
        work=str(work),
    )
    path.write_bytes(canonical_bytes(given))
    return subprocess.Popen(
        [sys.executable, "-m", "inferswarm.campaigns.supervising", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=work,
        env={**os.environ, **handed_over(task.directory, task.nonce, task.project), **child_layout.variables(work)},
        start_new_session=True,
    )


def _wait(
    process: subprocess.Popen[bytes], task: Task, stop: StopSignals, deadline: float, clock: Clock, say: Say
) -> tuple[End | None, bytes]:
    """Wait for the supervising process; return why it was told to stop, if it was, and what it said."""
    assert process.stdin is not None
    assert process.stdout is not None
    end: End | None = None
    said = b""
    given_up_at = float("inf")
    with _Progress(task.directory / JOURNAL) as progress:
        while True:
            if select.select([process.stdout], [], [], _POLL_SECONDS)[0]:
                piece = os.read(process.stdout.fileno(), 65_536)
                said += piece
                if not piece:
                    break
            for line in progress.lines():
                say(line)
            if end is None and (stop.received is not None or clock.monotonic() >= deadline):
                end = "interrupted" if stop.received is not None else "deadline"
                say(f"{end}: killing what was started")
                with contextlib.suppress(OSError):
                    process.stdin.write(b"x")
                    process.stdin.flush()
                given_up_at = time.monotonic() + STOP_SECONDS
            if time.monotonic() >= given_up_at:
                process.kill()
        for line in progress.lines():
            say(line)
    process.wait()
    return end, said


class _Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    progress: str


class _Progress:
    """The lines of progress in an arm's journal, as they come. The arm removes the file at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def lines(self) -> list[str]:
        """Return what was said since the last call."""
        if self._file is None:
            try:
                self._file = open_plain(self._path)
            except OSError:
                return []
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [text for line in lines if (text := _said(line)) is not None]


def _said(line: bytes) -> str | None:
    """Return the text of a line of progress; None for any other line, also for one that somebody else wrote."""
    try:
        return msgspec.json.decode(line, type=_Told).progress
    except (msgspec.MsgspecError, ValueError):
        return None


def _seen(said: bytes) -> Seen | None:
    try:
        return read_document(Seen, said, "supervising process")
    except DocumentError:
        return None


def _reason(end: End | None, seen: Seen, task: Task, stop: StopSignals) -> str:
    if end == "deadline":
        return f"not finished within {task.deadline_seconds:g} s"
    if end == "interrupted":
        return f"{stop.received} to the parent"
    if seen.signal is not None:
        return f"the process was ended by {signal.Signals(seen.signal).name}"
    if seen.exit_status == 0:
        return ""
    with contextlib.suppress(OSError):
        text = read_plain(task.directory / STDERR).decode(errors="replace")
        lines = [line for line in text.splitlines() if line and not line[0].isspace()]
        return (lines or ["no message"])[-1][:MAX_REASON]
    return "no message that can be read"


def _notebook(work: Path) -> bytes | None:
    """Return the executed notebook, unless it is missing or was being written when its writer was killed."""
    try:
        data = read_plain(work / EXECUTED)
        msgspec.json.decode(data)
    except (OSError, msgspec.DecodeError):
        return None
    return data


def _kernel_pid(work: Path) -> int | None:
    try:
        return int(read_plain(work / child_layout.KERNEL_PID))
    except (OSError, ValueError):
        return None
