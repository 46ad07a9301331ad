"""How Hugging Face configurations state each family: which fields, with which defaults, and the tensors' names.

Fields and defaults are those of the configuration classes of transformers, whose files these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

NORMS_BEFORE: Final = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
NORMS_AROUND: Final = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}
PARTS: Final = {
    f"{ours}.{end}": f"{theirs}.{end}"
    for ours, theirs in (
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    )
    for end in ("weight", "bias")
}
FUSED_PARTS: Final = {
    "self_attn.qkv_proj.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "mlp.gate_up_proj.weight": ("ffn_gate.weight", "ffn_up.weight"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What one value of `model_type` means."""

    family: Family
    model_class: str
    """The class that makes text out of such a model; others (classifiers …) share the configuration."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that a file may leave out."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The field, and the value that the family's blocks compute."""
    query_key_value_bias: bool | None = False
    """None: `attention_bias` says, and speaks for the attention's output too."""
    feed_forward_bias: bool | None = False
    """None: `mlp_bias` says."""
    windows: Literal["none", "every", "layers"] = "none"
    """Which blocks see a window: none, every one where a window is stated, or those that `layer_types` names."""
    layers: Literal["late", "pattern"] = "pattern"
    """What decides without `layer_types`: those from `max_window_layers` on if `use_sliding_window`, or all but the
    last of every `period`."""
    period: int = 1
    states_period: bool = False
    """`sliding_window_pattern` may state another period."""
    scalar: bool = False
    """Scores are scaled by `query_pre_attn_scalar`."""
    soft_caps: tuple[str, ...] = ()
    """Which soft caps have a meaning; the other's field must be null."""
    scales: bool = False
    """Granite's four multipliers."""
    window_rope: bool = False
    """Blocks with a window have a rope of their own."""
    normalized_rope_types: Mapping[str, str] = field(default_factory=dict)
    """Names of scalings that mean another one here."""
    original_positions: int | None = None
    """Default of `original_max_position_embeddings` outside the scaling's own fields."""
    parts: Mapping[str, str] = field(default_factory=lambda: {**NORMS_BEFORE, **PARTS})
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_PLAIN: Final = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0}
_GEMMA: Final = {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256}
_GEMMA_PARTS: Final = {**NORMS_AROUND, **PARTS}

CONFIGURATIONS: Final[dict[str, Configuration]] = {
    "llama": Configuration(
        family=LLAMA,
        model_class="LlamaForCausalLM",
        defaults=_PLAIN,
        query_key_value_bias=None,
        feed_forward_bias=None,
    ),
    "mistral": Configuration(
        family=LLAMA,
        model_class="MistralForCausalLM",
        defaults={**_PLAIN, "sliding_window": 4096, "num_key_value_heads": 8},
        windows="every",
    ),
    "qwen2": Configuration(
        family=QWEN2,
        model_class="Qwen2ForCausalLM",
        defaults={**_PLAIN, "sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32},
        query_key_value_bias=True,
        windows="layers",
        layers="late",
    ),
    "qwen3": Configuration(
        family=QWEN3,
        model_class="Qwen3ForCausalLM",
        defaults={
            **_PLAIN,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
        query_key_value_bias=None,
        windows="layers",
        layers="late",
    ),
    "gemma2": Configuration(
        family=GEMMA2,
        model_class="Gemma2ForCausalLM",
        defaults={
            **_GEMMA,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        query_key_value_bias=None,
        windows="layers",
        period=2,
        scalar=True,
        soft_caps=("attn_logit_softcapping", "final_logit_softcapping"),
        parts=_GEMMA_PARTS,
    ),
    "gemma3_text": Configuration(
        family=GEMMA3,
        model_class="Gemma3ForCausalLM",
        defaults={**_GEMMA, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10000.0, "sliding_window": 4096},
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        query_key_value_bias=None,
        windows="layers",
        period=6,
        states_period=True,
        scalar=True,
        soft_caps=("final_logit_softcapping",),
        window_rope=True,
        parts=_GEMMA_PARTS,
    ),
    "phi3": Configuration(
        family=PHI3,
        model_class="Phi3ForCausalLM",
        defaults={**_PLAIN, "rms_norm_eps": 1e-5},
        windows="every",
        normalized_rope_types={"su": "longrope", "yarn": "longrope"},
        original_positions=4096,
        fused=FUSED_PARTS,
    ),
    "granite": Configuration(
        family=GRANITE,
        model_class="GraniteForCausalLM",
        defaults=_PLAIN,
        query_key_value_bias=None,
        feed_forward_bias=None,
        scales=True,
    ),
}
"""Every `model_type` that is read."""

INERT: Final = (
    # names, and what wrote the file
    "_name_or_path",
    "transformers_version",
    "architectures",
    "auto_map",
    "unsloth_fixed",
    "unsloth_version",
    # how it was trained, and how it was stored
    "initializer_range",
    "attention_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "torch_dtype",
    "dtype",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    # how a library runs it
    "use_cache",
    "cache_implementation",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "_attn_implementation",
    "attn_implementation",
    # text: read elsewhere
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
"""Fields that say nothing about what the blocks compute."""

HARMLESS: Final[dict[str, tuple[Any, ...]]] = {
    "chunk_size_feed_forward": (0,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "torchscript": (False,),
    "pretraining_tp": (1,),
    "use_bidirectional_attention": (False,),
    "use_sliding_window": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0, 1),
    "rope_interleaved": (False,),
}
"""Fields that change nothing while they have one of these values, and are refused otherwise."""
