"""The part of a decoder's description that its speed depends on, as a digest."""

from __future__ import annotations

from inferswarm.documents import digest
from inferswarm.strategies.dense.description import DecoderDescription


def shape_digest(description: DecoderDescription) -> str:
    """Return the digest of the sizes, without those that change no unit's cost (number of blocks, bases, epsilon)."""
    return digest(
        {
            "vocabulary_size": description.vocabulary_size,
            "hidden_size": description.hidden_size,
            "feed_forward_size": description.feed_forward_size,
            "num_heads": description.num_heads,
            "num_key_value_heads": description.num_key_value_heads,
            "head_size": description.head_size,
        }
    )
