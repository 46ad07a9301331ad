"""The computation partition: everything that decides the bits of a result besides the model and the tokens.

Equality between two executions is claimed only for one representation and one partition; there it is bitwise.
"""

from __future__ import annotations

from inferswarm.backends.base import UnitThreads
from inferswarm.documents import Document


class Step(Document, frozen=True):
    """One step: positions [start, start + count), computed together, alone in its batch."""

    start: int
    count: int


class Partition(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.partition/2"):
    """How one session was computed: representation, kernel, threads of each unit, and the shape of every step."""

    primitive: str
    representation: str
    kernel: str
    threads: tuple[UnitThreads, ...]
    session_positions: int
    """The longest that the session could become when it was opened: models with two sets of rotary factors choose by
    it."""
    steps: tuple[Step, ...]


def merge_threads(entries: tuple[UnitThreads, ...]) -> tuple[UnitThreads, ...]:
    """Join neighboring entries with equal threads: where a chain is cut is no part of its partition.

    >>> merge_threads((UnitThreads(0, 4, 1), UnitThreads(4, 9, 1), UnitThreads(9, 10, 2)))
    (UnitThreads(first_unit=0, end_unit=9, threads=1), UnitThreads(first_unit=9, end_unit=10, threads=2))
    """
    merged: list[UnitThreads] = []
    for entry in entries:
        if merged and merged[-1].threads == entry.threads and merged[-1].end_unit == entry.first_unit:
            merged[-1] = UnitThreads(merged[-1].first_unit, entry.end_unit, entry.threads)
        else:
            merged.append(entry)
    return tuple(merged)


def prompt_steps(prompt_tokens: int, chunk_positions: int) -> tuple[Step, ...]:
    """Cut a prompt into the chunk grid: full chunks, then the remainder.

    >>> [(step.start, step.count) for step in prompt_steps(150, 64)]
    [(0, 64), (64, 64), (128, 22)]
    """
    return tuple(
        Step(start, min(chunk_positions, prompt_tokens - start)) for start in range(0, prompt_tokens, chunk_positions)
    )


def session_steps(prompt_tokens: int, generated: int, chunk_positions: int) -> tuple[Step, ...]:
    """Return all steps of a session that committed `generated` tokens: the prompt's chunks, then single steps.

    The last generated token is never computed, so the counts add up to `prompt_tokens + generated - 1`.
    """
    chunks = prompt_steps(prompt_tokens, chunk_positions)
    return chunks + tuple(Step(prompt_tokens + index, 1) for index in range(max(0, generated - 1)))
