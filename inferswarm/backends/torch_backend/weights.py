"""Materializing: from a source of rows to the weights of embedding, blocks and head, in one representation.

Each tensor is read in order, some rows at a time, cast and written to its place at once; staging (bytes, fp32 rows,
one slice of a weight that is being packed) stays below 16 MiB and is given back to the system at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from inferswarm.backends.states import TensorRows, rows_at_once
from inferswarm.backends.torch_backend.device import set_threads
from inferswarm.backends.torch_backend.linear import FillRows, Linear, Shape, build_linear
from inferswarm.backends.torch_backend.rope import halves_row
from inferswarm.strategies.dense.description import DecoderDescription


class Part(NamedTuple):
    """One tensor of the file inside a fused weight. `head_size` is set when its rows must be reordered."""

    name: str
    num_rows: int
    head_size: int | None = None


class BlockWeights(NamedTuple):
    """One block. Query, key and value are one map, gate and up another: fewer, larger products."""

    attention_norm: torch.Tensor
    query_key_value: Linear
    output: Linear
    feed_forward_norm: torch.Tensor
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The four maps."""
        return (self.query_key_value, self.output, self.gate_up, self.down)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights of the block."""
        norms = self.attention_norm.nbytes + self.feed_forward_norm.nbytes
        return norms + sum(linear.num_bytes for linear in self.linears)


class BlockShapes(NamedTuple):
    """The shapes of the maps of every block."""

    query_key_value: Shape
    output: Shape
    gate_up: Shape
    down: Shape


def block_shapes(description: DecoderDescription, dtype: torch.dtype) -> BlockShapes:
    """Return the shapes of a model's maps. Slices of query, key and value end where a head ends."""
    hidden, feed_forward = description.hidden_size, description.feed_forward_size
    queries = description.num_heads * description.head_size
    keys = description.num_key_value_heads * description.head_size
    return BlockShapes(
        query_key_value=Shape(queries + 2 * keys, hidden, dtype, math.lcm(64, description.head_size)),
        output=Shape(hidden, queries, dtype),
        gate_up=Shape(2 * feed_forward, hidden, dtype),
        down=Shape(hidden, feed_forward, dtype),
    )


class WeightLoader:
    """Builds weights from `source` in `dtype` on `device`."""

    def __init__(
        self, description: DecoderDescription, source: TensorRows, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._description = description
        self._source = source
        self._dtype = dtype
        self._device = device

    def table(self, name: str) -> torch.Tensor:
        """Return a token or output table, [vocabulary, hidden]."""
        description = self._description
        table = self._empty(description.vocabulary_size, description.hidden_size)
        self._fill((Part(name, description.vocabulary_size),), description.hidden_size)(0, len(table), table)
        return table

    def norm(self, name: str) -> torch.Tensor:
        """Return the weight of a norm, [hidden]."""
        weight = self._empty(self._description.hidden_size)
        weight.copy_(torch.from_numpy(self._source.rows(name, 0, 1)[0]))
        return weight

    def block(self, index: int, threads: int) -> BlockWeights:
        """Return the weights of one block, for use with `threads` threads."""
        description, prefix = self._description, f"blk.{index}."
        shapes = block_shapes(description, self._dtype)
        feed_forward = description.feed_forward_size
        queries = description.num_heads * description.head_size
        keys = description.num_key_value_heads * description.head_size
        paired = description.head_size if description.interleaved_rope_rows else None

        def linear(shape: Shape, *parts: Part) -> Linear:
            named = [part._replace(name=f"{prefix}{part.name}.weight") for part in parts]
            return build_linear(shape, self._device, self._fill(named, shape.columns), threads)

        return BlockWeights(
            attention_norm=self.norm(f"{prefix}attn_norm.weight"),
            query_key_value=linear(
                shapes.query_key_value,
                Part("attn_q", queries, paired),
                Part("attn_k", keys, paired),
                Part("attn_v", keys),
            ),
            output=linear(shapes.output, Part("attn_output", description.hidden_size)),
            feed_forward_norm=self.norm(f"{prefix}ffn_norm.weight"),
            gate_up=linear(shapes.gate_up, Part("ffn_gate", feed_forward), Part("ffn_up", feed_forward)),
            down=linear(shapes.down, Part("ffn_down", description.hidden_size)),
        )

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _fill(self, parts: Sequence[Part], columns: int) -> FillRows:
        """Return a function that writes rows of the parts, one under the other, into a target."""

        def fill(first: int, end: int, target: torch.Tensor) -> None:
            set_threads(1)  # short copies: on a busy machine, threads that wait for each other take far longer
            offset = 0
            for part in parts:
                low, high = max(first, offset), min(end, offset + part.num_rows)
                if low < high:
                    self._copy(part, low - offset, high - offset, target[low - first : high - first], columns)
                offset += part.num_rows

        return fill

    def _copy(self, part: Part, first: int, end: int, target: torch.Tensor, columns: int) -> None:
        """Write rows [first, end) of one tensor, whole heads when they are reordered, into `target`."""
        step = rows_at_once(columns)
        for low in range(first, end, step):
            high = min(low + step, end)
            values = torch.from_numpy(self._source.rows(part.name, low, high))
            if part.head_size is None:
                target[low - first : high - first].copy_(values)
            else:
                places = halves_row(np.arange(low, high), part.head_size) - first
                target[torch.from_numpy(places).to(self._device)] = values.to(self._device, self._dtype)
