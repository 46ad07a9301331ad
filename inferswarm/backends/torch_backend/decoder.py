"""The mathematics of one block and of the head: one step of one session, cached keys and values.

Shapes: hidden states are [count, hidden]. Norms and rotations compute in fp32 and round once; matrix products and
attention are torch's own for the representation's type, accumulating in fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from inferswarm.backends.torch_backend.cache import SessionView
from inferswarm.backends.torch_backend.rope import rotate
from inferswarm.backends.torch_backend.weights import BlockWeights
from inferswarm.strategies.dense.description import DecoderDescription


class StepContext(NamedTuple):
    """What all blocks of one step share."""

    view: SessionView
    cosines: torch.Tensor
    sines: torch.Tensor
    mask: torch.Tensor | None
    """None for a single position, which sees everything."""


class Norm:
    """Root-mean-square norm: fp32 inside, rounded to the type of its input, then scaled, as Hugging Face does."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._columns = weight.numel()
        self._epsilon = torch.full((1, 1, 1), epsilon, dtype=torch.float32, device=weight.device)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the normed rows in their own type."""
        exact = rows.float()
        row = exact.view(-1, 1, self._columns)
        # mean of squares + epsilon in one operator: at one row, operators cost more than arithmetic
        scale = torch.baddbmm(self._epsilon, row, row.transpose(1, 2), alpha=1.0 / self._columns).rsqrt_()
        return (exact * scale.view(-1, 1)).to(rows.dtype).mul_(self._weight)


class Block:
    """One decoder block: attention and gated MLP, each behind its norm and added to its input."""

    def __init__(self, description: DecoderDescription, weights: BlockWeights, position_in_cache: int) -> None:
        self._index = position_in_cache
        self._heads = description.num_heads
        self._key_value_heads = description.num_key_value_heads
        self._group = description.num_heads // description.num_key_value_heads
        self._head_size = description.head_size
        self._rotated = (self._heads + self._key_value_heads) * self._head_size
        self._feed_forward = description.feed_forward_size
        self._attention_norm = Norm(weights.attention_norm, description.norm_epsilon)
        self._feed_forward_norm = Norm(weights.feed_forward_norm, description.norm_epsilon)
        self.weights = weights

    def __call__(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Return the block's output, [count, hidden], and leave its keys and values in the cache."""
        hidden = hidden + self._attend(self._attention_norm(hidden), step)
        gate_up = self.weights.gate_up(self._feed_forward_norm(hidden))
        gate, up = gate_up.tensor_split(2, dim=1)
        return hidden + self.weights.down(silu(gate).mul_(up))

    def _attend(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        count, size = len(hidden), self._head_size
        projected = self.weights.query_key_value(hidden)
        heads = projected.narrow(1, 0, self._rotated).view(count, -1, size)
        rotated = rotate(heads, step.cosines, step.sines)
        values = projected.narrow(1, self._rotated, self._key_value_heads * size).view(count, -1, size)
        step.view.write(self._index, rotated.narrow(1, self._heads, self._key_value_heads), values)
        queries = rotated.narrow(1, 0, self._heads).to(hidden.dtype)
        return self.weights.output(self._attention(queries, *step.view.read(self._index), step.mask))

    def _attention(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return [count, heads × head size]. The queries that share a key head are rows of one problem."""
        count, size = len(queries), self._head_size
        grouped = queries.view(count, self._key_value_heads, self._group, size).transpose(0, 1)
        attended = scaled_dot_product_attention(
            grouped.reshape(1, self._key_value_heads, count * self._group, size),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
        )
        by_head = attended.view(self._key_value_heads, count, self._group, size).transpose(0, 1)
        return by_head.reshape(count, -1)


def causal_mask(start: int, count: int, group: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Return what position start + i may see, as numbers to add to scores, [count × group, start + count].

    Row i × group + g belongs to position start + i. None when there is only one position.
    """
    if count == 1:
        return None
    forbidden = torch.full((count, start + count), float("-inf"), dtype=dtype, device=device)
    return forbidden.triu_(start + 1).repeat_interleave(group, dim=0)


class Head:
    """The final norm and the map to the vocabulary, of one position.

    In fp32 on a CPU the table is the left operand and the hidden row, twice, the right one: that product runs at
    25 GB/s on one core and on all threads, where the usual order with one row runs at 16 GB/s and on one thread only.
    The table is not packed because a tied embedding looks its rows up in the same materialization.
    """

    def __init__(self, norm: torch.Tensor, table: torch.Tensor, epsilon: float) -> None:
        self._norm = Norm(norm, epsilon)
        self._table = table
        self._as_left_operand = table.device.type == "cpu" and table.dtype == torch.float32

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits, [vocabulary], of one position, [1, hidden]."""
        normed = self._norm(hidden)
        if self._as_left_operand:
            return linear(self._table, normed.repeat(2, 1))[:, 0].contiguous()
        return linear(normed, self._table)[0]
