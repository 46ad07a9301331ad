"""The mathematics of embedding, block and head: one step of one session, cached keys and values.

Shapes: hidden states are [count, hidden]. Norms and rotations compute in fp32 and round once; matrix products and
attention are torch's own for the representation's type, accumulating in fp32. What varies between models is decided
when a unit is made, so that a plain one computes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import gelu, linear, silu

from inferswarm.backends.torch_backend.attention import Attention
from inferswarm.backends.torch_backend.norms import make_norm
from inferswarm.backends.torch_backend.positions import StepContext
from inferswarm.backends.torch_backend.weights import BlockWeights
from inferswarm.strategies.dense.description import DecoderDescription

Merge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(hidden states, what a part of a block computed from them) → the next hidden states."""


class Embedding:
    """Rows of the token table, times the embedding's scale."""

    def __init__(self, table: torch.Tensor, scale: float) -> None:
        self.table = table
        # rounded to the table's type first, as models with such a scale were trained
        self._scale = None if scale == 1.0 else torch.tensor(scale, dtype=table.dtype, device=table.device)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [count, hidden] of token ids, [count]."""
        rows = self.table.index_select(0, ids)
        return rows if self._scale is None else rows.mul_(self._scale)


class Block:
    """One decoder block: attention and gated MLP, each behind its norm and added to its input."""

    def __init__(
        self, description: DecoderDescription, weights: BlockWeights, block: int, position_in_cache: int
    ) -> None:
        """`block` is the block's index in the model, `position_in_cache` its index among the blocks held here."""
        epsilon, adds_one = description.norm_epsilon, description.norm_adds_one
        self._attention_norm = make_norm(weights.attention_norm, epsilon, adds_one=adds_one)
        self._attention = Attention(description, weights, block, position_in_cache)
        self._merge_attention = _merge(description, weights.post_attention_norm)
        self._feed_forward_norm = make_norm(weights.feed_forward_norm, epsilon, adds_one=adds_one)
        self._gate_up = weights.gate_up
        self._activate = silu if description.activation == "silu" else _gelu_tanh
        self._down = weights.down
        self._merge_feed_forward = _merge(description, weights.post_feed_forward_norm)

    def __call__(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Return the block's output, [count, hidden], and leave its keys and values in the cache."""
        hidden = self._merge_attention(hidden, self._attention(self._attention_norm(hidden), step))
        gate, up = self._gate_up(self._feed_forward_norm(hidden)).tensor_split(2, dim=1)
        return self._merge_feed_forward(hidden, self._down(self._activate(gate).mul_(up)))


def _gelu_tanh(gate: torch.Tensor) -> torch.Tensor:
    return gelu(gate, approximate="tanh")


def _merge(description: DecoderDescription, post_norm: torch.Tensor | None) -> Merge:
    """Return how a part's result is added: normed first where there is a post norm, and times the residual scale."""
    scale = description.residual_scale
    if post_norm is None:
        return torch.add if scale == 1.0 else lambda hidden, part: torch.add(hidden, part, alpha=scale)
    norm = make_norm(post_norm, description.norm_epsilon, adds_one=description.norm_adds_one)
    return lambda hidden, part: torch.add(hidden, norm(part), alpha=scale)


class Head:
    """The final norm and the map to the vocabulary, of one position.

    In fp32 on a CPU the table is the left operand and the hidden row, twice, the right one: that product runs at
    25 GB/s on one core and on all threads, where the usual order with one row runs at 16 GB/s and on one thread only.
    The table is not packed because a tied embedding looks its rows up in the same materialization.
    """

    def __init__(self, description: DecoderDescription, norm: torch.Tensor, table: torch.Tensor) -> None:
        self._norm = make_norm(norm, description.norm_epsilon, adds_one=description.norm_adds_one)
        self.table = table
        self._as_left_operand = table.device.type == "cpu" and table.dtype == torch.float32
        self._scale = description.logit_scale
        self._cap = description.logit_soft_cap
        self._plain = self._scale == 1.0 and self._cap is None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits, [vocabulary], of one position, [1, hidden]; in fp32 where they are scaled or capped."""
        normed = self._norm(hidden)
        if self._as_left_operand:
            logits = linear(self.table, normed.repeat(2, 1))[:, 0].contiguous()
        else:
            logits = linear(normed, self.table)[0]
        return logits if self._plain else self._finish(logits.float())

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        if self._cap is None:
            return logits.mul_(self._scale)
        return logits.mul_(self._scale / self._cap).tanh_().mul_(self._cap)
