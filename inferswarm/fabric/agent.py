"""A node agent: one per Node. Starts and watches stages, keeps the memory envelope, holds a lease at the Coordinator.

Torch-free. It obeys no lower term than its Node has ever seen, and no order that is for another incarnation. Without
a Coordinator it keeps its stages for a while, so that the next one can adopt them, and then stops them: an epoch that
nobody has authority over does not go on. A stage that dies is reported, never restarted.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from inferswarm import __version__
from inferswarm.artifacts.store_scopes import LivingScope
from inferswarm.artifacts.types import KeptResults
from inferswarm.errors import AuthorityUncertain, DocumentError, EngineError, InferSwarmError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.agent_bond import GRACE_SECONDS, Bond, Due
from inferswarm.fabric.agent_spares import PAUSE_SECONDS, Spare
from inferswarm.fabric.agent_terms import TermFile
from inferswarm.fabric.calls import OnProgress
from inferswarm.fabric.courier_process import CourierProcess
from inferswarm.fabric.envelope import NodeEnvelope
from inferswarm.fabric.faults import to_error, to_fault
from inferswarm.fabric.frames import PROTOCOL
from inferswarm.fabric.proc import process_memory
from inferswarm.fabric.stage_journal import MEMORY_BYTES, SPILL_BYTES, JournalSettings
from inferswarm.fabric.stage_liveness import SILENT_SECONDS, LivenessSettings
from inferswarm.fabric.stage_process import StageProcess

JOIN_SECONDS = 10.0
"""How long joining may take before the agent gives up."""
REJOIN_SECONDS = 0.2
"""How long a Node that was turned away waits before it presents itself again, as another incarnation."""
LOOK_SECONDS = 0.1
"""How often an agent looks what it owes its Coordinator."""
SAMPLE_SECONDS = 0.05
"""How often charged memory is sampled for its peak, and stages are looked at."""
MOST_LOST = 16
"""Of so many lost stages an agent remembers what they were lost by."""
RECONNECT_MILLISECONDS, LONGEST_RECONNECT_MILLISECONDS = 100, 500
"""How soon a connection that broke is made again, and how long at most between two tries that failed."""
HEARTBEAT_MILLISECONDS, DEAD_MILLISECONDS = 1000, 3000
"""A connection over which nothing comes for so long is made anew: the system would try the old one for minutes."""


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
    scope: str
    state_directory: str
    """Where the Node keeps the highest term that it has seen, and its stages what does not fit into memory."""
    grace_seconds: float = GRACE_SECONDS
    """How long stages are kept without a Coordinator, and without an order from one that followed."""
    silent_seconds: float = SILENT_SECONDS
    """How long a stage may give no sign of life, and the system that it sends to may acknowledge nothing."""
    journal_memory_bytes: int = MEMORY_BYTES
    journal_spill_bytes: int = SPILL_BYTES
    """What each stage keeps of what it sent to the next one, in memory and in files."""
    keeps_spare: bool = False
    """Whether a warm, empty stage is kept for one that is lost: its memory is in no plan."""
    spare_pause_seconds: float = PAUSE_SECONDS
    store_directory: str = ""
    """Where the Node's artifact store is; empty: it has none, and stages read a model where it lies."""
    store_quota_bytes: int | None = None
    transfer_bytes_per_second: float | None = None
    """What its courier may receive in a second, and what it may give; None: any."""
    keeps_results: bool = False
    """Whether stages keep in the store what they decode, and read it the next time."""


class Agent:
    """The agent of one Node."""

    def __init__(self, spec: AgentSpec, envelope: NodeEnvelope) -> None:
        """The process is inside `envelope` already. Raises EngineError when terms cannot be kept."""
        self._spec = spec
        self._terms = TermFile(Path(spec.state_directory), spec.scope)
        self._envelope = envelope
        self._incarnation = secrets.token_hex(8)
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._stages: dict[str, StageProcess] = {}
        self._lost: dict[str, InferSwarmError] = {}
        """What the stages that were lost last were lost by, oldest first: an order may still be on its way."""
        self._made: list[StageProcess] = []
        """Every one with a process, also those that are about to end and have no name any more."""
        self._spare = Spare(self._make_stage, self._start_process, spec.spare_pause_seconds)
        self._courier = courier_of(spec)
        self._living: LivingScope | None = None
        """Keeps what the swarm has in the Node's store from being released by anybody else."""
        self._bond = Bond(time.monotonic(), grace_seconds=spec.grace_seconds)
        self._term = 0
        """Of the Coordinator that was obeyed last."""
        self._term_since = time.monotonic()
        self._charged_peak = 0
        self._calls: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    async def run(self) -> None:
        """Join, serve until stopped, then end every stage and leave the envelope.

        Raises the Coordinator's refusal when the Node may not join.
        """
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # what was meant for a Coordinator that ended must not reach the next one
            (zmq.RECONNECT_IVL, RECONNECT_MILLISECONDS),
            (zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MILLISECONDS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MILLISECONDS),
            (zmq.HEARTBEAT_TIMEOUT, DEAD_MILLISECONDS),
            (zmq.HANDSHAKE_IVL, DEAD_MILLISECONDS),
        ):
            self._socket.setsockopt(option, value)
        self._socket.connect(self._spec.coordinator)
        tasks = []
        try:
            if self._courier is not None:
                self._living = LivingScope(self._spec.store_directory, self._spec.scope)
                await self._courier.start()
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
            await self._spare.close()
            await asyncio.gather(*(stage.stop() for stage in self._made))
            if self._courier is not None:
                await self._courier.stop()
            if self._living is not None:
                self._living.close()
            self._context.destroy(linger=0)
            self._envelope.leave()

    async def _join(self) -> None:
        introduction = msgspec.msgpack.encode(self._introduction())
        try:
            await asyncio.wait_for(self._socket.send(introduction), JOIN_SECONDS)
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
        if not self._admit(answer.term):
            raise AuthorityUncertain(self._lower_term("a Coordinator", answer.term))
        self._welcome(answer, time.monotonic())

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
            stages=tuple(stage.introduction() for stage in self._stages.values()),
            highest_term=self._terms.highest(),
            courier="" if self._courier is None else self._courier.endpoint,
        )

    def _welcome(self, message: m.Welcome, now: float) -> None:
        self._bond.welcomed(now, message.lease_seconds)

    def _admit(self, term: int) -> bool:
        """Return whether a Coordinator of this term is obeyed; when it is a new one, its time begins."""
        if term < self._term or not self._terms.admit(term):
            return False
        if term != self._term:
            self._term, self._term_since = term, time.monotonic()
        return True

    def _lower_term(self, what: str, term: int) -> str:
        kept = self._spec.state_directory
        return f"{what} of term {term}; this Node has seen term {self._terms.highest()} (kept in {kept})"

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _send(self, message: m.Message) -> bool:
        """Send a message; False where no Coordinator is connected: it is dropped, and the next `Join` tells all."""
        try:
            await self._socket.send(msgspec.msgpack.encode(message), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    async def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(m.ToAgent)
        while True:
            await self._take(decoder.decode(await self._socket.recv()))

    async def _take(self, message: m.ToAgent) -> None:
        """Do as a Coordinator says, unless its term is lower than one that this Node has seen."""
        now = time.monotonic()
        if isinstance(message, m.AgentCall):
            self._spawn(self._answer(message))
            return
        nameless = isinstance(message, m.Turned) and message.term == 0
        if not nameless and not self._admit(message.term):
            return
        match message:
            case m.Welcome():
                self._welcome(message, now)
            case m.BeatSeen():
                self._bond.heard(now)
            case m.Greet():
                if self._bond.greeted(now):
                    await self._send(self._introduction())
            case m.Farewell():
                self._bond.heard(now)
                await asyncio.gather(self._stop_stages(), self._spare.stop())
            case m.Void() | m.Turned():
                self._bond.voided(now, self._spec.grace_seconds)
                await self._begin_again()
                self._bond.voided(time.monotonic(), REJOIN_SECONDS)

    async def _begin_again(self) -> None:
        """Be another incarnation from now on, without a stage."""
        self._incarnation = secrets.token_hex(8)
        await self._stop_stages()

    async def _beat(self) -> None:
        while True:
            match self._bond.due(time.monotonic()):
                case Due.BEAT:
                    beat = m.Beat(node_id=self._spec.node_id, incarnation=self._incarnation)
                    if not await self._send(beat):
                        self._bond.unsent(time.monotonic())
                case Due.JOIN:
                    if not await self._send(self._introduction()):
                        self._bond.unsent(time.monotonic())
                case Due.GIVE_UP:
                    await self._begin_again()
            await asyncio.sleep(LOOK_SECONDS)

    async def _sample(self) -> None:
        looked_at = time.monotonic()
        while True:
            charged = self._envelope.charged_bytes(self._pids())
            self._envelope.share()
            passed, looked_at = time.monotonic() - looked_at, time.monotonic()
            if self._spare.stage is not None:
                self._spare.stage.end_if_silent(passed)
            for stage in list(self._stages.values()):
                stage.end_if_silent(passed)
                if stage.term < self._term and looked_at - self._term_since > self._spec.grace_seconds:
                    self._stages.pop(stage.name, None)
                    self._spawn(self._reap(stage))
            if charged is not None:
                self._charged_peak = max(self._charged_peak, charged)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _reap(self, stage: StageProcess) -> None:
        """Stop a stage that an earlier Coordinator left and the one in force wants nothing of."""
        reason = f"it was not adopted within {self._spec.grace_seconds:g} s"
        await stage.stop()
        await self._send(m.StageGone(stage=stage.name, fault=to_fault(stage.lost(reason))))

    def _pids(self) -> list[int]:
        spare = [] if self._spare.stage is None else [self._spare.stage]
        couriers = () if self._courier is None else self._courier.pids
        return [os.getpid(), *(stage.pid for stage in (*self._stages.values(), *spare)), *couriers]

    async def _stop_stages(self) -> None:
        stages = list(self._stages.values())
        self._stages.clear()
        await asyncio.gather(*(stage.stop() for stage in stages))

    # -- commands --

    async def _answer(self, call: m.AgentCall) -> None:
        try:
            if not self._admit(call.term):
                raise AuthorityUncertain(self._lower_term("a command", call.term))
            if call.incarnation != self._incarnation:
                found = f"a command for incarnation {call.incarnation} of Node {self._spec.name}"
                raise AuthorityUncertain(f"{found}, which is {self._incarnation} now")
            self._bond.heard(time.monotonic())
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
            case m.OnCourier():
                return await self._on_courier(command, call.request)
            case m.AdoptStage():
                return await self._adopt_stage(command)
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
        spare = self._spare.take(command)
        stage = self._stages[name] = spare or self._make_stage(name)
        stage.term, stage.order = self._term, command
        if spare is None:
            try:
                await self._start_process(stage, command)
            except BaseException:
                if self._stages.get(name) is stage:
                    del self._stages[name]
                raise
        return m.StageStarted(
            pid=stage.pid, endpoint=stage.endpoint, endpoints=stage.endpoints, unbound=stage.unbound
        )

    def _make_stage(self, name: str) -> StageProcess:
        spec = self._spec
        journal = JournalSettings(spec.journal_memory_bytes, spec.journal_spill_bytes, spec.state_directory)
        liveness = LivenessSettings(silent_seconds=spec.silent_seconds)
        stage = StageProcess(name, spec.name, self._envelope, self._stage_gone, journal, liveness)
        self._made = [*(earlier for earlier in self._made if not earlier.has_ended()), stage]
        return stage

    async def _start_process(self, stage: StageProcess, order: m.StartStage) -> None:
        await stage.start(self._spec.node_id, self._spec.address, order.addresses, order.cpus, order.threads)

    def _pass_on(self, request: int) -> OnProgress:
        def pass_on(progress: m.Progressed) -> None:
            passed = m.Progressed(request=request, done=progress.done, total=progress.total, note=progress.note)
            self._spawn(self._send(passed))

        return pass_on

    async def _on_courier(self, command: m.OnCourier, request: int) -> m.Answer:
        if self._courier is None:
            raise SpecError("artifact store", f"none on Node {self._spec.name}", "a swarm that was begun with stores")
        return await self._courier.call(command.command, self._pass_on(request))

    async def _on_stage(self, command: m.OnStage, request: int) -> m.Answer:
        stage = self._ordered_stage(command.stage)
        answer = await stage.call(self._with_root(command.command), self._pass_on(request))
        if self._spec.keeps_spare and isinstance(command.command, m.Materialize) and stage.order is not None:
            self._spare.like(command.command.assignment, stage.order)
        return answer

    def _with_root(self, command: m.StageCommand) -> m.StageCommand:
        """Return a command with this Node's store in it, where states are built from a store: nobody else knows it.

        Raises SpecError on a Node without one.
        """
        if not isinstance(command, m.Materialize) or command.assignment.requirement is None:
            return command
        requirement = command.assignment.requirement
        if isinstance(requirement.stored, msgspec.UnsetType):
            return command
        if not self._spec.store_directory:
            raise SpecError("artifact store", f"none on Node {self._spec.name}", "a swarm that was begun with stores")
        root = str(Path(self._spec.store_directory).absolute())
        results = KeptResults(quota_bytes=self._spec.store_quota_bytes) if self._spec.keeps_results else msgspec.UNSET
        stored = msgspec.structs.replace(requirement.stored, root=root, results=results)
        requirement = msgspec.structs.replace(requirement, stored=stored)
        assignment = msgspec.structs.replace(command.assignment, requirement=requirement)
        return msgspec.structs.replace(command, assignment=assignment)

    def _ordered_stage(self, name: str) -> StageProcess:
        """Return the stage of that name: the Coordinator in force knows of it. Raises what it was lost by."""
        stage = self._stages.get(name)
        if stage is None and name in self._lost:
            raise self._lost[name]
        if stage is None:
            raise SpecError("stage", name, f"one of {sorted(self._stages)} on Node {self._spec.name}")
        stage.term = self._term
        return stage

    async def _adopt_stage(self, command: m.AdoptStage) -> m.Answer:
        stage = self._ordered_stage(command.stage)
        if command.renamed in self._stages:
            raise SpecError("stage", command.renamed, "a name that no stage of this Node has")
        answer = await stage.call(command.command)
        if self._stages.get(command.stage) is stage:
            del self._stages[command.stage]
            stage.rename(command.renamed)
            self._stages[command.renamed] = stage
        return answer

    def _stage_gone(self, stage: StageProcess, error: InferSwarmError) -> None:
        if self._spare.gone(stage):
            return
        self._stages.pop(stage.name, None)
        self._lost[stage.name] = error
        if len(self._lost) > MOST_LOST:
            del self._lost[next(iter(self._lost))]
        self._spawn(self._send(m.StageGone(stage=stage.name, fault=to_fault(error))))

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


def courier_of(spec: AgentSpec) -> CourierProcess | None:
    """Return the courier of an agent, not started yet; None without a store."""
    if not spec.store_directory:
        return None
    set_up = m.CourierSetUp(
        node_id=spec.node_id,
        address=spec.address,
        root=spec.store_directory,
        quota_bytes=spec.store_quota_bytes,
        bytes_per_second=spec.transfer_bytes_per_second,
        scope=spec.scope,
        token=spec.token,
    )
    return CourierProcess(set_up, spec.name)
