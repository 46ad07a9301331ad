"""Timing the units of a model's shape through the real executor; `inferswarm.backends.probe` says what it means."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import msgspec
import torch

from inferswarm.backends.base import UnitBinding
from inferswarm.backends.torch_backend.bench import (
    MAX_BLOCKS,
    MAX_SAMPLES,
    SESSION,
    WARM_UP_ROUNDS,
    Bench,
    Cell,
    Lengths,
    probe_assignment,
    wanted_bytes,
)
from inferswarm.backends.torch_backend.cache import PagedCache
from inferswarm.backends.torch_backend.device import dtype_of, finish, release_freed_memory
from inferswarm.backends.torch_backend.executor import Draw, TorchExecutor
from inferswarm.backends.torch_backend.positions import StepContext
from inferswarm.backends.torch_backend.sampling import Sample
from inferswarm.strategies.dense.description import EMBEDDING, HEAD, DecoderDescription
from inferswarm.strategies.dense.tensors import block_tensors
from inferswarm.strategies.problem import STAGING_BYTES
from inferswarm.strategies.shape import block_classes


def torch_version() -> str:
    """Return the version of torch that measured."""
    return str(torch.__version__)


class TimedExecutor(TorchExecutor):
    """The real executor, with a clock around its units and contexts that nobody computed."""

    unit_seconds = 0.0

    def compute(self, inputs: torch.Tensor, context: StepContext, draw: Draw | None) -> torch.Tensor | Sample | None:
        """As the executor's own, timed."""
        started = time.perf_counter()
        result = super().compute(inputs, context, draw)
        finish(self.device)
        self.unit_seconds = time.perf_counter() - started
        return result

    def assume_context(self, length: int) -> None:
        """Make the probe's session `length` positions long without computing them."""
        self.cache.pages.truncate(SESSION, 0)
        self.cache.pages.extend(SESSION, length)


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
        compute_unit: UnitBinding | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        self._compute_unit = compute_unit
        self._description = description
        self._representation = representation
        self._threads = threads
        self._lengths = Lengths(max_positions, chunk_positions)
        self._budget = budget_bytes
        self._value = dtype_of(representation).itemsize
        self._num_blocks = 1
        pattern = zip(block_classes(description), description.block_pattern, strict=True)
        self._block_kinds = dict(pattern)
        """Cost class of blocks → the kind of block that stands for it."""

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
        self, benches: list[Bench], until: float, min_samples: int, report: Callable[[float], None]
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
            bench.measure_transients(cell)
        return [cell for _, cell in turns]

    # -- what fits --

    def _groups(self) -> Iterator[list[str]]:
        """Yield the cost classes that are measured in turns: all together if they fit, else one by one."""
        table, block = self._table_bytes(), self._block_bytes()
        room = self._budget - STAGING_BYTES
        self._num_blocks = self._wanted_blocks()
        if 2 * table + len(self._block_kinds) * self._num_blocks * block <= room:
            yield [EMBEDDING, HEAD, *self._block_kinds]
            return
        if table <= room:
            yield [EMBEDDING]
            yield [HEAD]
        self._num_blocks = min(self._num_blocks, room // block)
        if self._num_blocks >= 1:
            yield from ([name] for name in self._block_kinds)

    def smallest_bytes(self) -> int:
        """Return the smallest budget in which something can be measured."""
        return STAGING_BYTES + min(self._table_bytes(), self._block_bytes())

    def _wanted_blocks(self) -> int:
        """Return how many blocks exceed the last-level cache well."""
        return min(-(-wanted_bytes() // self._block_bytes()), MAX_BLOCKS)

    def _block_bytes(self) -> int:
        """Bytes of one block's weights, keys and values."""
        weights = sum(math.prod(shape) for shape in block_tensors(self._description, 0).values())
        kept = 2 * self._description.num_key_value_heads * self._description.head_size * (self._lengths.session + 64)
        return (weights + kept) * self._value

    def _table_bytes(self) -> int:
        return self._description.vocabulary_size * self._description.hidden_size * self._value

    # -- benches --

    def _bench(self, cost_class: str) -> Bench:
        is_block = cost_class in self._block_kinds
        num_blocks = self._num_blocks if is_block else 1
        kind = self._block_kinds[cost_class] if is_block else self._description.block_pattern[0]
        shape = self._description.with_blocks((kind,) * num_blocks)
        first, end = {EMBEDDING: (0, 1), HEAD: (1 + num_blocks, 2 + num_blocks)}.get(cost_class, (1, 1 + num_blocks))
        assignment = probe_assignment(
            shape,
            self._representation,
            primitive="torch",
            units=(first, end),
            threads=self._threads,
            lengths=self._lengths,
            compute_unit=self._compute_unit,
        )
        executor = TimedExecutor(assignment)
        states = executor.materialize(lambda done, total: None)
        _fill(executor.cache)
        executor.open(SESSION)
        set_bytes = sum(state.bytes for state in states)
        sizes = _pass_sizes(self._lengths.chunk)
        cells = [Cell(cost_class, *point, set_bytes) for point in self._lengths.points(cost_class, sizes)]
        return Bench(executor, assignment, cells, executor.device)


def _pass_sizes(chunk: int) -> list[int]:
    """Return the sizes of first-pass steps: 8 and doubling, up to and including the whole chunk."""
    sizes = [8]
    while sizes[-1] * 2 <= chunk:
        sizes.append(sizes[-1] * 2)
    return sorted({size for size in sizes if size < chunk} | {chunk})


@torch.inference_mode()
def _fill(cache: PagedCache) -> None:
    """Give positions that are not computed ordinary keys and values."""
    generator = torch.Generator(cache.device).manual_seed(0)
    for pool in (*cache.keys, *cache.values):
        pool.normal_(generator=generator)
