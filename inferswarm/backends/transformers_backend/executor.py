"""The executor of one participant of a model that the host library computes.

Its bits are a function of model, tokens and partition (step shapes, threads of each unit, `kernel()`): inputs are
copied into memory that torch aligned, every session is computed alone, attention is plain operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from inferswarm.backends.base import Counters, MaterializedState, Sampler, StageAssignment, StepOutput
from inferswarm.backends.sampling import GREEDY
from inferswarm.backends.sessions import check_step
from inferswarm.backends.states import (
    TensorRows,
    assigned_states,
    open_tensors,
    rows_at_once,
    source_digests,
)
from inferswarm.backends.torch_backend.device import describe_kernels, dtype_of, release_freed_memory, set_threads
from inferswarm.backends.torch_backend.payloads import Payloads
from inferswarm.backends.torch_backend.sampling import draw_token
from inferswarm.backends.transformers_backend import skeleton
from inferswarm.backends.transformers_backend.matching import RowRun, match
from inferswarm.backends.transformers_backend.skeleton import Skeleton
from inferswarm.backends.transformers_backend.slicing import SessionCache, Slice
from inferswarm.errors import FabricError, SpecError
from inferswarm.strategies.hosted.description import HostedDescription


@dataclass
class _Session:
    cache: SessionCache
    sampler: Sampler
    length: int = 0


class TransformersExecutor:
    """Implements `StageExecutor` with the modules of Hugging Face transformers, on a CPU.

    Raises SpecError for a description of another kind and for a representation that torch does not have.
    """

    def __init__(self, assignment: StageAssignment) -> None:
        if not isinstance(assignment.description, HostedDescription):
            needed = "a model that a host library computes, described by it"
            raise SpecError("model", assignment.description.architecture, needed)
        self._assignment = assignment
        self._description = assignment.description
        self._dtype = dtype_of(assignment.representation)
        self._payloads = Payloads(assignment, torch.device("cpu"))
        self._threads = {
            unit: span.threads for span in assignment.threads for unit in range(span.first_unit, span.end_unit)
        }
        self._slice: Slice | None = None
        self._sessions: dict[str, _Session] = {}
        self._source: TensorRows | None = None
        self._positions = self._steps = 0
        self._materialized_bytes = self._source_bytes = 0
        self._last_logits: torch.Tensor | None = None

    # -- states --

    @torch.inference_mode()
    def materialize(self, progress: Callable[[int, int], None]) -> tuple[MaterializedState, ...]:
        """Read exactly the assigned ranges and build the own part of the model.

        `progress(done, total)` counts source bytes. Raises ArtifactError for missing, short or unplanned bytes,
        UnsupportedModel for an encoding that cannot be read, ModelError when the installed host makes another model
        of the configuration than the one that was described, FabricError when called twice.
        """
        assignment, description = self._assignment, self._description
        if self._slice is not None:
            raise FabricError(f"{assignment.participant} is materialized already")
        shapes = assigned_states(description, assignment.first_unit, assignment.end_unit)
        source = open_tensors(assignment, shapes, progress)
        set_threads(1)
        where = description.architecture if assignment.requirement is None else assignment.requirement.uri
        configuration = skeleton.parse_configuration(description.configuration, where)
        model = skeleton.build_skeleton(configuration, self._dtype, where)
        self._check_model(model, where)
        units = (assignment.first_unit, assignment.end_unit)
        sliced = Slice(model, description, units, self._set_threads, where)
        self._load(model, source, {name: shape for state in shapes.values() for name, shape in state.items()}, where)
        source.finish()
        sliced.set_placeholders()
        release_freed_memory()
        self._slice = sliced
        self._source, self._source_bytes = source, source.bytes_read
        size, digests = self._dtype.itemsize, source_digests(source, shapes)
        states = tuple(
            MaterializedState(
                state,
                assignment.representation,
                size * sum(math.prod(shape) for shape in tensors.values()),
                digests[state],
            )
            for state, tensors in shapes.items()
        )
        self._materialized_bytes = sum(state.bytes for state in states)
        return states

    def _check_model(self, model: Skeleton, where: str) -> None:
        found = (type(model.module).__name__, len(model.blocks))
        needed = (self._description.architecture, self._description.num_blocks)
        if found != needed:
            raise SpecError("model", found, f"what was described at {where}: {needed}")

    def _load(
        self,
        model: Skeleton,
        source: TensorRows,
        shapes: Mapping[str, tuple[int, ...]],
        where: str,
    ) -> None:
        """Make the own entries of the module tree out of the assigned tensors, one recipe after the other."""
        places = _places(model.module)
        entries = dict(model.module.state_dict(keep_vars=True))

        def put(entry: str, value: torch.Tensor) -> None:
            for module, name in places[id(entries[entry])]:
                _put(module, name, value)

        for recipe in match(model.module, shapes, where):
            plan = recipe.rows(model.module, shapes, entries)
            if plan is not None:
                for entry, runs in plan.items():
                    put(entry, self._read(source, runs, tuple(entries[entry].shape)))
            else:  # the host mixes more than rows: it gets the whole tensors of this one recipe

                def whole(name: str) -> torch.Tensor:
                    return self._read(source, [RowRun(name, 0, math.prod(shapes[name][:-1]))], shapes[name])

                for entry, value in recipe.make(whole, model.module, where).items():
                    put(entry, value.contiguous())

    def _read(self, source: TensorRows, runs: Sequence[RowRun], shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor made of rows of the files, in the representation, read some rows at a time."""
        columns = shape[-1] if shape else 1
        result = torch.empty(math.prod(shape[:-1]), columns, dtype=self._dtype)
        step, place = rows_at_once(columns), 0
        for run in runs:
            for first in range(run.first, run.end, step):
                end = min(first + step, run.end)
                values = torch.from_numpy(source.rows(run.source, first, end))
                result[place : place + end - first].copy_(values)
                place += end - first
        return result.view(shape)

    def _set_threads(self, unit: int) -> None:
        set_threads(self._threads[unit])

    # -- sessions --

    def open(self, session: str, sampler: Sampler | None = None, *, session_positions: int | None = None) -> None:
        """Begin one session. Raises FabricError when the id is in use or all sessions are taken."""
        if self._slice is None:
            raise FabricError(f"{self._assignment.participant} is not materialized")
        if session in self._sessions:
            raise FabricError(f"session {session!r} is open already")
        if len(self._sessions) >= self._assignment.sessions:
            raise FabricError(f"session {session!r}: all {self._assignment.sessions} sessions are taken")
        self._sessions[session] = _Session(self._slice.new_cache(), sampler or GREEDY)

    def length(self, session: str) -> int:
        """Return how many positions a session has computed here. Raises FabricError when it is unknown."""
        return self._get(session).length

    def truncate(self, session: str, length: int) -> None:
        """Forget positions from `length` on. Raises FabricError for an unknown session or one that is shorter."""
        held = self._get(session)
        if not 0 <= length <= held.length:
            raise FabricError(f"session {session!r} has {held.length} positions and cannot be cut to {length}")
        held.cache.cut(length)
        held.length = length

    def close(self, session: str) -> None:
        """Free a session. Raises FabricError when it is unknown."""
        self._get(session)
        del self._sessions[session]

    def _get(self, session: str) -> _Session:
        if session not in self._sessions:
            raise FabricError(f"session {session!r} is not open at {self._assignment.participant}")
        return self._sessions[session]

    # -- steps --

    @torch.inference_mode()
    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """Compute the positions [start, start + count); see `StageExecutor.step`.

        Raises FabricError for a step that does not continue the session, is too long, or whose payload has the
        wrong size or token ids outside the vocabulary, and when the logits are not finite. The session is then as
        long as before.
        """
        held = self._get(session)
        check_step(self._assignment, session, held.length, start, count, payload)
        completed = False
        try:
            output = self._compute(held, start, self._decode(count, payload), sample)
            held.cache.check(start + count)
            completed = True
        except FabricError as error:
            raise FabricError(f"session {session!r}, positions {start} to {start + count}: {error}") from error
        finally:
            if not completed:
                held.cache.cut(start)
        held.length = start + count
        self._positions += count
        self._steps += 1
        return output

    def _compute(self, held: _Session, start: int, inputs: torch.Tensor, sample: bool) -> StepOutput:
        assert self._slice is not None
        has_head = self._slice.has_head
        result = self.compute(inputs, start, held.cache, wants_logits=has_head and sample)
        if not has_head:
            if result.dtype != self._dtype:
                raise FabricError(f"hidden states came out as {result.dtype}, needed {self._dtype}")
            return StepOutput(payload=self._payloads.write(result))
        if not sample:
            return StepOutput()
        self._last_logits = result
        drawn, digest = draw_token(result, held.sampler, start + len(inputs))
        return StepOutput(token=drawn.token, logits_digest=digest, margin=drawn.margin, logprobs=drawn.logprobs)

    def compute(self, inputs: torch.Tensor, start: int, cache: SessionCache, *, wants_logits: bool) -> torch.Tensor:
        """Run the assigned units on decoded inputs: the part of `step` that is the units' own."""
        assert self._slice is not None
        return self._slice.forward(inputs, start, cache, wants_logits=wants_logits)

    def _decode(self, count: int, payload: bytes | memoryview) -> torch.Tensor:
        """Return token ids [count] or hidden states [count, hidden], in memory that torch aligned."""
        if self._assignment.first_unit == 0:
            raw = np.frombuffer(payload, dtype="<i4").astype(np.int64)
            return torch.from_numpy(raw).clone()
        return self._payloads.read(count, payload)

    # -- reports --

    def last_logits(self) -> npt.NDArray[np.float32]:
        """Return the logits of the last sampled position, [vocabulary], for comparisons.

        Raises FabricError when nothing was sampled yet.
        """
        if self._last_logits is None:
            raise FabricError(f"{self._assignment.participant} has sampled nothing")
        logits: npt.NDArray[np.float32] = self._last_logits.float().numpy()
        return logits

    def counters(self) -> Counters:
        """Return what was done so far. State bytes moved afterwards are what the source has given since."""
        moved = 0 if self._source is None else self._source.bytes_read - self._source_bytes
        return Counters(self._positions, self._steps, self._materialized_bytes, self._source_bytes, moved)

    def kernel(self) -> str:
        """Return what decides the bits besides the partition: the same line for every participant of a chain."""
        names = (skeleton.versions(), self._description.architecture, f"attention {skeleton.ATTENTION}")
        return describe_kernels(torch.device("cpu"), f"dtype {self._assignment.representation}", *names)


def _places(module: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Return where each parameter and buffer hangs in the tree: tied ones in several places."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                places.setdefault(id(tensor), []).append((part, name))
    return places


def _put(module: nn.Module, name: str, value: torch.Tensor) -> None:
    if name in module._parameters:
        module._parameters[name] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[name] = value
