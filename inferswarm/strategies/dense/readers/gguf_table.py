"""How GGUF states each family: which keys, with which defaults, and how it stores the tensors.

The keys and defaults are those of llama.cpp, whose converter writes the files and whose loader gives absent keys a
meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from inferswarm.strategies.dense.readers.families import (
    GEMMA2,
    GEMMA3,
    GRANITE,
    LLAMA,
    PHI3,
    QWEN2,
    QWEN3,
    Family,
)

QUERY_KEY_VALUE = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
ATTENTION_OUTPUT = ("attn_output.bias",)
FEED_FORWARD = ("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """What one value of `general.architecture` means."""

    family: Family
    paired_rows: bool = False
    """Rows of query and key are stored for turning neighboring pairs."""
    windows: Literal["none", "every", "pattern"] = "none"
    """Which blocks see a window: none, every one where a window is stated, or by a pattern."""
    window_default: int | None = None
    pattern_default: int = 1
    window_rope_base: float | None = None
    """Base of blocks with a window where the file states none; None: that of the others."""
    window_rope_is_scaled: bool = True
    """Whether a linear scaling holds for blocks with a window too."""
    soft_caps: bool = False
    """The keys of both soft caps have a meaning."""
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    blocks_of_largest: int | None = None
    """The family's largest model, known by its number of blocks, scales scores by the size of a head that the hidden
    size gives, not by the head's own."""
    scales: bool = False
    """The keys of scores', embeddings', residuals' and logits' scales have a meaning (Granite)."""
    optional_biases: tuple[tuple[str, ...], ...] = ()
    """Groups of biases that a file may hold."""
    biases: tuple[tuple[str, ...], ...] = ()
    """Groups of biases that every file holds."""
    fused_gate: bool = False
    """`ffn_up` holds the rows of the gate before its own."""


ARCHITECTURES: Final[dict[str, GgufArchitecture]] = {
    entry.family.architecture: entry
    for entry in (
        GgufArchitecture(
            family=LLAMA,
            paired_rows=True,
            optional_biases=(QUERY_KEY_VALUE, ATTENTION_OUTPUT, FEED_FORWARD),
        ),
        GgufArchitecture(family=QWEN2, biases=(QUERY_KEY_VALUE,)),
        GgufArchitecture(family=QWEN3),
        GgufArchitecture(
            family=GEMMA2,
            windows="pattern",
            window_default=4096,
            pattern_default=2,
            soft_caps=True,
            attention_soft_cap=50.0,
            logit_soft_cap=30.0,
            blocks_of_largest=46,
        ),
        GgufArchitecture(
            family=GEMMA3,
            windows="pattern",
            pattern_default=6,
            window_rope_base=10000.0,
            window_rope_is_scaled=False,
            soft_caps=True,
            blocks_of_largest=62,
        ),
        GgufArchitecture(family=PHI3, windows="every", fused_gate=True),
        GgufArchitecture(
            family=GRANITE,
            paired_rows=True,
            scales=True,
            optional_biases=(QUERY_KEY_VALUE, ATTENTION_OUTPUT, FEED_FORWARD),
        ),
    )
}
"""Every architecture that is read."""

INERT: Final = ("general.", "tokenizer.", "quantize.", "split.tensors.")
"""Names, licenses, text (read elsewhere), and how the file was made."""

HARMLESS: Final[dict[str, tuple[Any, ...]]] = {
    "general.type": ("model",),
    "general.quantization_version": (2,),
    "split.count": (1,),
    "split.no": (0,),
}
HARMLESS_OF_ARCHITECTURE: Final[dict[str, tuple[Any, ...]]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Keys that change nothing while they have one of these values, and are refused otherwise."""
