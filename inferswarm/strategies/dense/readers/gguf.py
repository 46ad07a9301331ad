"""From a GGUF header to an understood model, or a refusal that names the key or the tensor.

Every key and every tensor of the file is used, known to change nothing, or refused.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from inferswarm.artifacts.gguf import GgufHeader
from inferswarm.artifacts.gguf_types import READABLE_ENCODINGS
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.types import PAIRED_ROWS, PLAIN, PLUS_ONE
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.description import Rope
from inferswarm.strategies.dense.readers.families import Parts, describe_family
from inferswarm.strategies.dense.readers.fields import Fields, shortest_float32
from inferswarm.strategies.dense.readers.gguf_table import (
    ARCHITECTURES,
    ATTENTION_OUTPUT,
    FEED_FORWARD,
    HARMLESS,
    HARMLESS_OF_ARCHITECTURE,
    INERT,
    QUERY_KEY_VALUE,
    GgufArchitecture,
)
from inferswarm.strategies.dense.readers.matching import Naming, match_tensors
from inferswarm.strategies.dense.readers.understood import Understood
from inferswarm.strategies.dense.rope_scaling import (
    BETA_FAST,
    BETA_SLOW,
    linear_rope,
    longrope_note,
    longrope_rope,
    yarn_magnitude,
    yarn_rope,
)
from inferswarm.strategies.dense.tensors import OUTPUT_NORM_TENSOR, OUTPUT_TABLE_TENSOR, TOKEN_TABLE_TENSOR

ROPE_FACTORS: Final = "rope_freqs.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
_DEFAULT_BASE: Final = 10000.0


def understand_gguf(header: GgufHeader) -> Understood:
    """Return what the model behind `header` computes, and its tensors by their canonical names.

    Factors of rotary positions that the file stores as tensors are read now. Raises UnsupportedModel naming the
    first key or tensor that is understood and not supported, beginning with the architecture; ModelError when the
    file contradicts itself or lacks something; ArtifactError when factors cannot be read.
    """
    architecture = Fields(header.source, header.metadata, what="metadata key").text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(header.source, "general.architecture", architecture, ", ".join(ARCHITECTURES))
    return _Reader(header, ARCHITECTURES[architecture]).read()


class _Reader:
    """Reads one header."""

    def __init__(self, header: GgufHeader, entry: GgufArchitecture) -> None:
        self.header = header
        self.entry = entry
        self.source = header.source
        self.arch = f"{entry.family.architecture}."
        self.tensors = {tensor.name: tensor for tensor in header.tensors}
        own = {
            key.removeprefix(self.arch): value for key, value in header.metadata.items() if key.startswith(self.arch)
        }
        self.fields = Fields(self.source, own, prefix=self.arch, floats_only=True, what="metadata key")
        self.notes: list[str] = []
        self.explained: set[str] = set()
        self.bytes_read = 0

    def read(self) -> Understood:
        """Read keys, then tensors."""
        parts = self._parts()
        self._check_keys()
        description = describe_family(self.entry.family, parts, self.source)
        tensors = match_tensors(
            self.source, description, self.header.tensors, self._naming(), READABLE_ENCODINGS, self.explained
        )
        return Understood(description, tensors, tuple(self.notes), self.bytes_read)

    # -- keys --

    def _parts(self) -> Parts:
        fields, entry = self.fields, self.entry
        hidden, num_heads = fields.size("embedding_length"), fields.size("attention.head_count")
        num_key_value_heads = fields.size("attention.head_count_kv", num_heads)
        fields.refuse_remainder("attention.head_count", num_heads, "attention.head_count_kv", num_key_value_heads)
        head = self._head_size(hidden, num_heads)
        num_blocks = self._num_blocks()
        context = fields.size("context_length")
        rope, window_rope = self._ropes(self._rotated_size(head), context)
        window, windowed = self._windows(num_blocks)
        soft_caps: tuple[float | None, float | None] = (None, None)
        if entry.soft_caps:
            soft_caps = (
                fields.optional("attn_logit_softcapping", entry.attention_soft_cap),
                fields.optional("final_logit_softcapping", entry.logit_soft_cap),
            )
        largest = num_blocks == entry.blocks_of_largest
        scales = self._scales()
        return Parts(
            vocabulary_size=self._vocabulary_size(),
            hidden_size=hidden,
            feed_forward_size=fields.size("feed_forward_length"),
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            head_size=head,
            context_positions=context,
            windowed=windowed,
            window=window,
            rope=rope,
            window_rope=window_rope,
            norm_epsilon=fields.positive("attention.layer_norm_rms_epsilon"),
            query_key_value_bias=self._has(QUERY_KEY_VALUE),
            attention_output_bias=self._has(ATTENTION_OUTPUT),
            feed_forward_bias=self._has(FEED_FORWARD),
            attention_scale=scales["attention"] or 1.0 / math.sqrt(hidden // num_heads if largest else head),
            attention_soft_cap=soft_caps[0],
            embedding_scale=scales["embedding"] or 1.0,
            residual_scale=scales["residual"] or 1.0,
            logit_scale=1.0 / (scales["logit"] or 1.0),
            logit_soft_cap=soft_caps[1],
            tied_head=OUTPUT_TABLE_TENSOR not in self.tensors,
        )

    def _scales(self) -> dict[str, float | None]:
        """Return Granite's scales; None where the file states none, or zero. Its logits are divided by theirs."""
        keys = {"attention": "attention.scale"} | {
            name: f"{name}_scale" for name in ("embedding", "residual", "logit")
        }
        if not self.entry.scales:
            return dict.fromkeys(keys)
        return {name: self.fields.optional(key) for name, key in keys.items()}

    def _head_size(self, hidden: int, num_heads: int) -> int:
        fields = self.fields
        if not fields.has("attention.key_length"):
            fields.refuse_remainder("embedding_length", hidden, "attention.head_count", num_heads)
        head = fields.size("attention.key_length", hidden // num_heads or 1)
        value = fields.size("attention.value_length", head)
        if value != head:
            raise UnsupportedModel(
                self.source, fields.name("attention.value_length"), value, f"the size of a head, {head}"
            )
        return head

    def _rotated_size(self, head: int) -> int:
        fields = self.fields
        rotated = fields.size("rope.dimension_count", head)
        if rotated != head and not (self.entry.family.partial_rotary and rotated < head):
            raise UnsupportedModel(
                self.source, fields.name("rope.dimension_count"), rotated, f"the size of a head, {head}"
            )
        if rotated % 2:
            raise ModelError(self.source, f"heads have the odd size {rotated}, which rotary positions cannot pair")
        return rotated

    def _num_blocks(self) -> int:
        """Return the number of blocks. Before anything is built from the count: a file may claim any number."""
        stated = self.fields.size("block_count")
        seen = {name.split(".")[1] for name in self.tensors if name.startswith("blk.")}
        if stated > len(seen):
            raise ModelError(
                self.source,
                f"{self.fields.name('block_count')} is {stated:,}; the file has tensors of {len(seen):,} blocks",
            )
        return stated

    def _vocabulary_size(self) -> int:
        if TOKEN_TABLE_TENSOR not in self.tensors:
            raise ModelError(self.source, f"the tensor {TOKEN_TABLE_TENSOR} is missing")
        rows = self.tensors[TOKEN_TABLE_TENSOR].shape[0]
        size = self.fields.size("vocab_size", rows)
        if size != rows:
            raise ModelError(
                self.source,
                f"{self.fields.name('vocab_size')} is {size:,} and {TOKEN_TABLE_TENSOR} has {rows:,} rows",
            )
        return size

    def _windows(self, num_blocks: int) -> tuple[int | None, tuple[bool, ...]]:
        """Return the window, and which blocks see no more than it."""
        fields, entry = self.fields, self.entry
        if entry.windows == "none":
            return None, (False,) * num_blocks
        window = fields.size("attention.sliding_window", entry.window_default or 0, least=0) or None
        if window is None or entry.windows == "every":
            return window, (window is not None,) * num_blocks
        key = "attention.sliding_window_pattern"
        pattern = fields.raw(key)
        if isinstance(pattern, tuple):
            if len(pattern) != num_blocks or any(not isinstance(item, bool) for item in pattern):
                raise ModelError(self.source, f"{fields.name(key)} holds not one truth value for each block")
            return window, tuple(bool(item) for item in pattern)
        period = fields.size(key, entry.pattern_default)
        return window, tuple(index % period < period - 1 for index in range(num_blocks))

    def _has(self, group: tuple[str, ...]) -> bool:
        if group in self.entry.biases:
            return True
        return group in self.entry.optional_biases and any(f"blk.0.{name}" in self.tensors for name in group)

    def _check_keys(self) -> None:
        """Refuse every key that is not used, inert, or at a value at which it changes nothing."""
        supported = f"files of {self.entry.family.architecture} without this key"
        others = {key: value for key, value in self.header.metadata.items() if not key.startswith(self.arch)}
        general = Fields(self.source, others)
        for key in HARMLESS:
            general.check(key, HARMLESS[key])
        general.refuse_unread(INERT, {}, supported)
        self.fields.refuse_unread((), HARMLESS_OF_ARCHITECTURE, supported)

    # -- rotary positions --

    def _ropes(self, rotated: int, context: int) -> tuple[Rope | None, Rope | None]:
        """Return the rope of blocks that see everything, and that of blocks with a window."""
        fields, entry = self.fields, self.entry
        base = fields.positive("rope.freq_base", _DEFAULT_BASE)
        if not self._knows_positions():
            return None, None
        try:
            rope = self._scaled(base, rotated, context)
        except ValueError as error:
            raise ModelError(self.source, f"{fields.name('rope.scaling')}: {error}") from error
        if entry.windows != "pattern":
            return rope, rope
        window_base = fields.positive("rope.freq_base_swa", entry.window_rope_base or base)
        if not entry.window_rope_is_scaled:
            return rope, Rope(base=window_base, rotated_size=rotated)
        return rope, msgspec.structs.replace(rope, base=window_base)

    def _knows_positions(self) -> bool:
        """Granite says by `rope.scaling.finetuned` whether positions turn at all; elsewhere it is history."""
        key = "rope.scaling.finetuned"
        if not self.fields.has(key):
            return True
        flag = self.fields.flag(key)
        if self.entry.scales:
            return flag
        self.notes.append(f"{self.fields.name(key)} says how the model was trained; it changes nothing.")
        return True

    def _scaled(self, base: float, rotated: int, context: int) -> Rope:
        fields, key = self.fields, "rope.scaling.type"
        listed = [name for name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS) if name in self.tensors]
        kind = fields.text(key, "longrope" if LONG_FACTORS in listed else "linear")
        original = fields.size("rope.scaling.original_context_length", context)
        if kind == "longrope":
            if ROPE_FACTORS in listed:
                raise UnsupportedModel(self.source, "tensor", ROPE_FACTORS, f"{LONG_FACTORS} and {SHORT_FACTORS}")
            if original < context:
                self.notes.append(longrope_note(original))
            return longrope_rope(
                base,
                rotated,
                short=self._factors(SHORT_FACTORS, rotated // 2),
                long=self._factors(LONG_FACTORS, rotated // 2),
                original_positions=original,
                magnitude=fields.positive("rope.scaling.attn_factor"),
            )
        if kind == "yarn" and not listed:
            factor = fields.positive("rope.scaling.factor")
            return yarn_rope(
                base,
                rotated,
                factor=factor,
                original_positions=original,
                magnitude=yarn_magnitude(factor),
                beta_fast=fields.positive("rope.scaling.yarn_beta_fast", BETA_FAST),
                beta_slow=fields.positive("rope.scaling.yarn_beta_slow", BETA_SLOW),
            )
        if kind not in ("none", "linear") or listed not in ([], [ROPE_FACTORS]):
            found = kind if not listed else f"{kind} beside {', '.join(listed)}"
            raise UnsupportedModel(
                self.source, fields.name(key), found, f"none, linear, yarn, longrope; none beside {ROPE_FACTORS}"
            )
        factor = fields.positive("rope.scaling.factor", 1.0)
        if kind == "none" and factor != 1.0:
            raise UnsupportedModel(
                self.source, fields.name("rope.scaling.factor"), factor, f"1 where {fields.name(key)} is none"
            )
        if ROPE_FACTORS not in listed:
            return linear_rope(base, rotated, factor)
        given = tuple(factor * item for item in self._factors(ROPE_FACTORS, rotated // 2))
        return Rope(base=base, rotated_size=rotated, factors=given)

    def _factors(self, name: str, count: int) -> tuple[float, ...]:
        """Read the numbers of a small tensor out of the file, wherever that is."""
        if name not in self.tensors:
            raise ModelError(self.source, f"the tensor {name} is missing")
        record = self.tensors[name]
        if record.encoding != "F32":
            raise UnsupportedModel(self.source, f"the encoding of {name}", record.encoding, "F32")
        if record.shape != (count,):
            raise ModelError(self.source, f"the tensor {name} has the shape {record.shape}, needed {(count,)}")
        described = self.header.objects[record.file]
        with open_origin(described.uri, described) as origin:
            values = np.frombuffer(origin.read(record.range), dtype="<f4")
        self.bytes_read += origin.bytes_read
        self.explained.add(name)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelError(self.source, f"the tensor {name} holds something that is not a positive number")
        return tuple(shortest_float32(value) for value in values.tolist())

    # -- tensors --

    def _naming(self) -> Naming:
        entry = self.entry
        fused: dict[str, tuple[str, ...]] = {
            "attn_qkv.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
            "attn_qkv.bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
        }
        if entry.fused_gate:
            fused["ffn_up.weight"] = ("ffn_gate.weight", "ffn_up.weight")

        def layout(end: str) -> str:
            if entry.paired_rows and end in _PAIRED:
                return PAIRED_ROWS
            if entry.family.norm_adds_one and end.endswith("norm.weight"):
                return PLUS_ONE
            return PLAIN

        table = {name: name for name in (TOKEN_TABLE_TENSOR, OUTPUT_NORM_TENSOR, OUTPUT_TABLE_TENSOR)}
        return Naming(table=table, blocks="blk.{}.", parts={}, fused=fused, layout=layout)


_PAIRED: Final = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")
