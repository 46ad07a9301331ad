"""Small random decoders: one for each variation that a description can state, one for each family's combination."""

from __future__ import annotations

from typing import Any

from inferswarm.strategies.dense.description import BlockKind, DecoderDescription, Rope
from tests.unit.backends.backends_support import small_description

WINDOW = 16


def rope(base: float = 10000.0, size: int = 16, **changes: Any) -> Rope:
    """A rope for heads of 16."""
    return Rope(base=base, rotated_size=size, **changes)


def kinds(*block_kinds: BlockKind, pattern: tuple[int, ...] = (0, 0, 0, 0)) -> dict[str, Any]:
    """The fields that say which blocks there are."""
    return {"block_kinds": block_kinds, "block_pattern": pattern}


LOCAL = BlockKind(rope=rope(), window=WINDOW)
GLOBAL = BlockKind(rope=rope(1e6, factors=(8.0,) * 8))
GEMMA: dict[str, Any] = {
    "norm_adds_one": True,
    "post_norms": True,
    "activation": "gelu-tanh",
    "embedding_scale": 8.0,
    "attention_scale": 24**-0.5,
}
LONG_FACTORS: dict[str, Any] = {
    "factors": tuple(1.0 + index / 10 for index in range(6)),
    "long_factors": tuple(2.0 + index / 3 for index in range(6)),
    "magnitude": 1.2,
}

VARIATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied head": {"tied_head": False},
    "shared key head": {"num_key_value_heads": 1},
    "odd sizes": {"head_size": 20, "num_heads": 3, "num_key_value_heads": 1, "hidden_size": 36},
    "another base and epsilon": {"rope_base": 100.0, "norm_epsilon": 0.5},
    "factors": kinds(BlockKind(rope=rope(factors=tuple(1.0 + index for index in range(8))))),
    "magnitude": kinds(BlockKind(rope=rope(magnitude=1.3))),
    "partial rotation": kinds(BlockKind(rope=rope(size=10))),
    "long factors in use": kinds(BlockKind(rope=rope(size=12, original_positions=100, **LONG_FACTORS))),
    "long factors not in use": kinds(BlockKind(rope=rope(size=12, original_positions=256, **LONG_FACTORS))),
    "no positions": kinds(BlockKind(rope=None)),
    "window": kinds(LOCAL),
    "window of one": kinds(BlockKind(rope=rope(), window=1)),
    "window of ragged rows": {
        "head_size": 20,
        "num_heads": 3,
        "num_key_value_heads": 1,
        **kinds(BlockKind(rope=rope(size=20), window=21)),
    },
    "two windows, two ropes, none of either": kinds(
        LOCAL, BlockKind(rope=rope(500.0, 8), window=5), BlockKind(rope=None), pattern=(0, 1, 2, 1)
    ),
    "norms of heads": {"query_key_norms": True},
    "post norms": {"post_norms": True},
    "norms add one": {"norm_adds_one": True},
    "norms of heads add one": {"norm_adds_one": True, "query_key_norms": True, "attention_scale": 1 / 16},
    "gelu": {"activation": "gelu-tanh"},
    "query, key and value bias": {"query_key_value_bias": True},
    "output bias": {"attention_output_bias": True},
    "feed-forward bias": {"feed_forward_bias": True},
    "attention scale": {"attention_scale": 0.11},
    "attention soft cap": {"attention_soft_cap": 0.7},
    "attention soft cap in a window": {"attention_soft_cap": 0.7, **kinds(LOCAL)},
    "embedding scale": {"embedding_scale": 3.7},
    "residual scale": {"residual_scale": 0.22},
    "residual scale of post norms": {"residual_scale": 0.22, "post_norms": True},
    "logit scale": {"logit_scale": 0.125},
    "logit soft cap": {"logit_soft_cap": 2.0},
    "logit scale and soft cap": {"logit_scale": 0.5, "logit_soft_cap": 2.0},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama 3": {"tied_head": False, **kinds(GLOBAL)},
    "Mistral": {"tied_head": False, **kinds(LOCAL)},
    "Qwen 2": {"query_key_value_bias": True},
    "Qwen 3": {"query_key_norms": True},
    "Gemma 2": {
        **GEMMA,
        "attention_soft_cap": 5.0,
        "logit_soft_cap": 3.0,
        **kinds(LOCAL, BlockKind(rope=rope()), pattern=(0, 1, 0, 1)),
    },
    "Gemma 3": {**GEMMA, "query_key_norms": True, **kinds(LOCAL, GLOBAL, pattern=(0, 0, 1, 0))},
    "Phi 4": {
        "tied_head": False,
        **kinds(BlockKind(rope=rope(size=12, original_positions=100, **LONG_FACTORS), window=100)),
    },
    "Granite": {"embedding_scale": 12.0, "residual_scale": 0.22, "attention_scale": 0.1, "logit_scale": 0.125},
}
EVERYTHING: dict[str, Any] = {
    **GEMMA,
    "tied_head": False,
    "query_key_norms": True,
    "query_key_value_bias": True,
    "attention_output_bias": True,
    "feed_forward_bias": True,
    "attention_soft_cap": 1.5,
    "residual_scale": 0.6,
    "logit_scale": 0.7,
    "logit_soft_cap": 2.0,
    "norm_epsilon": 1e-2,
    **kinds(
        BlockKind(rope=rope(factors=tuple(1.0 + index / 4 for index in range(8)), magnitude=1.1), window=WINDOW),
        BlockKind(rope=rope(500.0, 12, original_positions=100, **LONG_FACTORS)),
        pattern=(0, 1, 0, 1),
    ),
}
ALL = {**VARIATIONS, **FAMILIES, "everything at once": EVERYTHING}


def described(name: str) -> DecoderDescription:
    """The decoder of a name of `ALL`."""
    return small_description(**ALL[name])
