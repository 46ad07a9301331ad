"""What a model's cost classes cost here, in time and short-lived memory. Torch-free to import; probing loads torch.

Units run with random weights of the model's real shapes through the real executor, behind contexts of random keys
and values. All cells (cost class, phase, positions, context) are measured in turns, after a warm-up, so that a
disturbance falls on all of them. Enough blocks are made that their weights exceed the last-level cache, as far as
the budget allows; the context's `set.bytes` says how large they were together.

- `unit-seconds`: time inside one unit (of the blocks of one step, the mean). The head's includes sampling.
- `step-overhead-seconds`: what a step of a participant takes beside its units: checks, bytes in and out, pages, mask.

  Both are measured with one step after the other (`pause.seconds` is 0), and at some points after a pause: then a
  core has slept and its caches are others', as they are where a participant waits for the rest of its route.
  `num.units` is how many units one such step ran through, so that the whole step can be told.
- `step-transient-bytes`: how far the peak of resident memory rises above what was resident before a step. Absent
  where the kernel does not let a process reset its peak.
"""

from __future__ import annotations

from collections.abc import Callable

from inferswarm import __version__
from inferswarm.backends.base import UnitBinding
from inferswarm.errors import MeasurementError, SpecError
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.resources.cpuinfo import read_cpu
from inferswarm.strategies.chain import Description
from inferswarm.strategies.hosted.description import HostedDescription
from inferswarm.strategies.shape import shape_digest

PROTOCOL = "cost-classes/2"
UNIT_SECONDS = "unit-seconds"
OVERHEAD_SECONDS = "step-overhead-seconds"
TRANSIENT_BYTES = "step-transient-bytes"
WARM_UP_ROUNDS = 2
"""Rounds over all cells before the first sample."""
COPY_SECONDS = "copy-seconds"
COPY_PROTOCOL = "copy-seconds/1"
MULTIPLY_RATE = "multiply-rate"
MULTIPLY_PROTOCOL = "multiply-rate/1"
MIN_SAMPLES = 5
"""Samples that every cell gets, whatever time that takes."""


def probe_cost_classes(
    description: Description,
    representation: str,
    *,
    compute_unit_id: str,
    threads: int,
    max_positions: int,
    chunk_positions: int,
    budget_bytes: int,
    seconds: float,
    kind: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Observation, ...]:
    """Measure the cost classes that fit into `budget_bytes`, for about `seconds`, on a Compute Unit of this Node.

    `kind` is the Compute Unit's: this process's CPUs, or the accelerator with that identity. `progress(done, total)`
    counts hundredths. Raises SpecError for a representation or an accelerator that torch does not have here,
    MeasurementError when not one unit of the model fits into the budget.
    """
    from inferswarm.backends.torch_backend.probing import Probe, torch_version  # loads torch

    sizes = (threads, max_positions, chunk_positions, budget_bytes)
    if isinstance(description, HostedDescription):
        from inferswarm.backends.transformers_backend.probing import probe_hosted

        if kind != "cpu":
            raise SpecError("compute unit kind", kind, "cpu, which is all that the transformers backend computes on")
        cells = probe_hosted(description, representation, *sizes, seconds, MIN_SAMPLES, progress)
    else:
        probe = Probe(description, representation, *sizes, UnitBinding(id=compute_unit_id, kind=kind))
        cells = probe.run(seconds, MIN_SAMPLES, progress)
        if not cells:
            raise MeasurementError(
                f"a budget of {budget_bytes:,} B holds no unit in {representation}: the smallest needs "
                f"{probe.smallest_bytes():,} B"
            )
    facts = {
        "backend": "transformers" if isinstance(description, HostedDescription) else "torch",
        "representation": representation,
        "threads": str(threads),
        "model_shape": shape_digest(description),
        "torch": torch_version(),
        "cpu": read_cpu().model_name.value or "unknown",
    }
    taken_at = now_ns()
    observations = []
    for cell in cells:
        context = make_context(
            cost_class=cell.cost_class,
            phase=cell.phase,
            positions=cell.positions,
            context_positions=cell.context,
            set_bytes=cell.set_bytes,
            pause_seconds=f"{cell.pause_seconds:g}",
            num_units=cell.num_units,
            **facts,
        )
        for metric, unit, samples in (
            (UNIT_SECONDS, "s", cell.unit_seconds),
            (OVERHEAD_SECONDS, "s", cell.overhead_seconds),
            (TRANSIENT_BYTES, "B", cell.transient_bytes),
        ):
            if samples:
                observations.append(
                    Observation(
                        subject=compute_unit_id,
                        metric=metric,
                        unit=unit,
                        samples=tuple(samples),
                        context=context,
                        protocol=PROTOCOL,
                        taken_at_ns=taken_at,
                        producer=f"inferswarm {__version__}",
                    )
                )
    return tuple(observations)


def probe_multiply(
    representation: str,
    *,
    compute_unit_id: str,
    threads: int,
    budget_bytes: int,
    seconds: float,
    kind: str = "cpu",
) -> tuple[Observation, ...]:
    """Measure operations per second of linear maps, one row and a chunk of rows, for about `seconds`.

    `kind` as in `probe_cost_classes`. Raises SpecError for a representation or an accelerator that torch does not
    have here, MeasurementError when `budget_bytes` holds no map.
    """
    from inferswarm.backends.torch_backend.multiplying import SIDE, measure_multiply  # loads torch
    from inferswarm.backends.torch_backend.probing import torch_version

    taken_at = now_ns()
    return tuple(
        Observation(
            subject=compute_unit_id,
            metric=MULTIPLY_RATE,
            unit="FLOP/s",
            samples=found.samples,
            context=make_context(
                backend="torch",
                representation=representation,
                shape=f"{found.rows}x{SIDE}x{SIDE}",
                form=found.form,
                set_bytes=found.set_bytes,
                threads=threads,
                torch=torch_version(),
                cpu=read_cpu().model_name.value or "unknown",
            ),
            protocol=MULTIPLY_PROTOCOL,
            taken_at_ns=taken_at,
            producer=f"inferswarm {__version__}",
        )
        for found in measure_multiply(
            representation, threads, budget_bytes, seconds, UnitBinding(id=compute_unit_id, kind=kind)
        )
    )


def probe_accelerator(
    compute_unit_id: str, kind: str, *, memory_id: str, seconds: float
) -> tuple[tuple[Observation, ...], int]:
    """Measure copies between an accelerator and RAM, and how much of its memory is taken; return also the warm-ups.

    `copy-seconds` has the accelerator as its subject, one record for each direction, size and kind of RAM.
    `runtime-base-bytes` has its memory as its subject: what this process, which has computed on it, and all others
    hold there now. Raises SpecError for a CPU and for an accelerator that torch does not have here, MeasurementError
    where torch does not tell how much memory is free.
    """
    from inferswarm.backends.torch_backend.copying import WARM_UP_COPIES, measure_copies, taken_bytes  # loads torch
    from inferswarm.backends.torch_backend.device import device_of
    from inferswarm.backends.torch_backend.probing import torch_version

    device = device_of(UnitBinding(id=compute_unit_id, kind=kind))
    taken_at = now_ns()
    taken = taken_bytes(device)
    records: list[tuple[str, str, str, tuple[float, ...], str, dict[str, str]]] = []
    records.append((memory_id, "runtime-base-bytes", "B", taken, "runtime-base-bytes/1", {}))
    for found in measure_copies(device, seconds):
        context = {
            "direction": found.direction,
            "payload_bytes": str(found.payload_bytes),
            "pinned": "yes" if found.pinned else "no",
        }
        records.append((compute_unit_id, COPY_SECONDS, "s", found.samples, COPY_PROTOCOL, context))
    return tuple(
        Observation(
            subject=subject,
            metric=metric,
            unit=unit,
            samples=samples,
            context=make_context(backend="torch", torch=torch_version(), **context),
            protocol=protocol,
            taken_at_ns=taken_at,
            producer=f"inferswarm {__version__}",
        )
        for subject, metric, unit, samples, protocol, context in records
    ), WARM_UP_COPIES
