"""What probes of every backend that runs on torch share: cells, one executor with its cells, steps that are timed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import msgspec
import torch

from inferswarm.backends import probe
from inferswarm.backends.base import StageAssignment, StepOutput, UnitBinding, UnitThreads
from inferswarm.backends.sessions import payload_bytes
from inferswarm.backends.torch_backend.device import dtype_of, release_freed_memory
from inferswarm.resources.cpuinfo import read_cpu
from inferswarm.strategies.chain import Description
from inferswarm.strategies.dense.description import EMBEDDING, HEAD

SESSION: Final = "probe"
WARM_UP_ROUNDS: Final = probe.WARM_UP_ROUNDS
MAX_BLOCKS: Final = 12
CACHE_MULTIPLE: Final = 4
"""Blocks are made until their weights are this many times the last-level cache, up to `MAX_BLOCKS`."""
UNKNOWN_CACHE_BYTES: Final = 64 * 2**20
STEP_CONTEXTS: Final = (16, 128, 512, 1024)
FIRST_PASS_CONTEXTS: Final = (0, 256)
TRANSIENT_SAMPLES: Final = 3
MAX_SAMPLES: Final = 200
PAUSE_SECONDS: Final = 0.008
"""How long a participant rests before a step of a paused cell: about as long as the others of a route take."""
PAUSED_STEPS: Final = 2
"""Contexts, from the shortest on, whose steps are measured after a pause too."""


@dataclass
class Cell:
    """One point that is measured: `positions` new positions of one cost class behind `context` earlier ones.

    With `pause_seconds` the process sleeps so long before each step; otherwise one step follows the other.
    """

    cost_class: str
    phase: str
    positions: int
    context: int
    set_bytes: int
    pause_seconds: float = 0.0
    num_units: int = 1
    """Units of the class that one step runs through."""
    unit_seconds: list[float] = field(default_factory=list)
    overhead_seconds: list[float] = field(default_factory=list)
    transient_bytes: list[float] = field(default_factory=list)


class Timed(Protocol):
    """An executor with a clock around its units, and with contexts that nobody computed."""

    @property
    def unit_seconds(self) -> float:
        """What the units of the last step took together."""

    def assume_context(self, length: int) -> None:
        """Make the probe's session `length` positions long without computing them."""

    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """As every executor's."""


class Bench:
    """One executor with the cells that are measured on it."""

    def __init__(
        self,
        executor: Timed,
        assignment: StageAssignment,
        cells: list[Cell],
        device: torch.device = torch.device("cpu"),  # noqa: B008 (it cannot be changed)
    ) -> None:
        """`cells` are the points to measure back to back; paused ones of the same points are added to them."""
        self._executor = executor
        self._device = device
        self._assignment = assignment
        num_units = assignment.end_unit - assignment.first_unit
        self.cells = [replace(cell, num_units=num_units) for cell in (*cells, *_paused(cells))]

    def run(self, cell: Cell) -> float:
        """Run one step of a cell, after its pause. Returns its seconds without the pause."""
        payload = ordinary_payload(self._assignment, cell.positions)
        self._executor.assume_context(cell.context)
        if cell.pause_seconds:
            time.sleep(cell.pause_seconds)
        started = time.perf_counter()
        self._executor.step(SESSION, cell.context, cell.positions, payload, sample=True)
        return time.perf_counter() - started

    def measure(self, cell: Cell) -> None:
        """Run one step of a cell and keep its times."""
        total = self.run(cell)
        cell.unit_seconds.append(self._executor.unit_seconds / cell.num_units)
        cell.overhead_seconds.append(max(total - self._executor.unit_seconds, 0.0))

    def measure_transients(self, cell: Cell, library_bytes: int = 0) -> None:
        """Run some steps of a cell and keep how far memory rose, `library_bytes` added; nothing if none can know.

        A pause changes no memory: a paused cell keeps none.
        """
        for _ in range(0 if cell.pause_seconds else TRANSIENT_SAMPLES):
            if self._device.type != "cpu":
                cell.transient_bytes.append(self._on_device(cell) + library_bytes)
                continue
            release_freed_memory()
            if not reset_peak():
                return
            before = resident_bytes("VmRSS")
            self.run(cell)
            cell.transient_bytes.append(max(resident_bytes("VmHWM") - before, 0) + library_bytes)

    def _on_device(self, cell: Cell) -> int:
        """Return how far what is allocated on an accelerator rises in a step."""
        backend = torch.get_device_module(self._device.type)
        backend.reset_peak_memory_stats(self._device)
        before = int(backend.memory_allocated(self._device))
        self.run(cell)
        return max(int(backend.max_memory_allocated(self._device)) - before, 0)


def _paused(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that are measured after a pause too: what a pause costs a step, and a prompt's first chunk.

    What it costs belongs to the participant and not to its units, and so the shortest steps of blocks tell it best.
    """
    blocks = [cell for cell in cells if cell.cost_class not in (EMBEDDING, HEAD)]
    steps = [cell for cell in blocks if cell.phase == "step"][:PAUSED_STEPS]
    passes = [cell for cell in blocks if cell.phase == "first-pass"][:1]
    return [
        replace(cell, pause_seconds=PAUSE_SECONDS, unit_seconds=[], overhead_seconds=[], transient_bytes=[])
        for cell in (*steps, *passes)
    ]


class Lengths:
    """How many positions a probe works with, for sessions of at most `max_positions`."""

    def __init__(self, max_positions: int, chunk_positions: int) -> None:
        self.chunk = min(chunk_positions, max_positions)
        self.contexts = _clipped(STEP_CONTEXTS, max_positions - 1)
        """Earlier positions of single steps."""
        self.prefixes = _clipped(FIRST_PASS_CONTEXTS, max_positions - self.chunk)
        """Earlier positions of first-pass steps."""
        self.session = max(*self.contexts, *self.prefixes) + self.chunk
        """The longest session of the probe."""

    def points(self, cost_class: str, sizes: Iterable[int]) -> Iterator[tuple[str, int, int]]:
        """Yield (phase, positions, context) of the cells of a cost class; `sizes` are those of first-pass steps."""
        looks_back = cost_class not in (EMBEDDING, HEAD)
        yield from (("step", 1, context) for context in (self.contexts if looks_back else self.contexts[:1]))
        if cost_class == HEAD:
            return  # it works on the newest position only
        prefixes = self.prefixes if looks_back else self.prefixes[:1]
        for positions in sizes:
            yield from (("first-pass", positions, context) for context in prefixes)


def _clipped(values: tuple[int, ...], most: int) -> list[int]:
    """Return the distinct values after none exceeds `most` (and none is below 0)."""
    return sorted({max(0, min(value, most)) for value in values})


def probe_assignment(
    description: Description,
    representation: str,
    *,
    primitive: str,
    units: tuple[int, int],
    threads: int,
    lengths: Lengths,
    compute_unit: UnitBinding | msgspec.UnsetType = msgspec.UNSET,
) -> StageAssignment:
    """Return the assignment of the units [first, end) with random states, for one session."""
    first, end = units
    return StageAssignment(
        participant=SESSION,
        plan_digest="",
        primitive=primitive,
        representation=representation,
        description=description,
        first_unit=first,
        end_unit=end,
        threads=(UnitThreads(first, end, threads),),
        requirement=None,
        max_positions=lengths.session,
        sessions=1,
        chunk_positions=lengths.chunk,
        compute_unit=compute_unit,
    )


def ordinary_payload(assignment: StageAssignment, positions: int) -> bytes:
    """Return inputs for so many positions: spread token ids, or ordinary hidden states."""
    if assignment.first_unit == 0:
        size = assignment.description.vocabulary_size
        step = max(1, size // 97)
        return b"".join((index * step % size).to_bytes(4, "little") for index in range(positions))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(positions, assignment.description.hidden_size, generator=generator)
    payload = hidden.to(dtype_of(assignment.representation)).view(torch.uint8).numpy().tobytes()
    assert len(payload) == payload_bytes(assignment, positions)
    return payload


def wanted_bytes() -> int:
    """Return how many bytes of weights exceed the last-level cache well."""
    return CACHE_MULTIPLE * (read_cpu().last_level_cache_bytes.value or UNKNOWN_CACHE_BYTES)


def reset_peak() -> bool:
    """Set this process's peak of resident memory back to what is resident. Returns whether the kernel did it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident_bytes(name: str) -> int:
    """Return `VmRSS` or `VmHWM` of this process in bytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None, f"/proc/self/status lacks {name}"
    return int(match.group(1)) * 1024
