"""Models that are refused on purpose, each with the line that the command line answers: for tests and the guide."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests import families
from tests.gguf_bytes import split_model
from tests.models import write_small_llama


class Refused(NamedTuple):
    """A model that is refused."""

    what: str
    """What is wrong with it, in words."""
    build: Callable[[Path], Path]
    """Writes it into an empty directory and returns its path."""
    line: str
    """What follows `inferswarm: ` on standard error; {path} stands for the model's path."""
    command: tuple[str, ...] = ("plan",)
    """The command that is asked, before `-m PATH`."""
    inspection: Literal["refused", "understood", "unreadable"] = "refused"
    """What `model inspect` says: who refused what (status 1), how it is understood (0), or the same line (1)."""


_Q4_0, _IQ4_NL = 2, 20


def quantized_with_a_table(path: Path) -> Path:
    """One tensor of a good file says IQ4_NL, whose blocks are as long as those of Q4_0."""
    file = write_small_llama(path / "model.gguf", encoding="Q4_0")
    data = file.read_bytes()
    name = b"blk.0.attn_q.weight" + struct.pack("<I", 2)
    at = data.index(name) + len(name) + 16
    assert struct.unpack_from("<I", data, at) == (_Q4_0,)
    file.write_bytes(data[:at] + struct.pack("<I", _IQ4_NL) + data[at + 4 :])
    return file


def with_metadata(**changes: Any) -> Callable[[Path], Path]:
    """A GGUF file whose metadata say something else; `__` in a name stands for a dot."""
    keys = {name.replace("__", "."): value for name, value in changes.items()}
    return lambda path: write_small_llama(path / "model.gguf", metadata=keys)


def good_file(path: Path) -> Path:
    """A GGUF file with nothing wrong."""
    return write_small_llama(path / "model.gguf")


def without_a_template(path: Path) -> Path:
    """A GGUF file of a model that only completes text."""
    return write_small_llama(path / "model.gguf", chat_template=None)


def truncated(path: Path) -> Path:
    """Half of a file."""
    file = write_small_llama(path / "model.gguf")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def without_a_part(path: Path) -> Path:
    """A split GGUF model whose second part is gone."""
    parts = split_model(write_small_llama(path / "whole.gguf"), path / "model", 3)
    (path / "whole.gguf").unlink()
    parts[1].unlink()
    return parts[0]


def directory(path: Path, **options: Any) -> Path:
    """A good directory."""
    return families.write_directory("llama", path / "model", **options)


def with_configuration(**changes: Any) -> Callable[[Path], Path]:
    """A directory whose configuration says something else."""

    def build(path: Path) -> Path:
        file = directory(path) / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        return file.parent

    return build


def with_tensor(name: str, change: Callable[[Any], Any]) -> Callable[[Path], Path]:
    """A directory in which one tensor is another one."""

    def build(path: Path) -> Path:
        from safetensors.torch import load_file, save_file

        file = directory(path) / "model.safetensors"
        tensors = load_file(file)
        save_file({**tensors, name: change(tensors[name])}, file)
        return file.parent

    return build


def to_float8(tensor: Any) -> Any:
    """The same numbers in 8 bits."""
    import torch

    return tensor.to(torch.float8_e4m3fn)


def without_a_row(tensor: Any) -> Any:
    """All rows but the last."""
    return tensor[:-1].clone()


def without_a_file(path: Path) -> Path:
    """A directory in several files of weights, one of which is gone."""
    model = directory(path, max_shard_size="200KB")
    sorted(model.glob("model-*.safetensors"))[1].unlink()
    return model


def pickled(path: Path) -> Path:
    """A directory whose weights are a pickle."""
    model = directory(path)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    return model


def adapter(path: Path) -> Path:
    """What fine-tuning leaves beside a model."""
    model = directory(path)
    (model / "adapter_config.json").write_text("{}")
    return model


def two_models(path: Path) -> Path:
    """A directory with two GGUF files."""
    for name in ("first", "second"):
        write_small_llama(path / f"{name}.gguf")
    return path


REFUSED = (
    Refused(
        "GGUF, one tensor in IQ4_NL",
        quantized_with_a_table,
        "UnsupportedModel: {path}: the encoding of blk.0.attn_q.weight is 'IQ4_NL'; supported: F32, F16, "
        "BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K; the transformers backend takes"
        " directories of Hugging Face only",
    ),
    Refused(
        "GGUF, an architecture with experts",
        with_metadata(general__architecture="qwen2moe"),
        "UnsupportedModel: {path}: general.architecture is 'qwen2moe'; supported: llama, qwen2, qwen3, "
        "gemma2, gemma3, phi3, granite; the transformers backend takes directories of Hugging Face only",
    ),
    Refused(
        "GGUF of `llama` that counts experts",
        with_metadata(llama__expert_count=8),
        "UnsupportedModel: {path}: llama.expert_count is 8; supported: 0; the transformers backend takes "
        "directories of Hugging Face only",
    ),
    Refused(
        "GGUF, a scaling of positions that is not known",
        with_metadata(llama__rope__scaling__type="spiral"),
        "UnsupportedModel: {path}: llama.rope.scaling.type is 'spiral'; supported: none, linear, yarn, "
        "longrope; none beside rope_freqs.weight; the transformers backend takes directories of Hugging "
        "Face only",
    ),
    Refused(
        "GGUF, a pre-tokenizer that is not known",
        with_metadata(tokenizer__ggml__pre="of-my-own"),
        "UnsupportedModel: {path}: tokenizer.ggml.pre is 'of-my-own'; supported: gpt-2, phi-2, jais, "
        "trillion, granite-docling, exaone4, gigachat, a.x-4.0, mellum, modern-bert, mpt, olmo, smollm, "
        "starcoder, refact, codeshell, exaone, minerva-7b, command-r, llama-bpe, llama3, llama-v3, "
        "falcon3, falcon-h1, pixtral, midm-2.0, lfm2, dbrx, smaug-bpe, chatglm-bpe, glm4, glm5, qwen2, "
        "qwen35, deepseek-r1-qwen, stablelm2, megrez, hunyuan, grok-2, kormo, gpt-4o, llama4, kanana2, "
        "minimax-m2, tekken, seed-coder, bailingmoe, bailingmoe2, llada-moe, deepseek-v3, hunyuan-dense, "
        "joyai-llm, deepseek-llm, deepseek-coder, falcon, default, bloom, gpt3-finnish, poro-chat, viking",
        command=("run", "--raw", "x"),
        inspection="understood",
    ),
    Refused(
        "GGUF, cut in the middle",
        truncated,
        "ModelError: {path}: tensor blk.1.ffn_gate.weight of shape (128, 64) in Q4_1 needs bytes 53,120 "
        "to 58,240; the file ends at 57,920 (at byte 7,264)",
        command=("plan", "--backend", "torch"),
        inspection="unreadable",
    ),
    Refused(
        "GGUF in three parts, the second missing",
        without_a_part,
        "ArtifactError: SOURCE_OBJECT_UNAVAILABLE: {path}: 1 of 3 parts are missing: model-00002-of-00003.gguf",
        inspection="unreadable",
    ),
    Refused(
        "GGUF, asked of the backend `transformers`",
        good_file,
        "UnsupportedModel: {path}: the model's format is 'a file'; supported: a directory as Hugging Face"
        " lays it out, for the transformers backend",
        command=("plan", "--backend", "transformers"),
        inspection="understood",
    ),
    Refused(
        "GGUF without a chat template, asked to chat",
        without_a_template,
        "AdmissionError: chat: found '{path}', needed a model with a chat template; this one completes "
        "raw text only (--raw at the CLI)",
        command=("run", "x"),
        inspection="understood",
    ),
    Refused(
        "a folder with two GGUF files",
        two_models,
        "SpecError: model: found '{path}', needed the path of one of its GGUF files: first.gguf, second.gguf",
        inspection="unreadable",
    ),
    Refused(
        "a directory, one matrix in F8_E4M3",
        with_tensor("model.layers.0.self_attn.q_proj.weight", to_float8),
        "UnsupportedModel: {path}: the encoding of model.layers.0.self_attn.q_proj.weight is 'F8_E4M3'; "
        "supported: F32, F16, BF16; nor is it a described decoder: {path}: the encoding of "
        "model.layers.0.self_attn.q_proj.weight is 'F8_E4M3'; supported: F32, F16, BF16",
    ),
    Refused(
        "a directory, a file of weights missing",
        without_a_file,
        "ArtifactError: SOURCE_OBJECT_UNAVAILABLE: {path}: 1 of 4 files of weights are missing: "
        "model-00002-of-00004.safetensors",
        inspection="unreadable",
    ),
    Refused(
        "a directory with pickled weights",
        pickled,
        "UnsupportedModel: {path}: the format of the weights is 'pytorch_model.bin, a pickle, which can "
        "run code when it is opened'; supported: model.safetensors, or model.safetensors.index.json and "
        "the files that it names; convert it: load it with transformers and call save_pretrained",
        inspection="unreadable",
    ),
    Refused(
        "a directory with an adapter",
        adapter,
        "UnsupportedModel: {path}: the kind of model is 'an adapter (adapter_config.json)'; supported: a "
        "whole model; merge it",
        inspection="unreadable",
    ),
    Refused(
        "a directory, a matrix of another shape",
        with_tensor("model.layers.1.mlp.up_proj.weight", without_a_row),
        "ModelError: {path}: model.layers.1.mlp.up_proj.weight has the shape (95, 64) in its files and "
        "(96, 64) in the model; nor is it a described decoder: {path}: the tensor "
        "model.layers.1.mlp.up_proj.weight has the shape (95, 64), needed (96, 64)",
    ),
    Refused(
        "a directory, a field that no description has",
        with_configuration(attention_sinks=4),
        "UnsupportedModel: {path}: attention_sinks is 4; supported: llama without this field; the "
        "transformers backend may compute such a model from its directory",
        command=("plan", "--backend", "torch"),
        inspection="understood",
    ),
    Refused(
        "a directory, a scaling of positions that is not known",
        with_configuration(rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0}),
        "UnsupportedModel: {path}: architecture is 'llama'; supported: one that builds ('spiral'); nor is"
        " it a described decoder: {path}: rope_parameters.rope_type is 'spiral'; supported: default, "
        "linear, dynamic, llama3, yarn, longrope",
    ),
    Refused(
        "a directory, quantized for another library",
        with_configuration(quantization_config={"quant_method": "gptq", "bits": 4}),
        "UnsupportedModel: {path}: quantization_config is {'quant_method': 'gptq', 'bits': 4}; supported:"
        " weights as numbers; nor is it a described decoder: {path}: quantization_config is 'an object'; "
        "supported: llama without this field; the transformers backend may compute such a model from its "
        "directory",
    ),
    Refused(
        "a directory that brings its own code",
        with_configuration(model_type="of-my-own", auto_map={"AutoModelForCausalLM": "modeling.Mine"}),
        "UnsupportedModel: {path}: auto_map is {'AutoModelForCausalLM': 'modeling.Mine'}; supported: "
        "models that need no code of their own; none is ever run; nor is it a described decoder: {path}: "
        "model_type is 'of-my-own'; supported: llama, mistral, qwen2, qwen3, gemma2, gemma3_text, phi3, "
        "granite; the transformers backend may compute such a model from its directory",
    ),
    Refused(
        "a directory of an encoder with a decoder",
        with_configuration(model_type="t5", is_encoder_decoder=True),
        "UnsupportedModel: {path}: is_encoder_decoder is True; supported: decoders alone; nor is it a "
        "described decoder: {path}: model_type is 't5'; supported: llama, mistral, qwen2, qwen3, gemma2, "
        "gemma3_text, phi3, granite; the transformers backend may compute such a model from its directory",
    ),
)
