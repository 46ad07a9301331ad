"""A dense decoder described by data: what its blocks compute, without saying where or how."""

from __future__ import annotations

from inferswarm.documents import Document

EMBEDDING = "embedding"
HEAD = "head"


def block_id(index: int) -> str:
    """Return the id of the execution unit that is block `index`."""
    return f"block.{index}"


class DecoderDescription(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.decoder/1"):
    """A pre-norm decoder with grouped-query attention, rotary positions and a gated MLP (the Llama description).

    Each block computes `x += attention(rmsnorm(x)); x += down(silu(gate(h)) * up(h)), h = rmsnorm(x)`; the head is
    `rmsnorm` and a linear map to the vocabulary.
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
    rope_base: float
    norm_epsilon: float
    tied_head: bool
    interleaved_rope_rows: bool
    """Rows of the query and key weights are stored for rotating neighbouring pairs (GGUF's `llama`), so a backend
    that rotates halves must reorder them when it materializes."""

    @property
    def unit_ids(self) -> tuple[str, ...]:
        """Return the chain: embedding, blocks, head."""
        return (EMBEDDING, *(block_id(index) for index in range(self.num_blocks)), HEAD)
