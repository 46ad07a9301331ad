"""Variations in the planner's problem: what they weigh, which blocks cost the same, and what speed depends on."""

from __future__ import annotations

import pytest

from inferswarm.planner.problem import bytes_in
from inferswarm.strategies.dense.description import BlockKind, Rope
from inferswarm.strategies.hosted.description import HostedDescription, HostedState, HostedTensor
from inferswarm.strategies.problem import make_problem
from inferswarm.strategies.shape import block_classes, shape_digest
from tests.unit.backends.backends_support import small_description


def term(problem, name, representation):
    (found,) = [item for item in problem.transients if (item.name, item.representation) == (name, representation)]
    return found


def kinds(*windows, pattern):
    """Blocks that differ in how far they see."""
    rope = Rope(base=1e4, rotated_size=16)
    return {"block_kinds": tuple(BlockKind(rope=rope, window=window) for window in windows), "block_pattern": pattern}


WEIGHTS = {
    "query_key_value_bias": 64 + 32 + 32,
    "attention_output_bias": 64,
    "feed_forward_bias": 128 + 128 + 64,
    "query_key_norms": 16 + 16,
    "post_norms": 64 + 64,
}


@pytest.mark.parametrize("field", WEIGHTS)
def test_biases_and_norms_are_weights_like_all_others(field):
    plain, changed = (
        {state.id: bytes_in(state.sizes, "bf16") for state in make_problem(small_description(**change)).states}
        for change in ({}, {field: True})
    )
    assert changed["block.2.weights"] - plain["block.2.weights"] == 2 * WEIGHTS[field]
    assert changed["token-table"] == plain["token-table"]


@pytest.mark.parametrize(
    ("windows", "pattern", "classes"),
    [
        ((None,), (0, 0, 0, 0), ("block",) * 4),
        ((8,), (0, 0, 0, 0), ("block",) * 4),
        ((8, 8), (0, 1, 0, 1), ("block",) * 4),
        ((8, None), (0, 0, 0, 0), ("block",) * 4),
        ((8, None), (0, 0, 1, 0), ("block-kind.0", "block-kind.0", "block-kind.1", "block-kind.0")),
        ((8, None, 4), (2, 0, 2, 1), ("block-kind.0", "block-kind.1", "block-kind.0", "block-kind.2")),
    ],
)
def test_blocks_that_cost_the_same_share_a_class(windows, pattern, classes):
    description = small_description(**kinds(*windows, pattern=pattern))
    assert block_classes(description) == classes
    assert tuple(unit.cost_class for unit in make_problem(description).units) == ("embedding", *classes, "head")


def test_a_participant_counts_the_activations_of_its_largest_block():
    description = small_description(**kinds(8, None, pattern=(0, 0, 1, 0)))
    problem = make_problem(description, max_positions=100, chunk_positions=4)
    base = term(problem, "block activations", "fp32")
    more = term(problem, "more block activations", "fp32")
    values = 3 * 64 + 2 * (64 + 2 * 32) + 64 + 3 * 128
    assert set(base.cost_classes) == {"block-kind.0", "block-kind.1"}
    assert more.cost_classes == ("block-kind.1",)
    assert base.bytes_per_step_position == values * 4 + 2 * 4 * (8 - 1 + 4) * 4
    assert base.bytes_per_step_position + more.bytes_per_step_position == values * 4 + 2 * 4 * 100 * 4


def test_a_window_longer_than_the_session_holds_the_scores_of_the_session():
    plain, windowed = (
        make_problem(small_description(**kinds(window, pattern=(0,) * 4)), max_positions=100) for window in (None, 90)
    )
    assert plain.transients == windowed.transients


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({"post_norms": True}, 64),
        ({"query_key_norms": True}, 64 + 32),
        ({"attention_soft_cap": 30.0}, 2 * 2 * 100),
    ],
)
def test_what_a_variation_holds_beside_the_rest_is_planned(changes, added):
    plain, changed = (make_problem(small_description(**change), max_positions=100) for change in ({}, changes))
    for representation, width in (("fp32", 4), ("bf16", 2)):
        before, after = (term(problem, "block activations", representation) for problem in (plain, changed))
        assert after.bytes_per_step_position - before.bytes_per_step_position == added * width


SPEED_MATTERS = [
    {"vocabulary_size": 321},
    {"hidden_size": 68},
    {"feed_forward_size": 132},
    {"num_heads": 8},
    {"num_key_value_heads": 4},
    {"head_size": 32},
    {"norm_adds_one": True},
    {"post_norms": True},
    {"query_key_norms": True},
    {"activation": "gelu-tanh"},
    {"query_key_value_bias": True},
    {"attention_output_bias": True},
    {"feed_forward_bias": True},
    {"attention_soft_cap": 3.0},
    {"embedding_scale": 2.0},
    {"residual_scale": 2.0},
    {"logit_scale": 2.0},
    {"logit_soft_cap": 3.0},
    kinds(8, pattern=(0, 0, 0, 0)),
    kinds(8, None, pattern=(0, 0, 0, 1)),
    kinds(None, 8, pattern=(0, 0, 0, 1)),
    {"block_kinds": (BlockKind(rope=None),)},
    {"block_kinds": (BlockKind(rope=Rope(base=1e4, rotated_size=8)),)},
]


def test_everything_that_changes_speed_changes_the_shape():
    digests = [shape_digest(small_description(**changes)) for changes in ({}, *SPEED_MATTERS)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "other"},
        {"num_blocks": 2},
        {"context_positions": 512},
        {"norm_epsilon": 1e-6},
        {"attention_scale": 0.1},
        {"tied_head": False},
        {"block_kinds": (BlockKind(rope=Rope(base=500.0, rotated_size=16, factors=(2.0,) * 8, magnitude=1.1)),)},
    ],
)
def test_what_changes_no_speed_changes_no_shape(changes):
    assert shape_digest(small_description(**changes)) == shape_digest(small_description())


# -- models that a host library computes --


def hosted(shapes=((64, 64), (64, 64), (32, 64)), kept=(64, 64, 32), **changes):
    """A chain of three blocks with one matrix each, and a table that embedding and head share."""

    def state(name, shape):
        return HostedState(id=name, tensors=(HostedTensor(name=f"model.{name}.weight", shape=shape),))

    fields = {
        "architecture": "SomeForCausalLM",
        "configuration": "{}",
        "vocabulary_size": 320,
        "hidden_size": 64,
        "num_blocks": 3,
        "context_positions": 640,
        "states": (state("table", (320, 64)), *(state(f"part-{index}", shape) for index, shape in enumerate(shapes))),
        "unit_states": (("table",), ("part-0",), ("part-1",), ("part-2",), ("table",)),
        "kept_values_per_position": kept,
        "activation_values_per_position": 1000,
        "num_heads": 4,
    }
    return HostedDescription(**(fields | changes))


def test_a_hosted_model_is_the_same_kind_of_problem():
    problem = make_problem(hosted(), max_positions=100)
    assert [unit.id for unit in problem.units] == ["embedding", "block.0", "block.1", "block.2", "head"]
    assert [unit.states for unit in problem.units[:2]] == [("table",), ("part-0",)]
    assert problem.units[-1].states == ("table",)
    assert {state.id: bytes_in(state.sizes, "bf16") for state in problem.states} == {
        "table": 2 * 320 * 64,
        "part-0": 2 * 64 * 64,
        "part-1": 2 * 64 * 64,
        "part-2": 2 * 32 * 64,
    }
    assert [bytes_in(unit.mutable_bytes_per_position, "fp32") for unit in problem.units[1:4]] == [256, 256, 128]
    assert [unit.cost_class for unit in problem.units[1:4]] == ["block-kind.0", "block-kind.0", "block-kind.1"]
    activations = term(problem, "block activations", "bf16")
    assert activations.bytes_per_step_position == 1000 * 2 + 2 * 4 * 100 * 4
    assert set(activations.cost_classes) == {"block-kind.0", "block-kind.1"}


def test_a_hosted_model_is_computed_by_its_host():
    problem = make_problem(hosted())
    assert {item.primitive for item in problem.implementations} == {"transformers"}
    assert {item.required_capabilities for item in problem.implementations} == {
        ("backend:transformers", f"representation:{name}") for name in ("fp32", "bf16")
    }
    assert problem.strategy != make_problem(small_description()).strategy


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "OtherForCausalLM"},
        {"vocabulary_size": 321},
        {"hidden_size": 65},
        {"num_heads": 8},
        {"activation_values_per_position": 1001},
        {"kept": (64, 64, 64)},
        {"shapes": ((64, 64), (64, 64), (64, 64))},
    ],
)
def test_the_shape_of_a_hosted_model_is_its_sizes(changes):
    assert shape_digest(hosted(**changes)) != shape_digest(hosted())
