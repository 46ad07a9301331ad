"""A stage: the process that executes one participant's units. Commands from its agent, frames from its neighbors.

One thread computes and answers; a second one only says that the process lives, so that a long step is not mistaken
for a death. Between two steps, and while a neighbor takes nothing, the first looks for commands: a route that is dead
is left without waiting for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence

from msgspec.structs import replace

from inferswarm.backends.base import Counters, StageAssignment, StageExecutor, UnitBinding, UnitThreads
from inferswarm.backends.registry import make_executor
from inferswarm.errors import FabricError, InferSwarmError, RealizationFailed, WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.connection_watch import LOOK_SECONDS
from inferswarm.fabric.datapath import DataPath
from inferswarm.fabric.faults import to_fault
from inferswarm.fabric.frames import Address, Frame, FrameKind, plan_prefix
from inferswarm.fabric.path_probe import echo_back, probe_path
from inferswarm.fabric.proc import process_memory
from inferswarm.fabric.stage_journal import JournalSettings
from inferswarm.fabric.stage_liveness import SILENT_SECONDS
from inferswarm.fabric.stage_probe import (
    machine_conditions,
    probe_accelerator,
    probe_bandwidth,
    probe_multiply,
    probe_units,
)
from inferswarm.fabric.stage_sessions import HeldSessions
from inferswarm.fabric.transport import Attention, Inbox, Outbox
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
        self,
        channel: Channel[m.StageCall],
        *,
        node_id: str,
        address: str,
        more: Sequence[str] = (),
        journal_settings: JournalSettings | None = None,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """Bind the inbox at `address`, and at `more` as far as that can be had, and greet the agent.

        `journal_settings` bound what is kept of what goes to the next stage. A neighbor whose system acknowledges
        nothing for `silent_seconds` counts as cut off.
        """
        self._channel = channel
        self._silent_seconds = silent_seconds
        self._journal_settings = journal_settings
        self._node_id = node_id
        self._inbox = Inbox(address, more=more)
        self.endpoint = self._inbox.endpoint
        self._assignment: StageAssignment | None = None
        self._executor: StageExecutor | None = None
        self._warmed: Counters | None = None
        """What was counted before the first session."""
        self._materialized: m.Materialized | None = None
        self._held: HeldSessions | None = None
        self._address: Address | None = None
        """Of its realization; without an epoch until it is activated."""
        self._links: m.Connect | None = None
        self._path: DataPath | None = None
        self._said: tuple[m.SessionHeld, ...] = ()
        """What the other thread says of sessions: replaced as a whole, between two steps."""
        self._arrived: deque[Frame] = deque()
        self._refusals: Counter[str] = Counter()
        self._frames_sent = self._bytes_sent = self._unexplained_bytes = 0
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
        commands, anything = select.poll(), select.poll()
        commands.register(self._channel.fileno(), select.POLLIN)
        anything.register(self._channel.fileno(), select.POLLIN)
        anything.register(self._inbox.fileno(), select.POLLIN)
        while self._running:
            if self._path is not None:
                self._path.watch(time.monotonic())
            if self._arrived:  # senders wait until these are done
                if commands.poll(0):
                    self._attend()
                else:
                    self._take(self._arrived.popleft())
                continue
            if self._held is not None:
                self._said = self._held.held()
            wait = None if self._path is None else LOOK_SECONDS * 1000
            ready = dict(anything.poll(wait))
            if self._channel.fileno() in ready:
                self._attend()
            elif ready:
                self._receive_frames()

    def _attend(self) -> None:
        """Take one command. Without an agent there is nothing left to do."""
        call = self._channel.receive()
        if call is None:
            self._running = False
            self._leave_path()
        else:
            self._answer(call)

    def close(self) -> None:
        """Close the port and what is connected to it, and forget what was kept."""
        self._leave_path()
        if self._held is not None:
            self._held.close_all()
        self._inbox.close()

    def _beat(self) -> None:
        while True:
            path = self._path
            started = None if path is None else path.step_started
            busy = 0.0 if started is None else time.monotonic() - started
            steps = 0 if self._executor is None else self._executor.counters().steps
            plan_digest = "" if self._assignment is None else self._assignment.plan_digest
            alive = m.StageAlive(steps=steps, busy_seconds=busy, plan_digest=plan_digest, sessions=self._said)
            try:
                self._channel.send(alive)
            except OSError:
                return  # the agent has gone; the main thread sees the same end-of-file
            time.sleep(BEAT_SECONDS)

    def _receive_frames(self) -> None:
        self._arrived.extend(self._inbox.receive())
        while self._inbox.refusals:
            self._refusals[self._inbox.refusals.popleft().code] += 1

    def _take(self, frame: Frame) -> None:
        if self._path is not None:
            self._path.handle(frame)
        elif self._address is not None:
            self._refusals[self._address.mismatch(frame.header) or "NO_ACTIVE_AUTHORITY"] += 1
            self._unexplained_bytes += len(frame.payload)
        elif frame.header.kind == FrameKind.ECHO:  # only while being measured
            with contextlib.suppress(WireError):  # whoever asked has gone, or never was there
                echo_back(frame)

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
            case m.Adopt():
                return self._adopt(command)
            case m.Hold():
                return self._hold(command)
            case m.ReportHeld():
                return m.Held(sessions=() if self._held is None else self._held.held())
            case m.Refill():
                self._refill(command)
            case m.Report():
                return self._report()
            case m.Stop():
                self._running = False
                self._leave_path()
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
        holds_head = assignment.end_unit == len(assignment.description.unit_ids)
        self._held = HeldSessions(executor, holds_head=holds_head, journal_settings=self._journal_settings)
        requirement = assignment.requirement
        self._materialized = m.Materialized(
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
        return self._materialized

    def _adopt(self, command: m.Adopt) -> m.Adopted:
        """Leave the old realization at once: nothing under its address is accepted any more, what is held stays."""
        if self._assignment is None or self._materialized is None or self._held is None:
            raise RealizationFailed(self._node_id, "nothing can be adopted of a stage without states")
        wanted = command.assignment
        if _part(wanted) != _part(self._assignment):
            reason = f"{wanted.participant} is to be another part, or computed in another way, than this stage holds"
            raise RealizationFailed(self._node_id, reason)
        self._leave_path()
        self._assignment = wanted
        self._links = None
        self._address = Address(command.scope, 0, command.realization, plan_prefix(wanted.plan_digest))
        return m.Adopted(
            pid=os.getpid(),
            endpoint=self.endpoint,
            endpoints=tuple(self._inbox.endpoints.items()),
            unbound=tuple(self._inbox.unbound.items()),
            materialized=self._materialized,
            sessions=self._held.held(),
        )

    def _leave_path(self) -> None:
        """End the route that this stage is part of; what it counted is kept."""
        path, self._path = self._path, None
        if path is not None:
            path.close()
            self._refusals.update(path.refusals)
            self._frames_sent += path.frames_sent
            self._bytes_sent += path.bytes_sent
            self._unexplained_bytes += path.unexplained_bytes_received

    def _hold(self, command: m.Hold) -> m.Held:
        if self._held is None or (self._path is not None and self._path.has_authority):
            raise RealizationFailed(
                self._node_id, "sessions are held before an epoch begins and after states are there"
            )
        self._leave_path()
        return m.Held(sessions=self._held.hold(command.sessions))

    def _refill(self, command: m.Refill) -> None:
        if self._path is None:
            raise RealizationFailed(self._node_id, "no epoch was activated whose next stage could be refilled")
        self._path.refill(command.session, command.first, command.end)

    def _activate(self, command: m.Activate) -> None:
        if self._executor is None or self._assignment is None or self._address is None or self._links is None:
            raise RealizationFailed(self._node_id, "activated before it was materialized and connected")
        self._leave_path()
        links = self._links
        results = self._outbox(links.coordinator_endpoint)
        following = None if links.next_endpoint is None else self._outbox(links.next_endpoint, links.next_source)
        is_first = links.first_endpoint in self._inbox.endpoints.values()
        self._path = DataPath(
            self._executor,
            self._address._replace(epoch=command.epoch),
            participant=self._assignment.participant,
            node_id=self._node_id,
            results=results,
            following=following,
            first=None
            if is_first or following is not None
            else self._outbox(links.first_endpoint, links.first_source),
            is_first=is_first,
            held=self._held,
        )

    def _outbox(self, endpoint: str, source: str = "") -> Outbox:
        return Outbox(endpoint, source, Attention(self._channel.fileno(), self._attend), self._silent_seconds)

    def _report(self) -> m.StageReport:
        memory = process_memory(os.getpid())
        if self._executor is None or self._assignment is None or self._warmed is None:
            raise FabricError("this stage holds no participant yet")
        counters, path = self._executor.counters(), self._path
        unexplained = self._unexplained_bytes + (0 if path is None else path.unexplained_bytes_received)
        refusals = self._refusals + (Counter() if path is None else path.refusals)
        return m.StageReport(
            participant=self._assignment.participant,
            positions=counters.positions - self._warmed.positions,
            steps=counters.steps - self._warmed.steps,
            source_bytes=counters.source_bytes_read,
            state_bytes_moved=counters.state_bytes_moved_after_materialization + unexplained,
            frames_sent=self._frames_sent + (0 if path is None else path.frames_sent),
            bytes_sent=self._bytes_sent + (0 if path is None else path.bytes_sent),
            refusals=tuple(sorted(refusals.items())),
            resident_bytes=0 if memory is None else memory.resident,
            resident_peak_bytes=0 if memory is None else memory.resident_peak,
            anonymous_bytes=0 if memory is None else memory.anonymous,
        )


def _part(assignment: StageAssignment) -> StageAssignment:
    """Return what a stage is, in whatever plan and wherever its bytes are kept: they were read when it was built."""
    needed = assignment.requirement
    return replace(assignment, plan_digest="", requirement=None if needed is None else needed.wherever_stored)


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
