"""Timing the units of a model's shape through the real executor; `inferswarm.backends.probe` says what it means."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import torch

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.backends.sessions import payload_bytes
from inferswarm.backends.torch_backend.cache import PagedCache
from inferswarm.backends.torch_backend.decoder import StepContext
from inferswarm.backends.torch_backend.device import dtype_of, release_freed_memory
from inferswarm.backends.torch_backend.executor import TorchExecutor
from inferswarm.backends.torch_backend.sampling import Sample
from inferswarm.resources.cpuinfo import read_cpu
from inferswarm.strategies.dense.description import EMBEDDING, HEAD, DecoderDescription
from inferswarm.strategies.dense.problem import BLOCK, STAGING_BYTES
from inferswarm.strategies.dense.tensors import block_tensors

SESSION: Final = "probe"
WARM_UP_ROUNDS: Final = 2
MAX_BLOCKS: Final = 12
CACHE_MULTIPLE: Final = 4
"""Blocks are made until their weights are this many times the last-level cache, up to `MAX_BLOCKS`."""
UNKNOWN_CACHE_BYTES: Final = 64 * 2**20
STEP_CONTEXTS: Final = (16, 128, 512, 1024)
FIRST_PASS_CONTEXTS: Final = (0, 256)
TRANSIENT_SAMPLES: Final = 3
MAX_SAMPLES: Final = 200


def torch_version() -> str:
    """Return the version of torch that measured."""
    return str(torch.__version__)


@dataclass
class Cell:
    """One point that is measured: `positions` new positions of one cost class behind `context` earlier ones."""

    cost_class: str
    phase: str
    positions: int
    context: int
    set_bytes: int
    unit_seconds: list[float] = field(default_factory=list)
    overhead_seconds: list[float] = field(default_factory=list)
    transient_bytes: list[float] = field(default_factory=list)


class TimedExecutor(TorchExecutor):
    """The real executor, with a clock around its units and contexts that nobody computed."""

    unit_seconds = 0.0

    def compute(self, inputs: torch.Tensor, context: StepContext, *, sample: bool) -> torch.Tensor | Sample | None:
        """As the executor's own, timed."""
        started = time.perf_counter()
        result = super().compute(inputs, context, sample=sample)
        self.unit_seconds = time.perf_counter() - started
        return result

    def assume_context(self, length: int) -> None:
        """Make the probe's session `length` positions long without computing them."""
        self.cache.pages.truncate(SESSION, 0)
        self.cache.pages.extend(SESSION, length)


@dataclass
class _Bench:
    """One executor with the cells that are measured on it."""

    executor: TimedExecutor
    num_units: int
    payload_of: Callable[[int], bytes]
    cells: list[Cell]

    def measure(self, cell: Cell) -> None:
        """Run one step of a cell and keep its times."""
        total = self.run(cell)
        cell.unit_seconds.append(self.executor.unit_seconds / self.num_units)
        cell.overhead_seconds.append(max(total - self.executor.unit_seconds, 0.0))

    def run(self, cell: Cell) -> float:
        """Run one step of a cell. Returns its seconds."""
        payload = self.payload_of(cell.positions)
        self.executor.assume_context(cell.context)
        started = time.perf_counter()
        self.executor.step(SESSION, cell.context, cell.positions, payload, sample=True)
        return time.perf_counter() - started

    def measure_transient(self, cell: Cell) -> bool:
        """Run one step of a cell and keep how far memory rose. Returns False when that cannot be known."""
        release_freed_memory()
        if not reset_peak():
            return False
        before = resident_bytes("VmRSS")
        self.run(cell)
        cell.transient_bytes.append(max(resident_bytes("VmHWM") - before, 0))
        return True


class Probe:
    """Benches for the cost classes of one model's shape that fit into a budget."""

    def __init__(
        self,
        description: DecoderDescription,
        representation: str,
        threads: int,
        max_positions: int,
        chunk_positions: int,
        budget_bytes: int,
    ) -> None:
        self._description = description
        self._representation = representation
        self._threads = threads
        self._chunk = min(chunk_positions, max_positions)
        self._contexts = _clipped(STEP_CONTEXTS, max_positions - 1)
        self._prefixes = _clipped(FIRST_PASS_CONTEXTS, max_positions - self._chunk)
        self._positions = max(*self._contexts, *self._prefixes) + self._chunk
        self._budget = budget_bytes
        self._value = dtype_of(representation).itemsize
        self._num_blocks = 1

    def run(self, seconds: float, min_samples: int, progress: Callable[[int, int], None]) -> list[Cell]:
        """Measure for about `seconds`, and at least `min_samples` of each cell. Returns the cells."""
        deadline = time.monotonic() + seconds
        groups = list(self._groups())
        cells: list[Cell] = []
        for number, classes in enumerate(groups):
            release_freed_memory()
            now = time.monotonic()
            until = now + max(0.0, deadline - now) / (len(groups) - number)

            def report(share: float, number: int = number) -> None:
                progress(round(100 * (number + share) / len(groups)), 100)

            cells += self._run_group([self._bench(name) for name in classes], until, min_samples, report)
        return cells

    def _run_group(
        self, benches: list[_Bench], until: float, min_samples: int, report: Callable[[float], None]
    ) -> list[Cell]:
        turns = [(bench, cell) for bench in benches for cell in bench.cells]
        for _ in range(WARM_UP_ROUNDS):
            for bench, cell in turns:
                bench.run(cell)
        began, done = time.monotonic(), 0
        while done < min_samples or (done < MAX_SAMPLES and time.monotonic() < until):
            for bench, cell in turns:
                bench.measure(cell)
            done += 1
            spent = (time.monotonic() - began) / max(until - began, 1e-9)
            report(min(1.0, done / min_samples, spent))
        report(1.0)
        for bench, cell in turns:
            for _ in range(TRANSIENT_SAMPLES):
                if not bench.measure_transient(cell):
                    break
        return [cell for _, cell in turns]

    # -- what fits --

    def _groups(self) -> Iterator[list[str]]:
        """Yield the cost classes that are measured in turns: all together if they fit, else one by one."""
        table, block = self._table_bytes(), self._block_bytes()
        room = self._budget - STAGING_BYTES
        self._num_blocks = self._wanted_blocks()
        if 2 * table + self._num_blocks * block <= room:
            yield [EMBEDDING, HEAD, BLOCK]
            return
        if table <= room:
            yield [EMBEDDING]
            yield [HEAD]
        self._num_blocks = min(self._num_blocks, room // block)
        if self._num_blocks >= 1:
            yield [BLOCK]

    def smallest_bytes(self) -> int:
        """Return the smallest budget in which something can be measured."""
        return STAGING_BYTES + min(self._table_bytes(), self._block_bytes())

    def _wanted_blocks(self) -> int:
        """Return how many blocks exceed the last-level cache well."""
        cache = read_cpu().last_level_cache_bytes.value or UNKNOWN_CACHE_BYTES
        return min(-(-CACHE_MULTIPLE * cache // self._block_bytes()), MAX_BLOCKS)

    def _block_bytes(self) -> int:
        """Bytes of one block's weights, keys and values."""
        weights = sum(math.prod(shape) for shape in block_tensors(self._description, 0).values())
        kept = 2 * self._description.num_key_value_heads * self._description.head_size * (self._positions + 64)
        return (weights + kept) * self._value

    def _table_bytes(self) -> int:
        return self._description.vocabulary_size * self._description.hidden_size * self._value

    # -- benches --

    def _bench(self, cost_class: str) -> _Bench:
        num_blocks = self._num_blocks if cost_class == BLOCK else 1
        shape = msgspec.structs.replace(self._description, num_blocks=num_blocks)
        first, end = {
            EMBEDDING: (0, 1),
            BLOCK: (1, 1 + num_blocks),
            HEAD: (1 + num_blocks, 2 + num_blocks),
        }[cost_class]
        assignment = StageAssignment(
            participant=SESSION,
            plan_digest="",
            primitive="torch",
            representation=self._representation,
            description=shape,
            first_unit=first,
            end_unit=end,
            threads=(UnitThreads(first, end, self._threads),),
            requirement=None,
            max_positions=self._positions,
            sessions=1,
            chunk_positions=self._chunk,
        )
        executor = TimedExecutor(assignment)
        states = executor.materialize(lambda done, total: None)
        _fill(executor.cache)
        executor.open(SESSION)
        set_bytes = sum(state.bytes for state in states)
        return _Bench(
            executor,
            end - first,
            lambda positions: _payload(assignment, positions),
            [Cell(cost_class, *point, set_bytes) for point in self._points(cost_class)],
        )

    def _points(self, cost_class: str) -> Iterator[tuple[str, int, int]]:
        """Yield (phase, positions, context) of the cells of a cost class."""
        if cost_class != BLOCK:
            yield "step", 1, self._contexts[0]
        else:
            yield from (("step", 1, context) for context in self._contexts)
        if cost_class == HEAD:
            return  # it works on the newest position only
        prefixes = self._prefixes if cost_class == BLOCK else self._prefixes[:1]
        for positions in _pass_sizes(self._chunk):
            yield from (("first-pass", positions, context) for context in prefixes)


def _clipped(values: tuple[int, ...], most: int) -> list[int]:
    """Return the distinct values after none exceeds `most` (and none is below 0)."""
    return sorted({max(0, min(value, most)) for value in values})


def _pass_sizes(chunk: int) -> list[int]:
    """Return the sizes of first-pass steps: 8, 32, 64 and doubling, up to and including the whole chunk."""
    sizes = [8, 32, 64]
    while sizes[-1] * 2 <= chunk:
        sizes.append(sizes[-1] * 2)
    return sorted({size for size in sizes if size < chunk} | {chunk})


def _payload(assignment: StageAssignment, positions: int) -> bytes:
    """Return inputs for so many positions: spread token ids, or ordinary hidden states."""
    if assignment.first_unit == 0:
        step = max(1, assignment.description.vocabulary_size // 97)
        ids = (index * step % assignment.description.vocabulary_size for index in range(positions))
        return b"".join(token.to_bytes(4, "little") for token in ids)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(positions, assignment.description.hidden_size, generator=generator)
    payload = hidden.to(dtype_of(assignment.representation)).view(torch.uint8).numpy().tobytes()
    assert len(payload) == payload_bytes(assignment, positions)
    return payload


@torch.inference_mode()
def _fill(cache: PagedCache) -> None:
    """Give positions that are not computed ordinary keys and values."""
    generator = torch.Generator().manual_seed(0)
    for pool in (*cache.keys, *cache.values):
        pool.normal_(generator=generator)


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
