"""A described Llama written again as a Hugging Face model directory: the same numbers in another format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.backends.states import assigned_states, open_tensors
from inferswarm.backends.torch_backend.rope import halves_row
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.model import ChainModel

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Canonical part of a block → Hugging Face's."""
_CONTROL = 3


def write_llama_directory(model: DenseModel, path: Path, *, dtype: torch.dtype, num_files: int = 1) -> Path:
    """Write `model`, a Llama with a byte-level tokenizer, into the directory `path` and return it.

    Weights are rounded once, from the numbers that the file encodes to `dtype`; they lie in `num_files` files.
    """
    path.mkdir(parents=True)
    tensors = {
        _hugging_face_name(name): tensor.to(dtype).contiguous() for name, tensor in read_tensors(model).items()
    }
    _write_weights(tensors, path, num_files)
    (path / "config.json").write_text(json.dumps(_configuration(model, dtype), indent=1))
    eos = sorted(model.text.codec.eos_ids)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    _write_tokenizer(model, path)
    return path


def whole_assignment(model: ChainModel, representation: str, *, max_positions: int) -> StageAssignment:
    """Return the assignment of a model's whole chain to one participant with one thread and one session."""
    problem = model.problem()
    last = len(model.description.unit_ids)
    return StageAssignment(
        participant="whole",
        plan_digest="",
        primitive=problem.implementations[0].primitive,
        representation=representation,
        description=model.description,
        first_unit=0,
        end_unit=last,
        threads=(UnitThreads(0, last, 1),),
        requirement=model.requirement(problem, "whole", 0, last),
        max_positions=max_positions,
        sessions=1,
        chunk_positions=64,
    )


def read_tensors(model: DenseModel) -> dict[str, torch.Tensor]:
    """Return every tensor of a model as fp32 by its canonical name, rows in the order in which halves turn."""
    assignment = whole_assignment(model, "fp32", max_positions=64)
    shapes = assigned_states(model.description, assignment.first_unit, assignment.end_unit)
    source = open_tensors(assignment, shapes, lambda done, total: None)
    found = {}
    for name, shape in ((name, shape) for state in shapes.values() for name, shape in state.items()):
        rows = math.prod(shape[:-1])
        values = source.rows(name, 0, rows)
        if source.is_paired(name):
            ordered = np.empty_like(values)
            ordered[halves_row(np.arange(rows), model.description.head_size)] = values
            values = ordered
        found[name] = torch.from_numpy(np.array(values)).reshape(shape)
    source.finish()
    return found


def _hugging_face_name(name: str) -> str:
    fixed = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in fixed:
        return fixed[name]
    _, index, part, kind = name.split(".")
    return f"model.layers.{index}.{BLOCK_NAMES[part]}.{kind}"


def _configuration(model: DenseModel, dtype: torch.dtype) -> dict[str, Any]:
    description = model.description
    assert isinstance(description, DecoderDescription)
    rope = description.block_kinds[0].rope
    assert rope is not None
    assert not rope.factors
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": description.vocabulary_size,
        "hidden_size": description.hidden_size,
        "intermediate_size": description.feed_forward_size,
        "num_hidden_layers": description.num_blocks,
        "num_attention_heads": description.num_heads,
        "num_key_value_heads": description.num_key_value_heads,
        "head_dim": description.head_size,
        "max_position_embeddings": description.context_positions,
        "rms_norm_eps": description.norm_epsilon,
        "rope_theta": rope.base,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": description.tied_head,
        "bos_token_id": model.text.codec.bos_id,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _write_weights(tensors: dict[str, torch.Tensor], path: Path, num_files: int) -> None:
    if num_files == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    names = sorted(tensors)
    for number in range(num_files):
        file = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        part = {name: tensors[name] for name in names[number::num_files]}
        save_file(part, path / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_tokenizer(model: DenseModel, path: Path) -> None:
    """Write tokenizer.json and what surrounds it, for the pre-tokenizer that isolates digits."""
    metadata = model.metadata
    tokens, kinds, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    assert isinstance(tokens, tuple)
    assert isinstance(kinds, tuple)
    assert isinstance(merges, tuple)
    pairs = [tuple(str(merge).split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={str(token): index for index, token in enumerate(tokens)}, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [str(token) for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(path / "tokenizer.json"))
    named = {
        role: str(tokens[int(metadata[f"tokenizer.ggml.{role}_token_id"])])  # type: ignore[arg-type]
        for role in ("bos", "eos")
    }
    settings = {"bos_token": named["bos"], "eos_token": named["eos"], "add_bos_token": False}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (path / "chat_template.jinja").write_text(template)
