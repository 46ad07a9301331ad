"""Probes that run inside a stage: cost classes and multiplying on the real backend, memory bandwidth, real frames."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferswarm import __version__
from inferswarm.errors import MeasurementError
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.fabric.frames import Address, Frame, FrameKind, encode
from inferswarm.fabric.transport import Inbox, Outbox

ECHO_TIMEOUT_SECONDS = 5.0
WARM_UP_ECHOES = 10
LARGE_BYTES = 2**20
"""Messages larger than this take long and tell a rate well: they are sent in every sixth turn only."""
_LARGE_TURN = 6

_PROBE = Address("probe", 0, "probe", "")
_outboxes: dict[str, Outbox] = {}


def probe_units(command: m.ProbeUnits, progress: Callable[[int, int], None]) -> m.Observed:
    """Run the backend's own probe of the model's cost classes."""
    from inferswarm.backends.probe import WARM_UP_ROUNDS, probe_cost_classes  # loads torch

    conditions = _conditions()
    observations = probe_cost_classes(
        command.description,
        command.representation,
        compute_unit_id=command.compute_unit_id,
        threads=command.threads,
        max_positions=command.max_positions,
        chunk_positions=command.chunk_positions,
        budget_bytes=command.budget_bytes,
        seconds=command.seconds,
        progress=progress,
    )
    return m.Observed(observations=tuple(observations), num_warm_up=WARM_UP_ROUNDS, conditions=conditions)


def probe_bandwidth(command: m.ProbeBandwidth, node_id: str) -> m.Observed:
    """Measure memory read bandwidth in this process, under the Node's limits."""
    from inferswarm.resources.bandwidth import measure_read_bandwidth  # loads numpy

    conditions = _conditions()
    samples = measure_read_bandwidth(command.threads, command.seconds, command.set_bytes)
    observation = Observation(
        subject=node_id,
        metric="read-bandwidth",
        unit="B/s",
        samples=tuple(samples),
        context=make_context(threads=command.threads, set_bytes=command.set_bytes),
        protocol="read-bandwidth/1",
        taken_at_ns=now_ns(),
        producer=f"inferswarm {__version__}",
    )
    return m.Observed(observations=(observation,), num_warm_up=1, conditions=conditions)


def probe_multiply(command: m.ProbeMultiply) -> m.Observed:
    """Measure how fast the real backend multiplies, in one representation after the other."""
    from inferswarm.backends.probe import WARM_UP_ROUNDS, probe_multiply  # loads torch

    conditions = _conditions()
    observations: list[Observation] = []
    for representation in command.representations:
        observations += probe_multiply(
            representation,
            compute_unit_id=command.compute_unit_id,
            threads=command.threads,
            budget_bytes=command.budget_bytes,
            seconds=command.seconds / len(command.representations),
        )
    return m.Observed(observations=tuple(observations), num_warm_up=WARM_UP_ROUNDS, conditions=conditions)


def _conditions() -> tuple[tuple[str, str], ...]:
    """Return how busy this machine is, before something is measured."""
    from inferswarm.resources.conditions import running_conditions  # loads psutil, which serving does not need

    return tuple(sorted(running_conditions().items()))


def echo_back(frame: Frame) -> None:
    """Answer an ECHO frame. The sender put its endpoint into the header's realization field."""
    endpoint = frame.header.realization
    if endpoint not in _outboxes:
        _outboxes[endpoint] = Outbox(endpoint)
    header = _PROBE.header(FrameKind.ECHOED, frame.header.session, position=frame.header.position)
    _outboxes[endpoint].send(encode(header, frame.payload))


def probe_path(command: m.ProbePath, inbox: Inbox) -> m.PathSamples:
    """Measure half round trips to another stage for each payload size, sizes interleaved, after a warm-up.

    Encoding, checksums, waking both processes and the copy into memory are part of the time: it is what a step will
    see. Raises MeasurementError when an echo does not come back.
    """
    conditions = _conditions()
    outbox = Outbox(command.endpoint)
    payloads = [bytes(size) for size in command.payload_bytes]
    samples: list[list[float]] = [[] for _ in payloads]
    number = 0
    for repeat in range(command.num_samples + WARM_UP_ECHOES):
        for index, payload in enumerate(payloads):
            if len(payload) > LARGE_BYTES and repeat % _LARGE_TURN:
                continue
            number += 1
            header = _PROBE._replace(realization=inbox.endpoint).header(FrameKind.ECHO, 0, position=number)
            time.sleep(command.pause_seconds)
            started = time.perf_counter()
            outbox.send(encode(header, payload))
            _await_echo(inbox, number, command.endpoint)
            if repeat >= WARM_UP_ECHOES:
                samples[index].append((time.perf_counter() - started) / 2)
    outbox.close()
    return m.PathSamples(
        payload_bytes=command.payload_bytes,
        seconds=tuple(tuple(item) for item in samples),
        num_warm_up=WARM_UP_ECHOES,
        conditions=conditions,
    )


def _await_echo(inbox: Inbox, number: int, endpoint: str) -> None:
    deadline = time.monotonic() + ECHO_TIMEOUT_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        for frame in inbox.receive(left):
            if frame.header.kind == FrameKind.ECHOED and frame.header.position == number:
                return
    raise MeasurementError(f"no echo from {endpoint} within {ECHO_TIMEOUT_SECONDS:.0f} s")
