"""From a GGUF header to a `DecoderDescription`, or a refusal that names the field.

Takes headers of architecture `llama`. Promises: every key and every tensor of the file is either used, known to
change nothing, or refused; a feature that the description cannot express is never ignored.
"""

from __future__ import annotations

import math
from typing import Final

from inferswarm.artifacts.gguf import GgufHeader, MetadataValue
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.tensors import OUTPUT_TABLE_TENSOR, TOKEN_TABLE_TENSOR, block_tensors, state_tensors

ARCHITECTURE: Final = "llama"
READABLE_ENCODINGS: Final = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Encodings that every backend can turn into numbers."""
NORM_ENCODINGS: Final = ("F32", "F16", "BF16")
_DEFAULT_ROPE_BASE = 10000.0

_USED: Final = frozenset(
    f"llama.{key}"
    for key in (
        "vocab_size",
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
    )
)
_HARMLESS_VALUES: Final[dict[str, MetadataValue]] = {
    "general.type": "model",
    "general.quantization_version": 2,
    "split.count": 1,
    "split.no": 0,
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.rope.scaling.type": "none",
    "llama.attention.causal": True,
    "llama.use_parallel_residual": False,
}
"""Keys that change nothing while they have this value, and something that is not built when they have another."""
_INERT_PREFIXES: Final = ("general.", "tokenizer.", "quantize.", "split.tensors.")
"""Names, licenses, text (read elsewhere), and how the file was made."""


def describe(header: GgufHeader) -> DecoderDescription:
    """Return what the model behind `header` computes.

    Raises UnsupportedModel naming the first field or tensor that is understood and not supported, beginning with
    the architecture; ModelError when the file contradicts itself or lacks something.
    """
    fields = _Fields(header)
    architecture = fields.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedModel(header.source, "general.architecture", architecture, ARCHITECTURE)
    _check_keys(header)
    num_heads = fields.size("llama.attention.head_count")
    hidden_size = fields.size("llama.embedding_length")
    head_size = _head_size(fields, hidden_size, num_heads)
    tables = {tensor.name: tensor for tensor in header.tensors}
    if TOKEN_TABLE_TENSOR not in tables:
        raise ModelError(header.source, f"the tensor {TOKEN_TABLE_TENSOR} is missing")
    description = DecoderDescription(
        architecture=architecture,
        vocabulary_size=_vocabulary_size(fields, tables[TOKEN_TABLE_TENSOR].shape[0]),
        hidden_size=hidden_size,
        feed_forward_size=fields.size("llama.feed_forward_length"),
        num_blocks=fields.size("llama.block_count"),
        num_heads=num_heads,
        num_key_value_heads=fields.size("llama.attention.head_count_kv", num_heads),
        head_size=head_size,
        context_positions=fields.size("llama.context_length"),
        rope_base=fields.positive("llama.rope.freq_base", _DEFAULT_ROPE_BASE),
        norm_epsilon=fields.positive("llama.attention.layer_norm_rms_epsilon"),
        tied_head=OUTPUT_TABLE_TENSOR not in tables,
        interleaved_rope_rows=True,
    )
    if num_heads % description.num_key_value_heads:
        raise ModelError(
            header.source,
            f"llama.attention.head_count is {num_heads}, not a multiple of llama.attention.head_count_kv, "
            f"{description.num_key_value_heads}",
        )
    _check_tensors(header, description)
    return description


class _Fields:
    """Typed access to metadata; every complaint names the key."""

    def __init__(self, header: GgufHeader) -> None:
        self.source = header.source
        self.metadata = header.metadata

    def _get(self, key: str) -> MetadataValue:
        if key not in self.metadata:
            raise ModelError(self.source, f"the metadata key {key} is missing")
        return self.metadata[key]

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise ModelError(self.source, f"{key} is {value!r}, needed text")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self.metadata:
            return default
        value = self._get(key)
        if isinstance(value, tuple):
            raise UnsupportedModel(self.source, key, f"one value per block ({len(value)} values)", "one whole number")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise ModelError(self.source, f"{key} is {value!r}, needed a whole number from 1 to 2^31")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        if default is not None and key not in self.metadata:
            return default
        value = self._get(key)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise ModelError(self.source, f"{key} is {value!r}, needed a positive finite float")
        return value


def _check_keys(header: GgufHeader) -> None:
    """Refuse every key that is not used, inert, or at the value at which it changes nothing."""
    for key, value in header.metadata.items():
        if key in _HARMLESS_VALUES:
            needed = _HARMLESS_VALUES[key]
            if type(value) is not type(needed) or value != needed:
                raise UnsupportedModel(header.source, key, value, repr(needed))
        elif key not in _USED and not key.startswith(_INERT_PREFIXES):
            shown = value if not isinstance(value, tuple) else f"{len(value)} values"
            raise UnsupportedModel(header.source, key, shown, "files without this key")


def _head_size(fields: _Fields, hidden_size: int, num_heads: int) -> int:
    """Return the size of a head; query, key, value and rotary sizes must agree, and rotate in pairs."""
    if "llama.attention.key_length" not in fields.metadata and hidden_size % num_heads:
        raise ModelError(
            fields.source,
            f"llama.embedding_length is {hidden_size}, not a multiple of llama.attention.head_count, {num_heads}",
        )
    head_size = fields.size("llama.attention.key_length", hidden_size // num_heads or 1)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        found = fields.size(key, head_size)
        if found != head_size:
            raise UnsupportedModel(fields.source, key, found, f"the size of a head, {head_size}")
    if head_size % 2:
        raise ModelError(fields.source, f"heads have the odd size {head_size}, which rotary positions cannot pair")
    return head_size


def _vocabulary_size(fields: _Fields, table_rows: int) -> int:
    size = fields.size("llama.vocab_size", table_rows)
    if size != table_rows:
        raise ModelError(
            fields.source, f"llama.vocab_size is {size:,} and {TOKEN_TABLE_TENSOR} has {table_rows:,} rows"
        )
    return size


def _check_tensors(header: GgufHeader, description: DecoderDescription) -> None:
    """Every expected tensor with its shape and a readable encoding, and no other tensor."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    per_block = len(block_tensors(description, 0))
    # Before anything is built from the count: a file may claim any number of blocks.
    if description.num_blocks * per_block > len(tensors):
        raise ModelError(
            header.source,
            f"llama.block_count is {description.num_blocks:,}, which needs {description.num_blocks * per_block:,} "
            f"tensors; the file has {len(tensors):,}",
        )
    expected = {name: shape for state in state_tensors(description).values() for name, shape in state.items()}
    for name in tensors:
        if name not in expected:
            raise UnsupportedModel(header.source, "tensor", name, "the tensors of a Llama decoder without biases")
    for name, shape in expected.items():
        if name not in tensors:
            raise ModelError(header.source, f"the tensor {name} is missing")
        found = tensors[name]
        if found.shape != shape:
            raise ModelError(header.source, f"the tensor {name} has the shape {found.shape}, needed {shape}")
        readable = READABLE_ENCODINGS if len(shape) > 1 else NORM_ENCODINGS
        if found.encoding not in readable:
            raise UnsupportedModel(header.source, f"the encoding of {name}", found.encoding, ", ".join(readable))
