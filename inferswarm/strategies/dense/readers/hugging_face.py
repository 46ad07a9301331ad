"""From a model directory as Hugging Face lays it out to an understood model, or a refusal that names what it is.

The configuration says what is computed; the safetensors' names say where the numbers are. Both must agree, tensor by
tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from inferswarm.artifacts.gguf_types import PLAIN_ENCODINGS
from inferswarm.artifacts.types import TensorRecord
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.readers.configuration import configuration_entry, describe_configuration
from inferswarm.strategies.dense.readers.configuration_table import Configuration
from inferswarm.strategies.dense.readers.matching import Naming, match_tensors
from inferswarm.strategies.dense.readers.understood import Understood
from inferswarm.strategies.dense.tensors import OUTPUT_NORM_TENSOR, OUTPUT_TABLE_TENSOR, TOKEN_TABLE_TENSOR

READABLE: Final = PLAIN_ENCODINGS
"""Encodings of safetensors that are read."""
TABLE: Final = {
    TOKEN_TABLE_TENSOR: "model.embed_tokens.weight",
    OUTPUT_NORM_TENSOR: "model.norm.weight",
    OUTPUT_TABLE_TENSOR: "lm_head.weight",
}
BLOCKS: Final = "model.layers.{}."
_BLOCK: Final = re.compile(r"model\.layers\.([0-9]+)\.")
_FREQUENCIES: Final = re.compile(r"model\.(layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq")


def understand_directory(
    configuration: Mapping[str, Any], tensors: Sequence[TensorRecord], source: str
) -> Understood:
    """Return what the model of a configuration and its files' tensors computes; `source` names it in complaints.

    Raises UnsupportedModel naming the first field or tensor that is understood and not supported, beginning with
    `model_type`; ModelError when configuration and tensors contradict each other or something is missing.
    """
    entry = configuration_entry(configuration, source)
    notes: list[str] = []
    blocks = {match[1] for tensor in tensors if (match := _BLOCK.match(tensor.name))}
    description = _with_own_head(describe_configuration(configuration, source, notes, len(blocks)), tensors, notes)
    explained = _explain(tensors, notes)
    matched = match_tensors(source, description, tensors, _naming(entry), READABLE, explained)
    return Understood(description, matched, tuple(notes))


def _with_own_head(
    description: DecoderDescription, tensors: Sequence[TensorRecord], notes: list[str]
) -> DecoderDescription:
    """Return the description with an untied head where the files hold one although the configuration ties it.

    What the files hold is what the model was saved with, and only its numbers could show that it is the token table
    once more. transformers compares the two and ties equal ones only, which gives the same logits.
    """
    head = TABLE[OUTPUT_TABLE_TENSOR]
    if not description.tied_head or all(tensor.name != head for tensor in tensors):
        return description
    notes.append(f"tie_word_embeddings is true and the files hold {head}: the head is computed with {head}.")
    return msgspec.structs.replace(description, tied_head=False)


def _explain(tensors: Sequence[TensorRecord], notes: list[str]) -> list[str]:
    """Return tensors that change nothing, saying so."""
    frequencies = [tensor.name for tensor in tensors if _FREQUENCIES.fullmatch(tensor.name)]
    if frequencies:
        notes.append(
            f"{len(frequencies)} tensors like {frequencies[0]} repeat what the configuration says of positions."
        )
    return frequencies


def _naming(entry: Configuration) -> Naming:
    return Naming(table=TABLE, blocks=BLOCKS, parts=entry.parts, fused=entry.fused)
