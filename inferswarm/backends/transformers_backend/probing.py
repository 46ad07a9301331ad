"""Timing the units of a hosted model through the real executor; `inferswarm.backends.probe` says what it means.

One difference: what the host library itself takes once it is loaded counts as short-lived memory of every cell, since
the runtime base of a Node is measured without it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from inferswarm.backends.torch_backend.bench import (
    MAX_BLOCKS,
    MAX_SAMPLES,
    SESSION,
    WARM_UP_ROUNDS,
    Bench,
    Cell,
    Lengths,
    ordinary_payload,
    probe_assignment,
    resident_bytes,
    wanted_bytes,
)
from inferswarm.backends.torch_backend.device import dtype_of, release_freed_memory
from inferswarm.errors import MeasurementError
from inferswarm.strategies.chain import state_tensors, unit_states
from inferswarm.strategies.dense.description import EMBEDDING, HEAD
from inferswarm.strategies.hosted.description import HostedDescription
from inferswarm.strategies.problem import STAGING_BYTES
from inferswarm.strategies.shape import block_classes

PASS_SIZES: Final = (8, 32)
"""First-pass steps that are measured beside the whole chunk and its half."""


def probe_hosted(
    description: HostedDescription,
    representation: str,
    threads: int,
    max_positions: int,
    chunk_positions: int,
    budget_bytes: int,
    seconds: float,
    min_samples: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """Measure the cost classes that fit into `budget_bytes`, one after the other, for about `seconds`.

    `progress(done, total)` counts hundredths. Raises SpecError for a representation that torch does not have,
    MeasurementError when not one unit of the model fits into the budget.
    """
    probe = _Probe(description, representation, threads, max_positions, chunk_positions)
    spans = list(probe.spans(budget_bytes - STAGING_BYTES))
    if not spans:
        raise MeasurementError(
            f"a budget of {budget_bytes:,} B holds no unit in {representation}: the smallest needs "
            f"{STAGING_BYTES + probe.smallest_bytes():,} B"
        )
    deadline = time.monotonic() + seconds
    cells: list[Cell] = []
    for number, (cost_class, first, end) in enumerate(spans):
        release_freed_memory()
        now = time.monotonic()
        until = now + max(0.0, deadline - now) / (len(spans) - number)
        bench = probe.bench(cost_class, first, end)
        _measure(bench, until, min_samples)
        for cell in bench.cells:
            bench.measure_transients(cell, probe.library_bytes)
        cells += bench.cells
        progress(round(100 * (number + 1) / len(spans)), 100)
    return cells


def _measure(bench: Bench, until: float, min_samples: int) -> None:
    for _ in range(WARM_UP_ROUNDS):
        for cell in bench.cells:
            bench.run(cell)
    done = 0
    while done < min_samples or (done < MAX_SAMPLES and time.monotonic() < until):
        for cell in bench.cells:
            bench.measure(cell)
        done += 1


class _Probe:
    """What can be measured of one model, and how."""

    def __init__(
        self,
        description: HostedDescription,
        representation: str,
        threads: int,
        max_positions: int,
        chunk_positions: int,
    ) -> None:
        self._description = description
        self._representation = representation
        self._threads = threads
        self._value = dtype_of(representation).itemsize
        self._lengths = Lengths(max_positions, chunk_positions)
        self._tensors = state_tensors(description)
        self._before_bytes = resident_bytes("VmRSS")
        self.library_bytes = 0

    def spans(self, room: int) -> Iterator[tuple[str, int, int]]:
        """Yield (cost class, first unit, end unit) for what fits into `room` bytes."""
        last = self._description.num_blocks + 1
        for cost_class, unit in ((EMBEDDING, 0), (HEAD, last)):
            if self._bytes(unit) <= room:
                yield cost_class, unit, unit + 1
        classes = block_classes(self._description)
        for cost_class in dict.fromkeys(classes):
            first = classes.index(cost_class) + 1
            wanted, held, end = wanted_bytes(), 0, first
            while end < last and classes[end - 1] == cost_class and end - first < MAX_BLOCKS:
                if held + self._bytes(end) > room or held > wanted:
                    break
                held += self._bytes(end)
                end += 1
            if end > first:
                yield cost_class, first, end

    def smallest_bytes(self) -> int:
        """Return the bytes of the smallest unit."""
        return min(self._bytes(unit) for unit in range(self._description.num_blocks + 2))

    def _bytes(self, unit: int) -> int:
        """Bytes of a unit's weights, keys and values, and of the contexts that are made up beside them."""
        states = unit_states(self._description, unit)
        weights = sum(math.prod(shape) for state in states for shape in self._tensors[state].values())
        is_block = 0 < unit <= self._description.num_blocks
        kept = 3 * self._lengths.session * self._description.kept_values_per_position[unit - 1] if is_block else 0
        return (weights + kept) * self._value

    def bench(self, cost_class: str, first: int, end: int) -> Bench:
        """Materialize units with random weights and prepare their cells."""
        from inferswarm.backends.transformers_backend.timing import TimedExecutor  # loads the host library

        assignment = probe_assignment(
            self._description,
            self._representation,
            primitive="transformers",
            units=(first, end),
            threads=self._threads,
            lengths=self._lengths,
        )
        executor = TimedExecutor(assignment)
        states = executor.materialize(lambda done, total: None)
        executor.open(SESSION)
        executor.step(SESSION, 0, 1, ordinary_payload(assignment, 1), sample=True)
        executor.make_contexts(self._lengths.session - self._lengths.chunk)
        set_bytes = sum(state.bytes for state in states)
        release_freed_memory()
        if not self.library_bytes:
            self.library_bytes = max(resident_bytes("VmRSS") - self._before_bytes - set_bytes, 0)
        sizes = _pass_sizes(self._lengths.chunk)
        cells = [Cell(cost_class, *point, set_bytes) for point in self._lengths.points(cost_class, sizes)]
        return Bench(executor, assignment, cells)


def _pass_sizes(chunk: int) -> list[int]:
    """Return the sizes of first-pass steps, up to and including the whole chunk."""
    return sorted({size for size in (*PASS_SIZES, chunk // 2) if 1 < size < chunk} | {chunk})
