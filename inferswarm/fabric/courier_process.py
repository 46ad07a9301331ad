"""An agent's handle on its courier: start it, talk to it, start it again when it has gone."""

from __future__ import annotations

import asyncio
import signal

import msgspec

from inferswarm.errors import EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.calls import Calls, OnProgress
from inferswarm.fabric.channel import frame, receive_async
from inferswarm.fabric.child_channel import StderrTail, spawn
from inferswarm.fabric.faults import Fault, to_error
from inferswarm.fabric.proc import signal_name

START_SECONDS = 60.0
"""How long a courier may take until it greets: a store that died in the middle of things is mended first."""
STOP_SECONDS = 3.0
"""How long it may take to end by itself before it is killed."""


class CourierProcess:
    """One Node's courier. A process that has gone is replaced at the next command, at the same port."""

    def __init__(self, set_up: m.CourierSetUp, node_name: str) -> None:
        """`set_up` is what each process is told; nothing runs yet."""
        self._set_up = set_up
        self._node_name = node_name
        self._starting = asyncio.Lock()
        self._running: _Running | None = None
        self._is_over = False
        self.endpoint = ""
        """Where peers are served; empty before it was first started."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, where one runs."""
        return () if self._running is None or self._running.has_gone else (self._running.pid,)

    async def start(self) -> None:
        """Have a process run. Raises what it refuses to run with, and EngineError when it does not greet."""
        async with self._starting:
            if self._is_over:
                raise EngineError(f"courier of {self._node_name}", "was stopped")
            if self._running is not None and not self._running.has_gone:
                return
            self._running = await _Running.begin(self._set_up, self._node_name)
            self.endpoint = self._running.endpoint
            port = int(self.endpoint.rpartition(":")[2])
            self._set_up = msgspec.structs.replace(self._set_up, port=port)

    async def call(self, command: m.CourierCommand, on_progress: OnProgress | None = None) -> m.Answer:
        """Pass a command on and return its answer. Raises what it refuses with, and what ended the process."""
        await self.start()
        assert self._running is not None, "it was just started"
        return await self._running.call(command, on_progress)

    async def stop(self) -> None:
        """End the process and wait until it has gone."""
        self._is_over = True
        async with self._starting:
            if self._running is not None:
                await self._running.stop()


class _Running:
    """One process and the channel to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        who: str,
    ) -> None:
        self.pid = process.pid
        self.endpoint = ""
        self._who = who
        self._process = process
        self._reader, self._writer = reader, writer
        self._calls = Calls()
        self._gone: InferSwarmError | None = None
        self._hello: asyncio.Future[m.CourierHello] = asyncio.get_running_loop().create_future()
        self._stderr = StderrTail()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._stderr.read(process))]
        self._exit = asyncio.create_task(self._watch())

    @classmethod
    async def begin(cls, set_up: m.CourierSetUp, node_name: str) -> _Running:
        process, reader, writer = await spawn("inferswarm.fabric.courier_main")
        running = cls(process, reader, writer, f"courier of {node_name}")
        try:
            writer.write(frame(set_up))
            hello = await asyncio.wait_for(asyncio.shield(running._hello), START_SECONDS)
        except TimeoutError as error:
            await running.stop()
            raise EngineError(running._who, f"did not greet within {START_SECONDS:.0f} s") from error
        except BaseException:
            await running.stop()
            raise
        running.endpoint = hello.endpoint
        return running

    @property
    def has_gone(self) -> bool:
        return self._gone is not None or self._process.returncode is not None

    async def call(self, command: m.CourierCommand, on_progress: OnProgress | None) -> m.Answer:
        if self._gone is not None:
            raise self._gone
        try:
            return await self._calls.call(
                self._writer, lambda request: m.CourierCall(request=request, command=command), on_progress
            )
        except ConnectionError:
            await asyncio.wait([self._exit])
            raise self._gone or EngineError(self._who, "its channel closed") from None

    async def stop(self) -> None:
        if self._process.returncode is None:
            if self._writer.can_write_eof():
                self._writer.write_eof()
            try:
                await asyncio.wait_for(asyncio.shield(self._exit), STOP_SECONDS)
            except TimeoutError:
                self._process.send_signal(signal.SIGKILL)
        await self._exit

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(m.FromCourier)
        while (message := await receive_async(self._reader, decoder)) is not None:
            if not isinstance(message, m.CourierHello):
                self._calls.take(message)
            elif not self._hello.done():
                self._hello.set_result(message)

    async def _watch(self) -> None:
        status = await self._process.wait()
        await asyncio.wait(self._tasks, timeout=1.0)
        for task in self._tasks:
            task.cancel()
        self._writer.close()
        self._gone = self._describe_end(status)
        self._calls.fail(self._gone)
        if not self._hello.done():
            self._hello.set_exception(self._gone)
            self._hello.exception()  # retrieved: nobody may be waiting for the greeting

    def _describe_end(self, status: int) -> InferSwarmError:
        lines = self._stderr.lines
        if lines:
            try:
                return to_error(msgspec.json.decode(lines[-1], type=Fault))
            except (msgspec.DecodeError, msgspec.ValidationError):
                pass  # no fault of ours: what an interpreter or a library said
        how = f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"
        return EngineError(self._who, f"{how}: {lines[-1]}" if lines else how)
