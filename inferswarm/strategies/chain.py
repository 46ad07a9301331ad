"""Units and states of a model of any kind: described by data, or described by the library that computes it."""

from __future__ import annotations

from inferswarm.strategies.dense import tensors
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.hosted.description import HostedDescription

Description = DecoderDescription | HostedDescription
"""What a chain of embedding, blocks and head may be described by."""


def state_tensors(description: Description) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return every state of the model: its id → the names of its tensors and their row-major shapes."""
    if isinstance(description, HostedDescription):
        return {state.id: {tensor.name: tensor.shape for tensor in state.tensors} for state in description.states}
    return tensors.state_tensors(description)


def unit_states(description: Description, index: int) -> tuple[str, ...]:
    """Return the ids of the states that unit `index` of the chain needs (embedding, blocks, head)."""
    if isinstance(description, HostedDescription):
        return description.unit_states[index]
    return tensors.unit_states(description, index)
