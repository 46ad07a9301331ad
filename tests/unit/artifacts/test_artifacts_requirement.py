"""Coverage of a requirement, and of what was read, fails closed."""

import msgspec
import pytest

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.requirement import check_reads, check_requirement, coalesce, refuse_whole_object
from inferswarm.artifacts.types import ByteRange, ModelFile, ModelObject, ParticipantRequirement, TensorRecord
from inferswarm.errors import ArtifactError


def record(name, start, end):
    return TensorRecord(name=name, encoding="F32", shape=((end - start) // 4,), range=ByteRange(start, end))


A, B, C, D = record("a", 0, 8), record("b", 8, 24), record("c", 40, 60), record("d", 64, 128)
OBJECT = ModelObject(files=(ModelFile(uri="/m.gguf", length=128),), tensors=(A, B, C, D))
DECLARED = {"one": ("a", "b"), "two": ("c",)}
GOOD = ParticipantRequirement(
    participant="stage-0",
    problem_digest="sha256:" + "0" * 64,
    files=OBJECT.files,
    tensors=(A, B, C),
    state_ids=("one", "two"),
)


@pytest.mark.parametrize(
    ("ranges", "gap", "joined"),
    [
        ([], 0, []),
        ([(5, 5)], 0, []),
        ([(0, 4), (4, 8)], 0, [(0, 8)]),
        ([(4, 8), (0, 4)], 0, [(0, 8)]),
        ([(0, 4), (5, 8)], 0, [(0, 4), (5, 8)]),
        ([(0, 4), (5, 8)], 1, [(0, 8)]),
        ([(0, 10), (2, 3), (9, 12)], 0, [(0, 12)]),
        ([(0, 1), (3, 4), (5, 6)], 1, [(0, 1), (3, 6)]),
    ],
)
def test_coalescing_joins_what_touches(ranges, gap, joined):
    result = coalesce([ByteRange(*part) for part in ranges], gap)
    assert [(part.start, part.end) for part in result] == joined


def test_exact_coverage_passes():
    check_requirement(GOOD, OBJECT, DECLARED)


def changed(**fields):
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize(
    ("requirement", "declared", "code"),
    [
        (changed(tensors=(A, B)), DECLARED, taxonomy.COVERAGE_INCOMPLETE),
        (changed(tensors=(A, C)), DECLARED, taxonomy.COVERAGE_INCOMPLETE),
        (changed(tensors=()), DECLARED, taxonomy.COVERAGE_INCOMPLETE),
        (changed(state_ids=("one",)), DECLARED, taxonomy.COVERAGE_INCOMPLETE),
        (GOOD, {**DECLARED, "three": ("d",)}, taxonomy.COVERAGE_INCOMPLETE),
        (changed(state_ids=("one", "two", "empty")), {**DECLARED, "empty": ()}, taxonomy.COVERAGE_INCOMPLETE),
        (changed(tensors=(A, B, C, D)), DECLARED, taxonomy.UNDECLARED),
        (changed(state_ids=("one", "two", "three")), DECLARED, taxonomy.UNDECLARED),
        (changed(tensors=(A, A, B, C)), DECLARED, taxonomy.MALFORMED),
        (changed(state_ids=("one", "one", "two")), DECLARED, taxonomy.MALFORMED),
        (changed(tensors=(A, B, record("c", 44, 64))), DECLARED, taxonomy.MALFORMED),
        (changed(tensors=(A, B, C, record("e", 24, 40))), DECLARED, taxonomy.MALFORMED),
        (changed(files=(ModelFile(uri="/other.gguf", length=128),)), DECLARED, taxonomy.IDENTITY_MISMATCH),
        (changed(files=(ModelFile(uri="/m.gguf", length=129),)), DECLARED, taxonomy.IDENTITY_MISMATCH),
    ],
)
def test_anything_but_exact_coverage_is_refused(requirement, declared, code):
    with pytest.raises(ArtifactError) as caught:
        check_requirement(requirement, OBJECT, declared)
    assert caught.value.code == code
    assert caught.value.subject == "stage-0"


def test_a_part_that_asks_for_everything_is_refused():
    refuse_whole_object(GOOD, OBJECT)
    with pytest.raises(ArtifactError) as caught:
        refuse_whole_object(changed(tensors=(D, C, B, A)), OBJECT)
    assert caught.value.code == taxonomy.WHOLE_OBJECT_UNDECLARED


@pytest.mark.parametrize(
    "reads",
    [
        [(0, 8), (8, 24), (40, 60)],
        [(40, 60), (0, 24)],
        [(40, 50), (0, 24), (50, 60), (60, 60)],
    ],
)
def test_reads_of_exactly_the_required_bytes_pass(reads):
    check_reads(GOOD, {0: [ByteRange(*part) for part in reads]})


@pytest.mark.parametrize(
    ("reads", "code"),
    [
        ([], taxonomy.COVERAGE_INCOMPLETE),
        ([(0, 24)], taxonomy.COVERAGE_INCOMPLETE),
        ([(0, 24), (40, 59)], taxonomy.COVERAGE_INCOMPLETE),
        ([(0, 24), (40, 61)], taxonomy.UNPLANNED_READ),
        ([(0, 60)], taxonomy.UNPLANNED_READ),
        ([(0, 24), (40, 60), (64, 65)], taxonomy.UNPLANNED_READ),
        ([(0, 24), (40, 60), (8, 24)], taxonomy.UNPLANNED_READ),
    ],
)
def test_reads_of_other_bytes_are_refused(reads, code):
    with pytest.raises(ArtifactError) as caught:
        check_reads(GOOD, {0: [ByteRange(*part) for part in reads]})
    assert caught.value.code == code


TWO_FILES = (ModelFile(uri="/m-1.safetensors", length=24), ModelFile(uri="/m-2.safetensors", length=128))
P, Q, R = A, msgspec.structs.replace(A, name="q", file=1), msgspec.structs.replace(D, name="r", file=1)
SPREAD = changed(files=TWO_FILES, tensors=(R, P, Q), state_ids=("one",))


def test_ranges_are_those_of_one_file_in_order():
    assert SPREAD.ranges(0) == (ByteRange(0, 8),)
    assert SPREAD.ranges(1) == (ByteRange(0, 8), ByteRange(64, 128))
    assert SPREAD.ranges(2) == ()
    assert SPREAD.bytes == 80


def test_reads_are_compared_file_by_file():
    first, second = [ByteRange(0, 8)], [ByteRange(0, 8), ByteRange(64, 128)]
    check_reads(SPREAD, {0: first, 1: second})
    for reads, code in (
        ({0: first}, taxonomy.COVERAGE_INCOMPLETE),
        ({0: second, 1: first}, taxonomy.UNPLANNED_READ),
        ({0: first, 1: second, 2: [ByteRange(0, 1)]}, taxonomy.UNPLANNED_READ),
    ):
        with pytest.raises(ArtifactError) as caught:
            check_reads(SPREAD, reads)
        assert caught.value.code == code


def test_a_part_that_asks_for_all_of_several_files_is_refused():
    everything = ModelObject(files=TWO_FILES, tensors=(P, Q, R))
    with pytest.raises(ArtifactError, match="asks for every tensor"):
        refuse_whole_object(SPREAD, everything)
    refuse_whole_object(changed(files=TWO_FILES, tensors=(Q, R)), everything)


@pytest.mark.parametrize(
    ("files", "tensors"),
    [
        ((), ()),
        (TWO_FILES, (msgspec.structs.replace(A, file=2),)),
        (TWO_FILES, (record("a", 0, 28),)),
    ],
    ids=["no files", "a tensor in no file", "a tensor beyond the end of its file"],
)
def test_tensors_lie_in_the_files_of_their_model(files, tensors):
    with pytest.raises(ValueError, match="files"):
        ModelObject(files=files, tensors=tensors)
    with pytest.raises(ValueError, match="files"):
        changed(files=files, tensors=tensors)


@pytest.mark.parametrize("change", [{"layout": "diagonal"}, {"file": -1}])
def test_a_record_of_an_unknown_kind_is_refused(change):
    with pytest.raises(ValueError, match="a: "):
        msgspec.structs.replace(A, **change)


def test_the_list_of_reasons_is_closed_and_complete():
    assert len(taxonomy.REASON_CODES) == 15
    named = {value for name, value in vars(taxonomy).items() if name.isupper() and isinstance(value, str)}
    assert named <= taxonomy.REASON_CODES
