"""The computation partition: everything that decides the bits of a result besides the model and the tokens.

Equality between two executions is claimed only for one representation of each unit and one partition; there it is
bitwise. Where units of one representation are cut decides nothing: what crosses a cut is carried exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from inferswarm.backends.base import UnitThreads
from inferswarm.documents import Document


class UnitRepresentation(Document, frozen=True):
    """What the units from `first_unit` on, up to `end_unit` (excluded), compute in."""

    first_unit: int
    end_unit: int
    representation: str

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.representation} in units {self.first_unit} to {self.end_unit - 1}"


Representations = tuple[UnitRepresentation, ...]
Span = TypeVar("Span", UnitThreads, UnitRepresentation)


class Step(Document, frozen=True):
    """One step: positions [start, start + count), computed together, alone in its batch."""

    start: int
    count: int


class Partition(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.partition/2"):
    """How one session was computed: representation, kernel, threads of each unit, and the shape of every step."""

    primitive: str
    representation: str
    """Of all units; where they differ, the names joined by `+`."""
    representations: Representations | msgspec.UnsetType = msgspec.UNSET
    """Of each unit, where they differ. Left out, and not written: `representation` is that of all units."""
    kernel: str
    """The kernel line of all units; where they differ, that of each run of units (`kernels_by_unit`)."""
    threads: tuple[UnitThreads, ...]
    session_positions: int
    """The longest that the session could become when it was opened: models with two sets of rotary factors choose by
    it."""
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        """Refuse a map that leaves out or repeats units, that says one thing twice, or that is no mixture."""
        super().__post_init__()
        if isinstance(self.representations, msgspec.UnsetType):
            return
        spans = self.representations
        ends = [0, *(span.end_unit for span in spans)]
        if any(span.first_unit != end or span.end_unit <= end for span, end in zip(spans, ends, strict=False)):
            raise ValueError(f"representations leave out or repeat units: {', '.join(map(str, spans))}")
        if len(spans) < 2 or merge_representations(spans) != spans:
            raise ValueError(f"representations that do not differ: {', '.join(map(str, spans))}")
        if self.representation != mixture_name(spans):
            raise ValueError(f"representation {self.representation!r} of {', '.join(map(str, spans))}")

    @property
    def described_representation(self) -> str:
        """What the units compute in, for people."""
        if isinstance(self.representations, msgspec.UnsetType):
            return self.representation
        return ", ".join(map(str, self.representations))


def mixture_name(spans: Iterable[UnitRepresentation]) -> str:
    """Return the representations that occur, joined by `+`.

    >>> mixture_name((UnitRepresentation(0, 3, "fp32"), UnitRepresentation(3, 5, "bf16")))
    'bf16+fp32'
    """
    return "+".join(sorted({span.representation for span in spans}))


def kernels_by_unit(spans: Iterable[tuple[int, int, str]]) -> str:
    """Return what a partition says of kernels, from (first unit, end unit, kernel line) of each participant in order.

    >>> kernels_by_unit([(0, 3, "a"), (3, 5, "a")])
    'a'
    >>> kernels_by_unit([(0, 3, "a"), (3, 5, "a"), (5, 6, "b")])
    'units 0 to 4: a | units 5 to 5: b'
    """
    runs: list[tuple[int, int, str]] = []
    for first, end, kernel in spans:
        begin = runs.pop()[0] if runs and runs[-1][2] == kernel else first
        runs.append((begin, end, kernel))
    if len(runs) == 1:
        return runs[0][2]
    return " | ".join(f"units {first} to {end - 1}: {kernel}" for first, end, kernel in runs)


def first_difference(found: Partition, recorded: Partition) -> tuple[str, str, str] | None:
    """Return what differs first, how it is in `found`, and how in `recorded`; None for equal partitions."""
    if found == recorded:
        return None
    pairs = (
        ("primitive", found.primitive, recorded.primitive),
        ("representation", found.described_representation, recorded.described_representation),
        ("threads", str(found.threads), str(recorded.threads)),
        ("kernel", found.kernel, recorded.kernel),
        ("session_positions", str(found.session_positions), str(recorded.session_positions)),
        ("steps", str(found.steps), str(recorded.steps)),
    )
    return next(pair for pair in pairs if pair[1] != pair[2])


def merge_threads(entries: tuple[UnitThreads, ...]) -> tuple[UnitThreads, ...]:
    """Join neighboring entries with equal threads: where a chain is cut is no part of its partition.

    >>> merge_threads((UnitThreads(0, 4, 1), UnitThreads(4, 9, 1), UnitThreads(9, 10, 2)))
    (UnitThreads(first_unit=0, end_unit=9, threads=1), UnitThreads(first_unit=9, end_unit=10, threads=2))
    """
    return _merge(entries)


def merge_representations(entries: Iterable[UnitRepresentation]) -> Representations:
    """Join neighboring entries with equal representations, as `merge_threads` does.

    >>> merge_representations((UnitRepresentation(0, 2, "bf16"), UnitRepresentation(2, 4, "bf16")))
    (UnitRepresentation(first_unit=0, end_unit=4, representation='bf16'),)
    """
    return _merge(entries)


def _merge(entries: Iterable[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for entry in entries:
        if merged:
            first_unit = merged[-1].first_unit
            if merged[-1] == replace(entry, first_unit=first_unit, end_unit=entry.first_unit):
                merged[-1] = replace(entry, first_unit=first_unit)
                continue
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
