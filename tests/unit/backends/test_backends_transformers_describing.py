"""What is understood of a model that a host library computes, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferswarm.backends.transformers_backend import skeleton
from inferswarm.backends.transformers_backend.describing import SHARED, describe_hosted
from inferswarm.backends.transformers_backend.observing import observe
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.chain import state_tensors
from tests.hosted import FAMILIES, VOCABULARY, change_configuration, hosted_chain, save_family


@pytest.fixture(scope="module")
def gpt_neox(tmp_path_factory) -> Path:
    return save_family("gpt_neox", tmp_path_factory.mktemp("gpt_neox"))


def edit_weights(path: Path, **changes: torch.Tensor | None) -> None:
    """Replace (or, with None, remove) tensors of the saved weights."""
    file = path / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


def test_every_weight_of_the_files_is_in_exactly_one_state(gpt_neox):
    description, files = describe_hosted(gpt_neox)
    names = [name for tensors in state_tensors(description).values() for name in tensors]
    assert sorted(names) == sorted(tensor.name for tensor in files.tensors)
    shapes = {name: shape for tensors in state_tensors(description).values() for name, shape in tensors.items()}
    assert shapes == {tensor.name: tensor.shape for tensor in files.tensors}


def test_sizes_are_those_of_the_configuration(gpt_neox):
    description, _ = describe_hosted(gpt_neox)
    assert description.architecture == "GPTNeoXForCausalLM"
    assert (description.vocabulary_size, description.hidden_size) == (VOCABULARY, 32)
    assert (description.num_blocks, description.num_heads, description.context_positions) == (3, 4, 160)
    assert description.kept_values_per_position == (64, 64, 64)
    assert description.unit_states == (("embedding",), ("block.0",), ("block.1",), ("block.2",), ("head",))
    # at least the widest product and the residual must have been there
    assert description.activation_values_per_position >= 48 + 2 * 32


def test_weights_that_embedding_and_head_share_are_one_state_of_both(tmp_path):
    description, _ = describe_hosted(save_family("gemma3_text", tmp_path))
    assert SHARED in description.unit_states[0]
    assert SHARED in description.unit_states[-1]
    assert not any(SHARED in states for states in description.unit_states[1:-1])


def test_experts_that_one_pass_leaves_out_belong_to_their_block(tmp_path):
    description, _ = describe_hosted(save_family("mixtral", tmp_path))
    experts = [name for name in state_tensors(description)["block.1"] if "experts" in name]
    assert len(experts) == 4 * 3


def test_prefixes_that_the_files_leave_out_are_found(tmp_path):
    """Files saved from the model without its head name tensors without the host's prefix."""
    path = save_family("gpt2", tmp_path)
    file = path / "model.safetensors"
    save_file({name.removeprefix("transformer."): value for name, value in load_file(file).items()}, file)
    description, _ = describe_hosted(path)
    assert "h.0.attn.c_attn.weight" in state_tensors(description)["block.0"]


def refuse_encoder_decoder(path: Path) -> None:
    change_configuration(path, model_type="t5", is_encoder_decoder=True)


def refuse_foreign_code(path: Path) -> None:
    change_configuration(path, model_type="of-my-own", auto_map={"AutoModelForCausalLM": "modeling.Mine"})


def refuse_quantized(path: Path) -> None:
    change_configuration(path, quantization_config={"quant_method": "gptq", "bits": 4})


def refuse_encoder(path: Path) -> None:
    change_configuration(path, model_type="vit")


def refuse_other_head(path: Path) -> None:
    change_configuration(path, architectures=["GPTNeoXForSequenceClassification"])


def refuse_dynamic_rope(path: Path) -> None:
    change_configuration(path, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})


def refuse_longrope(path: Path) -> None:
    """A prompt longer than the original positions would keep keys of short and of long factors."""
    factors = {"short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "factor": 2.0, "rope_theta": 10000.0, "partial_rotary_factor": 0.25, **factors}
    change_configuration(path, rope_parameters=rope)


def refuse_more_blocks_than_tensors(path: Path) -> None:
    change_configuration(path, num_hidden_layers=10**9)


def refuse_missing_weight(path: Path) -> None:
    edit_weights(path, **{"gpt_neox.layers.1.mlp.dense_h_to_4h.bias": None})


def refuse_unknown_tensor(path: Path) -> None:
    edit_weights(path, **{"gpt_neox.layers.1.mlp.adapter.weight": torch.zeros(4, 4)})


def refuse_other_shape(path: Path) -> None:
    edit_weights(path, **{"gpt_neox.layers.0.mlp.dense_h_to_4h.bias": torch.zeros(47)})


def refuse_one_block_less(path: Path) -> None:
    change_configuration(path, num_hidden_layers=2)


REFUSED = {
    refuse_encoder_decoder: "is_encoder_decoder",
    refuse_foreign_code: "auto_map",
    refuse_quantized: "quantization_config",
    refuse_encoder: "model_type is 'vit'",
    refuse_other_head: "GPTNeoXForSequenceClassification",
    refuse_dynamic_rope: "rope_type is 'dynamic'",
    refuse_longrope: "rope_type is 'longrope'",
    refuse_more_blocks_than_tensors: "num_hidden_layers is 1,000,000,000; the files have",
    refuse_missing_weight: "layers.1.mlp.dense_h_to_4h.bias",
    refuse_unknown_tensor: "layers.1.mlp.adapter.weight",
    refuse_other_shape: "layers.0.mlp.dense_h_to_4h.bias has the shape",
    refuse_one_block_less: "layers.2",
}


@pytest.mark.parametrize(("change", "named"), REFUSED.items(), ids=[change.__name__ for change in REFUSED])
def test_what_cannot_be_computed_is_refused_by_name(tmp_path, change, named):
    path = save_family("gpt_neox", tmp_path)
    change(path)
    with pytest.raises(ModelError, match=named.replace(".", r"\.")):
        describe_hosted(path)


UNCUT: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}, "architecture"),
    "rwkv": (
        {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2},
        "architecture",
    ),
    "gemma3n_text": (
        {
            **FAMILIES["llama"],
            "num_hidden_layers": 4,
            "head_dim": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        "block 0 uses",
    ),
    "bert": ({"vocab_size": VOCABULARY, **FAMILIES["opt"], "intermediate_size": 48}, "is_causal"),
    "roformer": ({**FAMILIES["opt"], "intermediate_size": 48, "is_decoder": True}, "block 0 uses"),
    "big_bird": ({**FAMILIES["opt"], "intermediate_size": 48, "is_decoder": True}, "can be left out"),
}
"""Recurrent state; inputs of their own for each block; attention to later positions; a table of positions outside
the blocks that all of them use; blocks that are written to."""


@pytest.mark.parametrize("family", UNCUT)
def test_a_model_that_cannot_be_cut_between_its_blocks_is_refused(tmp_path, monkeypatch, family):
    configuration, message = UNCUT[family]
    monkeypatch.setitem(FAMILIES, family, configuration)
    with pytest.raises(UnsupportedModel, match=message):
        describe_hosted(save_family(family, tmp_path))


def test_a_weight_that_is_a_single_number_is_read_as_a_row(tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "apertus", FAMILIES["llama"])
    description, files = describe_hosted(save_family("apertus", tmp_path))
    assert state_tensors(description)["block.0"]["model.layers.0.mlp.act_fn.beta"] == (1,)
    first, last = hosted_chain(description, files, 2)
    assert (first.counters().source_bytes_read, last.counters().source_bytes_read) > (0, 0)


def observed(description_changes):
    """Observe a small model whose second block does something that a cut would break."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    configuration = CONFIG_MAPPING["gpt_neox"](**FAMILIES["gpt_neox"])
    model = skeleton.build_skeleton(configuration, torch.float32, "a test")
    description_changes(model)
    return observe(model, "a test")


def leak_of_the_embedding(model):
    kept = {}
    model.blocks[0].register_forward_pre_hook(lambda module, args: kept.update(first=args[0] * 1))
    model.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] + kept["first"], *args[1:]))


def leak_of_an_earlier_block(model):
    kept = {}
    model.blocks[0].mlp.register_forward_hook(lambda module, args, output: kept.update(mlp=output))
    model.blocks[2].mlp.register_forward_hook(lambda module, args, output: output + kept["mlp"])


def leak_to_the_head(model):
    kept = {}
    model.blocks[0].register_forward_pre_hook(lambda module, args: kept.update(first=args[0] * 1))
    model.module.lm_head.register_forward_pre_hook(lambda module, args: (args[0] + kept["first"][:, -1:],))


@pytest.mark.parametrize(
    ("leak", "where"),
    [(leak_of_the_embedding, "block 1"), (leak_of_an_earlier_block, "block 2"), (leak_to_the_head, "the head")],
)
def test_what_passes_beside_the_hidden_states_is_refused(leak, where):
    assert observed(lambda model: None).hidden_size == 32
    with pytest.raises(UnsupportedModel, match=f"{where} uses"):
        observed(leak)


def test_a_weight_that_nothing_uses_is_refused(gpt_neox, monkeypatch):
    from transformers import GPTNeoXForCausalLM

    build = GPTNeoXForCausalLM.__init__

    def with_one_more(self, config):
        build(self, config)
        self.spare = torch.nn.Parameter(torch.zeros(1))

    monkeypatch.setattr(GPTNeoXForCausalLM, "__init__", with_one_more)
    with pytest.raises(ModelError, match="spare"):
        describe_hosted(gpt_neox)


def test_the_configuration_travels_inside_the_description(gpt_neox):
    description, _ = describe_hosted(gpt_neox)
    saved = json.loads((gpt_neox / "config.json").read_text())
    assert json.loads(description.configuration) == saved
    again = skeleton.parse_configuration(description.configuration, "a test")
    assert again.hidden_size == 32
