"""What each participant of a split needs: exactly its tensors, and together everything once."""

import itertools
from collections import Counter

import msgspec
import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.documents import digest
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.strategies.dense.readers import understand_gguf
from inferswarm.strategies.problem import make_problem
from inferswarm.strategies.requirement import declare, derive_requirement
from tests.models import write_small_llama


class Case:
    """A model and its problem."""

    def __init__(self, path):
        with LocalFileOrigin(path) as origin:
            header = read_gguf(origin)
        self.path = path
        self.description = understand_gguf(header).description
        self.object = header.model_object()
        self.problem = make_problem(self.description)

    def require(self, first, end, participant="stage-0"):
        return derive_requirement(self.description, self.object, self.problem, participant, first, end)

    def split(self, *cuts):
        edges = [0, *cuts, len(self.description.unit_ids)]
        return [
            self.require(first, end, f"stage-{index}") for index, (first, end) in enumerate(itertools.pairwise(edges))
        ]


@pytest.fixture(scope="module")
def real(smollm2_path):
    return Case(smollm2_path)


@pytest.fixture
def untied(tmp_path):
    return Case(write_small_llama(tmp_path / "untied.gguf", tied=False))


def test_three_participants_of_the_real_model_need_exactly_their_bytes(real):
    matrices = 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576
    block = matrices * 20 // 32 + 2 * 576 * 4  # Q4_1 and two norms in F32
    table = 49_152 * 576 * 34 // 32  # Q8_0
    first, middle, last = real.split(11, 21)
    assert first.bytes == table + 10 * block
    assert middle.bytes == 10 * block
    assert last.bytes == table + 10 * block + 576 * 4
    there = {tensor.name: tensor for tensor in real.object.tensors}
    for requirement, blocks in ((first, range(10)), (middle, range(10, 20)), (last, range(20, 30))):
        assert {tensor.name.split(".")[1] for tensor in requirement.tensors if tensor.name.startswith("blk.")} == {
            str(index) for index in blocks
        }
        assert all(tensor == there[tensor.name] for tensor in requirement.tensors)


@pytest.mark.parametrize("cuts", [(1,), (16,), (31,), (11, 21), (1, 31), (1, 2, 3, 30, 31), tuple(range(1, 32))])
def test_a_split_needs_every_tensor_once_and_the_tied_table_twice(real, cuts):
    needed = Counter(tensor.name for requirement in real.split(*cuts) for tensor in requirement.tensors)
    assert needed == {tensor.name: 2 if tensor.name == "token_embd.weight" else 1 for tensor in real.object.tensors}


@pytest.mark.parametrize("cuts", [(1,), (3,), (5,), (2, 4), (1, 2, 3, 4, 5)])
def test_a_split_of_an_untied_model_needs_every_tensor_once(untied, cuts):
    needed = Counter(tensor.name for requirement in untied.split(*cuts) for tensor in requirement.tensors)
    assert needed == dict.fromkeys((tensor.name for tensor in untied.object.tensors), 1)


def test_the_whole_chain_needs_every_tensor_once(real):
    (whole,) = real.split()
    assert whole.bytes == sum(tensor.range.length for tensor in real.object.tensors)
    assert len(set(whole.state_ids)) == len(whole.state_ids) == len(real.problem.states)


def test_states_follow_the_chain_and_name_the_problem(real):
    requirement = real.require(29, 32)
    assert requirement.state_ids == ("block.28.weights", "block.29.weights", "output-norm", "token-table")
    assert requirement.problem_digest == digest(real.problem)
    assert (requirement.uri, requirement.files[0].length) == (str(real.path), real.path.stat().st_size)


def test_ranges_are_in_file_order_and_disjoint(real):
    for requirement in real.split(11, 21):
        ends = [tensor.range for tensor in requirement.tensors]
        assert list(requirement.ranges(0)) == ends
        assert all(before.end <= after.start for before, after in itertools.pairwise(ends))


@pytest.mark.parametrize("interval", [(0, 0), (3, 3), (4, 2), (-1, 2), (0, 33), (32, 33)])
def test_an_impossible_interval_is_refused(real, interval):
    with pytest.raises(SpecError):
        declare(real.description, *interval)
    with pytest.raises(SpecError):
        real.require(*interval)


def test_a_missing_tensor_of_a_participant_is_refused_and_others_do_not_care(real):
    without = [tensor for tensor in real.object.tensors if tensor.name != "blk.5.ffn_up.weight"]
    real_object = msgspec.structs.replace(real.object, tensors=tuple(without))
    arguments = (real.description, real_object, real.problem)
    derive_requirement(*arguments, "stage-1", 10, 20)
    with pytest.raises(ArtifactError) as caught:
        derive_requirement(*arguments, "stage-0", 0, 10)
    assert caught.value.code == "REQUIRED_STATE_COVERAGE_INCOMPLETE"
    assert "blk.5.ffn_up.weight" in caught.value.reason


def test_a_problem_of_another_model_is_refused(real, untied):
    with pytest.raises(ArtifactError) as caught:
        derive_requirement(real.description, real.object, untied.problem, "stage-0", 0, 2)
    assert caught.value.code == "PROVENANCE_IDENTITY_MISMATCH"


def test_a_problem_that_takes_a_state_from_a_unit_is_refused(real):
    units = list(real.problem.units)
    units[3] = msgspec.structs.replace(units[3], states=("token-table",))
    problem = msgspec.structs.replace(real.problem, units=tuple(units))
    with pytest.raises(ArtifactError) as caught:
        derive_requirement(real.description, real.object, problem, "stage-0", 0, 2)
    assert caught.value.code == "REQUIRED_STATE_COVERAGE_INCOMPLETE"


def test_a_part_never_needs_the_whole_object(tmp_path):
    case = Case(write_small_llama(tmp_path / "m.gguf", num_blocks=1))
    pieces = tuple(tensor for tensor in case.object.tensors if not tensor.name.startswith("output_norm"))
    shrunken = msgspec.structs.replace(case.object, tensors=pieces)
    with pytest.raises(ArtifactError) as caught:
        derive_requirement(case.description, shrunken, case.problem, "stage-0", 0, 2)
    assert caught.value.code == "UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION"
