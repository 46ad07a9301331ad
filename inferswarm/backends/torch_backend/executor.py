"""The torch executor of one participant: materialized units, cached sessions, one step at a time.

Its bits are a function of model, tokens and partition (step shapes, threads of each unit, `kernel()`): inputs are
copied into memory that torch aligned, every session is computed alone, and nothing is chosen at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inferswarm.backends.base import (
    Counters,
    MaterializedState,
    Sampler,
    StageAssignment,
    StepOutput,
    described_decoder,
)
from inferswarm.backends.sampling import GREEDY
from inferswarm.backends.sessions import check_step
from inferswarm.backends.states import TensorRows, assigned_states, open_tensors, source_digests
from inferswarm.backends.torch_backend.cache import PagedCache
from inferswarm.backends.torch_backend.decoder import Block, Embedding, Head
from inferswarm.backends.torch_backend.device import (
    describe_kernels,
    device_of,
    dtype_of,
    release_freed_memory,
    set_threads,
)
from inferswarm.backends.torch_backend.linear import form_of
from inferswarm.backends.torch_backend.payloads import Payloads
from inferswarm.backends.torch_backend.positions import StepContext, Surroundings
from inferswarm.backends.torch_backend.sampling import Sample, draw_token
from inferswarm.backends.torch_backend.weights import WeightLoader, block_shapes
from inferswarm.errors import FabricError
from inferswarm.strategies.dense.tensors import (
    OUTPUT_NORM,
    OUTPUT_NORM_TENSOR,
    OUTPUT_TABLE,
    OUTPUT_TABLE_TENSOR,
    TOKEN_TABLE,
    TOKEN_TABLE_TENSOR,
    block_state,
)

Draw = Callable[[torch.Tensor], Sample]
"""Takes a token from one row of logits."""


class _Span(NamedTuple):
    """Blocks that run with the same number of threads."""

    threads: int
    blocks: list[Block]


class TorchExecutor:
    """Implements `StageExecutor` with torch, on the Compute Unit that the assignment names.

    Raises SpecError for a representation or a Compute Unit that torch cannot serve here.
    """

    def __init__(self, assignment: StageAssignment) -> None:
        self._assignment = assignment
        self._description = described_decoder(assignment)
        self._device = device_of(assignment.compute_unit)
        self._dtype = dtype_of(assignment.representation)
        self._payloads = Payloads(assignment, self._device)
        self._threads = [
            next(span.threads for span in assignment.threads if span.first_unit <= unit < span.end_unit)
            for unit in range(assignment.first_unit, assignment.end_unit)
        ]
        self._spans: list[_Span] = []
        self._embedding: Embedding | None = None
        self._head: Head | None = None
        self._cache: PagedCache | None = None
        self._source: TensorRows | None = None
        self._positions = self._steps = 0
        self._materialized_bytes = self._source_bytes = 0
        self._last_logits: torch.Tensor | None = None
        self._samplers: dict[str, Sampler] = {}
        self._session_positions: dict[str, int] = {}

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._device

    # -- states --

    @torch.inference_mode()
    def materialize(self, progress: Callable[[int, int], None]) -> tuple[MaterializedState, ...]:
        """Read exactly the assigned ranges and build the states and the sessions' memory.

        `progress(done, total)` counts source bytes. Raises ArtifactError for missing, short or unplanned bytes,
        UnsupportedModel for an encoding that cannot be read, FabricError when called twice.
        """
        if self._cache is not None:
            raise FabricError(f"{self._assignment.participant} is materialized already")
        assignment, description = self._assignment, self._description
        shapes = assigned_states(description, assignment.first_unit, assignment.end_unit)
        source = open_tensors(assignment, shapes, progress)
        sizes = self._load(WeightLoader(description, source, self._dtype, self._device))
        source.finish()
        assert list(sizes) == list(shapes), "a state was not built"
        release_freed_memory()
        self._surroundings = Surroundings(
            description,
            *self._blocks,
            max_positions=assignment.max_positions,
            dtype=self._dtype,
            device=self._device,
        )
        self._cache = PagedCache(
            description,
            sum(len(span.blocks) for span in self._spans),
            max_positions=assignment.max_positions,
            sessions=assignment.sessions,
            dtype=self._dtype,
            device=self._device,
        )
        self._source, self._source_bytes = source, source.bytes_read
        self._materialized_bytes = sum(sizes.values())
        digests = source_digests(source, shapes)
        return tuple(
            MaterializedState(state, assignment.representation, size, digests[state]) for state, size in sizes.items()
        )

    @property
    def _blocks(self) -> tuple[int, int]:
        """The blocks that are assigned: the first and the one behind the last."""
        first, end = self._assignment.first_unit, self._assignment.end_unit
        return max(first - 1, 0), min(end - 1, self._description.num_blocks)

    def _load(self, loader: WeightLoader) -> dict[str, int]:
        """Build every assigned unit for its own number of threads. Returns state id → bytes."""
        description, first = self._description, self._assignment.first_unit
        sizes: dict[str, int] = {}
        for threads, unit in zip(self._threads, range(first, self._assignment.end_unit), strict=True):
            release_freed_memory()  # or the C library keeps one unit's staging while the next needs its own
            if unit == 0:
                table = loader.table(TOKEN_TABLE_TENSOR)
                self._embedding = Embedding(table, description.embedding_scale)
                sizes[TOKEN_TABLE] = table.nbytes
            elif unit <= description.num_blocks:
                weights = loader.block(unit - 1, threads)
                sizes[block_state(unit - 1)] = weights.num_bytes
                self._add_block(threads, Block(description, weights, unit - 1, unit - max(first, 1)))
            else:
                self._load_head(loader, sizes)
        return sizes

    def _add_block(self, threads: int, block: Block) -> None:
        if not self._spans or self._spans[-1].threads != threads:
            self._spans.append(_Span(threads, []))
        self._spans[-1].blocks.append(block)

    def _load_head(self, loader: WeightLoader, sizes: dict[str, int]) -> None:
        """Build the head; a tied table that the embedding holds here already is shared, not built again."""
        norm = loader.norm(OUTPUT_NORM_TENSOR)
        sizes[OUTPUT_NORM] = norm.nbytes
        if not self._description.tied_head:
            table = loader.table(OUTPUT_TABLE_TENSOR)
            sizes[OUTPUT_TABLE] = table.nbytes
        elif self._embedding is not None:
            table = self._embedding.table
        else:
            table = loader.table(TOKEN_TABLE_TENSOR)
            sizes[TOKEN_TABLE] = table.nbytes
        self._head = Head(self._description, norm, table)

    # -- sessions --

    @property
    def cache(self) -> PagedCache:
        """The keys and values. Raises FabricError before `materialize`."""
        if self._cache is None:
            raise FabricError(f"{self._assignment.participant} is not materialized")
        return self._cache

    def open(self, session: str, sampler: Sampler | None = None, *, session_positions: int | None = None) -> None:
        """Reserve one session. Raises FabricError when the id is in use or all sessions are taken."""
        self.cache.pages.open(session)
        self._samplers[session] = sampler or GREEDY
        self._session_positions[session] = session_positions or self._assignment.max_positions

    def length(self, session: str) -> int:
        """Return how many positions a session has computed here. Raises FabricError when it is unknown."""
        return self.cache.pages.length(session)

    def truncate(self, session: str, length: int) -> None:
        """Forget positions from `length` on. Raises FabricError for an unknown session or one that is shorter."""
        self.cache.pages.truncate(session, length)

    def close(self, session: str) -> None:
        """Free a session. Raises FabricError when it is unknown."""
        self.cache.pages.close(session)
        del self._samplers[session], self._session_positions[session]

    # -- steps --

    @torch.inference_mode()
    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """Compute the positions [start, start + count); see `StageExecutor.step`.

        Raises FabricError for a step that does not continue the session, is too long, or whose payload has the
        wrong size or token ids outside the vocabulary, and when the logits are not finite. The session is then as
        long as before.
        """
        cache = self.cache
        check_step(self._assignment, session, cache.pages.length(session), start, count, payload)
        hidden = self._decode(count, payload)
        context = self._extend(session, start, count)
        completed = False
        try:
            draw = functools.partial(draw_token, sampler=self._samplers[session], position=start + count)
            output = self.encode(self.compute(hidden, context, draw if sample else None))
            completed = True
        except FabricError as error:
            raise FabricError(f"session {session!r}, positions {start} to {start + count}: {error}") from error
        finally:
            if not completed:
                cache.pages.truncate(session, start)
        self._positions += count
        self._steps += 1
        return output

    def _decode(self, count: int, payload: bytes | memoryview) -> torch.Tensor:
        """Return token ids [count] or hidden states [count, hidden], in memory that torch aligned."""
        if self._assignment.first_unit == 0:
            ids = torch.from_numpy(np.frombuffer(payload, dtype="<i4").astype(np.int64))
            return ids.to(self._device)
        return self._payloads.read(count, payload)

    def _extend(self, session: str, start: int, count: int) -> StepContext:
        view = self.cache.extend(session, count)
        return self._surroundings.at(view, start, count, self._session_positions[session])

    def compute(self, inputs: torch.Tensor, context: StepContext, draw: Draw | None) -> torch.Tensor | Sample | None:
        """Run the assigned units on decoded inputs: the part of `step` that is the units' own.

        Returns hidden states for the next participant, or what `draw` took from the head's logits (None without it).
        """
        hidden = inputs
        if self._embedding is not None:
            set_threads(self._threads[0])
            hidden = self._embedding(inputs)
        for span in self._spans:
            set_threads(span.threads)
            for block in span.blocks:
                hidden = block(hidden, context)
        if self._head is None:
            return hidden
        if draw is None:
            return None
        set_threads(self._threads[-1])
        self._last_logits = self._head(hidden[-1:])
        return draw(self._last_logits)

    def encode(self, result: torch.Tensor | Sample | None) -> StepOutput:
        """Return what `compute` gave as bytes for the next participant, or as a token. Part of `step`."""
        if result is None:
            return StepOutput()
        if isinstance(result, Sample):
            token, margin, logprobs = result.drawn
            return StepOutput(token=token, logits_digest=result.logits_digest, margin=margin, logprobs=logprobs)
        return StepOutput(payload=self._payloads.write(result))

    # -- reports --

    def last_logits(self) -> npt.NDArray[np.float32]:
        """Return the logits of the last sampled position, [vocabulary], for comparisons.

        Raises FabricError when nothing was sampled yet.
        """
        if self._last_logits is None:
            raise FabricError(f"{self._assignment.participant} has sampled nothing")
        logits: npt.NDArray[np.float32] = self._last_logits.float().cpu().numpy()
        return logits

    def counters(self) -> Counters:
        """Return what was done so far. State bytes moved afterwards are what the source has given since."""
        moved = 0 if self._source is None else self._source.bytes_read - self._source_bytes
        return Counters(self._positions, self._steps, self._materialized_bytes, self._source_bytes, moved)

    def kernel(self) -> str:
        """Return what decides the bits besides the partition: the same line for every participant of a chain."""
        shapes = block_shapes(self._description, self._dtype)
        linears = ", ".join(f"{name} {form_of(shape, self._device)}" for name, shape in shapes._asdict().items())
        attention = "attention sdpa" if self._description.attention_soft_cap is None else "attention bmm"
        names = (f"dtype {self._assignment.representation}", linears, attention, "norm bmm")
        return describe_kernels(self._device, *names)
