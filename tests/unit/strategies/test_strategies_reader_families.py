"""GGUF files of every family: what their keys mean, and what of them is refused."""

import dataclasses
import math

import gguf
import numpy as np
import pytest

from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.types import PAIRED_ROWS, PLUS_ONE
from inferswarm.documents import digest
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.readers import understand_gguf
from inferswarm.strategies.dense.readers.fields import shortest_float32
from inferswarm.strategies.dense.readers.gguf_table import ARCHITECTURES
from tests.models import add_key

HIDDEN, FEED_FORWARD, HEADS, KEY_HEADS, HEAD, VOCABULARY, BLOCKS = 64, 96, 4, 2, 24, 300, 7
SIZES = {
    "context_length": 640,
    "embedding_length": HIDDEN,
    "block_count": BLOCKS,
    "feed_forward_length": FEED_FORWARD,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KEY_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
}
KEYS = {
    "gemma2": {
        "attention.sliding_window": 32,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {"attention.sliding_window": 32},
    "phi3": {
        "rope.dimension_count": 16,
        "attention.sliding_window": 32,
        "rope.scaling.original_context_length": 320,
        "rope.scaling.attn_factor": 1.19,
    },
    "granite": {"attention.scale": 0.125, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0},
}


def tensors_of(arch):
    query, key = HEADS * HEAD, KEY_HEADS * HEAD
    block = {"attn_norm.weight": (HIDDEN,), "attn_output.weight": (HIDDEN, query), "ffn_norm.weight": (HIDDEN,)}
    block["ffn_down.weight"] = (HIDDEN, FEED_FORWARD)
    if arch == "phi3":
        block |= {"attn_qkv.weight": (query + 2 * key, HIDDEN), "ffn_up.weight": (2 * FEED_FORWARD, HIDDEN)}
    else:
        block |= {f"attn_{name}.weight": (size, HIDDEN) for name, size in (("q", query), ("k", key), ("v", key))}
        block |= {f"ffn_{name}.weight": (FEED_FORWARD, HIDDEN) for name in ("gate", "up")}
    if arch == "qwen2":
        block |= {f"attn_{name}.bias": (size,) for name, size in (("q", query), ("k", key), ("v", key))}
    if arch in ("qwen3", "gemma3"):
        block |= {f"attn_{name}_norm.weight": (HEAD,) for name in "qk"}
    if arch in ("gemma2", "gemma3"):
        block |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.{index}.{name}": shape for index in range(BLOCKS) for name, shape in block.items()}
    found = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    if arch == "phi3":
        found |= {f"rope_factors_{name}.weight": np.arange(1, 9, dtype=np.float32) for name in ("long", "short")}
        found["rope_factors_long.weight"] *= 2
    return found


@pytest.fixture
def understand(tmp_path):
    def write_and_read(arch, keys=None, add=None, omit=()):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", arch)
        for key, value in (SIZES | KEYS.get(arch, {}) | (keys or {})).items():
            add_key(writer, f"{arch}.{key}", value)
        for name, values in (tensors_of(arch) | (add or {})).items():
            if name not in omit:
                writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return understand_gguf(open_gguf(tmp_path / "m.gguf"))

    return write_and_read


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_is_understood(understand, arch):
    description = understand(arch).description
    assert (description.architecture, description.num_blocks, description.head_size) == (arch, BLOCKS, HEAD)
    assert description.norm_epsilon == 1e-6
    assert description.norm_adds_one == description.post_norms == arch.startswith("gemma")
    assert description.query_key_norms == (arch in ("qwen3", "gemma3"))
    assert description.query_key_value_bias == (arch == "qwen2")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_layouts_are_those_in_which_the_format_stores_the_family(understand, arch):
    tensors = understand(arch).tensors
    paired = {tensor.name for tensor in tensors if tensor.layout == PAIRED_ROWS}
    added = {tensor.name for tensor in tensors if tensor.layout == PLUS_ONE}
    assert {name.split(".")[2] for name in paired} == (
        {"attn_q", "attn_k"} if arch in ("llama", "granite") else set()
    )
    norms = {tensor.name for tensor in tensors if tensor.name.endswith("norm.weight")}
    assert added == (norms if arch.startswith("gemma") else set())


def test_gemma2_alternates_and_caps(understand):
    description = understand("gemma2").description
    assert [description.kind_of(index).window for index in range(4)] == [32, None, 32, None]
    assert (description.attention_soft_cap, description.logit_soft_cap) == (50.0, 30.0)
    assert (description.embedding_scale, description.attention_scale) == (8.0, 1 / math.sqrt(HEAD))


def test_what_gemma2_leaves_out_has_the_loader_s_values(understand):
    absent = {"attention.sliding_window": None, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    description = understand("gemma2", absent).description
    assert [kind.window for kind in description.block_kinds] == [4096, None]
    assert (description.attention_soft_cap, description.logit_soft_cap) == (50.0, 30.0)


def test_gemma3_sees_everything_in_every_sixth_block_with_its_own_rope(understand):
    description = understand("gemma3").description
    assert description.block_pattern == (0, 0, 0, 0, 0, 1, 0)
    assert [(kind.window, kind.rope.base) for kind in description.block_kinds] == [(32, 1e4), (None, 1e6)]
    assert (description.attention_soft_cap, description.logit_soft_cap) == (None, None)


def test_a_scaling_of_gemma3_leaves_blocks_with_a_window_alone(understand):
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 5000.0}
    local, everything = understand("gemma3", scaling).description.block_kinds
    assert (local.rope.base, local.rope.factors) == (5000.0, ())
    assert everything.rope.factors == (8.0,) * (HEAD // 2)


@pytest.mark.parametrize(
    ("pattern", "windowed"),
    [(3, "1101101"), (1, "0000000"), ([True, False, False, True, False, False, True], "1001001")],
)
def test_a_stated_pattern_goes_before_the_family_s(understand, pattern, windowed):
    description = understand("gemma3", {"attention.sliding_window_pattern": pattern}).description
    found = "".join(str(int(description.kind_of(index).window is not None)) for index in range(BLOCKS))
    assert found == windowed


def test_gemma3_without_a_window_sees_everything(understand):
    description = understand("gemma3", {"attention.sliding_window": None}).description
    assert [kind.window for kind in description.block_kinds] == [None]


def test_phi3_turns_a_part_of_a_head_with_factors_by_length(understand):
    understood = understand("phi3")
    (kind,) = understood.description.block_kinds
    rope = kind.rope
    assert (rope.rotated_size, rope.original_positions, rope.magnitude, kind.window) == (16, 320, 1.19, 32)
    assert rope.factors_for(320) == tuple(float(pair) for pair in range(1, 9))
    assert rope.factors_for(321) == tuple(2.0 * pair for pair in range(1, 9))
    assert understood.bytes_read == 2 * 8 * 4


def test_phi3_with_a_window_of_zero_sees_everything(understand):
    assert understand("phi3", {"attention.sliding_window": 0}).description.block_kinds[0].window is None


def test_a_fused_tensor_of_phi3_is_gate_then_up(understand):
    tensors = {tensor.name: tensor for tensor in understand("phi3").tensors}
    gate, up = tensors["blk.2.ffn_gate.weight"], tensors["blk.2.ffn_up.weight"]
    assert gate.range.end == up.range.start
    assert (gate.stored_name, gate.shape, up.shape) == ("blk.2.ffn_up.weight", (96, 64), (96, 64))


def test_granite_has_four_scales_and_divides_its_logits(understand):
    description = understand("granite").description
    assert (description.attention_scale, description.embedding_scale) == (0.125, 12.0)
    assert (description.residual_scale, description.logit_scale) == (0.22, 0.125)


def test_granite_without_positions_is_described_so(understand):
    assert understand("granite", {"rope.scaling.finetuned": False}).description.block_kinds[0].rope is None


MUTATIONS = [
    ("gemma2", "attention.sliding_window", 31),
    ("gemma2", "attn_logit_softcapping", 0.0),
    ("gemma2", "final_logit_softcapping", 20.0),
    ("gemma2", "attention.sliding_window_pattern", 3),
    ("gemma3", "attention.sliding_window", 31),
    ("gemma3", "rope.freq_base_swa", 5000.0),
    ("gemma3", "rope.freq_base", 5000.0),
    ("gemma3", "final_logit_softcapping", 20.0),
    ("phi3", "rope.scaling.attn_factor", 1.0),
    ("phi3", "rope.scaling.original_context_length", 100),
    ("phi3", "attention.sliding_window", 31),
    ("granite", "attention.scale", 0.2),
    ("granite", "embedding_scale", 1.0),
    ("granite", "residual_scale", 1.0),
    ("granite", "logit_scale", 1.0),
    ("granite", "rope.scaling.finetuned", False),
    *(("qwen3", key, value) for key, value in (("context_length", 641), ("rope.freq_base", 1e5))),
    ("qwen3", "attention.layer_norm_rms_epsilon", 1e-5),
]


@pytest.mark.parametrize(("arch", "key", "value"), MUTATIONS)
def test_a_changed_key_changes_the_description(understand, arch, key, value):
    assert digest(understand(arch, {key: value}).description) != digest(understand(arch).description)


REFUSED = [
    ("qwen2", {"attention.sliding_window": 32}, "qwen2.attention.sliding_window"),
    ("qwen2", {"attention.head_count_kv": [2] * 7}, "qwen2.attention.head_count_kv"),
    ("qwen2", {"expert_count": 60}, "qwen2.expert_count"),
    ("qwen3", {"rope.dimension_count": 8}, "qwen3.rope.dimension_count"),
    ("qwen3", {"attention.value_length": 16}, "qwen3.attention.value_length"),
    ("qwen3", {"rope.dimension_sections": [1, 2, 3, 4]}, "qwen3.rope.dimension_sections"),
    ("gemma2", {"attention.scale": 0.1}, "gemma2.attention.scale"),
    ("gemma2", {"attention.causal": False}, "gemma2.attention.causal"),
    ("gemma3", {"attention.shared_kv_layers": 2}, "gemma3.attention.shared_kv_layers"),
    ("gemma3", {"attention.key_length_swa": 12}, "gemma3.attention.key_length_swa"),
    ("phi3", {"final_logit_softcapping": 30.0}, "phi3.final_logit_softcapping"),
    ("granite", {"expert_count": 8}, "granite.expert_count"),
    ("granite", {"deepstack_mapping": [1] * 7}, "granite.deepstack_mapping"),
]


@pytest.mark.parametrize(("arch", "keys", "field"), REFUSED)
def test_what_is_not_supported_is_refused_by_its_key(understand, arch, keys, field):
    with pytest.raises(UnsupportedModel) as caught:
        understand(arch, keys)
    assert caught.value.field == field


IMPOSSIBLE = [
    ("qwen2", {}, {}, ("blk.3.attn_k.bias",), r"blk\.3\.attn_k\.bias is missing"),
    ("gemma2", {}, {}, ("blk.0.post_ffw_norm.weight",), r"blk\.0\.post_ffw_norm\.weight is missing"),
    ("gemma3", {"attention.sliding_window_pattern": [True, False]}, {}, (), "one truth value for each block"),
    ("gemma3", {"attention.sliding_window_pattern": 0}, {}, (), "sliding_window_pattern"),
    ("phi3", {"rope.scaling.attn_factor": None}, {}, (), r"attn_factor is missing"),
    ("phi3", {}, {}, ("rope_factors_short.weight",), r"rope_factors_short\.weight is missing"),
    ("phi3", {}, {"rope_factors_short.weight": np.ones(4, np.float32)}, (), r"\(4,\), needed \(8,\)"),
    ("phi3", {}, {"blk.1.attn_qkv.weight": np.ones((96, 64), np.float32)}, (), r"blk\.1\.attn_qkv\.weight has"),
]


@pytest.mark.parametrize(("arch", "keys", "add", "omit", "words"), IMPOSSIBLE)
def test_what_is_missing_or_impossible_is_named(understand, arch, keys, add, omit, words):
    with pytest.raises(ModelError, match=words):
        understand(arch, keys, add, omit)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [(1e-6, 1e-6), (0.22, 0.22), (1e6, 1e6), (0.1, 0.1), (3.2995389, 3.2995389), (0.0, 0.0), (1 / 3, 0.33333334)],
)
def test_a_number_stored_in_32_bits_is_read_as_the_shortest_one_that_is_stored_so(stored, shown):
    assert shortest_float32(float(np.float32(stored))) == shown


def test_a_number_of_64_bits_is_read_as_it_is():
    assert shortest_float32(1 / 3) == 1 / 3
    assert shortest_float32(1e300) == 1e300


NASTY = (True, -1, 0, 1, 2**31 - 1, 1e38, 1e-45, math.nan, math.inf, "x", [1], [1.0, 2.0], ["x"])
ROPE = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_beta_fast": 30.0}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_damaged_key_gives_a_typed_error_or_a_description(understand, tmp_path, arch):
    scaling = {} if arch == "phi3" else ROPE
    understand(arch, scaling)
    header = open_gguf(tmp_path / "m.gguf")
    refused = 0
    for key in header.metadata:
        for value in NASTY:
            damaged = dict(header.metadata) | {key: tuple(value) if isinstance(value, list) else value}
            try:
                understand_gguf(dataclasses.replace(header, metadata=damaged))
            except ModelError:
                refused += 1
    assert refused > 100
