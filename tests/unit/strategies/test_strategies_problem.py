"""A description as a planning problem: sizes that can be checked by hand, and cuts everywhere."""

import math

import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.planner.problem import Implementation, Mixture, PlanningProblem, TransientTerm, bytes_in
from inferswarm.strategies.dense.description import plain_decoder
from inferswarm.strategies.dense.readers import understand_gguf
from inferswarm.strategies.problem import HELD_EXACTLY, STAGING_BYTES, VALUE_BYTES, make_problem


def small(**changes):
    fields = {
        "architecture": "llama",
        "vocabulary_size": 320,
        "hidden_size": 64,
        "feed_forward_size": 128,
        "num_blocks": 2,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 16,
        "context_positions": 640,
        "rope_base": 1e4,
        "norm_epsilon": 1e-5,
        "tied_head": True,
    }
    return plain_decoder(**(fields | changes))


def test_the_chain_is_embedding_blocks_head():
    problem = make_problem(small())
    assert [unit.id for unit in problem.units] == ["embedding", "block.0", "block.1", "head"]
    assert [unit.cost_class for unit in problem.units] == ["embedding", "block", "block", "head"]
    assert [unit.only_last_position for unit in problem.units] == [False, False, False, True]


@pytest.mark.parametrize(("tied", "head"), [(True, "token-table"), (False, "output-table")])
def test_a_tied_table_is_one_state_of_embedding_and_head(tied, head):
    problem = make_problem(small(tied_head=tied))
    assert problem.units[0].states == ("token-table",)
    assert problem.units[-1].states == ("output-norm", head)
    assert len(problem.states) == (4 if tied else 5)


@pytest.mark.parametrize(("representation", "width"), [("fp32", 4), ("bf16", 2)])
def test_sizes_are_counts_of_weights_times_their_width(representation, width):
    problem = make_problem(small(tied_head=False))
    sizes = {state.id: bytes_in(state.sizes, representation) for state in problem.states}
    block = 2 * 64 + 64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 128
    assert sizes == {
        "token-table": 320 * 64 * width,
        "block.0.weights": block * width,
        "block.1.weights": block * width,
        "output-norm": 64 * width,
        "output-table": 320 * 64 * width,
    }
    unit = problem.units[1]
    assert bytes_in(unit.mutable_bytes_per_position, representation) == 2 * 2 * 16 * width
    assert problem.units[0].mutable_bytes_per_position == problem.units[-1].mutable_bytes_per_position == ()
    for boundary in problem.boundaries:
        assert boundary.legal
        assert bytes_in(boundary.payload_bytes_per_position, representation) == 64 * width
    assert problem.feedback_bytes == 4


def implementations(primitive, *representations):
    return tuple(Implementation(primitive=primitive, representation=name) for name in representations)


def test_participants_may_compute_in_either_representation_and_payloads_hold_both():
    problem = make_problem(small())
    assert problem.mixtures == (
        Mixture(name="bf16+fp32", primitive="torch", representations=("bf16", "fp32"), payload_representation="fp32"),
    )
    assert bytes_in(problem.boundaries[0].payload_bytes_per_position, "fp32") == 64 * 4
    assert read_document(PlanningProblem, write_document(problem), "test") == problem


@pytest.mark.parametrize(
    ("offered", "names"),
    [
        (implementations("torch", "bf16"), None),
        (implementations("reference", "fp32"), None),
        (implementations("torch", "fp32") + implementations("reference", "fp32"), None),
        (implementations("null", "bf16", "fp32"), None),
        (implementations("transformers", "fp32", "bf16") + implementations("torch", "bf16"), ["transformers"]),
        (
            implementations("transformers", "fp32", "bf16") + implementations("torch", "bf16", "fp32"),
            ["torch", "transformers"],
        ),
    ],
    ids=str,
)
def test_only_representations_of_one_primitive_that_can_convert_are_mixed(offered, names):
    problem = make_problem(small(), implementations=offered)
    if names is None:
        assert "mixtures" not in write_document(problem)
    else:
        assert [mixture.primitive for mixture in problem.mixtures] == names
        assert {mixture.name for mixture in problem.mixtures} == {"bf16+fp32"}


def test_what_holds_all_values_of_another_representation_has_room_for_them():
    for name, held in HELD_EXACTLY.items():
        assert name in held
        assert all(VALUE_BYTES[other] <= VALUE_BYTES[name] for other in held)
    assert HELD_EXACTLY.keys() == VALUE_BYTES.keys()


def test_the_real_model_has_134_515_008_weights(smollm2_path):
    with LocalFileOrigin(smollm2_path) as origin:
        problem = make_problem(understand_gguf(read_gguf(origin)).description)
    assert sum(bytes_in(state.sizes, "bf16") for state in problem.states) == 2 * 134_515_008
    assert bytes_in(problem.units[1].mutable_bytes_per_position, "fp32") == 2 * 3 * 64 * 4


def term(problem, name, representation):
    (found,) = [item for item in problem.transients if (item.name, item.representation) == (name, representation)]
    return found


def test_transient_terms_follow_their_stated_formula():
    problem = make_problem(small(), max_positions=100)
    values = 3 * 64 + 2 * (64 + 2 * 32) + 64 + 3 * 128
    for representation, width in (("fp32", 4), ("bf16", 2)):
        block = term(problem, "block activations", representation)
        assert block.cost_classes == ("block",)
        assert block.bytes_per_step_position == values * width + 2 * 4 * 100 * 4
        assert term(problem, "output logits", representation).fixed_bytes == 320 * (4 + width)
        assert term(problem, "output logits", representation).cost_classes == ("head",)
        assert term(problem, "staging", representation).fixed_bytes == STAGING_BYTES == 16 * 2**20
        assert term(problem, "payload", representation).bytes_per_step_position == 2 * 64 * width


def test_a_measured_term_of_the_caller_is_added():
    scratch = TransientTerm(name="kernel scratch", representation="bf16", fixed_bytes=123)
    assert make_problem(small(), transients=(scratch,)).transients[-1] == scratch


def test_longer_sessions_only_add_score_memory():
    short, long = (make_problem(small(), max_positions=positions) for positions in (64, 640))
    assert short.states == long.states
    difference = [
        later.bytes_per_step_position - earlier.bytes_per_step_position
        for earlier, later in zip(short.transients, long.transients, strict=True)
    ]
    assert sorted(set(difference)) == [0, 2 * 4 * (640 - 64) * 4]


def test_implementations_name_the_capabilities_that_they_need():
    problem = make_problem(small())
    assert [(item.primitive, item.representation) for item in problem.implementations] == [
        ("torch", "fp32"),
        ("torch", "bf16"),
    ]
    assert problem.implementations[1].required_capabilities == ("backend:torch", "representation:bf16")


def test_only_the_representations_of_the_implementations_are_sized():
    only = Implementation(primitive="null", representation="bf16", required_capabilities=("backend:null",))
    problem = make_problem(small(), implementations=(only,))
    assert {size.representation for state in problem.states for size in state.sizes} == {"bf16"}
    assert {item.representation for item in problem.transients} == {"bf16"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_positions": 0},
        {"max_positions": 641},
        {"chunk_positions": 0},
        {"implementations": (Implementation(primitive="torch", representation="fp8"),)},
    ],
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(SpecError):
        make_problem(small(), **arguments)


def test_the_problem_is_a_document_that_survives_a_round_trip():
    problem = make_problem(small())
    again = read_document(PlanningProblem, write_document(problem), "test")
    assert again == problem
    assert digest(again) == digest(problem)
    assert problem.comparator == "tokens-and-logits-bitwise/1"
    assert math.prod((problem.max_positions, problem.chunk_positions)) == 640 * 64


def test_another_description_is_another_problem():
    ids = {make_problem(small(**change)).id for change in ({}, {"rope_base": 2e4}, {"tied_head": False})}
    assert len(ids) == 3
