"""Small random models of every family, built by transformers, and written in both formats.

`write_directory` writes what `save_pretrained` writes, and a tokenizer; `write_gguf` converts the same weights by the
conventions of llama.cpp's converter (names, keys, rows of query and key in pairs, 1 added to Gemma's norms).
transformers is imported inside functions: importing it takes seconds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models import CHAT_TEMPLATE, SPECIAL_TOKENS, add_key, small_vocabulary, tokenizer_keys

VOCABULARY = 320
CONTEXT = 640
WINDOW = 32
ORIGINAL = 320
"""Positions before the scaling of the models that are scaled."""
TOKENS = 12
"""How many tokens a case of the equality matrix generates."""
LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 63, 64, 65, 130, 511, 512, 513, CONTEXT - TOKENS, CONTEXT - TOKENS + 1)
"""Of the matrix's prompts. The last ones end on the context's last position but one, and on the last."""


@dataclass(frozen=True)
class Case:
    """One model: transformers' configuration class and its arguments."""

    configuration: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    architecture: str | None = None
    """What a GGUF file of it calls itself; None: GGUF cannot state such a model."""
    seed: int = 0


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GEMMA: dict[str, Any] = {
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "sliding_window": WINDOW,
    "num_hidden_layers": 6,
    "rms_norm_eps": 1e-6,
}
_GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}


def _rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


FAMILIES: dict[str, Case] = {
    "llama": Case("LlamaConfig", {"rms_norm_eps": 1e-5}, "llama"),
    "llama-tied": Case("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 4}, "llama"),
    "llama-biases": Case("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}, "llama"),
    "llama-llama3": Case(
        "LlamaConfig",
        _rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL
        ),
        "llama",
    ),
    "llama-linear": Case("LlamaConfig", _rope("linear", factor=2.0), "llama"),
    "llama-yarn": Case(
        "LlamaConfig", _rope("yarn", factor=4.0, original_max_position_embeddings=CONTEXT // 4), "llama"
    ),
    "llama-yarn-weighted": Case(
        "LlamaConfig",
        _rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=CONTEXT // 4,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=1.2,
            mscale_all_dim=0.6,
            truncate=False,
        ),
    ),
    "llama-dynamic": Case("LlamaConfig", _rope("dynamic", factor=2.0)),
    "mistral": Case("MistralConfig", {"sliding_window": None}, "llama"),
    "mistral-window": Case("MistralConfig", {"sliding_window": WINDOW}),
    "qwen2": Case("Qwen2Config", {"tie_word_embeddings": True}, "qwen2"),
    "qwen2-window": Case(
        "Qwen2Config", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
    ),
    "qwen2-yarn": Case(
        "Qwen2Config", _rope("yarn", factor=4.0, original_max_position_embeddings=CONTEXT // 4), "qwen2"
    ),
    "qwen3": Case("Qwen3Config", {"head_dim": 24}, "qwen3"),
    "qwen3-tied": Case("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}, "qwen3"),
    "qwen3-biases": Case("Qwen3Config", {"head_dim": 16, "attention_bias": True}),
    "gemma2": Case(
        "Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0}, "gemma2"
    ),
    "gemma2-scalar": Case("Gemma2Config", {**_GEMMA, "query_pre_attn_scalar": 40, "attn_logit_softcapping": None}),
    "gemma3": Case("Gemma3TextConfig", _GEMMA, "gemma3"),
    "gemma3-scaled": Case(
        "Gemma3TextConfig",
        {
            **_GEMMA,
            "num_hidden_layers": 7,
            "final_logit_softcapping": 8.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        "gemma3",
    ),
    "phi3": Case("Phi3Config", {"original_max_position_embeddings": CONTEXT}, "phi3"),
    "phi3-window": Case(
        "Phi3Config", {"original_max_position_embeddings": CONTEXT, "sliding_window": WINDOW}, "phi3"
    ),
    "phi3-longrope": Case(
        "Phi3Config",
        {
            "original_max_position_embeddings": ORIGINAL,
            **_rope(
                "longrope",
                partial_rotary_factor=0.5,
                short_factor=[1.0, 1.1, 1.3, 1.6],
                long_factor=[1.0, 2.0, 4.0, 7.5],
            ),
        },
        "phi3",
    ),
    "granite": Case("GraniteConfig", _GRANITE, "granite"),
    "granite-biases": Case(
        "GraniteConfig",
        {**_GRANITE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        "granite",
    ),
}
"""Every model by its name."""

IN_BOTH_FORMATS = tuple(name for name, case in FAMILIES.items() if case.architecture is not None)

BY_REFERENCE = ("llama", "qwen2", "gemma3", "phi3", "granite")
"""Models that the reference backend computes too."""


def make_configuration(name: str) -> Any:
    """Return transformers' configuration of a model."""
    import transformers

    case = FAMILIES[name]
    arguments = json.loads(json.dumps({**_SIZES, **case.arguments}))  # transformers changes what it is given
    return getattr(transformers, case.configuration)(**arguments, attn_implementation="eager")


@functools.lru_cache(maxsize=4)
def build(name: str) -> Any:
    """Return transformers' model in fp32 with seeded weights: norms off 1, biases off 0. Do not change it."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_config(make_configuration(name), dtype=torch.float32)
    gemma = FAMILIES[name].configuration.startswith("Gemma")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            key = f"{name}/{FAMILIES[name].seed}/{parameter_name}"
            values = _weights(key, parameter_name, tuple(parameter.shape), gemma)
            parameter.copy_(torch.from_numpy(values))
    model.tie_weights()
    return model.eval()


def _weights(key: str, name: str, shape: tuple[int, ...], gemma: bool) -> np.ndarray:
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
    values = generator.standard_normal(shape)
    if name.endswith("bias"):
        values *= 0.3
    elif len(shape) == 1:
        values = 0.2 * values + (0.0 if gemma else 1.0)
    elif "embed_tokens" in name:
        values *= 0.1 if gemma else 0.5
    else:
        values *= 1.5 / math.sqrt(shape[1])
    return values.astype(np.float32)


def write_directory(name: str, path: Path, *, max_shard_size: str = "5GB", dtype: str = "float32") -> Path:
    """Write a model as Hugging Face lays it out, with a tokenizer, and return the directory.

    Weights are float32, float16 or bfloat16; more than `max_shard_size` of them are cut into several files.
    """
    import copy

    import torch

    model = build(name)
    if dtype != "float32":
        model = copy.deepcopy(model).to(getattr(torch, dtype))
    model.save_pretrained(path, max_shard_size=max_shard_size)
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    """Write the byte-level tokenizer of `tests.models` and its chat template into a model directory."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, _, merges = small_vocabulary(VOCABULARY)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2], "add_bos_token": False}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)


# -- GGUF --

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
}
_GEMMA_PARTS = {
    **_PARTS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(name: str, path: Path, encoding: str = "F32", metadata: Mapping[str, Any] | None = None) -> Path:
    """Write a model as llama.cpp's converter would, matrices in `encoding`, and return the file.

    `metadata` adds or replaces keys (None removes one).
    """
    case = FAMILIES[name]
    if case.architecture is None:
        raise ValueError(f"GGUF cannot state {name}")
    writer = gguf.GGUFWriter(path, case.architecture)
    keys = gguf_keys(name) | tokenizer_keys(VOCABULARY) | dict(metadata or {})
    for key, value in keys.items():
        add_key(writer, key, value)
    for tensor, values in gguf_tensors(name).items():
        chosen = encoding if values.ndim == 2 else "F32"
        kind = gguf.GGMLQuantizationType[chosen]
        writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(name: str) -> dict[str, np.ndarray]:
    """Return a model's tensors by GGUF's names, stored as GGUF stores them, row-major, in fp32."""
    model, case = build(name), FAMILIES[name]
    configuration, gemma = model.config, case.configuration.startswith("Gemma")
    heads = {"attn_q": configuration.num_attention_heads, "attn_k": configuration.num_key_value_heads}
    parts = _GEMMA_PARTS if gemma else _PARTS
    tensors = {}
    for full, parameter in model.state_dict().items():
        if full == "lm_head.weight" and configuration.tie_word_embeddings:
            continue
        values = parameter.numpy()
        stem, end = full.rsplit(".", 1)
        if stem in _NAMES:
            stored = _NAMES[stem]
        else:
            _, _, index, part = stem.split(".", 3)
            stored = f"blk.{index}.{parts[part]}"
            if case.architecture in ("llama", "granite") and parts[part] in heads:
                values = _in_pairs(values, heads[parts[part]])
        if gemma and full.endswith("norm.weight"):
            values = values + np.float32(1)
        tensors[f"{stored}.{end}"] = np.ascontiguousarray(values)
    rope = configuration.rope_parameters
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_factors(rope, configuration.head_dim)
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            tensors[f"rope_factors_{length}.weight"] = np.array(rope[f"{length}_factor"], np.float32)
    return tensors


def _in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of each head for turning neighbors: first and second half of a head take turns."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _llama3_factors(rope: Mapping[str, Any], size: int) -> np.ndarray:
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    factors = []
    for pair in range(size // 2):
        length = 2 * math.pi * rope["rope_theta"] ** (2 * pair / size)
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def gguf_keys(name: str) -> dict[str, Any]:
    """Return what a GGUF file says about the network of a model."""
    case = FAMILIES[name]
    configuration = make_configuration(name)
    arch = case.architecture
    head = getattr(configuration, "head_dim", None) or configuration.hidden_size // configuration.num_attention_heads
    keys: dict[str, Any] = {
        "general.name": name,
        "general.type": "model",
        f"{arch}.vocab_size": configuration.vocab_size,
        f"{arch}.context_length": configuration.max_position_embeddings,
        f"{arch}.embedding_length": configuration.hidden_size,
        f"{arch}.block_count": configuration.num_hidden_layers,
        f"{arch}.feed_forward_length": configuration.intermediate_size,
        f"{arch}.attention.head_count": configuration.num_attention_heads,
        f"{arch}.attention.head_count_kv": configuration.num_key_value_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": configuration.rms_norm_eps,
    }
    if head * configuration.num_attention_heads != configuration.hidden_size or arch in ("gemma2", "gemma3", "qwen3"):
        keys |= {f"{arch}.attention.key_length": head, f"{arch}.attention.value_length": head}
    return keys | _rope_keys(configuration, arch, head) | _family_keys(configuration, arch)


def _rope_keys(configuration: Any, arch: str | None, head: int) -> dict[str, Any]:
    rope = configuration.rope_parameters
    keys: dict[str, Any] = {}
    if arch == "gemma3":
        keys[f"{arch}.rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    keys[f"{arch}.rope.freq_base"] = rope["rope_theta"]
    if arch in ("llama", "granite"):
        keys[f"{arch}.rope.dimension_count"] = head
    if arch == "phi3":
        keys[f"{arch}.rope.dimension_count"] = int(head * rope["partial_rotary_factor"])
        keys[f"{arch}.rope.scaling.original_context_length"] = configuration.original_max_position_embeddings
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        keys |= {f"{arch}.rope.scaling.type": kind, f"{arch}.rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        keys[f"{arch}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if kind == "longrope":
        original = configuration.original_max_position_embeddings
        factor = configuration.max_position_embeddings / original
        keys[f"{arch}.rope.scaling.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
    return keys


def _family_keys(configuration: Any, arch: str | None) -> dict[str, Any]:
    if arch == "granite":
        return {
            f"{arch}.attention.scale": configuration.attention_multiplier,
            f"{arch}.embedding_scale": configuration.embedding_multiplier,
            f"{arch}.residual_scale": configuration.residual_multiplier,
            f"{arch}.logit_scale": configuration.logits_scaling,
        }
    if arch == "phi3":
        return {f"{arch}.attention.sliding_window": configuration.sliding_window or 0}
    if arch not in ("gemma2", "gemma3"):
        return {}
    keys = {
        f"{arch}.attention.sliding_window": configuration.sliding_window,
        f"{arch}.final_logit_softcapping": configuration.final_logit_softcapping,
    }
    if arch == "gemma2":
        keys[f"{arch}.attn_logit_softcapping"] = configuration.attn_logit_softcapping
    return keys
