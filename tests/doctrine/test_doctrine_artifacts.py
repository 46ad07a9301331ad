"""Rules about the bytes of a model: what is required, and that nothing else is touched."""

import os

import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.requirement import check_reads, coalesce
from inferswarm.artifacts.types import ByteRange
from inferswarm.backends.dequantize import num_rows
from inferswarm.backends.states import FileTensors, assigned_states
from inferswarm.errors import ArtifactError
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.dense.readers import understand_gguf
from inferswarm.strategies.problem import make_problem
from inferswarm.strategies.requirement import derive_requirement
from tests.gguf_bytes import split_model
from tests.models import write_small_llama


@pytest.fixture(scope="module")
def middle(smollm2_path):
    """The requirement of a participant in the middle of the real model."""
    with LocalFileOrigin(smollm2_path) as origin:
        header = read_gguf(origin)
    description = understand_gguf(header).description
    return derive_requirement(description, header.model_object(), make_problem(description), "stage-1", 11, 14)


@pytest.mark.rule(76)
def test_a_participant_acquires_its_required_bytes_and_no_other(middle, smollm2_path):
    """Unrelated bytes are 0 by the origin's own log, and one unrelated byte is caught.

    Mutation: let `derive_requirement` return `model_object.tensors`, or drop the range test from `check_reads`.
    """
    with LocalFileOrigin(smollm2_path, expected_length=middle.files[0].length) as origin:
        for tensor in middle.tensors:
            origin.read(tensor.range)
        check_reads(middle, {0: origin.ranges_read})
        assert origin.bytes_read == middle.bytes
        assert {tensor.name.split(".")[1] for tensor in middle.tensors} == {"10", "11", "12"}
        assert middle.bytes < 0.1 * origin.length
        origin.read(ByteRange(middle.ranges(0)[-1].end, middle.ranges(0)[-1].end + 1))
        with pytest.raises(ArtifactError, match="STAGING_UNPLANNED_KEY"):
            check_reads(middle, {0: origin.ranges_read})


@pytest.mark.rule(76)
def test_a_file_without_a_required_byte_is_not_opened(tmp_path):
    """Of a model in four files a participant opens those that hold something of its own; the others may be gone.

    Mutation: let `FileTensors` open every file of its requirement, or let `open_gguf` place all tensors in file 0.
    """
    whole = write_small_llama(tmp_path / "whole.gguf", num_blocks=4, tied=False)
    split_model(whole, tmp_path / "m.gguf", num_parts=4)
    model = DenseModel.open(tmp_path / "m-00001-of-00004.gguf")
    requirement = model.requirement(model.problem(), "stage-1", 2, 3)
    needed = {tensor.file for tensor in requirement.tensors}
    for index, file in enumerate(requirement.files):
        if index not in needed:
            os.remove(file.uri)
    assert 0 < len(needed) < 4
    tensors = FileTensors(requirement, assigned_states(model.description, 2, 3))
    for tensor in requirement.tensors:
        tensors.rows(tensor.name, 0, num_rows(tensor))
    tensors.finish()
    assert tensors.bytes_read == requirement.bytes


@pytest.mark.rule(77)
def test_a_file_that_holds_nothing_but_the_required_bytes_is_enough(middle, smollm2_path, tmp_path):
    """A sparse file with only this participant's ranges gives the same bytes: no gate asks for the rest.

    Mutation: let `LocalFileOrigin` read the whole file when it is opened and check it, or let the requirement name
    a tensor of another participant.
    """
    partial = tmp_path / "partial.gguf"
    with partial.open("wb") as file, LocalFileOrigin(smollm2_path) as whole:
        file.truncate(whole.length)
        wanted = {}
        for tensor in middle.tensors:
            wanted[tensor.name] = whole.read(tensor.range)
            file.seek(tensor.range.start)
            file.write(wanted[tensor.name])
    assert os.stat(partial).st_blocks * 512 < 2 * middle.bytes
    with LocalFileOrigin(partial, expected_length=middle.files[0].length) as origin:
        assert {tensor.name: origin.read(tensor.range) for tensor in middle.tensors} == wanted
        check_reads(middle, {0: origin.ranges_read})


@pytest.mark.rule(78)
def test_state_unit_tensor_and_range_boundaries_are_independent(smollm2_path):
    """One state is several ranges, one unit several states, one tensor serves two units far apart in the file.

    Mutation: let `unit_states` give the head a table of its own when the head is tied, or let `ranges` return one
    range from the first to the last byte.
    """
    with LocalFileOrigin(smollm2_path) as origin:
        header = read_gguf(origin)
    description = understand_gguf(header).description
    problem = make_problem(description)
    arguments = (description, header.model_object(), problem)
    head = derive_requirement(*arguments, "stage-2", 31, 32)
    embedding = derive_requirement(*arguments, "stage-0", 0, 1)
    assert problem.units[31].states == ("output-norm", "token-table")
    assert len(coalesce(head.ranges(0))) == 2
    assert set(embedding.tensors) < set(head.tensors)
    block = derive_requirement(*arguments, "stage-1", 1, 2)
    assert block.state_ids == ("block.0.weights",)
    assert len(block.ranges(0)) == 9
