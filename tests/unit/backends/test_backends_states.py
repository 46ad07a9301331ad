"""Sources of rows: exactly the required bytes from a file, reproducible numbers from a seed."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from inferswarm.artifacts.types import ByteRange
from inferswarm.backends.registry import make_executor
from inferswarm.backends.states import FileTensors, RandomTensors, assigned_states
from inferswarm.errors import ArtifactError, UnsupportedModel
from inferswarm.strategies.dense.model import DenseModel
from tests.models import small_llama_tensors, write_small_llama
from tests.unit.backends.backends_support import assign, small_description

SIZES = {"num_blocks": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 320, "tied": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    return DenseModel.open(write_small_llama(path, encoding="F32", num_blocks=2))


def source_of(model, first, end, change=lambda requirement: requirement, progress=lambda done, total: None):
    shapes = assigned_states(model.description, first, end)
    requirement = model.requirement(model.problem(), "part", first, end)
    return shapes, FileTensors(change(requirement), shapes, progress)


def read_all(shapes, source):
    for tensors in shapes.values():
        for name, shape in tensors.items():
            rows = shape[0] if len(shape) > 1 else 1
            for first in range(0, rows, 50):
                source.rows(name, first, min(first + 50, rows))


def test_rows_are_the_numbers_that_were_written(model):
    written = small_llama_tensors(seed=0, **SIZES)
    _, source = source_of(model, 1, 2)
    np.testing.assert_array_equal(source.rows("blk.0.attn_k.weight", 5, 17), written["blk.0.attn_k.weight"][5:17])
    np.testing.assert_array_equal(source.rows("blk.0.ffn_norm.weight", 0, 1)[0], written["blk.0.ffn_norm.weight"])


def test_reading_everything_reads_exactly_the_requirement(model):
    seen = []
    shapes, source = source_of(model, 1, 3, progress=lambda done, total: seen.append((done, total)))
    read_all(shapes, source)
    source.finish()
    required = model.requirement(model.problem(), "part", 1, 3).bytes
    assert source.bytes_read == required
    assert seen[-1] == (required, required)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_finishing_with_bytes_unread_is_an_error(model):
    _, source = source_of(model, 1, 2)
    source.rows("blk.0.attn_k.weight", 0, 32)
    with pytest.raises(ArtifactError) as caught:
        source.finish()
    assert caught.value.code == "REQUIRED_STATE_COVERAGE_INCOMPLETE"


def test_reading_bytes_twice_is_an_error(model):
    shapes, source = source_of(model, 1, 2)
    read_all(shapes, source)
    source.rows("blk.0.attn_k.weight", 0, 1)
    with pytest.raises(ArtifactError, match="twice") as caught:
        source.finish()
    assert caught.value.code == "STAGING_UNPLANNED_KEY"


def digests(model, primitive, representation, *edges):
    held = {}
    for first, end in itertools.pairwise(edges):
        requirement = model.requirement(model.problem(), "part", first, end)
        assignment = assign(
            model.description, first, end, primitive=primitive, representation=representation, requirement=requirement
        )
        for state in make_executor(assignment).materialize(lambda done, total: None):
            assert held.setdefault(state.state_id, state.source_digest) == state.source_digest
    return held


def test_the_bytes_behind_a_state_have_one_digest_for_every_cut_representation_and_backend(model):
    expected = digests(model, "torch", "bf16", 0, 4)
    assert None not in expected.values()
    assert digests(model, "torch", "fp32", 0, 1, 3, 4) == expected
    assert digests(model, "reference", "fp32", 0, 2, 4) == expected


def test_one_changed_byte_is_another_digest_of_its_state_alone(model, tmp_path):
    expected = digests(model, "torch", "bf16", 0, 4)
    record = next(tensor for tensor in model.object.tensors if tensor.name == "blk.1.ffn_down.weight")
    data = bytearray(model.path.read_bytes())
    data[record.range.end - 4] ^= 1
    (tmp_path / "other.gguf").write_bytes(data)
    found = digests(DenseModel.open(tmp_path / "other.gguf"), "torch", "bf16", 0, 4)
    assert [state for state in expected if found[state] != expected[state]] == ["block.1.weights"]


def test_rows_that_come_out_of_order_or_not_at_all_have_no_fingerprint(model):
    _, source = source_of(model, 1, 2)
    source.rows("blk.0.attn_k.weight", 16, 32)
    source.rows("blk.0.attn_k.weight", 0, 16)
    source.rows("blk.0.attn_v.weight", 0, 16)
    source.rows("blk.0.ffn_norm.weight", 0, 1)
    names = ("attn_k", "attn_v", "ffn_norm", "attn_norm")
    marks = [source.fingerprint(f"blk.0.{name}.weight") for name in names]
    assert [mark is not None for mark in marks] == [False, False, True, False]


def with_file(requirement, **changes):
    return msgspec.structs.replace(requirement, files=(msgspec.structs.replace(requirement.files[0], **changes),))


def edited(requirement, edited_name, **changes):
    tensors = tuple(
        msgspec.structs.replace(tensor, **changes) if tensor.name == edited_name else tensor
        for tensor in requirement.tensors
    )
    return msgspec.structs.replace(requirement, tensors=tensors)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            lambda it: msgspec.structs.replace(it, tensors=it.tensors[1:]),
            "REQUIRED_STATE_COVERAGE_INCOMPLETE",
        ),
        (
            lambda it: edited(it, "blk.0.ffn_up.weight", name="blk.1.ffn_up.weight"),
            "REQUIRED_STATE_COVERAGE_INCOMPLETE",
        ),
        (
            lambda it: msgspec.structs.replace(
                it, tensors=(*it.tensors, msgspec.structs.replace(it.tensors[0], name="blk.1.ffn_up.weight"))
            ),
            "UNDECLARED_REQUIREMENT_ARTIFACT",
        ),
        (lambda it: edited(it, "blk.0.ffn_up.weight", shape=(64, 128)), "MALFORMED_ARTIFACT_RECORD"),
        (lambda it: edited(it, "blk.0.ffn_up.weight", range=ByteRange(64, 128)), "MALFORMED_ARTIFACT_RECORD"),
        (lambda it: with_file(it, length=it.files[0].length + 1), "PROVENANCE_IDENTITY_MISMATCH"),
        (lambda it: with_file(it, uri=it.uri + ".gone"), "SOURCE_OBJECT_UNAVAILABLE"),
    ],
    ids=["missing", "renamed", "surplus", "shape", "range", "length", "gone"],
)
def test_a_requirement_that_does_not_fit_is_refused_before_anything_is_read(model, change, code):
    with pytest.raises(ArtifactError) as caught:
        source_of(model, 1, 2, change)
    assert caught.value.code == code


def test_an_unexpected_encoding_is_refused_by_name(model):
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight"):
        source_of(model, 1, 2, lambda it: edited(it, "blk.0.ffn_up.weight", encoding="IQ2_XS"))


def test_random_rows_do_not_depend_on_how_they_are_asked_for():
    shapes = assigned_states(small_description(), 0, 1)
    whole = RandomTensors(shapes).rows("token_embd.weight", 0, 320)
    parts = [RandomTensors(shapes).rows("token_embd.weight", *part) for part in ((0, 1), (1, 130), (130, 320))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_random_tensors_differ_by_name_and_seed():
    shapes = assigned_states(small_description(), 1, 3)
    source = RandomTensors(shapes)
    first = source.rows("blk.0.attn_q.weight", 0, 64)
    assert not np.array_equal(first, source.rows("blk.1.attn_q.weight", 0, 64))
    assert not np.array_equal(first, RandomTensors(shapes, seed=1).rows("blk.0.attn_q.weight", 0, 64))


def test_assigned_states_name_a_shared_table_once():
    assert list(assigned_states(small_description(num_blocks=1), 0, 3)) == [
        "token-table",
        "block.0.weights",
        "output-norm",
    ]
