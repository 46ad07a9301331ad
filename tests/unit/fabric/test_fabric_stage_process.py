"""An agent's handle on a real stage process: typed answers, typed faults, and a named end. No torch."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.errors import (
    EnvelopeExceeded,
    FabricError,
    InferSwarmError,
    RealizationFailed,
    SpecError,
    StageLost,
)
from inferswarm.fabric import messages as m
from inferswarm.fabric.envelope import DataLimitEnvelope, NodeEnvelope
from inferswarm.fabric.proc import maps_torch, process_memory
from inferswarm.fabric.stage_liveness import LivenessSettings
from inferswarm.fabric.stage_process import StageProcess
from tests.unit.fabric.processes import all_gone, identify
from tests.unit.fabric.stage_ring import DESCRIPTION

MIB = 2**20
Gone = list[tuple[str, InferSwarmError]]


def assignment(primitive: str = "null") -> StageAssignment:
    return StageAssignment(
        participant="stage-0",
        plan_digest="sha256:" + "ab" * 32,
        primitive=primitive,
        representation="fp32",
        description=DESCRIPTION,
        first_unit=0,
        end_unit=len(DESCRIPTION.unit_ids),
        threads=(UnitThreads(0, len(DESCRIPTION.unit_ids), 1),),
        requirement=None,
        max_positions=64,
        sessions=2,
        chunk_positions=8,
    )


def probe(endpoint: str, payload_bytes: int) -> m.ProbePath:
    ends = m.PathEnds("127.0.0.1", endpoint)
    return m.ProbePath(pairs=(ends,), payload_bytes=(payload_bytes,), max_turns=1, seconds=0.0)


def with_stage(
    work: Callable[[StageProcess, Gone], Awaitable[None]],
    envelope: NodeEnvelope | None = None,
    liveness: LivenessSettings | None = None,
) -> None:
    """Start a stage, let `work` use it, stop it, and check that it has gone."""

    async def run() -> None:
        gone: Gone = []
        held = NodeEnvelope() if envelope is None else envelope

        def on_gone(which: StageProcess, error: InferSwarmError) -> None:
            gone.append((which.name, error))

        stage = StageProcess("r1/stage-0", "amber", held, on_gone, liveness=liveness)
        await stage.start("n1", "127.0.0.1")
        process = identify(stage.pid)
        try:
            await work(stage, gone)
        finally:
            await asyncio.wait_for(stage.stop(), 10.0)
        assert all_gone([process], 1.0)

    asyncio.run(run())


def test_a_stage_answers_and_its_refusals_have_their_types() -> None:
    async def work(stage: StageProcess, gone: Gone) -> None:
        assert stage.endpoint.startswith("tcp://127.0.0.1:")
        assert not maps_torch(stage.pid)
        with pytest.raises(FabricError, match="holds no participant"):
            await stage.call(m.Report())
        with pytest.raises(RealizationFailed) as failed:
            await stage.call(m.Activate(epoch=1))
        assert failed.value.node == "n1"
        with pytest.raises(SpecError) as unknown:
            await stage.call(m.Materialize(assignment=assignment("abacus"), scope="s", realization="r1"))
        assert (unknown.value.field, unknown.value.found) == ("primitive", "abacus")
        answer = await stage.call(m.Materialize(assignment=assignment(), scope="s", realization="r1"))
        assert isinstance(answer, m.Materialized)
        with pytest.raises(RealizationFailed, match="another realization"):
            await stage.call(m.Materialize(assignment=assignment(), scope="s", realization="r2"))
        report = await stage.call(m.Report())
        assert isinstance(report, m.StageReport)
        assert (report.participant, report.positions, report.refusals) == ("stage-0", 0, ())
        memory = process_memory(stage.pid)
        assert memory is not None
        assert report.resident_peak_bytes == pytest.approx(memory.resident_peak, rel=0.1)
        assert gone == []

    with_stage(work)


def test_a_killed_stage_ends_the_call_that_waits_and_every_later_one() -> None:
    async def work(stage: StageProcess, gone: Gone) -> None:
        silent = socket.create_server(("127.0.0.1", 0))  # takes the connection and says nothing
        waiting = asyncio.create_task(stage.call(probe(f"tcp://127.0.0.1:{silent.getsockname()[1]}", 1)))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        os.kill(stage.pid, signal.SIGKILL)
        for call in (lambda: waiting, lambda: stage.call(m.Report())):
            with pytest.raises(StageLost) as lost:
                await call()
            assert (lost.value.node, lost.value.participant) == ("amber", "stage-0")
            assert lost.value.reason == "killed by SIGKILL"
        assert [(name, type(error)) for name, error in gone] == [("r1/stage-0", StageLost)]
        silent.close()

    with_stage(work)


def test_a_step_that_takes_long_is_no_death_and_a_stage_that_hangs_is_lost_soon() -> None:
    settings = LivenessSettings(silent_seconds=1.5, stopped_seconds=0.7)

    async def watched(stage: StageProcess, done: Callable[[], bool]) -> float:
        """Look at the stage as its agent does, until it is done or for two silences; returns the seconds."""
        began = looked_at = time.monotonic()
        while not done() and looked_at - began < 2 * settings.silent_seconds:
            await asyncio.sleep(0.05)
            passed, looked_at = time.monotonic() - looked_at, time.monotonic()
            stage.end_if_silent(passed)
        return looked_at - began

    async def work(stage: StageProcess, gone: Gone) -> None:
        minute = replace(probe(stage.endpoint, 1), pause_seconds=60.0)  # keeps the thread that computes
        busy = asyncio.create_task(stage.call(minute))
        assert await watched(stage, busy.done) >= 2 * settings.silent_seconds
        assert gone == []
        os.kill(stage.pid, signal.SIGSTOP)
        assert await watched(stage, busy.done) < settings.silent_seconds
        with pytest.raises(StageLost, match="it was stopped and gave no sign of life") as lost:
            await busy
        assert [error for _, error in gone] == [lost.value]

    with_stage(work, liveness=settings)


def test_a_stage_that_is_stopped_is_not_reported_as_lost() -> None:
    async def work(stage: StageProcess, gone: Gone) -> None:
        await stage.stop()
        await stage.stop()
        assert gone == []
        with pytest.raises(StageLost, match="it was stopped"):
            await stage.call(m.Report())

    with_stage(work)


def test_a_stage_that_hangs_is_stopped_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferswarm.fabric.stage_process.STOP_SECONDS", 0.2)

    async def work(stage: StageProcess, gone: Gone) -> None:
        os.kill(stage.pid, signal.SIGSTOP)

    with_stage(work)


def test_running_out_of_memory_names_node_mechanism_and_limit() -> None:
    own = process_memory(os.getpid())
    assert own is not None
    envelope = DataLimitEnvelope(own.data + 300 * MIB)

    async def work(stage: StageProcess, gone: Gone) -> None:
        huge = probe(stage.endpoint, 1024 * MIB)
        with pytest.raises(EnvelopeExceeded) as exceeded:
            await stage.call(huge)
        error = exceeded.value
        assert (error.node, error.mechanism, error.limit_bytes) == ("amber", "rlimit-data", envelope.limit_bytes)
        assert "out of memory" in str(error)
        assert envelope.overflows() == 1
        assert stage._process.returncode == 77
        assert len(gone) == 1

    with_stage(work, envelope)


@pytest.mark.parametrize(
    ("room", "crash", "lost"),
    [
        (MIB, signal.SIGSEGV, EnvelopeExceeded),
        (MIB, signal.SIGABRT, EnvelopeExceeded),
        (MIB, signal.SIGKILL, StageLost),
        (400 * MIB, signal.SIGSEGV, StageLost),
    ],
)
def test_a_crash_with_no_room_left_is_the_envelopes_and_any_other_is_not(
    room: int, crash: signal.Signals, lost: type[Exception]
) -> None:
    """Compiled code that does not look whether an allocation was made ends by a signal."""
    own = process_memory(os.getpid())
    assert own is not None
    envelope = DataLimitEnvelope(own.data + 800 * MIB)

    async def work(stage: StageProcess, gone: Gone) -> None:
        memory = process_memory(stage.pid)
        assert memory is not None
        resource.prlimit(stage.pid, resource.RLIMIT_DATA, (memory.data + room, envelope.limit_bytes))
        envelope.share()
        os.kill(stage.pid, crash)
        with pytest.raises(lost, match=crash.name):
            await stage.call(m.Report())
        assert envelope.overflows() == (lost is EnvelopeExceeded)

    with_stage(work, envelope)


def test_an_envelope_too_small_for_an_empty_stage_is_named_as_the_reason() -> None:
    async def nothing(stage: StageProcess, gone: Gone) -> None:
        raise AssertionError("it started")

    with pytest.raises(EnvelopeExceeded) as exceeded:
        with_stage(nothing, DataLimitEnvelope(4 * MIB))
    assert exceeded.value.mechanism == "rlimit-data"


def test_a_stage_is_bound_to_the_cpus_of_its_compute_unit_with_every_thread() -> None:
    async def run() -> None:
        cpu = min(os.sched_getaffinity(0))
        stage = StageProcess("r1/stage-0", "amber", NodeEnvelope(), lambda which, error: None)
        await stage.start("n1", "127.0.0.1", cpus=[cpu])
        try:
            deadline = time.monotonic() + 5.0
            while len(threads := os.listdir(f"/proc/{stage.pid}/task")) < 2 and time.monotonic() < deadline:
                await asyncio.sleep(0.01)  # the thread of beats comes after the greeting
            assert len(threads) > 1
            assert {tuple(os.sched_getaffinity(int(thread))) for thread in threads} == {(cpu,)}
        finally:
            await stage.stop()

    asyncio.run(run())


def test_a_stage_that_cannot_be_bound_says_to_which_cpus() -> None:
    async def run() -> None:
        stage = StageProcess("r1/stage-0", "amber", NodeEnvelope(), lambda which, error: None)
        with pytest.raises(StageLost, match=r"cannot be bound to the CPUs \[1023\]"):
            await stage.start("n1", "127.0.0.1", cpus=[1023])

    asyncio.run(run())
