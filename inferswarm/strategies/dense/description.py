"""A dense decoder described by data: what its blocks compute, without saying where, how or from which file format."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from inferswarm.documents import Document

EMBEDDING = "embedding"
HEAD = "head"


def block_id(index: int) -> str:
    """Return the id of the execution unit that is block `index`."""
    return f"block.{index}"


class Rope(Document, frozen=True, kw_only=True):
    """Rotary positions: the first `rotated_size` numbers of a head turn, halves against each other.

    Pair i turns by `position / (base^(2i / rotated_size) × factors[i])`; cosines and sines are multiplied by
    `magnitude`. Every scaling that configurations state (linear, llama3, yarn, longrope) is such a list of factors.
    """

    base: float
    rotated_size: int
    factors: tuple[float, ...] = ()
    """One for each pair; empty: all 1."""
    long_factors: tuple[float, ...] = ()
    """Instead of `factors` where sessions may be longer than `original_positions`; empty: no difference."""
    original_positions: int | None = None
    """Positions that the model was trained on before its scaling; needed beside `long_factors`."""
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit together."""
        super().__post_init__()
        if self.rotated_size < 2 or self.rotated_size % 2:
            raise ValueError(f"rotated_size is {self.rotated_size}, needed an even number from 2 on")
        for name, factors in (("factors", self.factors), ("long_factors", self.long_factors)):
            if factors and len(factors) != self.rotated_size // 2:
                raise ValueError(f"{name} has {len(factors)} numbers, needed {self.rotated_size // 2}, one a pair")
            if any(factor <= 0 for factor in factors):
                raise ValueError(f"{name} holds a number that is not positive")
        if self.long_factors and self.original_positions is None:
            raise ValueError("long_factors need original_positions")

    def factors_for(self, max_positions: int) -> tuple[float, ...]:
        """Return the factors for sessions of at most `max_positions`; empty when all are 1."""
        if self.long_factors and self.original_positions is not None and max_positions > self.original_positions:
            return self.long_factors
        return self.factors


class BlockKind(Document, frozen=True, kw_only=True):
    """What distinguishes blocks of one model: their positions and how far back they see."""

    rope: Rope | None
    """None: the blocks do not know positions."""
    window: int | None = None
    """Positions that a position sees, itself included; None: all before it."""


class DecoderDescription(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.decoder/2"):
    """A pre-norm decoder: grouped-query attention with rotary positions, a gated MLP, and the variations below.

    `h = embedding_scale × table[token]`; each block computes `h += residual_scale × post(attention(norm(h)))` and
    `h += residual_scale × post(down(activation(gate(n)) × up(n))), n = norm(h)`, where `post` is a norm when
    `post_norms` and nothing otherwise; the logits are `soft_cap(logit_scale × output(norm(h)))`. A soft cap c is
    `c × tanh(x / c)`. Norms are root-mean-square, computed in fp32.
    """

    architecture: str
    vocabulary_size: int
    hidden_size: int
    feed_forward_size: int
    num_blocks: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    context_positions: int
    block_kinds: tuple[BlockKind, ...]
    block_pattern: tuple[int, ...]
    """For each block, which of `block_kinds` it is."""
    norm_epsilon: float
    norm_adds_one: bool = False
    """Norms multiply by 1 + weight (Gemma), not by the weight."""
    post_norms: bool = False
    query_key_norms: bool = False
    """Each head of query and key is normed before it turns."""
    activation: Literal["silu", "gelu-tanh"] = "silu"
    query_key_value_bias: bool = False
    attention_output_bias: bool = False
    feed_forward_bias: bool = False
    attention_scale: float
    """Scores are multiplied by it; usually 1 / sqrt(head_size)."""
    attention_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
    tied_head: bool

    def __post_init__(self) -> None:
        """Refuse a pattern that does not fit, and heads that cannot be shared or turned."""
        super().__post_init__()
        if len(self.block_pattern) != self.num_blocks:
            raise ValueError(f"block_pattern has {len(self.block_pattern)} entries for {self.num_blocks} blocks")
        if set(self.block_pattern) - set(range(len(self.block_kinds))):
            raise ValueError(
                f"block_pattern names kinds that are not among the {len(self.block_kinds)} of block_kinds"
            )
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_key_value_heads} key-value heads")
        for kind in self.block_kinds:
            if kind.rope is not None and kind.rope.rotated_size > self.head_size:
                raise ValueError(f"{kind.rope.rotated_size} numbers of a head of {self.head_size} cannot turn")
            if kind.window is not None and kind.window < 1:
                raise ValueError(f"a window of {kind.window} positions sees nothing")

    @property
    def unit_ids(self) -> tuple[str, ...]:
        """Return the chain: embedding, blocks, head."""
        return (EMBEDDING, *(block_id(index) for index in range(self.num_blocks)), HEAD)

    def kind_of(self, index: int) -> BlockKind:
        """Return the kind of block `index`."""
        return self.block_kinds[self.block_pattern[index]]

    def with_blocks(self, pattern: tuple[int, ...]) -> DecoderDescription:
        """Return the same model with other blocks: `pattern` names the kind of each."""
        return msgspec.structs.replace(self, num_blocks=len(pattern), block_pattern=pattern)


def plain_decoder(
    *,
    architecture: str,
    vocabulary_size: int,
    hidden_size: int,
    feed_forward_size: int,
    num_blocks: int,
    num_heads: int,
    num_key_value_heads: int,
    head_size: int,
    context_positions: int,
    rope_base: float = 10000.0,
    norm_epsilon: float = 1e-5,
    tied_head: bool = True,
) -> DecoderDescription:
    """Return a decoder without variations: one kind of block, whole heads turn, no scales, biases or caps."""
    return DecoderDescription(
        architecture=architecture,
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        feed_forward_size=feed_forward_size,
        num_blocks=num_blocks,
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        head_size=head_size,
        context_positions=context_positions,
        block_kinds=(BlockKind(rope=Rope(base=rope_base, rotated_size=head_size)),),
        block_pattern=(0,) * num_blocks,
        norm_epsilon=norm_epsilon,
        attention_scale=1.0 / math.sqrt(head_size),
        tied_head=tied_head,
    )
