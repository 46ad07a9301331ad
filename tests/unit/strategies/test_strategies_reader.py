"""From a header to a description: what is expressed, and what is refused by name."""

import math
import struct

import numpy as np
import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.reader import describe
from tests.models import write_small_llama


def header_of(path):
    with LocalFileOrigin(path) as origin:
        return read_gguf(origin)


@pytest.fixture
def described(tmp_path):
    def describe_file(**arguments):
        return describe(header_of(write_small_llama(tmp_path / "m.gguf", num_blocks=2, **arguments)))

    return describe_file


def test_the_real_model_is_described_as_published(smollm2_path):
    description = describe(header_of(smollm2_path))
    assert (description.num_blocks, description.hidden_size, description.feed_forward_size) == (30, 576, 1536)
    assert (description.num_heads, description.num_key_value_heads, description.head_size) == (9, 3, 64)
    assert (description.vocabulary_size, description.context_positions) == (49_152, 8192)
    assert (description.rope_base, description.tied_head, description.interleaved_rope_rows) == (1e5, True, True)
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
    assert (description.rope_base, description.head_size, description.num_key_value_heads) == (10_000.0, 16, 4)


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


@pytest.mark.parametrize("architecture", ["qwen2", "gemma3", "llama4", "Llama", "bert"])
def test_another_architecture_is_refused_before_anything_else(described, architecture):
    with pytest.raises(UnsupportedModel) as caught:
        described(metadata={"general.architecture": architecture, "llama.block_count": None, "other.key": 1})
    assert (caught.value.field, caught.value.found) == ("general.architecture", architecture)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "linear"),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.scaling.factor", 2.0),
        ("llama.rope.scale_linear", 2.0),
        ("llama.expert_count", 8),
        ("llama.expert_used_count", 2),
        ("llama.attention.causal", False),
        ("llama.use_parallel_residual", True),
        ("llama.attention.sliding_window", 512),
        ("llama.attention.clamp_kqv", 8.0),
        ("llama.attention.max_alibi_bias", 8.0),
        ("llama.attention.scale", 0.1),
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
        describe(header_of(path))


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
    ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "cls.weight", "x"],
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
        describe(header_of(path))
    assert (caught.value.field, caught.value.found) == (f"the encoding of {name}", "I32")
