"""Executors for tests: small random models without a file, and parts of a real file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferswarm.backends.base import StageAssignment, StepOutput, UnitThreads
from inferswarm.backends.direct import DirectResult
from inferswarm.backends.registry import make_executor
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.model import DenseModel

Spans = Sequence[tuple[int, int, int]]
"""(first unit, end unit, threads) of a whole chain."""


def small_description(**changes: Any) -> DecoderDescription:
    """A decoder of four small blocks."""
    sizes: dict[str, Any] = {
        "architecture": "llama",
        "vocabulary_size": 320,
        "hidden_size": 64,
        "feed_forward_size": 128,
        "num_blocks": 4,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 16,
        "context_positions": 640,
        "rope_base": 10000.0,
        "norm_epsilon": 1e-5,
        "tied_head": True,
        "interleaved_rope_rows": True,
    }
    return DecoderDescription(**(sizes | changes))


def assign(
    description: DecoderDescription,
    first: int = 0,
    end: int | None = None,
    *,
    representation: str = "fp32",
    primitive: str = "torch",
    threads: Spans | None = None,
    max_positions: int = 256,
    sessions: int = 1,
    chunk_positions: int = 64,
    requirement: Any = None,
) -> StageAssignment:
    """An assignment of the units [first, end); without a requirement the states are random."""
    end = len(description.unit_ids) if end is None else end
    spans = threads or ((first, end, 1),)
    return StageAssignment(
        participant=f"stage-{first}-{end}",
        plan_digest="",
        primitive=primitive,
        representation=representation,
        description=description,
        first_unit=first,
        end_unit=end,
        threads=tuple(
            UnitThreads(max(first, low), min(end, high), count) for low, high, count in spans if low < end and first < high
        ),
        requirement=requirement,
        max_positions=max_positions,
        sessions=sessions,
        chunk_positions=chunk_positions,
    )


def built(assignment: StageAssignment) -> Any:
    """The assignment's executor, materialized."""
    executor = make_executor(assignment)
    executor.materialize(lambda done, total: None)
    return executor


def chain(description: DecoderDescription, cuts: Sequence[int], **options: Any) -> list[Any]:
    """Executors of the units between the cuts, which begin with 0 and end with the number of units."""
    return [
        built(assign(description, first, end, **options)) for first, end in zip(cuts, cuts[1:], strict=False)
    ]


def file_chain(model: DenseModel, cuts: Sequence[int], **options: Any) -> list[Any]:
    """As `chain`, with the states of a model's file."""
    problem = model.problem()
    executors = []
    for first, end in zip(cuts, cuts[1:], strict=False):
        requirement = model.requirement(problem, f"stage-{first}-{end}", first, end)
        executors.append(built(assign(model.description, first, end, requirement=requirement, **options)))
    return executors


def tokens_payload(tokens: Sequence[int]) -> bytes:
    """Token ids as a participant with the embedding takes them."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def same_bits(first: DirectResult, second: DirectResult) -> bool:
    """The comparison behind every claim of equality: tokens and digests of the raw logits."""
    return first.tokens == second.tokens and first.logits_digests == second.logits_digests


class LogitsRecorder:
    """A last participant that keeps the logits of every sampled position, [samples, vocabulary]."""

    def __init__(self, executor: Any) -> None:
        self._executor: Any = executor
        self.rows: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        output: StepOutput = self._executor.step(session, start, count, payload, sample=sample)
        if output.token is not None:
            self.rows.append(self._executor.last_logits().copy())
        return output


