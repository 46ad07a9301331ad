"""From a header to a description: what is expressed, and what is refused by name."""

import dataclasses
import math
import struct

import numpy as np
import pytest
from msgspec.structs import replace

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.types import PAIRED_ROWS, PLAIN
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.readers import understand_gguf
from tests.models import small_llama_tensors, write_small_llama


def understand(header):
    return understand_gguf(header).description


def rope_of(description):
    (kind,) = description.block_kinds
    return kind.rope


def header_of(path):
    with LocalFileOrigin(path) as origin:
        return read_gguf(origin)


@pytest.fixture
def described(tmp_path):
    def describe_file(**arguments):
        return understand(header_of(write_small_llama(tmp_path / "m.gguf", num_blocks=2, **arguments)))

    return describe_file


def test_the_real_model_is_described_as_published(smollm2_path):
    description = understand(header_of(smollm2_path))
    assert (description.num_blocks, description.hidden_size, description.feed_forward_size) == (30, 576, 1536)
    assert (description.num_heads, description.num_key_value_heads, description.head_size) == (9, 3, 64)
    assert (description.vocabulary_size, description.context_positions) == (49_152, 8192)
    assert (description.block_kinds[0].rope.base, description.tied_head) == (1e5, True)
    assert math.isclose(description.norm_epsilon, 1e-5, rel_tol=1e-6)
    assert len(description.unit_ids) == 32


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_readable_encoding_is_accepted(described, encoding):
    assert described(encoding=encoding).num_blocks == 2


def test_an_untied_head_is_seen_by_its_table(described):
    assert described(tied=False).tied_head is False
    assert described(tied=True).tied_head is True


def test_optional_keys_have_the_defaults_of_the_format(described):
    description = described(
        metadata={
            "llama.rope.freq_base": None,
            "llama.rope.dimension_count": None,
            "llama.vocab_size": None,
            "llama.attention.head_count_kv": None,
        },
        kv_heads=4,
    )
    assert (description.block_kinds[0].rope.base, description.head_size, description.num_key_value_heads) == (
        10_000.0,
        16,
        4,
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {"general.url": "https://example.org", "quantize.imatrix.file": "x", "tokenizer.ggml.other": 1},
        {"llama.expert_count": 0, "llama.expert_used_count": 0},
        {"llama.rope.scaling.type": "none"},
        {"llama.attention.key_length": 16, "llama.attention.value_length": 16},
        {"general.type": "model", "split.count": 1, "split.no": 0},
    ],
)
def test_keys_that_change_nothing_are_accepted(described, metadata):
    assert described(metadata=metadata) == described()


@pytest.mark.parametrize("architecture", ["qwen2moe", "gemma3n", "llama4", "mistral3", "mamba", "Llama", "bert"])
def test_another_architecture_is_refused_before_anything_else(described, architecture):
    with pytest.raises(UnsupportedModel) as caught:
        described(metadata={"general.architecture": architecture, "llama.block_count": None, "other.key": 1})
    assert (caught.value.field, caught.value.found) == ("general.architecture", architecture)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "su"),
        ("llama.rope.scaling.yarn_beta_fast", 16.0),
        ("llama.rope.scaling.yarn_attn_factor", 1.2),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1),
        ("llama.rope.scaling.attn_factor", 1.2),
        ("llama.rope.freq_base_swa", 10000.0),
        ("llama.rope.scale_linear", 2.0),
        ("llama.expert_count", 8),
        ("llama.expert_used_count", 2),
        ("llama.attention.causal", False),
        ("llama.use_parallel_residual", True),
        ("llama.attention.sliding_window", 512),
        ("llama.attention.clamp_kqv", 8.0),
        ("llama.attention.max_alibi_bias", 8.0),
        ("llama.attention.scale", 0.1),
        ("llama.attention.sliding_window_pattern", 2),
        ("llama.embedding_scale", 2.0),
        ("llama.residual_scale", 0.5),
        ("llama.attn_logit_softcapping", 50.0),
        ("llama.ssm.state_size", 16),
        ("llama.logit_scale", 0.5),
        ("llama.final_logit_softcapping", 30.0),
        ("llama.something_new", 1),
        ("granite.logit_scale", 1.0),
        ("adapter.type", "lora"),
        ("general.type", "adapter"),
        ("general.quantization_version", 1),
        ("split.count", 3),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.value_length", 32),
        ("llama.attention.head_count", [4, 4]),
        ("llama.feed_forward_length", [128, 128]),
    ],
)
def test_a_feature_that_the_description_cannot_express_is_refused_by_its_key(described, key, value):
    with pytest.raises(UnsupportedModel) as caught:
        described(metadata={key: value})
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", None),
        ("llama.context_length", None),
        ("llama.embedding_length", None),
        ("llama.feed_forward_length", None),
        ("llama.attention.head_count", None),
        ("llama.attention.layer_norm_rms_epsilon", None),
        ("llama.block_count", 0),
        ("llama.block_count", 3),
        ("llama.block_count", 2**32 - 1),
        ("llama.block_count", "2"),
        ("llama.block_count", True),
        ("llama.context_length", 0),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 2**32 - 1),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.attention.layer_norm_rms_epsilon", math.nan),
        ("llama.rope.freq_base", math.inf),
        ("llama.rope.freq_base", -1.0),
        ("llama.rope.freq_base", 10_000),
        ("llama.vocab_size", 321),
    ],
)
def test_a_missing_or_impossible_value_is_an_error_that_names_its_key(described, key, value):
    with pytest.raises(ModelError, match=key.replace(".", r"\.")):
        described(metadata={key: value})


def test_an_architecture_that_is_not_there_is_named(tmp_path):
    path = write_small_llama(tmp_path / "m.gguf", num_blocks=1)
    data = path.read_bytes().replace(b"general.architecture", b"general.archi_ecture")
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"general\.architecture is missing"):
        understand(header_of(path))


def test_heads_that_rotary_positions_cannot_pair_are_refused(described):
    with pytest.raises(ModelError, match="odd size 15"):
        described(metadata={"llama.attention.key_length": 15, "llama.rope.dimension_count": 15})


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"]
)
def test_a_missing_tensor_is_named(described, name):
    with pytest.raises(ModelError, match=name.replace(".", r"\.") + " is missing"):
        described(omit_tensors=(name,), tied=False)


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.post_ffw_norm.weight",
        "blk.1.attn_q.bias",
        "blk.2.attn_q.weight",
        "cls.weight",
        "x",
    ],
)
def test_an_unexpected_tensor_is_refused_by_name(described, name):
    with pytest.raises(UnsupportedModel) as caught:
        described(extra_tensors={name: np.ones(64, np.float32)})
    assert (caught.value.field, caught.value.found) == ("tensor", name)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_q.weight", (64, 32)),
        ("blk.1.attn_k.weight", (64, 64)),
        ("blk.0.ffn_up.weight", (64, 128)),
        ("output_norm.weight", (32,)),
        ("token_embd.weight", (320, 32)),
    ],
)
def test_a_tensor_of_another_shape_is_named_with_both_shapes(described, name, shape):
    with pytest.raises(ModelError, match=name.replace(".", r"\.")) as caught:
        described(extra_tensors={name: np.ones(shape, np.float32)})
    assert str(shape) in caught.value.reason


@pytest.mark.parametrize("name", ["output_norm.weight", "token_embd.weight"])
def test_an_encoding_that_backends_cannot_read_is_refused(tmp_path, name):
    path = write_small_llama(tmp_path / "m.gguf", num_blocks=1, encoding="F32")
    data = bytearray(path.read_bytes())
    entry = data.index(name.encode()) + len(name)
    (num_dimensions,) = struct.unpack_from("<I", data, entry)
    struct.pack_into("<I", data, entry + 4 + 8 * num_dimensions, 26)  # I32: as many bytes as F32
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel) as caught:
        understand(header_of(path))
    assert (caught.value.field, caught.value.found) == (f"the encoding of {name}", "I32")


# -- rotary positions --


@pytest.mark.parametrize(
    ("metadata", "factors", "magnitude"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, (4.0,) * 8, 1.0),
        ({"llama.rope.scaling.factor": 2.5}, (2.5,) * 8, 1.0),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, (), 1.0),
        ({"llama.rope.scaling.type": "none"}, (), 1.0),
    ],
)
def test_a_linear_scaling_is_a_factor_for_every_pair(described, metadata, factors, magnitude):
    rope = rope_of(described(metadata=metadata))
    assert (rope.factors, rope.magnitude) == (factors, magnitude)


def test_yarn_leaves_fast_pairs_and_scales_slow_ones(described):
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 160,
    }
    rope = rope_of(described(metadata=yarn))
    assert (rope.factors[0], rope.factors[-1]) == (1.0, 4.0)
    assert list(rope.factors) == sorted(rope.factors)
    assert math.isclose(rope.magnitude, 0.1 * math.log(4.0) + 1.0)
    betas = {"llama.rope.scaling.yarn_beta_fast": 8.0, "llama.rope.scaling.yarn_beta_slow": 2.0}
    assert rope_of(described(metadata=yarn | betas)).factors != rope.factors


def test_factors_that_the_file_holds_as_a_tensor_are_read_and_counted(tmp_path):
    given = np.array([1, 1, 1.5, 2, 3.2995389, 8, 8, 8], np.float32)
    path = write_small_llama(tmp_path / "m.gguf", num_blocks=1, extra_tensors={"rope_freqs.weight": given})
    understood = understand_gguf(header_of(path))
    assert rope_of(understood.description).factors == (1.0, 1.0, 1.5, 2.0, 3.2995389, 8.0, 8.0, 8.0)
    assert understood.bytes_read == given.nbytes
    assert "rope_freqs.weight" not in {tensor.name for tensor in understood.tensors}


@pytest.mark.parametrize("values", [np.ones(7), np.zeros(8), np.full(8, math.nan), -np.ones(8)])
def test_factors_that_cannot_be_are_refused_by_their_tensor(described, values):
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        described(extra_tensors={"rope_freqs.weight": values.astype(np.float32)})


@pytest.mark.parametrize("kind", ["yarn", "longrope"])
def test_factors_beside_another_scaling_are_refused(described, kind):
    scaling = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 2.0}
    with pytest.raises(UnsupportedModel):
        described(metadata=scaling, extra_tensors={"rope_freqs.weight": np.ones(8, np.float32)})


def test_a_factor_beside_the_scaling_none_is_refused(described):
    with pytest.raises(UnsupportedModel) as caught:
        described(metadata={"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0})
    assert caught.value.field == "llama.rope.scaling.factor"


def test_how_a_model_was_tuned_is_noted(tmp_path):
    path = write_small_llama(tmp_path / "m.gguf", num_blocks=1, metadata={"llama.rope.scaling.finetuned": True})
    assert any("rope.scaling.finetuned" in note for note in understand_gguf(header_of(path)).notes)


# -- tensors --


def test_rows_of_query_and_key_are_stored_in_pairs_and_nothing_else_is(tmp_path):
    understood = understand_gguf(header_of(write_small_llama(tmp_path / "m.gguf", num_blocks=1)))
    paired = {tensor.name for tensor in understood.tensors if tensor.layout == PAIRED_ROWS}
    assert paired == {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}
    assert {tensor.layout for tensor in understood.tensors if tensor.name not in paired} == {PLAIN}


def test_a_fused_query_key_and_value_is_cut_by_rows(tmp_path):
    names = [f"blk.0.attn_{part}.weight" for part in "qkv"]
    separate = write_small_llama(tmp_path / "a.gguf", num_blocks=1, encoding="F32")
    tensors = small_llama_tensors(seed=0, num_blocks=1, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=320, tied=True)
    fused = write_small_llama(
        tmp_path / "b.gguf",
        num_blocks=1,
        encoding="F32",
        extra_tensors={"blk.0.attn_qkv.weight": np.concatenate([tensors[name] for name in names])},
        omit_tensors=tuple(names),
    )
    assert understand(header_of(fused)) == understand(header_of(separate))
    for path in (separate, fused):
        found = {tensor.name: tensor for tensor in understand_gguf(header_of(path)).tensors}
        data = path.read_bytes()
        for name in names:
            record = found[name]
            held = np.frombuffer(data[record.range.start : record.range.end], "<f4").reshape(record.shape)
            assert np.array_equal(held, tensors[name])
            assert record.layout == (PLAIN if "attn_v" in name else PAIRED_ROWS)


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        (("attn_q", "attn_k", "attn_v"), "query_key_value_bias"),
        (("attn_output",), "attention_output_bias"),
        (("ffn_gate", "ffn_up", "ffn_down"), "feed_forward_bias"),
    ],
)
def test_biases_are_seen_by_their_tensors_and_all_of_a_group_are_needed(described, groups, field):
    sizes = {
        "attn_q": 64,
        "attn_k": 32,
        "attn_v": 32,
        "attn_output": 64,
        "ffn_gate": 128,
        "ffn_up": 128,
        "ffn_down": 64,
    }
    biases = {f"blk.{index}.{name}.bias": np.ones(sizes[name], np.float32) for index in range(2) for name in groups}
    assert getattr(described(extra_tensors=biases), field) is True
    missing = f"blk.1.{groups[-1]}.bias"
    with pytest.raises(ModelError, match=missing.replace(".", r"\.") + " is missing"):
        described(extra_tensors={name: values for name, values in biases.items() if name != missing})


@pytest.mark.parametrize("encoding", ["IQ4_NL", "Q8_K", "TQ1_0"])
def test_a_matrix_in_an_encoding_that_is_not_read_is_refused_by_its_name(tmp_path, encoding):
    header = header_of(write_small_llama(tmp_path / "m.gguf", num_blocks=1))
    tensors = tuple(
        replace(tensor, encoding=encoding) if tensor.name == "blk.0.ffn_up.weight" else tensor
        for tensor in header.tensors
    )
    with pytest.raises(UnsupportedModel) as caught:
        understand_gguf(dataclasses.replace(header, tensors=tensors))
    assert (caught.value.field, caught.value.found) == ("the encoding of blk.0.ffn_up.weight", encoding)
