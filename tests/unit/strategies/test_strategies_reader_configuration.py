"""From a Hugging Face configuration to a description: published ones, and what each field does or is refused for."""

import copy
import math

import pytest

from inferswarm.artifacts.requirement import check_requirement
from inferswarm.artifacts.types import PLAIN, ModelFile, ModelObject
from inferswarm.documents import digest
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.readers import understand_directory
from inferswarm.strategies.dense.readers.configuration_table import CONFIGURATIONS
from inferswarm.strategies.dense.tensors import state_tensors
from inferswarm.strategies.problem import make_problem
from inferswarm.strategies.requirement import declare, derive_requirement
from tests.configurations import PUBLISHED, records, shapes_of


def understand(configuration, shapes=None, encoding="BF16"):
    return understand_directory(configuration, records(shapes or shapes_of(configuration), encoding), "model")


def changed(name, **changes):
    """The configuration with changes; a change to `None` stays there as null, one to `...` removes the field."""
    configuration = copy.deepcopy(PUBLISHED[name]) | changes
    return {key: value for key, value in configuration.items() if value is not ...}


def test_every_kind_of_configuration_has_a_published_example():
    assert {configuration["model_type"] for configuration in PUBLISHED.values()} == set(CONFIGURATIONS)


FACTS = {
    "llama-2-7b": {"architecture": "llama", "num_blocks": 32, "head_size": 128, "tied_head": False},
    "llama-3.1-8b": {"num_key_value_heads": 8, "context_positions": 131072, "norm_epsilon": 1e-5},
    "mistral-7b-v0.1": {"architecture": "llama", "num_key_value_heads": 8},
    "qwen2.5-0.5b": {"query_key_value_bias": True, "attention_output_bias": False, "tied_head": True},
    "qwen3-0.6b": {"query_key_norms": True, "query_key_value_bias": False, "head_size": 128},
    "gemma-2-2b": {
        "norm_adds_one": True,
        "post_norms": True,
        "query_key_norms": False,
        "activation": "gelu-tanh",
        "attention_soft_cap": 50.0,
        "logit_soft_cap": 30.0,
        "embedding_scale": 48.0,
        "attention_scale": 1 / 16,
        "block_pattern": (0, 1) * 13,
        "tied_head": True,
    },
    "gemma-3-1b": {
        "query_key_norms": True,
        "attention_soft_cap": None,
        "embedding_scale": math.sqrt(1152),
        "block_pattern": ((0, 0, 0, 0, 0, 1) * 5)[:26],
    },
    "phi-3-mini-4k": {"architecture": "phi3", "head_size": 96, "tied_head": False},
    "phi-4-mini": {"head_size": 128, "tied_head": True},
    "granite-3.1-2b": {
        "attention_scale": 0.015625,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "logit_scale": 0.125,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_understood(name):
    understood = understand(PUBLISHED[name])
    description = understood.description
    assert {field: getattr(description, field) for field in FACTS[name]} == FACTS[name]
    assert {tensor.layout for tensor in understood.tensors} == {PLAIN}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_state_is_found_once_with_its_shape(name):
    understood = understand(PUBLISHED[name])
    expected = {
        key: shape for state in state_tensors(understood.description).values() for key, shape in state.items()
    }
    assert {tensor.name: tensor.shape for tensor in understood.tensors} == expected
    assert len(understood.tensors) == len(expected)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama-2-7b", [(10000.0, 128, None)]),
        ("mistral-7b-v0.1", [(10000.0, 128, 4096)]),
        ("qwen2.5-0.5b", [(1e6, 64, None)]),
        ("gemma-2-2b", [(1e4, 256, 4096), (1e4, 256, None)]),
        ("gemma-3-1b", [(1e4, 256, 512), (1e6, 256, None)]),
        ("phi-3-mini-4k", [(1e4, 96, 2047)]),
        ("phi-4-mini", [(1e4, 96, 262144)]),
        ("granite-3.1-2b", [(5e6, 64, None)]),
    ],
)
def test_kinds_of_blocks_have_their_own_rope_and_window(name, kinds):
    description = understand(PUBLISHED[name]).description
    assert [(kind.rope.base, kind.rope.rotated_size, kind.window) for kind in description.block_kinds] == kinds


def test_a_fused_tensor_is_cut_by_rows_without_a_gap():
    understood = understand(PUBLISHED["phi-4-mini"])
    places = {tensor.name: tensor for tensor in understood.tensors}
    whole = {record.name: record for record in records(shapes_of(PUBLISHED["phi-4-mini"]))}
    for stored, parts in (
        ("self_attn.qkv_proj.weight", ("attn_q", "attn_k", "attn_v")),
        ("mlp.gate_up_proj.weight", ("ffn_gate", "ffn_up")),
    ):
        at = whole[f"model.layers.3.{stored}"].range.start
        for part in parts:
            record = places[f"blk.3.{part}.weight"]
            assert (record.stored_name, record.range.start) == (f"model.layers.3.{stored}", at)
            assert record.range.length == 2 * record.shape[0] * record.shape[1]
            at = record.range.end
        assert at == whole[f"model.layers.3.{stored}"].range.end


def test_participants_of_a_model_with_fused_tensors_need_exactly_their_bytes():
    understood = understand(PUBLISHED["phi-3-mini-4k"])
    length = max(tensor.range.end for tensor in understood.tensors)
    found = ModelObject(files=(ModelFile(uri="model", length=length),), tensors=understood.tensors)
    problem = make_problem(understood.description)
    needed = 0
    for first, end in ((0, 9), (9, 34)):
        requirement = derive_requirement(understood.description, found, problem, f"{first}", first, end)
        check_requirement(requirement, found, declare(understood.description, first, end))
        needed += requirement.bytes
    assert needed == length


# -- the present form says the same --


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("llama-2-7b", {"rope_scaling": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        (
            "llama-3.1-8b",
            {
                "rope_theta": ...,
                "rope_scaling": ...,
                "rope_parameters": {**PUBLISHED["llama-3.1-8b"]["rope_scaling"], "rope_theta": 500000.0},
            },
        ),
        ("qwen3-0.6b", {"layer_types": ["full_attention"] * 28, "dtype": "bfloat16", "torch_dtype": ...}),
        ("gemma-2-2b", {"layer_types": ["sliding_attention", "full_attention"] * 13}),
        (
            "gemma-3-1b",
            {
                "rope_theta": ...,
                "rope_local_base_freq": ...,
                "rope_scaling": ...,
                "sliding_window_pattern": ...,
                "_sliding_window_pattern": 6,
                "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
        ),
        (
            "phi-4-mini",
            {
                "rope_theta": ...,
                "partial_rotary_factor": ...,
                "rope_scaling": ...,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.75,
                    "original_max_position_embeddings": 4096,
                    "long_factor": PUBLISHED["phi-4-mini"]["rope_scaling"]["long_factor"],
                    "short_factor": [1.0] * 48,
                },
            },
        ),
    ],
)
def test_the_present_form_of_a_configuration_is_read_as_the_published_one(name, now):
    assert understand(changed(name, **now)).description == understand(PUBLISHED[name]).description


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("llama-2-7b", ("num_key_value_heads", "rope_scaling", "tie_word_embeddings")),
        ("llama-2-7b", ("architectures", "hidden_act", "pretraining_tp")),
        ("qwen3-0.6b", ("head_dim", "attention_bias", "sliding_window", "max_window_layers", "use_sliding_window")),
        ("gemma-2-2b", ("rope_theta", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")),
        ("gemma-3-1b", ("rope_theta", "rope_local_base_freq", "sliding_window_pattern", "head_dim")),
        ("phi-3-mini-4k", ("original_max_position_embeddings", "rope_theta", "rms_norm_eps")),
    ],
)
def test_fields_that_a_file_leaves_out_have_the_values_of_transformers(name, absent):
    given = changed(name, **dict.fromkeys(absent, ...))
    assert understand(given, shapes_of(PUBLISHED[name])).description == understand(PUBLISHED[name]).description


def test_a_truncate_of_yarn_that_is_null_is_false_as_in_transformers():
    def rope(**fields):
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, **fields}
        return understand(changed("llama-2-7b", rope_scaling=scaling)).description.block_kinds[0].rope

    assert rope(truncate=None) == rope(truncate=False)
    assert rope() == rope(truncate=True) != rope(truncate=False)


# -- every field does something, or is refused --


def outcome(configuration):
    """The description's digest, or the field for which the model is refused."""
    try:
        return digest(understand(configuration).description)
    except UnsupportedModel as error:
        return error.field


MUTATIONS = [
    ("llama-2-7b", "hidden_act", "gelu"),
    ("llama-2-7b", "hidden_size", 2048),
    ("llama-2-7b", "intermediate_size", 11000),
    ("llama-2-7b", "max_position_embeddings", 2048),
    ("llama-2-7b", "num_attention_heads", 64),
    ("llama-2-7b", "num_hidden_layers", 31),
    ("llama-2-7b", "num_key_value_heads", 8),
    ("llama-2-7b", "rms_norm_eps", 1e-6),
    ("llama-2-7b", "rope_scaling", {"type": "linear", "factor": 2.0}),
    ("llama-2-7b", "rope_theta", 1e6),
    ("llama-2-7b", "tie_word_embeddings", True),
    ("llama-2-7b", "vocab_size", 32001),
    ("llama-2-7b", "head_dim", 64),
    ("llama-2-7b", "attention_bias", True),
    ("llama-2-7b", "mlp_bias", True),
    ("llama-2-7b", "pretraining_tp", 2),
    ("llama-2-7b", "model_type", "mistral"),
    ("mistral-7b-v0.1", "sliding_window", None),
    ("mistral-7b-v0.1", "sliding_window", 1024),
    ("qwen2.5-0.5b", "use_sliding_window", True),
    ("qwen3-0.6b", "attention_bias", True),
    ("qwen3-0.6b", "head_dim", 64),
    ("gemma-2-2b", "attn_logit_softcapping", None),
    ("gemma-2-2b", "final_logit_softcapping", 20.0),
    ("gemma-2-2b", "query_pre_attn_scalar", 144),
    ("gemma-2-2b", "sliding_window", 2048),
    ("gemma-2-2b", "hidden_activation", "gelu"),
    ("gemma-2-2b", "hidden_act", "silu"),
    ("gemma-2-2b", "use_bidirectional_attention", True),
    ("gemma-2-2b", "layer_types", ["full_attention"] * 26),
    ("gemma-3-1b", "attn_logit_softcapping", 50.0),
    ("gemma-3-1b", "final_logit_softcapping", 30.0),
    ("gemma-3-1b", "rope_local_base_freq", 20000),
    ("gemma-3-1b", "rope_theta", 2000000),
    ("gemma-3-1b", "rope_scaling", {"rope_type": "linear", "factor": 8.0}),
    ("gemma-3-1b", "sliding_window_pattern", 5),
    ("phi-3-mini-4k", "partial_rotary_factor", 0.5),
    ("phi-3-mini-4k", "sliding_window", None),
    ("phi-4-mini", "original_max_position_embeddings", 8192),
    ("phi-4-mini", "max_position_embeddings", 65536),
    ("granite-3.1-2b", "attention_multiplier", 0.02),
    ("granite-3.1-2b", "embedding_multiplier", 1.0),
    ("granite-3.1-2b", "residual_multiplier", 1.0),
    ("granite-3.1-2b", "logits_scaling", 4.0),
]


@pytest.mark.parametrize(("name", "field", "value"), MUTATIONS)
def test_a_changed_field_changes_the_description_or_is_refused(name, field, value):
    before = understand(PUBLISHED[name]).description
    assert PUBLISHED[name].get(field) != value
    found = outcome(changed(name, **{field: value}))
    assert found in (field, "architectures") or (found.startswith("sha256:") and found != digest(before))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_field_of_a_configuration_is_known(name):
    """A field under another name is refused or missed: no field is read by accident, none is passed over."""
    for field, value in PUBLISHED[name].items():
        if value is None:
            continue
        configuration = changed(name, **{field: ..., f"{field}_renamed": value})
        with pytest.raises(ModelError):
            understand(configuration, shapes_of(PUBLISHED[name]))


# -- refusals --

_LLAMA3 = PUBLISHED["llama-3.1-8b"]["rope_scaling"]
_UNTRUNCATED = {"full_attention": {"rope_type": "yarn", "factor": 8.0, "truncate": False}}

REFUSED = [
    ("llama-2-7b", {"model_type": "mixtral"}, "model_type"),
    ("llama-2-7b", {"model_type": "gemma3", "text_config": {}}, "model_type"),
    ("llama-2-7b", {"model_type": "mamba"}, "model_type"),
    ("llama-2-7b", {"model_type": "stablelm"}, "model_type"),
    ("llama-2-7b", {"model_type": "olmo2"}, "model_type"),
    ("llama-2-7b", {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
    ("llama-2-7b", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("llama-2-7b", {"num_local_experts": 8}, "num_local_experts"),
    ("llama-2-7b", {"num_key_value_heads": [32, 8]}, "num_key_value_heads"),
    ("llama-2-7b", {"sliding_window": 512}, "sliding_window"),
    ("llama-2-7b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama-2-7b", {"logits_scaling": 8.0}, "logits_scaling"),
    ("llama-2-7b", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("llama-2-7b", {"clip_qkv": 8.0}, "clip_qkv"),
    ("llama-2-7b", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    ("llama-2-7b", {"layer_types": ["full_attention"] * 32}, "layer_types"),
    ("llama-2-7b", {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "rope_scaling.rope_type"),
    ("llama-2-7b", {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, "rope_scaling.type"),
    ("llama-2-7b", {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}}, "rope_scaling.beta_fast"),
    ("llama-3.1-8b", {"rope_parameters": {"rope_type": "default"}}, "rope_scaling"),
    ("llama-3.1-8b", {"rope_scaling": {**_LLAMA3, "rope_theta": 1e4}}, "rope_theta"),
    ("mistral-7b-v0.1", {"attention_bias": True}, "attention_bias"),
    ("qwen2.5-0.5b", {"attention_bias": True}, "attention_bias"),
    ("qwen2.5-0.5b", {"layer_types": ["linear_attention"] * 24}, "layer_types"),
    ("qwen2.5-0.5b", {"num_experts": 60}, "num_experts"),
    ("gemma-2-2b", {"sliding_window_pattern": 3}, "sliding_window_pattern"),
    ("gemma-2-2b", {"_sliding_window_pattern": 3}, "_sliding_window_pattern"),
    ("gemma-3-1b", {"_sliding_window_pattern": 5}, "_sliding_window_pattern"),
    ("gemma-3-1b", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma-3-1b", {"rope_parameters": _UNTRUNCATED}, "rope_parameters.full_attention.truncate"),
    ("gemma-3-1b", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma-3-1b", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": ...}, "rope_parameters.rope_type"),
    ("granite-3.1-2b", {"position_embedding_type": "nope"}, "position_embedding_type"),
]


@pytest.mark.parametrize(("name", "changes", "field"), REFUSED)
def test_what_is_not_supported_is_refused_by_its_field(name, changes, field):
    with pytest.raises(UnsupportedModel) as caught:
        understand(changed(name, **changes), shapes_of(PUBLISHED[name]))
    assert caught.value.field == field


@pytest.mark.parametrize("kind", ["mixtral", "gemma3", "gpt2"])
def test_another_family_is_told_where_it_may_be_computed(kind):
    with pytest.raises(UnsupportedModel, match="the transformers backend may compute"):
        understand({"model_type": kind}, {"x": (1,)})


IMPOSSIBLE = [
    ("llama-2-7b", {"hidden_size": ...}, "hidden_size is missing"),
    ("llama-2-7b", {"vocab_size": "32000"}, "vocab_size"),
    ("llama-2-7b", {"num_hidden_layers": 2**31}, "num_hidden_layers"),
    ("llama-2-7b", {"num_hidden_layers": 33}, "33; the files have tensors of 32 blocks"),
    ("llama-2-7b", {"num_attention_heads": 33, "num_key_value_heads": 11}, "not a multiple of num_attention_heads"),
    ("llama-2-7b", {"num_key_value_heads": 5}, "not a multiple of num_key_value_heads"),
    ("llama-2-7b", {"rms_norm_eps": 0}, "rms_norm_eps"),
    ("llama-2-7b", {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ("llama-2-7b", {"rope_theta": None}, "rope_theta is missing"),
    ("llama-2-7b", {"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor is missing"),
    ("llama-2-7b", {"rope_scaling": "linear"}, "rope_scaling is 'linear', needed an object"),
    ("llama-2-7b", {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "differ"),
    ("llama-2-7b", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ("llama-2-7b", {"head_dim": 127}, "127 numbers"),
    ("llama-3.1-8b", {"rope_scaling": {**_LLAMA3, "low_freq_factor": 4.0}}, "less than high_freq_factor"),
    (
        "phi-4-mini",
        {"rope_scaling": {**PUBLISHED["phi-4-mini"]["rope_scaling"], "short_factor": [1.0]}},
        "48 positive",
    ),
    ("gemma-2-2b", {"layer_types": ["full_attention"] * 25}, "layer_types"),
    ("gemma-2-2b", {"sliding_window": None}, "states no window"),
    ("gemma-2-2b", {"final_logit_softcapping": 0.0}, "final_logit_softcapping"),
    ("gemma-3-1b", {"layer_types": ["full_attention"] * 26}, "contradict"),
]


@pytest.mark.parametrize(("name", "changes", "words"), IMPOSSIBLE)
def test_an_impossible_or_missing_field_is_named(name, changes, words):
    with pytest.raises(ModelError, match=words) as caught:
        understand(changed(name, **changes), shapes_of(PUBLISHED[name]))
    assert not isinstance(caught.value, UnsupportedModel)


# -- tensors --


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.q_norm.weight", "model.layers.33.x", "score"]
)
def test_an_unexpected_tensor_is_refused_by_name(name):
    shapes = shapes_of(PUBLISHED["llama-2-7b"]) | {name: (4096,)}
    with pytest.raises(UnsupportedModel) as caught:
        understand(PUBLISHED["llama-2-7b"], shapes)
    assert (caught.value.field, caught.value.found) == ("tensor", name)


@pytest.mark.parametrize("name", ["model.norm.weight", "lm_head.weight", "model.layers.31.mlp.down_proj.weight"])
def test_a_missing_tensor_is_named(name):
    shapes = shapes_of(PUBLISHED["llama-2-7b"])
    del shapes[name]
    with pytest.raises(ModelError, match=f"the tensor {name} is missing"):
        understand(PUBLISHED["llama-2-7b"], shapes)


def test_a_fused_tensor_of_another_shape_is_named():
    shapes = shapes_of(PUBLISHED["phi-4-mini"]) | {"model.layers.1.self_attn.qkv_proj.weight": (3072, 3072)}
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.qkv_proj\.weight has the shape \(3072, 3072\)"):
        understand(PUBLISHED["phi-4-mini"], shapes)


@pytest.mark.parametrize("encoding", ["F8_E4M3", "I8", "F64", "U8"])
def test_an_encoding_that_backends_cannot_read_is_refused_by_tensor(encoding):
    with pytest.raises(UnsupportedModel) as caught:
        understand(PUBLISHED["llama-2-7b"], encoding=encoding)
    assert (caught.value.field, caught.value.found) == ("the encoding of model.embed_tokens.weight", encoding)


def test_repeated_frequencies_are_noted_and_not_read():
    shapes = shapes_of(PUBLISHED["gemma-3-1b"]) | {"model.layers.0.self_attn.rotary_emb.inv_freq": (128,)}
    understood = understand(PUBLISHED["gemma-3-1b"], shapes)
    assert any("rotary_emb.inv_freq" in note for note in understood.notes)
    assert all("inv_freq" not in (tensor.stored_name or tensor.name) for tensor in understood.tensors)


def test_a_head_that_the_files_hold_is_computed_with_although_the_configuration_ties_it():
    shapes = shapes_of(PUBLISHED["gemma-3-1b"]) | {"lm_head.weight": (262144, 1152)}
    understood = understand(PUBLISHED["gemma-3-1b"], shapes)
    assert not understood.description.tied_head
    assert ("output.weight", "lm_head.weight") in [(item.name, item.stored_name) for item in understood.tensors]
    assert any("tie_word_embeddings is true and the files hold lm_head.weight" in note for note in understood.notes)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama-2-7b", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "acts beyond 4,096 positions"),
        ("qwen2.5-0.5b", {}, "use_sliding_window is false"),
        ("gemma-2-2b", {}, "hidden_act repeats hidden_activation"),
        ("gemma-2-2b", {}, "cache_implementation"),
        ("phi-3-mini-4k", {}, "auto_map names code"),
        ("phi-3-mini-4k", {}, "original_max_position_embeddings changes nothing"),
        ("phi-4-mini", {}, "longer than 4,096 positions turns by the long factors"),
    ],
)
def test_what_changes_nothing_or_acts_otherwise_is_noted(name, changes, words):
    assert any(words in note for note in understand(changed(name, **changes)).notes)


# -- damage --

NASTY = (None, True, -1, 0, 1, 2**31, 10**400, 1e308, 5e-324, math.nan, math.inf, "x", [], {}, [1], {"a": 1}, [[]])
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 30, "mscale": 1.0}
NESTED = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.mark.parametrize(
    "given",
    [
        *PUBLISHED.values(),
        changed("llama-2-7b", rope_scaling=YARN),
        changed("gemma-3-1b", rope_scaling=..., rope_theta=..., rope_local_base_freq=..., rope_parameters=NESTED),
    ],
    ids=range(len(PUBLISHED) + 2),
)
def test_a_damaged_configuration_gives_a_typed_error_or_a_description(given):
    # Two blocks: damage is not about size, and every value is tried in every field.
    small = given | {"num_hidden_layers": 2} | ({"layer_types": None} if "layer_types" in given else {})
    tensors = records(shapes_of(small))
    sources = []
    for path in paths_of(small):
        for value in NASTY:
            try:
                understand_directory(put(small, path, value), tensors, "model")
            except ModelError as error:
                sources.append(error.source)
    assert len(sources) > 100
    assert set(sources) == {"model"}


def paths_of(values, before=()):
    for key, value in values.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*before, key))


def put(values, path, value):
    found = copy.deepcopy(values)
    section = found
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    return found
