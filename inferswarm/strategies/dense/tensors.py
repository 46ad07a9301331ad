"""Which tensors make which state, by their canonical names (GGUF's names for a `llama`, and its words for the rest).

Every file format's reader maps its own names, fused tensors and layouts onto these; nobody behind a reader sees
anything else. A tied model keeps one table, the state `token-table`, which the embedding and the head share.
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
    """Return the tensors of block `index` by their canonical names, with their row-major shapes."""
    hidden, feed_forward, head = description.hidden_size, description.feed_forward_size, description.head_size
    query = description.num_heads * head
    key_value = description.num_key_value_heads * head
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (key_value, hidden),
        "attn_v.weight": (key_value, hidden),
        "attn_output.weight": (hidden, query),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (feed_forward, hidden),
        "ffn_up.weight": (feed_forward, hidden),
        "ffn_down.weight": (hidden, feed_forward),
    }
    if description.query_key_value_bias:
        shapes |= {"attn_q.bias": (query,), "attn_k.bias": (key_value,), "attn_v.bias": (key_value,)}
    if description.attention_output_bias:
        shapes["attn_output.bias"] = (hidden,)
    if description.feed_forward_bias:
        shapes |= {"ffn_gate.bias": (feed_forward,), "ffn_up.bias": (feed_forward,), "ffn_down.bias": (hidden,)}
    if description.query_key_norms:
        shapes |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    if description.post_norms:
        shapes |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    return {f"blk.{index}.{part}": shape for part, shape in shapes.items()}


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
