"""Small random models of many families as Hugging Face saves them, and the unsliced host to compare with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from inferswarm.artifacts.types import ModelObject
from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.backends.partition import Step
from inferswarm.backends.registry import make_executor
from inferswarm.strategies.hosted.description import HostedDescription
from inferswarm.strategies.problem import make_problem
from inferswarm.strategies.requirement import derive_requirement

VOCABULARY = 97
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GATED = {**_COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _GATED,
    "qwen2": _GATED,
    "gemma3_text": {
        **_GATED,
        "head_dim": 8,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 160, **_ENDS},
    "gpt_neox": {**_COMMON, "intermediate_size": 48},
    "phi": {**_GATED, "partial_rotary_factor": 0.5},
    "olmo2": _GATED,
    "stablelm": _GATED,
    "mistral": {**_GATED, "sliding_window": 16},
    "mixtral": {**_GATED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        **_GATED,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "deepseek_v3": {
        **_GATED,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    },
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 3, "n_head": 4, "seq_length": 160, **_ENDS},
    "opt": {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 16},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 160, **_ENDS},
    "falcon": {**_COMMON, "alibi": False},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROMPT = tuple((index * 37 + 5) % VOCABULARY for index in range(37))


def save_family(family: str, path: Path, seed: int = 0, **changes: Any) -> Path:
    """Save a small random model of a family in the directory `path`."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    configuration = CONFIG_MAPPING[family](**{**FAMILIES[family], **changes})
    model = AutoModelForCausalLM.from_config(configuration, dtype=torch.float32)
    with torch.no_grad():  # the host starts with small weights and zero biases, which would hide what is left out
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(path)
    return path


def change_configuration(path: Path, **values: Any) -> None:
    """Set values of the saved configuration."""
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def hosted_assignment(
    description: HostedDescription,
    model_object: ModelObject | None,
    first: int = 0,
    end: int | None = None,
    *,
    representation: str = "fp32",
    threads: Sequence[tuple[int, int, int]] | None = None,
    sessions: int = 1,
    chunk_positions: int = 16,
) -> StageAssignment:
    """An assignment of the units [first, end); without files the states are random."""
    end = len(description.unit_ids) if end is None else end
    name = f"stage-{first}-{end}"
    requirement = None
    if model_object is not None:
        problem = make_problem(description)
        requirement = derive_requirement(description, model_object, problem, name, first, end)
    return StageAssignment(
        participant=name,
        plan_digest="",
        primitive="transformers",
        representation=representation,
        description=description,
        first_unit=first,
        end_unit=end,
        threads=tuple(
            UnitThreads(max(first, low), min(end, high), count)
            for low, high, count in threads or ((first, end, 1),)
            if low < end and first < high
        ),
        requirement=requirement,
        max_positions=description.context_positions,
        sessions=sessions,
        chunk_positions=chunk_positions,
    )


def hosted_chain(description: HostedDescription, model_object: ModelObject, *cuts: int, **options: Any) -> list[Any]:
    """Materialized executors of the chain cut before each of `cuts`."""
    edges = (0, *cuts, len(description.unit_ids))
    executors = []
    for first, end in itertools.pairwise(edges):
        executor = make_executor(hosted_assignment(description, model_object, first, end, **options))
        executor.materialize(lambda done, total: None)
        executors.append(executor)
    return executors


def load_host(path: Path, representation: str = "fp32") -> Any:
    """The host's own model with all its weights, in memory that torch aligned."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=DTYPES[representation], experts_implementation="eager"
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.eval()


@torch.inference_mode()
def run_host(model: Any, ids: Sequence[int], steps: Sequence[Step]) -> tuple[list[int], list[str]]:
    """The most likely token and the digest of the logits after each of `steps` over known tokens."""
    from transformers import DynamicCache

    cache, tokens, digests = DynamicCache(), [], []
    for step in steps:
        part = torch.tensor([list(ids[step.start : step.start + step.count])])
        row = model(input_ids=part, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1].contiguous()
        tokens.append(int(row.float().argmax()))
        digests.append(xxhash.xxh3_128_hexdigest(row.view(torch.uint8).numpy().data))
    return tokens, digests
