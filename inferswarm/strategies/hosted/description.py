"""A decoder that a host library computes: enough to plan, cut and load it, without saying what its blocks compute."""

from __future__ import annotations

from inferswarm.documents import Document
from inferswarm.strategies.dense.description import EMBEDDING, HEAD, block_id


class HostedTensor(Document, frozen=True, kw_only=True):
    """One weight by the host's own name, with its row-major shape."""

    name: str
    shape: tuple[int, ...]


class HostedState(Document, frozen=True, kw_only=True):
    """The weights that always go together."""

    id: str
    tensors: tuple[HostedTensor, ...]


class HostedDescription(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.hosted/1"):
    """A chain of embedding, blocks and head, built by a host library from its own configuration."""

    architecture: str
    """The host's class."""
    configuration: str
    """The host's configuration as JSON text."""
    vocabulary_size: int
    hidden_size: int
    num_blocks: int
    context_positions: int
    states: tuple[HostedState, ...]
    unit_states: tuple[tuple[str, ...], ...]
    """For each unit of the chain, the ids of its states."""
    kept_values_per_position: tuple[int, ...]
    """For each block, how many numbers a session keeps for each position."""
    activation_values_per_position: int
    """How many numbers one block holds at once for each position of a step, scores left out."""
    num_heads: int
    results_are_tuples: bool = False
    """Whether the host's blocks give their hidden states as the first of a tuple."""

    def __post_init__(self) -> None:
        """Refuse lists that do not fit the chain."""
        super().__post_init__()
        if len(self.unit_states) != self.num_blocks + 2:
            raise ValueError(f"unit_states has {len(self.unit_states)} entries for {self.num_blocks + 2} units")
        if len(self.kept_values_per_position) != self.num_blocks:
            raise ValueError(f"kept_values_per_position has not one entry for each of {self.num_blocks} blocks")
        known = {state.id for state in self.states}
        if unknown := {state for states in self.unit_states for state in states} - known:
            raise ValueError(f"unit_states names unknown states: {sorted(unknown)}")

    @property
    def unit_ids(self) -> tuple[str, ...]:
        """Return the chain: embedding, blocks, head."""
        return (EMBEDDING, *(block_id(index) for index in range(self.num_blocks)), HEAD)
