"""Large models that take no room: a Llama in several safetensors files, whose tensors are holes with a mark.

Headers, configuration, index and tokenizer are real. Of each tensor the first bytes are its own name, so that no two
have the same content; the rest was never written, and a file system that knows holes keeps nothing of it. `filled`
writes random bytes instead.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.families import write_tokenizer

HEAD_SIZE = 64
ITEM_BYTES = 2
"""Of a number in bfloat16."""


class Shape(NamedTuple):
    """How large a model is."""

    layers: int
    hidden: int
    ffn: int
    vocab: int
    files: int

    @property
    def num_bytes(self) -> int:
        """All tensors together."""
        return ITEM_BYTES * sum(map(math.prod, tensors_of(self).values()))


def tensors_of(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama of this shape, its output tied to its token table, in their order."""
    hidden, ffn = shape.hidden, shape.ffn
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab, hidden)}
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        found |= {f"{name}.self_attn.{part}_proj.weight": (hidden, hidden) for part in "qkvo"}
        found |= {f"{name}.mlp.{part}_proj.weight": (ffn, hidden) for part in ("gate", "up")}
        found[f"{name}.mlp.down_proj.weight"] = (hidden, ffn)
        found |= {f"{name}.{part}_layernorm.weight": (hidden,) for part in ("input", "post_attention")}
    return found | {"model.norm.weight": (hidden,)}


def write_sharded(folder: Path, shape: Shape, *, filled_with: int | None = None) -> Path:
    """Write the model into a new folder and return it; `filled_with` is the seed of random bytes (None: holes)."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_configuration(shape)))
    write_tokenizer(folder)
    tensors = list(tensors_of(shape).items())
    each = -(-len(tensors) // shape.files)
    chance = np.random.default_rng(filled_with)
    placement: dict[str, str] = {}
    for number in range(shape.files):
        chosen = tensors[number * each : (number + 1) * each]
        many = f"model-{number + 1:05d}-of-{shape.files:05d}.safetensors"
        name = "model.safetensors" if shape.files == 1 else many
        header, end = {}, 0
        for tensor, dimensions in chosen:
            length = ITEM_BYTES * math.prod(dimensions)
            header[tensor] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [end, end + length]}
            end += length
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            begin = file.tell()
            if filled_with is not None:
                file.write(chance.bytes(end))
            else:
                for tensor, entry in header.items():
                    file.seek(begin + entry["data_offsets"][0])
                    file.write(tensor.encode())
            file.truncate(begin + end)
        placement |= dict.fromkeys((tensor for tensor, _ in chosen), name)
    if shape.files > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placement}))
    return folder


def _configuration(shape: Shape) -> dict[str, object]:
    return {
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.hidden // HEAD_SIZE,
        "num_key_value_heads": shape.hidden // HEAD_SIZE,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
    }
