"""Hugging Face configurations of published models, in the form in which they were published, and their tensors.

Only what says how the network computes is kept, and enough of the rest to be a real file. No weights exist: the
tensors are records of the right names and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferswarm.artifacts.types import ByteRange, TensorRecord

_INERT: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": None,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0",
    "use_cache": True,
    "attention_dropout": 0.0,
}

PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-2-7b": {
        **_INERT,
        "_name_or_path": "meta-llama/Llama-2-7b-hf",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "llama-3.1-8b": {
        **_INERT,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "mistral-7b-v0.1": {
        **_INERT,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen2.5-0.5b": {
        **_INERT,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "qwen3-0.6b": {
        **_INERT,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gemma-2-2b": {
        **_INERT,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 256000,
    },
    "gemma-3-1b": {
        **_INERT,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "phi-3-mini-4k": {
        **_INERT,
        "architectures": ["Phi3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "model_type": "phi3",
        "attention_bias": False,
        "embd_pdrop": 0.0,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "phi-4-mini": {
        **_INERT,
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.0 + pair for pair in range(48)],
            "short_factor": [1.0] * 48,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "granite-3.1-2b": {
        **_INERT,
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "logits_scaling": 8.0,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
}
"""By the model's name."""


def records(shapes: Mapping[str, tuple[int, ...]], encoding: str = "BF16") -> tuple[TensorRecord, ...]:
    """Return tensors of these shapes, one after the other."""
    found, at = [], 0
    for name, shape in shapes.items():
        end = at + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        found.append(TensorRecord(name=name, encoding=encoding, shape=shape, range=ByteRange(at, end)))
        at = end
    return tuple(found)


def shapes_of(configuration: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors that transformers saves for a model of this configuration."""
    kind, hidden, feed_forward = (configuration[key] for key in ("model_type", "hidden_size", "intermediate_size"))
    heads, vocabulary = configuration["num_attention_heads"], configuration["vocab_size"]
    head = configuration.get("head_dim") or hidden // heads
    query, key = heads * head, (configuration.get("num_key_value_heads") or heads) * head
    gemma = kind.startswith("gemma")
    block: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    if kind == "phi3":
        block |= {"self_attn.qkv_proj.weight": (query + 2 * key, hidden)}
        block |= {"mlp.gate_up_proj.weight": (2 * feed_forward, hidden)}
    else:
        block |= {
            f"self_attn.{name}_proj.weight": (size, hidden) for name, size in (("q", query), ("k", key), ("v", key))
        }
        block |= {f"mlp.{name}_proj.weight": (feed_forward, hidden) for name in ("gate", "up")}
    block |= {"self_attn.o_proj.weight": (hidden, query), "mlp.down_proj.weight": (hidden, feed_forward)}
    block["post_attention_layernorm.weight"] = (hidden,)
    if gemma:
        block |= {f"{name}_feedforward_layernorm.weight": (hidden,) for name in ("pre", "post")}
    if kind in ("qwen3", "gemma3_text"):
        block |= {f"self_attn.{name}_norm.weight": (head,) for name in ("q", "k")}
    if kind == "qwen2" or configuration.get("attention_bias"):
        sizes = {"q": query, "k": key, "v": key} | ({} if kind == "qwen2" else {"o": hidden})
        block |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    if configuration.get("mlp_bias"):
        block |= {f"mlp.{name}_proj.bias": (size,) for name, size in (("gate", feed_forward), ("up", feed_forward))}
        block["mlp.down_proj.bias"] = (hidden,)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for index in range(configuration["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not configuration.get("tie_word_embeddings", gemma):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes
