"""Which tensors of a file make which state: the only place that knows the names in a `llama` GGUF.

A tied model keeps one table, the state `token-table`, which the embedding and the head share.
"""

from __future__ import annotations

from typing import Final

from inferswarm.strategies.dense.description import DecoderDescription

TOKEN_TABLE: Final = "token-table"
OUTPUT_TABLE: Final = "output-table"
OUTPUT_NORM: Final = "output-norm"

TOKEN_TABLE_TENSOR: Final = "token_embd.weight"
OUTPUT_TABLE_TENSOR: Final = "output.weight"
OUTPUT_NORM_TENSOR: Final = "output_norm.weight"


def block_state(index: int) -> str:
    """Return the id of the state that holds the weights of block `index`."""
    return f"block.{index}.weights"


def block_tensors(description: DecoderDescription, index: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of block `index` by their names in the file, with their row-major shapes."""
    hidden, feed_forward = description.hidden_size, description.feed_forward_size
    query = description.num_heads * description.head_size
    key_value = description.num_key_value_heads * description.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (query, hidden),
        "attn_k": (key_value, hidden),
        "attn_v": (key_value, hidden),
        "attn_output": (hidden, query),
        "ffn_norm": (hidden,),
        "ffn_gate": (feed_forward, hidden),
        "ffn_up": (feed_forward, hidden),
        "ffn_down": (hidden, feed_forward),
    }
    return {f"blk.{index}.{part}.weight": shape for part, shape in shapes.items()}


def state_tensors(description: DecoderDescription) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return every state of the model: its id → the names of its tensors and their row-major shapes."""
    table = (description.vocabulary_size, description.hidden_size)
    states: dict[str, dict[str, tuple[int, ...]]] = {TOKEN_TABLE: {TOKEN_TABLE_TENSOR: table}}
    for index in range(description.num_blocks):
        states[block_state(index)] = block_tensors(description, index)
    states[OUTPUT_NORM] = {OUTPUT_NORM_TENSOR: (description.hidden_size,)}
    if not description.tied_head:
        states[OUTPUT_TABLE] = {OUTPUT_TABLE_TENSOR: table}
    return states


def unit_states(description: DecoderDescription, index: int) -> tuple[str, ...]:
    """Return the ids of the states that unit `index` of the chain needs (embedding, blocks, head)."""
    if index == 0:
        return (TOKEN_TABLE,)
    if index <= description.num_blocks:
        return (block_state(index - 1),)
    return (OUTPUT_NORM, TOKEN_TABLE if description.tied_head else OUTPUT_TABLE)
