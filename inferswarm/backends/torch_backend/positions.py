"""What the blocks of one step share: where their positions lie, how they turn, and what they may see."""

from __future__ import annotations

from typing import NamedTuple

import torch

from inferswarm.backends.torch_backend.cache import SessionView
from inferswarm.backends.torch_backend.rope import RotaryTable
from inferswarm.strategies.dense.description import DecoderDescription, Rope


class KindContext(NamedTuple):
    """What all blocks of one kind share in one step."""

    first: int
    """The earliest position that any position of the step sees."""
    mask: torch.Tensor | None
    """Numbers to add to scores, [count × group, positions from `first` on]; None for a single position, which sees
    all of them."""
    cosines: torch.Tensor | None
    sines: torch.Tensor | None
    """None where the kind does not know positions."""


class StepContext(NamedTuple):
    """What all blocks of one step share; `kinds` holds None for kinds that no block here is of."""

    view: SessionView
    kinds: tuple[KindContext | None, ...]


class _Tables:
    """The tables of one rope: for sessions within its original positions, and for longer ones."""

    def __init__(self, rope: Rope, max_positions: int, device: torch.device) -> None:
        self._original = max_positions
        self._within = RotaryTable(rope, rope.factors, max_positions, device)
        self._beyond = self._within
        if rope.factors_for(max_positions) is not rope.factors and rope.original_positions is not None:
            self._original = rope.original_positions
            self._beyond = RotaryTable(rope, rope.long_factors, max_positions, device)

    @property
    def distinct(self) -> tuple[RotaryTable, ...]:
        return (self._within,) if self._beyond is self._within else (self._within, self._beyond)

    def choose(self, session_positions: int) -> RotaryTable:
        return self._within if session_positions <= self._original else self._beyond


class Surroundings:
    """Rotary tables and masks for the kinds of the blocks [first_block, end_block)."""

    def __init__(
        self,
        description: DecoderDescription,
        first_block: int,
        end_block: int,
        *,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Compute the tables of each distinct rope, one for each of its sets of factors that a session may need."""
        used = set(description.block_pattern[first_block:end_block])
        kinds = [kind if index in used else None for index, kind in enumerate(description.block_kinds)]
        ropes = {kind.rope for kind in kinds if kind is not None and kind.rope is not None}
        self._tables = {rope: _Tables(rope, max_positions, device) for rope in ropes}
        self._windows = {kind.window for kind in kinds if kind is not None}
        # looked up here, not in every step: a rope's hash is that of all its factors
        self._kinds = [
            None if kind is None else (kind.window, None if kind.rope is None else self._tables[kind.rope])
            for kind in kinds
        ]
        self._group = description.num_heads // description.num_key_value_heads
        self._dtype = dtype
        self._device = device

    @property
    def tables(self) -> tuple[RotaryTable, ...]:
        """Every table that was computed."""
        return tuple(table for tables in self._tables.values() for table in tables.distinct)

    def at(self, view: SessionView, start: int, count: int, session_positions: int) -> StepContext:
        """Return the context of a step over [start, start + count) of a session of at most `session_positions`."""
        seen = {window: self._seen(window, start, count) for window in self._windows}
        kinds: list[KindContext | None] = []
        for kind in self._kinds:
            if kind is None:
                kinds.append(None)
                continue
            window, tables = kind
            turned = (None, None) if tables is None else tables.choose(session_positions).at(start, count)
            kinds.append(KindContext(*seen[window], *turned))
        return StepContext(view, tuple(kinds))

    def _seen(self, window: int | None, start: int, count: int) -> tuple[int, torch.Tensor | None]:
        first = 0 if window is None else max(0, start - window + 1)
        return first, make_mask(start, count, first, window, self._group, self._dtype, self._device)


def make_mask(
    start: int,
    count: int,
    first: int,
    window: int | None,
    group: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor | None:
    """Return what position start + i may see, as numbers to add to scores, [count × group, start + count - first].

    Column c is position first + c; row i × group + g belongs to position start + i, which sees itself and the
    window - 1 positions before it. None when there is only one position: `first` is then all that it does not see.
    """
    if count == 1:
        return None
    size = (count, start + count - first)
    forbidden = torch.full(size, float("-inf"), dtype=dtype, device=device).triu_(start - first + 1)
    if window is not None and start + count - first > window:
        forbidden += torch.full(size, float("-inf"), dtype=dtype, device=device).tril_(start - first - window)
    return forbidden.repeat_interleave(group, dim=0)
