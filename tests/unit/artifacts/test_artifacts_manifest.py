"""Manifests: what files hold, how digests are known, and that nothing contradicts itself."""

import json

import msgspec
import pytest

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.layout import stored_tensors
from inferswarm.artifacts.manifest import check_manifest, manifest_of, read_manifest
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.pinning import check_policy, with_pins
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import canonical_bytes, digest_bytes, write_document
from inferswarm.errors import ArtifactError, DocumentError
from tests.unit.artifacts.artifacts_support import PROVENANCE, make_rig, object_of, tensor

replace = msgspec.structs.replace
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
OBJECT = object_of(tensor("a", 10, 40), tensor("b", 40, 90), tensor("c", 0, 50, file=1), lengths=(100, 50))
TEXT = UpstreamObject(uri="/somewhere/config.json", length=7)
MANIFEST = manifest_of(OBJECT, PROVENANCE, metadata=[TEXT])


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    return make_rig(tmp_path_factory.mktemp("model"))


def places(manifest):
    return [(entry.name, entry.file, entry.range.start, entry.range.end) for entry in manifest.entries]


def code_of(call, *arguments):
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    return caught.value.code


def test_a_manifest_of_headers_holds_every_tensor_and_no_digest(rig):
    assert {entry.name for entry in rig.layout.entries} == {record.name for record in rig.model.object.tensors}
    assert rig.layout.hash_known_by == "layout"
    assert rig.layout.bytes == rig.path.stat().st_size
    assert rig.layout.weight_bytes == sum(record.range.length for record in rig.model.object.tensors)
    assert rig.layout.files[0].version == f"modified:{rig.path.stat().st_mtime_ns}"


def test_a_manifest_survives_being_written_and_keeps_its_digest(rig):
    for manifest in (rig.layout, rig.manifest, MANIFEST):
        again = read_manifest(write_document(manifest), "file")
        assert (again, again.id) == (manifest, manifest.id)


def test_the_digest_of_a_manifest_is_that_of_its_canonical_bytes():
    small = manifest_of(object_of(tensor("a", 1, 3), lengths=(4,)), PROVENANCE)
    assert canonical_bytes(small) == (
        b'{"document":"inferswarm.manifest/1","entries":[{"file":0,"kind":"tensor","name":"a","range":{"end":3,'
        b'"start":1}}],"files":[{"length":4,"uri":"/0"}],"hash_known_by":"layout","provenance":{"model":"small",'
        b'"representation":"checkpoint","revision":"r1"}}'
    )
    assert small.id == digest_bytes(canonical_bytes(small))


def test_metadata_files_come_last_and_whole():
    assert places(MANIFEST)[-1] == ("config.json", 2, 0, 7)
    assert [entry.kind for entry in MANIFEST.entries] == ["tensor"] * 3 + ["metadata"]
    assert (MANIFEST.bytes, MANIFEST.weight_bytes) == (157, 130)


def test_rows_of_one_stored_tensor_are_one_entry_and_so_is_a_range_named_twice():
    parts = [tensor(name, start, start + 10, stored_name="qkv") for name, start in (("q", 0), ("v", 20), ("k", 10))]
    twice = [tensor("table", 30, 50), tensor("head", 30, 50), tensor("empty", 60, 60)]
    assert places(manifest_of(object_of(*parts, *twice), PROVENANCE)) == [("qkv", 0, 0, 30), ("head", 0, 30, 50)]


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ((tensor("q", 0, 10, stored_name="qkv"), tensor("v", 20, 30, stored_name="qkv")), "in 2 places"),
        ((tensor("a", 0, 10), tensor("b", 9, 20)), "b overlaps a"),
        ((tensor("a", 0, 10), tensor("b", 2, 5)), "b overlaps a"),
    ],
)
def test_tensors_that_share_bytes_or_leave_holes_are_refused(tensors, said):
    with pytest.raises(ArtifactError, match=said) as caught:
        manifest_of(object_of(*tensors), PROVENANCE)
    assert caught.value.code == taxonomy.MALFORMED


def test_files_that_are_described_otherwise_than_the_headers_are_refused():
    others = [UpstreamObject(uri="/0", length=100), UpstreamObject(uri="/1", length=51)]
    with pytest.raises(ArtifactError, match="not those of the headers"):
        manifest_of(OBJECT, PROVENANCE, files=others)


def edited(change):
    fields = json.loads(write_document(MANIFEST))
    change(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(document="inferswarm.manifest/2"), "Invalid value 'inferswarm.manifest/2'"),
        (lambda m: m.update(extra=1), "unknown field `extra`"),
        (lambda m: m.update(hash_known_by="believed"), "Invalid enum value 'believed'"),
        (lambda m: m["entries"].reverse(), "before the end of config.json"),
        (lambda m: m["entries"][1]["range"].update(start=39), "b lies before the end of a"),
        (lambda m: m["entries"][1].update(name="a"), "two entries have one name"),
        (lambda m: m["entries"][1]["range"].update(end=101), "which has 100 B"),
        (lambda m: m["entries"][1]["range"].update(start=90), "which has 100 B"),
        (lambda m: m["entries"][0].update(file=3), "file 3 of 3"),
        (lambda m: m["entries"][0].update(file=-1), "file -1 of 3"),
        (lambda m: m["entries"][3]["range"].update(start=1), "is metadata and not the whole"),
        (lambda m: m["entries"][0].update(sha256=ONE), "a layout knows no digest"),
        (lambda m: m["entries"][0].update(sha256="sha256:12"), "matching regex"),
        (lambda m: m.update(hash_known_by="hashed"), "7 of 7 digests are missing"),
        (lambda m: m.update(hash_known_by="first-fetch-pinned"), "no digest is there"),
        (lambda m: m["files"][1].update(uri="/0"), "two files have one place"),
        (lambda m: m.update(entries=[]), "without entries"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_not_read(change, said):
    with pytest.raises(DocumentError, match=said):
        read_manifest(edited(change), "file")


def test_a_whole_file_has_one_digest():
    def change(manifest):
        manifest.update(hash_known_by="first-fetch-pinned")
        manifest["entries"][2].update(sha256=ONE)
        manifest["files"][1].update(sha256=TWO)

    with pytest.raises(DocumentError, match="their digests differ"):
        read_manifest(edited(change), "file")


# -- pins --


def pin(name="a", sha256=ONE, version="etag:1", **changes):
    entry = next(entry for entry in MANIFEST.entries if entry.name == name)
    fields = {"uri": MANIFEST.files[entry.file].uri, "version": version, "range": entry.range, "sha256": sha256}
    return Pin(**{**fields, **changes})


def test_what_the_first_fetch_found_is_labelled_so(rig):
    with LocalFileOrigin(rig.path) as origin:
        described, entry = origin.described, rig.layout.entries[3]
        sha256 = digest_bytes(origin.read(entry.range))
    found = Pin(uri=described.uri, version=described.version, range=entry.range, sha256=sha256)
    pinned = with_pins(rig.layout, [found])
    assert pinned.hash_known_by == "first-fetch-pinned"
    assert [entry.sha256 for entry in pinned.entries].count(msgspec.UNSET) == len(pinned.entries) - 1
    assert pinned.entries[3].sha256 == rig.manifest.entries[3].sha256
    assert with_pins(pinned, [found]) == pinned
    assert with_pins(rig.layout, []) == rig.layout
    assert with_pins(rig.manifest, [found]) == rig.manifest


def test_the_version_that_was_fetched_is_kept():
    pinned = with_pins(MANIFEST, [pin()])
    assert pinned.files[0].version == "etag:1"
    assert pinned.files[1].version is msgspec.UNSET
    with pytest.raises(ArtifactError, match="is version etag:1, fetched was etag:2"):
        with_pins(pinned, [pin("b", version="etag:2")])


@pytest.mark.parametrize(
    ("pins", "code"),
    [
        ([pin(), pin(sha256=TWO)], taxonomy.INTEGRITY_MISMATCH),
        ([pin(), pin("b", version="etag:2")], taxonomy.IDENTITY_MISMATCH),
        ([pin(uri="/other")], taxonomy.IDENTITY_MISMATCH),
        ([pin(range=ByteRange(10, 39))], taxonomy.UNDECLARED),
    ],
)
def test_pins_that_contradict_what_is_known_are_refused(pins, code):
    assert code_of(with_pins, MANIFEST, pins) == code


def test_a_pin_cannot_change_what_a_publisher_hashed(rig):
    file, entry = rig.manifest.files[0], rig.manifest.entries[0]
    wrong = Pin(uri=file.uri, version="etag:1", range=entry.range, sha256=ONE)
    assert code_of(with_pins, rig.manifest, [wrong]) == taxonomy.INTEGRITY_MISMATCH


def test_a_strict_policy_takes_hashed_manifests_only(rig):
    check_policy(rig.manifest, "strict")
    for manifest in (MANIFEST, with_pins(MANIFEST, [pin()])):
        check_policy(manifest, "pinning")
        assert code_of(check_policy, manifest, "strict") == taxonomy.UNVERIFIED_READ


# -- against headers --


def test_a_manifest_fits_the_object_as_any_reader_names_its_tensors(rig):
    check_manifest(rig.manifest, rig.model.object)
    moved = tuple(replace(file, uri="/elsewhere") for file in rig.model.object.files)
    check_manifest(rig.manifest, replace(rig.model.object, files=moved))
    check_manifest(MANIFEST, replace(OBJECT, tensors=OBJECT.tensors[1:]))


@pytest.mark.parametrize(
    "other",
    [
        object_of(*OBJECT.tensors, lengths=(101, 50)),
        object_of(*OBJECT.tensors, lengths=(100, 50, 9)),
        object_of(*OBJECT.tensors, tensor("d", 90, 91), lengths=(100, 50)),
        object_of(*OBJECT.tensors, tensor("d", 0, 9), lengths=(100, 50)),
        object_of(tensor("a", 11, 40), lengths=(100, 50)),
        object_of(tensor("b", 40, 89), lengths=(100, 50)),
        object_of(tensor("c", 0, 49, file=1), lengths=(100, 50)),
    ],
)
def test_a_manifest_of_another_layout_is_refused(other):
    assert code_of(check_manifest, MANIFEST, other) == taxonomy.IDENTITY_MISMATCH


def test_stored_tensors_are_sorted_by_file_and_place():
    found = stored_tensors(replace(OBJECT, tensors=OBJECT.tensors[::-1]))
    assert [item.name for item in found] == ["a", "b", "c"]
