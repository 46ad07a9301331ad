"""Grouped-query attention of one block: one step of one session against its cached keys and values."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from inferswarm.backends.torch_backend.norms import HeadNorms
from inferswarm.backends.torch_backend.positions import StepContext
from inferswarm.backends.torch_backend.rope import rotate, rotate_part
from inferswarm.backends.torch_backend.weights import BlockWeights
from inferswarm.strategies.dense.description import DecoderDescription


class Attention:
    """Query, key and value of normed hidden states, attention, and its output map.

    The products are torch's own fused attention for the representation's type, accumulating in fp32; a soft cap,
    which that does not have, takes the products one by one, with the scores in fp32 from the cap on.
    """

    def __init__(
        self, description: DecoderDescription, weights: BlockWeights, block: int, position_in_cache: int
    ) -> None:
        """`block` is the block's index in the model: it says which kind it is."""
        kind = description.kind_of(block)
        self._kind = description.block_pattern[block]
        self._index = position_in_cache
        self._heads = description.num_heads
        self._key_value_heads = description.num_key_value_heads
        self._group = description.num_heads // description.num_key_value_heads
        self._head_size = description.head_size
        self._rotated = (self._heads + self._key_value_heads) * self._head_size
        self._query_key_value = weights.query_key_value
        self._output = weights.output
        self._head_norms: HeadNorms | None = None
        if weights.query_norm is not None and weights.key_norm is not None:
            self._head_norms = HeadNorms(
                weights.query_norm,
                weights.key_norm,
                description.num_heads,
                description.norm_epsilon,
                adds_one=description.norm_adds_one,
            )
        whole = kind.rope is not None and kind.rope.rotated_size == description.head_size
        self._rotate = rotate if whole else rotate_part
        self._scale = description.attention_scale
        self._cap = description.attention_soft_cap
        self._attend = self._fused if self._cap is None else self._capped

    def __call__(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Return [count, hidden] of normed hidden states, and leave their keys and values in the cache."""
        count, size = len(hidden), self._head_size
        here = step.kinds[self._kind]
        assert here is not None, "a step without this kind's context"
        projected = self._query_key_value(hidden)
        heads = projected.narrow(1, 0, self._rotated).view(count, -1, size)
        if self._head_norms is not None:
            heads = self._head_norms(heads)
        if here.cosines is not None and here.sines is not None:
            heads = self._rotate(heads, here.cosines, here.sines)
        values = projected.narrow(1, self._rotated, self._key_value_heads * size).view(count, -1, size)
        step.view.write(self._index, heads.narrow(1, self._heads, self._key_value_heads), values)
        queries = heads.narrow(1, 0, self._heads).to(hidden.dtype)
        grouped = queries.view(count, self._key_value_heads, self._group, size).transpose(0, 1)
        # the queries that share a key head are rows of one problem
        rows = grouped.reshape(1, self._key_value_heads, count * self._group, size)
        attended = self._attend(rows, *step.view.read(self._index, here.first), here.mask)
        by_head = attended.view(self._key_value_heads, count, self._group, size).transpose(0, 1)
        return self._output(by_head.reshape(count, -1))

    def _fused(
        self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return scaled_dot_product_attention(
            rows,
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            scale=self._scale,
        )

    def _capped(
        self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        assert self._cap is not None
        scores = torch.bmm(rows[0], keys.permute(1, 2, 0)).float()
        scores.mul_(self._scale / self._cap).tanh_().mul_(self._cap)
        if mask is not None:
            scores.add_(mask)
        return torch.bmm(torch.softmax(scores, dim=-1).to(values.dtype), values.transpose(0, 1))
