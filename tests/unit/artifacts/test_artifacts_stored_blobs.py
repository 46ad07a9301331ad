"""Where a participant's bytes are kept: all of them, each in one blob, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.artifacts.types import ByteRange, ParticipantRequirement, StoredBlob, StoredBlobs
from inferswarm.documents import read_document, write_document
from inferswarm.errors import DocumentError
from tests.unit.artifacts.artifacts_support import object_of, requirement_of, tensor

OBJECT = object_of(
    tensor("a.first", 10, 20, stored_name="a"),
    tensor("a.second", 20, 40, stored_name="a"),
    tensor("b", 40, 60),
    tensor("c", 10, 30, file=1),
    tensor("empty", 90, 90),
    lengths=(100, 50),
)
NEEDED = requirement_of(OBJECT, ("a.first", "a.second", "b", "c", "empty"), ("s",))


def blob(file, start, end, letter="a"):
    return StoredBlob(file, ByteRange(start, end), "sha256:" + letter * 64)


A, B, C = blob(0, 10, 40), blob(0, 40, 60, "b"), blob(1, 10, 30, "c")


def kept(*blobs, root="/stores/n1"):
    return msgspec.structs.replace(NEEDED, stored=StoredBlobs(root, blobs))


def test_a_requirement_with_a_store_is_read_again_and_without_one_looks_as_ever():
    found = kept(A, B, C)
    assert read_document(ParticipantRequirement, write_document(found), "requirement") == found
    assert '"stored"' not in write_document(NEEDED)
    assert kept(A, B, C, root="").wherever_stored == NEEDED  # before a Node has filled it in
    assert found.wherever_stored == NEEDED
    assert found != NEEDED
    # Neighbors in one blob, and one content in two places.
    assert kept(blob(0, 0, 100), blob(1, 0, 50)).wherever_stored == NEEDED


@pytest.mark.parametrize(
    ("blobs", "reason"),
    [
        ((), "a.first: no stored blob holds its bytes 10 to 20 of file 0"),
        ((A, B), "c: no stored blob holds its bytes 10 to 30 of file 1"),
        ((A, B, blob(1, 11, 30)), "c: no stored blob"),
        ((blob(0, 10, 30), blob(0, 30, 60), C), "a.second: no stored blob"),
        ((blob(0, 10, 39), B, C), "a.second: no stored blob"),
        ((B, A, C), "out of order or overlap: 40 to 60 and 10 to 40"),
        ((C, A, B), "out of order"),
        ((A, A, B, C), "overlap"),
        ((A, blob(0, 39, 60), C), "blobs of file 0 are out of order or overlap: 10 to 40 and 39 to 60"),
        ((A, B, blob(0, 60, 70), C), "holds nothing that is required"),
        ((blob(0, 0, 10), A, B, C), "holds nothing that is required"),
        ((A, B, C, blob(2, 0, 10)), "holds nothing that is required"),
        ((A, B, blob(1, 10, 51)), "reaches beyond the end of its file"),
    ],
    ids=str,
)
def test_blobs_that_do_not_hold_exactly_what_is_required_are_refused(blobs, reason):
    with pytest.raises(ValueError, match=reason):
        kept(*blobs)


@pytest.mark.parametrize("root", ["stores/n1", "~/store"])
def test_a_root_is_an_absolute_path(root):
    with pytest.raises(ValueError, match="no absolute path"):
        kept(A, B, C, root=root)


@pytest.mark.parametrize(
    ("right", "wrong"), [('"end": 60', '"end": 59'), ("b" * 64, "B" * 64), ('"/stores/n1"', '"stores/n1"')]
)
def test_a_document_whose_blobs_do_not_fit_is_no_requirement(right, wrong):
    before, _, after = write_document(kept(A, B, C)).partition('"stored"')
    assert right in after
    with pytest.raises(DocumentError, match="is not a ParticipantRequirement"):
        read_document(ParticipantRequirement, f'{before}"stored"{after.replace(right, wrong, 1)}', "requirement")
