"""A stage: the process that executes one participant's units. Commands from its agent, frames from its neighbors.

One thread computes and answers; a second one only says that the process lives, so that a long step is not mistaken
for a death.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence

from inferswarm.backends.base import Counters, StageAssignment, StageExecutor, UnitBinding, UnitThreads
from inferswarm.backends.registry import make_executor
from inferswarm.errors import FabricError, InferSwarmError, RealizationFailed, WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.datapath import DataPath
from inferswarm.fabric.faults import to_fault
from inferswarm.fabric.frames import Address, FrameKind, plan_prefix
from inferswarm.fabric.path_probe import echo_back, probe_path
from inferswarm.fabric.proc import process_memory
from inferswarm.fabric.stage_probe import (
    machine_conditions,
    probe_accelerator,
    probe_bandwidth,
    probe_multiply,
    probe_units,
)
from inferswarm.fabric.transport import Inbox, Outbox
from inferswarm.fabric.warming import warm_up
from inferswarm.strategies.dense.description import plain_decoder

BEAT_SECONDS = 0.5
"""How often a stage tells its agent that it lives."""

_TINY = plain_decoder(
    architecture="warm-up",
    vocabulary_size=64,
    hidden_size=64,
    feed_forward_size=128,
    num_blocks=1,
    num_heads=4,
    num_key_value_heads=2,
    head_size=16,
    context_positions=64,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_head=True,
)


class Stage:
    """The state of a stage process. `run` returns when the stage was asked to stop or its agent has gone."""

    def __init__(
        self, channel: Channel[m.StageCall], *, node_id: str, address: str, more: Sequence[str] = ()
    ) -> None:
        """Bind the inbox at `address`, and at `more` as far as that can be had, and greet the agent."""
        self._channel = channel
        self._node_id = node_id
        self._inbox = Inbox(address, more=more)
        self.endpoint = self._inbox.endpoint
        self._assignment: StageAssignment | None = None
        self._executor: StageExecutor | None = None
        self._warmed: Counters | None = None
        """What was counted before the first session."""
        self._address: Address | None = None
        self._links: m.Connect | None = None
        self._path: DataPath | None = None
        self._running = True
        hello = m.StageHello(
            pid=os.getpid(),
            endpoint=self.endpoint,
            endpoints=tuple(self._inbox.endpoints.items()),
            unbound=tuple(self._inbox.unbound.items()),
        )
        channel.send(hello)
        threading.Thread(target=self._beat, daemon=True, name="beat").start()

    def run(self) -> None:
        """Serve commands and frames until told to stop."""
        poll = select.poll()
        poll.register(self._inbox.fileno(), select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLIN)
        while self._running:
            ready = dict(poll.poll())
            if self._inbox.fileno() in ready:
                self._receive_frames()
            if self._channel.fileno() in ready:
                call = self._channel.receive()
                if call is None:
                    return
                self._answer(call)

    def close(self) -> None:
        """Close the port and what is connected to it."""
        self._inbox.close()

    def _beat(self) -> None:
        while True:
            started = self._path.step_started if self._path is not None else None
            busy = 0.0 if started is None else time.monotonic() - started
            steps = 0 if self._executor is None else self._executor.counters().steps
            try:
                self._channel.send(m.StageAlive(steps=steps, busy_seconds=busy))
            except OSError:
                return  # the agent has gone; the main thread sees the same end-of-file
            time.sleep(BEAT_SECONDS)

    def _receive_frames(self) -> None:
        for frame in self._inbox.receive():
            if frame.header.kind == FrameKind.ECHO and self._executor is None:  # only while being measured
                with contextlib.suppress(WireError):  # whoever asked has gone, or never was there
                    echo_back(frame)
            elif self._path is not None:
                self._path.handle(frame)
        while self._inbox.refusals:
            error = self._inbox.refusals.popleft()
            if self._path is not None:
                self._path.refusals[error.code] += 1

    def _answer(self, call: m.StageCall) -> None:
        try:
            answer = self._execute(call)
        except InferSwarmError as error:
            self._channel.send(m.Failed(request=call.request, fault=to_fault(error)))
        else:
            self._channel.send(m.Answered(request=call.request, answer=answer))

    def _execute(self, call: m.StageCall) -> m.Answer:
        command = call.command
        match command:
            case m.Warm():
                self._warm(command)
            case m.ProbeUnits():
                return probe_units(command, self._progress(call.request))
            case m.ProbeBandwidth():
                return probe_bandwidth(command)
            case m.ProbeMultiply():
                return probe_multiply(command)
            case m.ProbeAccelerator():
                return probe_accelerator(command)
            case m.ProbePath():
                return probe_path(command, self._inbox, machine_conditions())
            case m.Materialize():
                return self._materialize(command, call.request)
            case m.Connect():
                self._links = command
            case m.Activate():
                self._activate(command)
            case m.Report():
                return self._report()
            case m.Stop():
                self._running = False
        return m.Done()

    def _progress(self, request: int) -> Progress:
        return Progress(self._channel, request)

    def _warm(self, command: m.Warm) -> None:
        for representation in ("fp32", "bf16"):
            assignment = StageAssignment(
                participant="warm-up",
                plan_digest="",
                primitive=command.primitive,
                representation=representation,
                description=_TINY,
                first_unit=0,
                end_unit=len(_TINY.unit_ids),
                threads=(UnitThreads(0, len(_TINY.unit_ids), command.threads),),
                requirement=None,
                max_positions=64,
                sessions=1,
                chunk_positions=48,
                compute_unit=UnitBinding(id=command.compute_unit_id, kind=command.kind),
            )
            executor = make_executor(assignment)
            executor.materialize(lambda done, total: None)
            warm_up(executor, assignment)

    def _materialize(self, command: m.Materialize, request: int) -> m.Materialized:
        if self._executor is not None:
            raise RealizationFailed(self._node_id, "this stage holds the states of another realization already")
        assignment = command.assignment
        started = time.monotonic()
        executor = make_executor(assignment)
        states = executor.materialize(self._progress(request))
        self._warmed = warm_up(executor, assignment)
        self._executor = executor
        self._assignment = assignment
        self._address = Address(command.scope, 0, command.realization, plan_prefix(assignment.plan_digest))
        requirement = assignment.requirement
        return m.Materialized(
            states=tuple(
                m.StateHeld(
                    state_id=state.state_id,
                    representation=state.representation,
                    bytes=state.bytes,
                    source_digest=state.source_digest,
                )
                for state in states
            ),
            kernel=executor.kernel(),
            source_bytes=executor.counters().source_bytes_read,
            required_bytes=0 if requirement is None else requirement.bytes,
            seconds=time.monotonic() - started,
        )

    def _activate(self, command: m.Activate) -> None:
        if self._executor is None or self._assignment is None or self._address is None or self._links is None:
            raise RealizationFailed(self._node_id, "activated before it was materialized and connected")
        links = self._links
        results = Outbox(links.coordinator_endpoint)
        following = None if links.next_endpoint is None else Outbox(links.next_endpoint, links.next_source)
        is_first = links.first_endpoint in self._inbox.endpoints.values()
        self._path = DataPath(
            self._executor,
            self._address._replace(epoch=command.epoch),
            participant=self._assignment.participant,
            node_id=self._node_id,
            results=results,
            following=following,
            first=None if is_first or following is not None else Outbox(links.first_endpoint, links.first_source),
            is_first=is_first,
        )

    def _report(self) -> m.StageReport:
        memory = process_memory(os.getpid())
        if self._executor is None or self._assignment is None or self._warmed is None:
            raise FabricError("this stage holds no participant yet")
        counters = self._executor.counters()
        unexplained = 0 if self._path is None else self._path.unexplained_bytes_received
        return m.StageReport(
            participant=self._assignment.participant,
            positions=counters.positions - self._warmed.positions,
            steps=counters.steps - self._warmed.steps,
            source_bytes=counters.source_bytes_read,
            state_bytes_moved=counters.state_bytes_moved_after_materialization + unexplained,
            frames_sent=0 if self._path is None else self._path.frames_sent,
            bytes_sent=0 if self._path is None else self._path.bytes_sent,
            refusals=() if self._path is None else tuple(sorted(self._path.refusals.items())),
            resident_bytes=0 if memory is None else memory.resident,
            resident_peak_bytes=0 if memory is None else memory.resident_peak,
            anonymous_bytes=0 if memory is None else memory.anonymous,
        )


class Progress:
    """Sends progress of one request to the agent, at most ten times a second and at the end."""

    def __init__(self, channel: Channel[m.StageCall], request: int) -> None:
        """Report for `request` over `channel`."""
        self._channel = channel
        self._request = request
        self._sent_at = 0.0

    def __call__(self, done: int, total: int, note: str = "bytes") -> None:
        """Report `done` of `total`."""
        now = time.monotonic()
        if done < total and now - self._sent_at < 0.1:
            return
        self._sent_at = now
        self._channel.send(m.Progressed(request=self._request, done=done, total=total, note=note))
