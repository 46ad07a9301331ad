"""A node agent: one per Node. Starts and watches stages, keeps the memory envelope, holds a lease at the Coordinator.

Torch-free. Without a Coordinator for longer than the lease it stops its stages: an epoch that nobody has authority
over does not go on. A stage that dies is reported, never restarted.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time

import msgspec
import zmq
import zmq.asyncio

from inferswarm import __version__
from inferswarm.errors import AuthorityUncertain, DocumentError, EngineError, InferSwarmError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.envelope import NodeEnvelope
from inferswarm.fabric.faults import to_error, to_fault
from inferswarm.fabric.frames import PROTOCOL
from inferswarm.fabric.proc import process_memory
from inferswarm.fabric.stage_process import StageProcess

JOIN_SECONDS = 10.0
"""How long joining may take before the agent gives up."""
REJOIN_SECONDS = 0.2
"""How long a Node that was turned away waits before it presents itself again, as another incarnation."""
BEATS_PER_LEASE = 4
SAMPLE_SECONDS = 0.05
"""How often charged memory is sampled for its peak."""


class AgentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent is told at its start."""

    node_id: str
    name: str
    address: str
    coordinator: str
    token: str
    group: str
    limit_bytes: int | None
    mechanism: str


class Agent:
    """The agent of one Node."""

    def __init__(self, spec: AgentSpec, envelope: NodeEnvelope) -> None:
        """The process is inside `envelope` already."""
        self._spec = spec
        self._envelope = envelope
        self._incarnation = secrets.token_hex(8)
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._stages: dict[str, StageProcess] = {}
        self._term = 0
        self._lease_seconds = 2.0
        self._heard_at = time.monotonic()
        self._is_member = False
        self._asked_at: float | None = None
        self._charged_peak = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    async def run(self) -> None:
        """Join, serve until stopped, then end every stage and leave the envelope.

        Raises the Coordinator's refusal when the Node may not join.
        """
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._spec.coordinator)
        tasks = []
        try:
            await self._join()
            tasks = [
                asyncio.create_task(self._receive()),
                asyncio.create_task(self._beat()),
                asyncio.create_task(self._sample()),
                asyncio.create_task(self._stop.wait()),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._calls):
                task.cancel()
            await asyncio.gather(*tasks, *self._calls, return_exceptions=True)
            await self._stop_stages()
            self._context.destroy(linger=0)
            self._envelope.leave()

    async def _join(self) -> None:
        await self._send(self._introduction())
        try:
            body = await asyncio.wait_for(self._socket.recv(), JOIN_SECONDS)
        except TimeoutError as error:
            raise EngineError(
                f"agent {self._spec.name}", f"no Coordinator answers at {self._spec.coordinator}"
            ) from error
        answer = msgspec.msgpack.decode(body, type=m.ToAgent)
        if isinstance(answer, m.Turned):
            raise to_error(answer.fault)
        if not isinstance(answer, m.Welcome):
            raise EngineError(f"agent {self._spec.name}", f"was not welcomed but sent {type(answer).__name__}")
        self._welcome(answer)

    def _introduction(self) -> m.Join:
        return m.Join(
            token=self._spec.token,
            protocol=PROTOCOL,
            package=__version__,
            node_id=self._spec.node_id,
            name=self._spec.name,
            incarnation=self._incarnation,
            pid=os.getpid(),
            mechanism=self._envelope.mechanism,
        )

    def _welcome(self, message: m.Welcome) -> None:
        self._is_member = True
        self._term = max(self._term, message.term)
        self._lease_seconds = message.lease_seconds
        self._heard_at = time.monotonic()

    async def _send(self, message: m.Message) -> None:
        await self._socket.send(msgspec.msgpack.encode(message))

    async def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(m.ToAgent)
        while True:
            message = decoder.decode(await self._socket.recv())
            match message:
                case m.AgentCall():
                    self._heard_at = time.monotonic()
                    task = asyncio.create_task(self._answer(message))
                    self._calls.add(task)
                    task.add_done_callback(self._calls.discard)
                case m.BeatSeen():
                    if message.term >= self._term:
                        self._heard_at = time.monotonic()
                case m.Welcome():
                    self._welcome(message)
                case m.Turned() if self._is_member or self._asked_at is None:
                    self._is_member = False
                    self._asked_at = None
                    await self._lose_coordinator()
                    await self._rejoin()
                case m.Turned():
                    pass  # of a beat before the last introduction, which `_beat` repeats until it is answered

    async def _rejoin(self) -> None:
        self._incarnation = secrets.token_hex(8)
        await asyncio.sleep(REJOIN_SECONDS)
        self._asked_at = time.monotonic()
        await self._send(self._introduction())

    async def _beat(self) -> None:
        while True:
            if self._is_member:
                await self._send(m.Beat(node_id=self._spec.node_id, incarnation=self._incarnation))
            elif self._asked_at is not None and time.monotonic() - self._asked_at > self._lease_seconds:
                self._asked_at = time.monotonic()
                await self._send(self._introduction())  # nobody answered the last one
            await asyncio.sleep(self._lease_seconds / BEATS_PER_LEASE)
            if time.monotonic() - self._heard_at > self._lease_seconds and self._stages:
                self._is_member = False  # the stages end, so the membership that they belonged to ends too
                await self._lose_coordinator()
                await self._rejoin()

    async def _lose_coordinator(self) -> None:
        """Stop executing: nobody with authority has been heard for a whole lease."""
        await self._stop_stages()

    async def _sample(self) -> None:
        while True:
            charged = self._envelope.charged_bytes(self._pids())
            self._envelope.share()
            for stage in self._stages.values():
                if stage.endpoint:  # it has greeted: from then on it beats
                    stage.end_if_silent()
            if charged is not None:
                self._charged_peak = max(self._charged_peak, charged)
            await asyncio.sleep(SAMPLE_SECONDS)

    def _pids(self) -> list[int]:
        return [os.getpid(), *(stage.pid for stage in self._stages.values())]

    async def _stop_stages(self) -> None:
        stages = list(self._stages.values())
        self._stages.clear()
        await asyncio.gather(*(stage.stop() for stage in stages))

    # -- commands --

    async def _answer(self, call: m.AgentCall) -> None:
        try:
            if call.term < self._term:
                raise AuthorityUncertain(f"a command of term {call.term}, after term {self._term}")
            self._term = call.term
            answer = await self._execute(call)
        except InferSwarmError as error:
            await self._send(m.Failed(request=call.request, fault=to_fault(error)))
        except OSError as error:  # no process, no descriptor, no limit to be had
            failure = EngineError(f"agent {self._spec.name}", f"{type(call.command).__name__}: {error}")
            await self._send(m.Failed(request=call.request, fault=to_fault(failure)))
        else:
            await self._send(m.Answered(request=call.request, answer=answer))

    async def _execute(self, call: m.AgentCall) -> m.Answer:
        command = call.command
        match command:
            case m.StartStage():
                return await self._start_stage(command)
            case m.OnStage():
                return await self._on_stage(command, call.request)
            case m.StopStage():
                stage = self._stages.pop(command.stage, None)
                if stage is not None:
                    await stage.stop()
                return m.Done()
            case m.InspectNode():
                return self._inspect(command.reset_peak)

    async def _start_stage(self, command: m.StartStage) -> m.Answer:
        name = command.stage
        if name in self._stages:
            raise SpecError("stage", name, "a name that no stage of this Node has")
        stage = StageProcess(name, self._spec.name, self._envelope, self._stage_gone)
        self._stages[name] = stage
        try:
            await stage.start(
                self._spec.node_id, self._spec.address, command.addresses, command.cpus, command.threads
            )
        except BaseException:
            self._stages.pop(name, None)
            raise
        return m.StageStarted(
            pid=stage.pid, endpoint=stage.endpoint, endpoints=stage.endpoints, unbound=stage.unbound
        )

    async def _on_stage(self, command: m.OnStage, request: int) -> m.Answer:
        stage = self._stages.get(command.stage)
        if stage is None:
            raise SpecError("stage", command.stage, f"one of {sorted(self._stages)} on Node {self._spec.name}")

        def pass_on(progress: m.Progressed) -> None:
            passed = m.Progressed(request=request, done=progress.done, total=progress.total, note=progress.note)
            task = asyncio.ensure_future(self._send(passed))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

        return await stage.call(command.command, pass_on)

    def _stage_gone(self, stage: StageProcess, error: InferSwarmError) -> None:
        self._stages.pop(stage.name, None)
        task = asyncio.ensure_future(self._send(m.StageGone(stage=stage.name, fault=to_fault(error))))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _inspect(self, reset_peak: bool) -> m.NodeReport:
        pids = self._pids()
        memories = [memory for memory in map(process_memory, pids) if memory is not None]
        own = process_memory(os.getpid())
        if own is None:
            raise DocumentError(f"/proc/{os.getpid()}/status", "does not state this process's memory")
        charged = self._envelope.charged_bytes(pids)
        report = m.NodeReport(
            mechanism=self._envelope.mechanism,
            limit_bytes=self._envelope.limit_bytes,
            charged_bytes=charged,
            charged_peak_bytes=None if charged is None else max(self._charged_peak, charged),
            mechanism_peak_bytes=self._envelope.mechanism_peak_bytes(),
            overflows=self._envelope.overflows(),
            resident_peak_bytes=sum(memory.resident_peak for memory in memories),
            agent_resident_bytes=own.resident,
        )
        if reset_peak:
            self._envelope.reset_peak()
            self._charged_peak = 0
        return report
