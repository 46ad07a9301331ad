"""Executors for tests: small random models without a file, and parts of a real file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from inferswarm.backends.base import StageAssignment, StepOutput, UnitThreads
from inferswarm.backends.direct import DirectResult
from inferswarm.backends.registry import make_executor
from inferswarm.strategies.dense.description import DecoderDescription, plain_decoder
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
    }
    plain = {name: changes.pop(name, value) for name, value in sizes.items()}
    return msgspec.structs.replace(plain_decoder(**plain), **changes)


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
            UnitThreads(max(first, low), min(end, high), count)
            for low, high, count in spans
            if low < end and first < high
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
    return [built(assign(description, first, end, **options)) for first, end in itertools.pairwise(cuts)]


def file_chain(model: DenseModel, cuts: Sequence[int], **options: Any) -> list[Any]:
    """As `chain`, with the states of a model's file."""
    problem = model.problem()
    executors = []
    for first, end in itertools.pairwise(cuts):
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


_LONG = (
    "In the beginning the river was only a thread of water between two stones. It ran over the moss, under the roots "
    "of the old trees, and past the village where nobody yet lived. Years went by; the thread became a brook, the "
    "brook became a stream, and one spring, when the snow on the mountains melted faster than anyone could remember, "
    "the stream became a river that carried boats, barges and, much later, ships. People came. They built a mill, a "
    "bridge and a market, and they argued about the price of bread, about the weather, and about who had been there "
    "first. Nobody remembered the two stones."
)


def real_prompts(model: DenseModel) -> dict[str, tuple[int, ...]]:
    """Prompts for the real model: raw and chat, several scripts, and lengths on and around the chunk edge."""

    def chat(*contents: str) -> tuple[int, ...]:
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(contents)]
        return model.text.codec.encode(model.chat.render(messages), parse_special=True)

    long = model.text.codec.encode(_LONG)
    assert len(long) > 131, len(long)
    return {
        "raw": model.text.codec.encode("The capital of France is"),
        "code": model.text.codec.encode("def fibonacci(n):\n    if n < 2:\n        return n\n    return"),
        "one token": model.text.codec.encode("Once"),
        "chat": chat("Why is the sky blue? Answer in one sentence."),
        "chat of three turns": chat("Name a color.", "Blue.", "And another one, please."),
        "several scripts": chat("Přelož do češtiny: „naïve café“ — 日本語もどうぞ 🙂"),
        "64 tokens": long[:64],
        "65 tokens": long[:65],
        "130 tokens": long[:130],
        "131 tokens": long[:131],
    }


class Agreement(NamedTuple):
    """How a run lies to a reference over the same tokens."""

    max_difference: float
    """Largest absolute difference of a logit."""
    near_ties: int
    """Positions whose tokens differ although the reference's margin is below twice that difference."""
    violations: tuple[int, ...]
    """Positions whose tokens differ without that excuse."""


def compare_logits(
    reference: DirectResult, reference_rows: Sequence[np.ndarray], run: DirectResult, rows: Sequence[np.ndarray]
) -> Agreement:
    """Compare two runs over the same forced tokens, position by position."""
    assert len(rows) == len(reference_rows) == len(run.tokens) == len(reference.tokens)
    largest = max(float(np.abs(a - b).max()) for a, b in zip(rows, reference_rows, strict=True))
    differing = [at for at, (a, b) in enumerate(zip(run.tokens, reference.tokens, strict=True)) if a != b]
    violations = tuple(at for at in differing if reference.margins[at] >= 2 * largest)
    return Agreement(largest, len(differing) - len(violations), violations)
