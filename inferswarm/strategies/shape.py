"""What the speed of a model's units depends on: which blocks cost the same, and all sizes as one digest."""

from __future__ import annotations

from typing import Any, Final

from inferswarm.documents import digest
from inferswarm.strategies.chain import Description, state_tensors, unit_states
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.hosted.description import HostedDescription

BLOCK: Final = "block"
"""Cost class of the blocks of a model whose blocks all cost the same."""

_Cost = tuple[Any, ...]
"""What tells blocks of one model apart: numbers and tuples of numbers."""


def block_classes(description: Description) -> tuple[str, ...]:
    """Return the cost class of each block: `block` for all, or one opaque name for each kind that costs otherwise."""
    costs = _block_costs(description)
    kinds = list(dict.fromkeys(costs))
    if len(kinds) == 1:
        return (BLOCK,) * len(costs)
    return tuple(f"{BLOCK}-kind.{kinds.index(cost)}" for cost in costs)


def shape_digest(description: Description) -> str:
    """Return the digest of the sizes and variations, without those that change no unit's cost.

    Left out are how many blocks there are of each kind, and numbers that are only multiplied or added: bases and
    factors of rotations, epsilon, the values of scales and caps.
    """
    kinds = [list(cost) for cost in dict.fromkeys(_block_costs(description))]
    facts = _hosted_facts(description) if isinstance(description, HostedDescription) else _decoder_facts(description)
    return digest({"block_kinds": kinds, **facts})


def _block_costs(description: Description) -> list[_Cost]:
    if isinstance(description, HostedDescription):
        return [_hosted_cost(description, index) for index in range(description.num_blocks)]
    kinds = [
        (0 if kind.rope is None else kind.rope.rotated_size, kind.window or 0) for kind in description.block_kinds
    ]
    return [kinds[kind] for kind in description.block_pattern]


def _hosted_cost(description: HostedDescription, index: int) -> _Cost:
    """Return the shapes of a block's weights, those of each state in the host's order, and what it keeps."""
    tensors = state_tensors(description)
    shapes = tuple(tuple(tensors[state].values()) for state in unit_states(description, index + 1))
    return (description.kept_values_per_position[index], shapes)


def _decoder_facts(description: DecoderDescription) -> dict[str, Any]:
    return {
        "vocabulary_size": description.vocabulary_size,
        "hidden_size": description.hidden_size,
        "feed_forward_size": description.feed_forward_size,
        "num_heads": description.num_heads,
        "num_key_value_heads": description.num_key_value_heads,
        "head_size": description.head_size,
        "norm_adds_one": description.norm_adds_one,
        "post_norms": description.post_norms,
        "query_key_norms": description.query_key_norms,
        "activation": description.activation,
        "query_key_value_bias": description.query_key_value_bias,
        "attention_output_bias": description.attention_output_bias,
        "feed_forward_bias": description.feed_forward_bias,
        "attention_is_capped": description.attention_soft_cap is not None,
        "logits_are_capped": description.logit_soft_cap is not None,
        "embedding_is_scaled": description.embedding_scale != 1.0,
        "residual_is_scaled": description.residual_scale != 1.0,
        "logits_are_scaled": description.logit_scale != 1.0,
    }


def _hosted_facts(description: HostedDescription) -> dict[str, Any]:
    tensors = state_tensors(description)
    ends = [
        [list(shape) for state in unit_states(description, unit) for shape in tensors[state].values()]
        for unit in (0, description.num_blocks + 1)
    ]
    return {
        "architecture": description.architecture,
        "vocabulary_size": description.vocabulary_size,
        "hidden_size": description.hidden_size,
        "num_heads": description.num_heads,
        "activation_values_per_position": description.activation_values_per_position,
        "embedding_and_head": ends,
    }
