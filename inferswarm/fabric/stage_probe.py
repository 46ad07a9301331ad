"""Probes that run inside a stage: cost classes and multiplying on the real backend, memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable

from inferswarm import __version__
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.resources.quantities import READ_BANDWIDTH, READ_BANDWIDTH_PROTOCOL


def probe_units(command: m.ProbeUnits, progress: Callable[[int, int], None]) -> m.Observed:
    """Run the backend's own probe of the model's cost classes."""
    from inferswarm.backends.probe import WARM_UP_ROUNDS, probe_cost_classes  # loads torch

    conditions = machine_conditions()
    observations = probe_cost_classes(
        command.description,
        command.representation,
        compute_unit_id=command.compute_unit_id,
        kind=command.kind,
        threads=command.threads,
        max_positions=command.max_positions,
        chunk_positions=command.chunk_positions,
        budget_bytes=command.budget_bytes,
        seconds=command.seconds,
        progress=progress,
    )
    return m.Observed(observations=tuple(observations), num_warm_up=WARM_UP_ROUNDS, conditions=conditions)


def probe_bandwidth(command: m.ProbeBandwidth) -> m.Observed:
    """Measure memory read bandwidth in this process, under the Node's limits and on the CPUs that it is bound to."""
    from inferswarm.resources.bandwidth import measure_read_bandwidth  # loads numpy

    conditions = machine_conditions()
    samples = measure_read_bandwidth(command.threads, command.seconds, command.set_bytes)
    observation = Observation(
        subject=command.subject,
        metric=READ_BANDWIDTH,
        unit="B/s",
        samples=tuple(samples),
        context=make_context(threads=command.threads, set_bytes=command.set_bytes),
        protocol=READ_BANDWIDTH_PROTOCOL,
        taken_at_ns=now_ns(),
        producer=f"inferswarm {__version__}",
    )
    return m.Observed(observations=(observation,), num_warm_up=1, conditions=conditions)


def probe_multiply(command: m.ProbeMultiply) -> m.Observed:
    """Measure how fast the real backend multiplies, in one representation after the other."""
    from inferswarm.backends.probe import WARM_UP_ROUNDS, probe_multiply  # loads torch

    conditions = machine_conditions()
    observations: list[Observation] = []
    for representation in command.representations:
        observations += probe_multiply(
            representation,
            compute_unit_id=command.compute_unit_id,
            kind=command.kind,
            threads=command.threads,
            budget_bytes=command.budget_bytes,
            seconds=command.seconds / len(command.representations),
        )
    return m.Observed(observations=tuple(observations), num_warm_up=WARM_UP_ROUNDS, conditions=conditions)


def probe_accelerator(command: m.ProbeAccelerator) -> m.Observed:
    """Measure copies between an accelerator and RAM, and what this process and all others take of its memory."""
    from inferswarm.backends.probe import probe_accelerator as probe  # loads torch

    conditions = machine_conditions()
    observations, num_warm_up = probe(
        command.compute_unit_id, command.kind, memory_id=command.memory_id, seconds=command.seconds
    )
    return m.Observed(observations=observations, num_warm_up=num_warm_up, conditions=conditions)


def machine_conditions() -> tuple[tuple[str, str], ...]:
    """Return how busy this machine is, before something is measured."""
    from inferswarm.resources.conditions import running_conditions  # loads psutil, which serving does not need

    return tuple(sorted(running_conditions().items()))
