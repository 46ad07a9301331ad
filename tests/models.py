"""Small model files for tests: a random Llama with a working byte-level tokenizer, written as GGUF."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


def byte_characters() -> list[str]:
    """Return the printable stand-in of each byte that byte-level BPE uses, in the order of the bytes.

    Bytes that print keep their Latin-1 character; the others take the next free code point from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(free)) for byte in range(256)]


def small_vocabulary(size: int) -> tuple[list[str], list[int], list[str]]:
    """Return (tokens, token types, merges) of a byte-level vocabulary of `size` tokens (at least 259).

    Specials, the 256 bytes, merges of a space with a letter and of two letters, then unused tokens.
    """
    tokens = [*SPECIAL_TOKENS, *byte_characters()]
    if size < len(tokens):
        raise ValueError(f"a byte-level vocabulary needs {len(tokens)} tokens, not {size}")
    types = [_CONTROL] * len(SPECIAL_TOKENS) + [_NORMAL] * 256
    space = byte_characters()[ord(" ")]
    pairs = [(space, letter) for letter in string.ascii_lowercase]
    pairs += [(first, second) for first in "etaoinshr" for second in string.ascii_lowercase]
    chosen = pairs[: size - len(tokens)]
    tokens += [first + second for first, second in chosen]
    types += [_NORMAL] * len(chosen)
    unused = size - len(tokens)
    tokens += [f"<|unused_{index}|>" for index in range(unused)]
    types += [_UNUSED] * unused
    return tokens, types, [f"{first} {second}" for first, second in chosen]


def small_llama_tensors(
    *, seed: int, num_blocks: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, tied: bool
) -> dict[str, np.ndarray]:
    """Return the random fp32 weights of a small Llama by GGUF tensor name, row-major."""
    generator = np.random.default_rng(seed)
    head_size = hidden // heads

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (generator.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1.0 + 0.1 * generator.standard_normal(hidden)).astype(np.float32)

    tensors = {"token_embd.weight": (0.5 * generator.standard_normal((vocab, hidden))).astype(np.float32)}
    for index in range(num_blocks):
        tensors |= {
            f"blk.{index}.attn_norm.weight": norm(),
            f"blk.{index}.attn_q.weight": matrix(heads * head_size, hidden, 1.5),
            f"blk.{index}.attn_k.weight": matrix(kv_heads * head_size, hidden, 1.5),
            f"blk.{index}.attn_v.weight": matrix(kv_heads * head_size, hidden),
            f"blk.{index}.attn_output.weight": matrix(hidden, heads * head_size, 2.0),
            f"blk.{index}.ffn_norm.weight": norm(),
            f"blk.{index}.ffn_gate.weight": matrix(ffn, hidden, 1.5),
            f"blk.{index}.ffn_up.weight": matrix(ffn, hidden, 1.5),
            f"blk.{index}.ffn_down.weight": matrix(hidden, ffn, 2.0),
        }
    tensors["output_norm.weight"] = norm()
    if not tied:
        tensors["output.weight"] = matrix(vocab, hidden)
    return tensors


def tokenizer_keys(vocabulary: int, chat_template: str | None = CHAT_TEMPLATE) -> dict[str, Any]:
    """Return the metadata of a GGUF file with the tokenizer of `small_vocabulary`."""
    tokens, types, merges = small_vocabulary(vocabulary)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": chat_template,
    }


def write_small_llama(
    path: Path,
    *,
    seed: int = 0,
    num_blocks: int = 4,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 128,
    vocab: int = 320,
    context: int = 640,
    encoding: str = "Q4_1",
    embedding_encoding: str | None = None,
    tied: bool = True,
    chat_template: str | None = CHAT_TEMPLATE,
    metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    omit_tensors: tuple[str, ...] = (),
) -> Path:
    """Write a random-weight Llama with a byte-level tokenizer to `path` and return it.

    Equal arguments give equal bytes. Matrices are stored in `encoding` (a GGUF type name: F32, F16, BF16, Q4_0,
    Q4_1, Q5_0, Q5_1, Q8_0), the token table in `embedding_encoding` (default: the same), norms in F32. `metadata`
    adds or replaces keys (None removes one); `extra_tensors` and `omit_tensors` make files that are wrong.
    """
    architecture = "llama"
    keys: dict[str, Any] = {
        "general.name": f"Small Llama {seed}",
        "llama.vocab_size": vocab,
        "llama.context_length": context,
        "llama.embedding_length": hidden,
        "llama.block_count": num_blocks,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": hidden // heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    keys |= tokenizer_keys(vocab, chat_template) | dict(metadata or {})
    if "general.architecture" in keys:
        architecture = keys.pop("general.architecture")
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        add_key(writer, key, value)
    tensors = small_llama_tensors(
        seed=seed,
        num_blocks=num_blocks,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        tied=tied,
    )
    for name, values in (tensors | dict(extra_tensors or {})).items():
        if name in omit_tensors:
            continue
        chosen = "F32"
        if values.ndim == 2:
            chosen = (embedding_encoding or encoding) if name in ("token_embd.weight", "output.weight") else encoding
        kind = gguf.GGMLQuantizationType[chosen]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add one metadata key; whole numbers are written as uint32, as real files have them."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
