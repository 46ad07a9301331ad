"""The families of dense decoders that are understood, as data: what their blocks compute whichever file says so.

A new family is an entry here and one in each format's own table (`gguf_table`, `configuration_table`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferswarm.errors import ModelError
from inferswarm.strategies.dense.description import BlockKind, DecoderDescription, Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What all models of a family have in common; the names are those of `DecoderDescription`."""

    architecture: str
    norm_adds_one: bool = False
    post_norms: bool = False
    query_key_norms: bool = False
    activation: Literal["silu", "gelu-tanh"] = "silu"
    root_of_hidden: bool = False
    """Embeddings are multiplied by the square root of the hidden size."""
    partial_rotary: bool = False
    """Models may turn less than whole heads."""


LLAMA = Family(architecture="llama")
QWEN2 = Family(architecture="qwen2")
QWEN3 = Family(architecture="qwen3", query_key_norms=True)
GEMMA2 = Family(
    architecture="gemma2", norm_adds_one=True, post_norms=True, activation="gelu-tanh", root_of_hidden=True
)
GEMMA3 = Family(
    architecture="gemma3",
    norm_adds_one=True,
    post_norms=True,
    query_key_norms=True,
    activation="gelu-tanh",
    root_of_hidden=True,
)
PHI3 = Family(architecture="phi3", partial_rotary=True)
GRANITE = Family(architecture="granite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one file says about its model, named as in `DecoderDescription`."""

    vocabulary_size: int
    hidden_size: int
    feed_forward_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    context_positions: int
    windowed: Sequence[bool]
    """For each block, whether it sees a window only."""
    window: int | None
    rope: Rope | None
    window_rope: Rope | None
    """The rope of blocks with a window."""
    norm_epsilon: float
    query_key_value_bias: bool
    attention_output_bias: bool
    feed_forward_bias: bool
    attention_scale: float
    attention_soft_cap: float | None
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_soft_cap: float | None
    tied_head: bool


def describe_family(family: Family, parts: Parts, source: str) -> DecoderDescription:
    """Return the description of a model of `family`. Raises ModelError when the parts do not fit together."""
    kinds: list[BlockKind] = []
    pattern = []
    for windowed in parts.windowed:
        kind = BlockKind(rope=parts.window_rope, window=parts.window) if windowed else BlockKind(rope=parts.rope)
        if kind not in kinds:
            kinds.append(kind)
        pattern.append(kinds.index(kind))
    root = math.sqrt(parts.hidden_size) if family.root_of_hidden else 1.0
    try:
        return DecoderDescription(
            architecture=family.architecture,
            vocabulary_size=parts.vocabulary_size,
            hidden_size=parts.hidden_size,
            feed_forward_size=parts.feed_forward_size,
            num_blocks=len(pattern),
            num_heads=parts.num_heads,
            num_key_value_heads=parts.num_key_value_heads,
            head_size=parts.head_size,
            context_positions=parts.context_positions,
            block_kinds=tuple(kinds),
            block_pattern=tuple(pattern),
            norm_epsilon=parts.norm_epsilon,
            norm_adds_one=family.norm_adds_one,
            post_norms=family.post_norms,
            query_key_norms=family.query_key_norms,
            activation=family.activation,
            query_key_value_bias=parts.query_key_value_bias,
            attention_output_bias=parts.attention_output_bias,
            feed_forward_bias=parts.feed_forward_bias,
            attention_scale=parts.attention_scale,
            attention_soft_cap=parts.attention_soft_cap,
            embedding_scale=parts.embedding_scale * root,
            residual_scale=parts.residual_scale,
            logit_scale=parts.logit_scale,
            logit_soft_cap=parts.logit_soft_cap,
            tied_head=parts.tied_head,
        )
    except ValueError as error:
        raise ModelError(source, str(error)) from error
