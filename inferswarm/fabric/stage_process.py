"""An agent's handle on one stage: start it, talk to it, know how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence

import msgspec

from inferswarm.errors import EngineError, EnvelopeExceeded, InferSwarmError, StageLost
from inferswarm.fabric import messages as m
from inferswarm.fabric.calls import Calls, OnProgress
from inferswarm.fabric.channel import frame, receive_async
from inferswarm.fabric.child_channel import StderrTail, spawn
from inferswarm.fabric.envelope import DataLimitEnvelope, NodeEnvelope
from inferswarm.fabric.proc import is_stopped, signal_name
from inferswarm.fabric.stage_journal import JournalSettings
from inferswarm.fabric.stage_liveness import LivenessSettings, Silence
from inferswarm.fabric.stage_main import EXIT_OUT_OF_MEMORY

START_SECONDS = 60.0
"""How long an empty stage process may take until it greets (a cold disk loads libraries slowly)."""
STOP_SECONDS = 3.0
"""How long a stage may take to end by itself before it is killed."""
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "2000"
"""How often a thread of GNU OpenMP looks for work before it sleeps. By default it looks for milliseconds, and then
idle stages take the cores from the one that computes; so few looks, some microseconds, still span a step's gaps."""
OUT_OF_MEMORY_WORDS = ("MemoryError", "allocate memory", "Memory allocation", "failed to map segment")
"""How interpreter and libraries say, before the stage can catch it, that an allocation failed under the limit."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""How compiled code ends that uses an allocation without looking whether it was made."""

OnGone = Callable[["StageProcess", InferSwarmError], None]


class StageProcess:
    """One stage process. Its death fails every call that waits for it."""

    def __init__(
        self,
        name: str,
        node_name: str,
        envelope: NodeEnvelope,
        on_gone: OnGone,
        journal: JournalSettings | None = None,
        liveness: LivenessSettings | None = None,
    ) -> None:
        """`on_gone` is called once, when the process ends without having been asked to.

        `journal` bounds what the stage keeps of what it sends on, `liveness` how long it may be silent, and for how
        long the system that it sends to.
        """
        self.rename(name)
        self.term = 0
        """Of the Coordinator that ordered something of it last."""
        self.order: m.StartStage | None = None
        """What was ordered: where it listens too, what it is bound to, with how many threads it is to compute."""
        self._journal = journal or JournalSettings()
        self._liveness = liveness or LivenessSettings()
        self._silence = Silence(self._liveness)
        self.pid = 0
        self.endpoint = ""
        self.endpoints: tuple[tuple[str, str], ...] = ()
        self.unbound: tuple[tuple[str, str], ...] = ()
        self._node_name = node_name
        self._envelope = envelope
        self._on_gone = on_gone
        self._calls = Calls()
        self._stopping = False
        self._silent = ""
        """Why it was killed, when that was for its silence."""
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.Task[None] | None = None
        self._alive: m.StageAlive | None = None
        self._stderr = StderrTail()
        self._gone: InferSwarmError | None = None
        self._hello: asyncio.Future[m.StageHello] = asyncio.get_running_loop().create_future()

    def rename(self, name: str) -> None:
        """Be known by another name: that of a realization and a participant."""
        self.name = name
        self._participant = name.rpartition("/")[2]

    async def start(
        self, node_id: str, address: str, more: Sequence[str] = (), cpus: Sequence[int] = (), threads: int = 0
    ) -> None:
        """Start the process, to listen at `address` and `more`, and wait for its greeting.

        With `cpus` it is bound to these logical CPUs before it loads anything, so that all of its threads are. Where
        it will compute with one of `threads` for each logical CPU, each of them stays on its own.
        Raises EngineError, or EnvelopeExceeded when the envelope is too small even for an empty stage.
        """
        try:
            await self._spawn(node_id, address, more, cpus, threads)
            if self._stopping:  # it was asked to end while there was no process yet
                raise self.lost("it was stopped")
            hello = await asyncio.wait_for(asyncio.shield(self._hello), START_SECONDS)
        except TimeoutError as error:
            await self.stop()
            raise EngineError(f"stage {self.name}", f"did not greet within {START_SECONDS:.0f} s") from error
        except BaseException:
            await self.stop()  # a start that is given up leaves no process
            raise
        self.endpoint, self.endpoints, self.unbound = hello.endpoint, hello.endpoints, hello.unbound

    async def _spawn(
        self, node_id: str, address: str, more: Sequence[str], cpus: Sequence[int], threads: int
    ) -> None:
        arguments = ["--node", node_id, "--address", address]
        arguments += [part for other in more for part in ("--also-at", other)]
        arguments += [part for cpu in cpus for part in ("--cpu", str(cpu))]
        arguments += ["--threads", str(threads)]
        journal = self._journal
        arguments += ["--journal-memory", str(journal.memory_bytes), "--journal-spill", str(journal.spill_bytes)]
        arguments += [] if journal.directory is None else ["--journal-directory", journal.directory]
        arguments += ["--silent-seconds", str(self._liveness.silent_seconds)]
        env = {SPIN_VARIABLE: SPIN_COUNT, **os.environ}  # what the operator says about it stands
        process, self._reader, self._writer = await spawn("inferswarm.fabric.stage_main", arguments, env)
        self._process = process
        self.pid = process.pid
        self._tasks = [asyncio.create_task(self._read_channel()), asyncio.create_task(self._stderr.read(process))]
        self._exit = asyncio.create_task(self._watch())
        self._envelope.limit_stage(self.pid)

    async def call(self, command: m.StageCommand, on_progress: OnProgress | None = None) -> m.Answer:
        """Send a command and wait for its answer. Raises the stage's fault, or what ended the stage."""
        if self._gone is not None:
            raise self._gone
        try:
            return await self._calls.call(
                self._writer, lambda request: m.StageCall(request=request, command=command), on_progress
            )
        except ConnectionError:
            await asyncio.wait([self._exit])  # the process is ending: its end says why
            raise self._gone or StageLost(self._node_name, self.name, "its channel closed") from None

    async def stop(self) -> None:
        """End the process, by asking and then by force, and wait until it has gone.

        Whoever gives up waiting gives up nothing else: the process ends.
        """
        self._stopping = True
        if self._process is None:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(self._process))
        await asyncio.shield(self._ending)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            try:
                self._writer.write(frame(m.StageCall(request=0, command=m.Stop())))
                self._writer.write_eof()
            except (ConnectionError, OSError):
                pass  # it is gone or going
            try:
                await asyncio.wait_for(asyncio.shield(self._exit), STOP_SECONDS)
            except TimeoutError:
                self.kill()
        await self._exit

    def has_ended(self) -> bool:
        """Return whether its process has gone, or will never be."""
        return self._stopping if self._process is None else self._process.returncode is not None

    def end_if_silent(self, passed: float) -> None:
        """Kill the process when it has said nothing for too long; `passed` are the seconds since the last look.

        Before it has greeted it may be silent, as long as `start` waits, but not stopped.
        """
        if self._process is None or self._process.returncode is not None or self._silent:
            return
        reason = self._silence.passed(passed, is_stopped=is_stopped(self.pid))
        if reason is not None:
            self._silent = f"{reason} and was killed"
            os.kill(self.pid, signal.SIGKILL)

    def introduction(self) -> m.HeldStage:
        """Return what is known of it now; what it holds of sessions is as old as its last sign of life."""
        alive = self._alive
        return m.HeldStage(
            stage=self.name,
            pid=self.pid,
            plan_digest="" if alive is None else alive.plan_digest,
            sessions=None if alive is None else alive.sessions,
        )

    def lost(self, reason: str) -> StageLost:
        """Return what is said of this stage when it is no longer there."""
        return StageLost(self._node_name, self._participant, reason)

    def kill(self) -> None:
        """Kill the process now."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def _read_channel(self) -> None:
        decoder = msgspec.msgpack.Decoder(m.FromStage)
        while (message := await receive_async(self._reader, decoder)) is not None:
            self._silence.heard()
            match message:
                case m.StageHello():
                    if not self._hello.done():
                        self._hello.set_result(message)
                case m.StageAlive():
                    self._alive = message
                case _:
                    self._calls.take(message)

    async def _watch(self) -> None:
        assert self._process is not None
        status = await self._process.wait()
        ended_at = time.monotonic()
        await asyncio.wait(self._tasks, timeout=1.0)
        for task in self._tasks:
            task.cancel()
        self._writer.close()
        self._gone = self._describe_end(status, ended_at)
        self._calls.fail(self._gone)
        if not self._hello.done():
            self._hello.set_exception(self._gone)
        self._hello.exception()  # retrieved: a greeting that nobody waits for any more is no error
        if not self._stopping:
            self._on_gone(self, self._gone)

    def _describe_end(self, status: int, ended_at: float) -> InferSwarmError:
        tail = self._stderr.lines
        last = f": {tail[-1]}" if tail else ""
        limit = self._envelope.limit_bytes
        starved = status == EXIT_OUT_OF_MEMORY or (status != 0 and any(word in last for word in OUT_OF_MEMORY_WORDS))
        if isinstance(self._envelope, DataLimitEnvelope):
            room = self._envelope.short_room(self.pid, ended_at)
            if not starved and room is not None and -status in CRASHES:
                starved = True
                last = f": {signal_name(-status)} when {max(room, 0):,} B at most were left to it"
            if starved:
                self._envelope.count_overflow()
        if limit is not None and status != 0 and self._envelope.explain_overflow():
            how = f"{self._participant} needed more{last}"
            return EnvelopeExceeded(self._node_name, self._envelope.mechanism, limit, how)
        if self._stopping:
            return self.lost("it was stopped")
        if self._silent:
            return self.lost(self._silent)
        if status < 0:
            return self.lost(f"killed by {signal_name(-status)}")
        return self.lost(f"exit status {status}{last}")
