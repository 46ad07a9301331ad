"""Materializing: from a source of rows to the weights of embedding, blocks and head, in one representation.

Each tensor is read in order, some rows at a time, cast and written to its place at once; staging (bytes, fp32 rows,
one slice of a weight that is being packed) stays below 16 MiB and is given back to the system at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inferswarm.backends.states import TensorRows, rows_at_once
from inferswarm.backends.torch_backend.device import set_threads
from inferswarm.backends.torch_backend.linear import FillRows, Linear, Shape, build_linear
from inferswarm.backends.torch_backend.rope import halves_row
from inferswarm.strategies.dense.description import DecoderDescription


class Heads(NamedTuple):
    """How the rows of heads are laid out where they are stored for turning neighbors."""

    size: int
    rotated_size: int

    def places(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Return where the stored rows [first, end) go."""
        return halves_row(np.arange(first, end), self.size, self.rotated_size)


class Part(NamedTuple):
    """One tensor of the file inside a fused weight. `reordered` is set when its rows must be reordered."""

    name: str
    num_rows: int
    reordered: Heads | None = None


class BlockWeights(NamedTuple):
    """One block. Query, key and value are one map, gate and up another: fewer, larger products."""

    attention_norm: torch.Tensor
    query_key_value: Linear
    output: Linear
    feed_forward_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    post_attention_norm: torch.Tensor | None = None
    post_feed_forward_norm: torch.Tensor | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The four maps."""
        return (self.query_key_value, self.output, self.gate_up, self.down)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights of the block."""
        norms = sum(weight.nbytes for weight in self if isinstance(weight, torch.Tensor))
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

    def norm(self, name: str, heads: Heads | None = None) -> torch.Tensor:
        """Return the weight of a norm, as long as it is stored; `heads` says where it is reordered if it must be."""
        return self._vector((Part(name, 0, heads),))

    def block(self, index: int, threads: int) -> BlockWeights:
        """Return the weights of one block, for use with `threads` threads."""
        description, prefix = self._description, f"blk.{index}."
        shapes = block_shapes(description, self._dtype)
        feed_forward = description.feed_forward_size
        queries = description.num_heads * description.head_size
        keys = description.num_key_value_heads * description.head_size
        rope = description.kind_of(index).rope
        heads = Heads(description.head_size, description.head_size if rope is None else rope.rotated_size)

        def norm(name: str, exists: bool, reordered: Heads | None = None) -> torch.Tensor | None:
            return self.norm(f"{prefix}{name}.weight", reordered) if exists else None

        def linear(shape: Shape, has_bias: bool, *parts: Part) -> Linear:
            weights = [part._replace(name=f"{prefix}{part.name}.weight") for part in parts]
            fill = self._fill(weights, shape.columns)
            bias = None
            if has_bias:
                bias = self._vector([part._replace(name=f"{prefix}{part.name}.bias") for part in parts])
            return build_linear(shape, self._device, fill, threads, bias)

        return BlockWeights(
            attention_norm=self.norm(f"{prefix}attn_norm.weight"),
            query_key_value=linear(
                shapes.query_key_value,
                description.query_key_value_bias,
                Part("attn_q", queries, heads),
                Part("attn_k", keys, heads),
                Part("attn_v", keys),
            ),
            output=linear(
                shapes.output, description.attention_output_bias, Part("attn_output", description.hidden_size)
            ),
            feed_forward_norm=self.norm(f"{prefix}ffn_norm.weight"),
            gate_up=linear(
                shapes.gate_up,
                description.feed_forward_bias,
                Part("ffn_gate", feed_forward),
                Part("ffn_up", feed_forward),
            ),
            down=linear(shapes.down, description.feed_forward_bias, Part("ffn_down", description.hidden_size)),
            query_norm=norm("attn_q_norm", description.query_key_norms, heads),
            key_norm=norm("attn_k_norm", description.query_key_norms, heads),
            post_attention_norm=norm("post_attention_norm", description.post_norms),
            post_feed_forward_norm=norm("post_ffw_norm", description.post_norms),
        )

    def _vector(self, parts: Sequence[Part]) -> torch.Tensor:
        """Return the vectors of the parts, one behind the other."""
        values = []
        for part in parts:
            stored = self._source.rows(part.name, 0, 1)[0]
            if part.reordered is not None and self._source.is_paired(part.name):
                ordered = np.empty_like(stored)
                ordered[part.reordered.places(0, len(stored))] = stored
                stored = ordered
            values.append(torch.from_numpy(stored))
        return torch.cat(values).to(self._device, self._dtype)

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
        reordered = part.reordered if self._source.is_paired(part.name) else None
        for low in range(first, end, step):
            high = min(low + step, end)
            values = torch.from_numpy(self._source.rows(part.name, low, high))
            if reordered is None:
                target[low - first : high - first].copy_(values)
            else:
                places = reordered.places(low, high) - first
                target[torch.from_numpy(places).to(self._device)] = values.to(self._device, self._dtype)
