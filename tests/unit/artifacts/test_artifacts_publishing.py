"""The publisher's pass: every digest right, every byte read once, memory bounded, and nothing overwritten."""

import hashlib
import os
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.describing import describe_model
from inferswarm.artifacts.identity import Provenance, UpstreamObject
from inferswarm.artifacts.manifest import CHECKPOINT, manifest_of
from inferswarm.artifacts.manifest_files import check_target, load_manifest, save_manifest
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.pinning import with_pins
from inferswarm.artifacts.publishing import content_revision, hash_pieces, publish
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, SpecError
from tests.unit.artifacts.artifacts_support import PROVENANCE, make_rig, object_of, open_local, tensor

replace = msgspec.structs.replace
MIB = 2**20


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    return make_rig(tmp_path_factory.mktemp("model"))


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layout_of(path, provenance=PROVENANCE):
    described = describe_model(path)
    return manifest_of(described.object, provenance, files=described.files, metadata=described.metadata)


def write_directory(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(save({name: np.array(v, np.float32) for name, v in values.items()}))
    return folder


def test_every_digest_is_that_of_the_bytes_and_every_byte_is_read_once(tmp_path):
    folder = write_directory(tmp_path / "m", a=range(9), b=range(300))
    (folder / "tokenizer.json").write_text("{}")
    opened = []

    def opening(file):
        opened.append(LocalFileOrigin(file.uri, expected=file))
        return opened[-1]

    manifest = publish(layout_of(folder), opening)
    assert manifest.hash_known_by == "hashed"
    assert [entry.name for entry in manifest.entries] == ["a", "b", "config.json", "tokenizer.json"]
    contents = [Path(file.uri).read_bytes() for file in manifest.files]
    assert [file.sha256 for file in manifest.files] == [sha256(data) for data in contents]
    for entry in manifest.entries:
        assert entry.sha256 == sha256(contents[entry.file][entry.range.start : entry.range.end])
    assert [origin.bytes_read for origin in opened] == [file.length for file in manifest.files]


def test_a_gguf_file_is_hashed_whole_and_by_tensor(rig):
    data = rig.path.read_bytes()
    assert rig.manifest.files[0].sha256 == sha256(data)
    assert all(entry.sha256 == sha256(data[entry.range.start : entry.range.end]) for entry in rig.manifest.entries)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(24 * MIB)
    file = UpstreamObject(uri=str(path), length=24 * MIB)
    layout = manifest_of(object_of(tensor("a", 5, 24 * MIB), lengths=(24 * MIB,)), PROVENANCE, files=[file])
    seen = []
    tracemalloc.start()
    publish(layout, open_local, lambda file, done: seen.append(done))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == [MIB * (index + 1) for index in range(24)]
    assert peak < 4 * MIB


@given(st.binary(max_size=200), st.lists(st.integers(1, 40)), st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=80, derandomize=True, deadline=None)
def test_digests_do_not_depend_on_where_pieces_end(data, sizes, cuts):
    bounds = sorted({min(cut, len(data)) for cut in cuts})
    ranges = [ByteRange(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=False)]
    pieces, position = [], 0
    for size in [*sizes, len(data)]:
        pieces.append(memoryview(data)[position : position + size])
        position += size
    whole, parts = hash_pieces(iter(pieces), ranges)
    assert whole == sha256(data)
    assert parts == tuple(sha256(data[part.start : part.end]) for part in ranges)


@pytest.mark.rule(80)
def test_the_same_bytes_elsewhere_have_the_same_digests_and_revision(tmp_path):
    """A name and a place are no identity; other bytes under the same name are another revision.

    Mutation: let `content_revision` take in the file's uri, or leave its digest out.
    """
    here, there = (write_directory(tmp_path / name, a=range(9)) for name in ("x", "y"))
    one, two = (publish(layout_of(folder), open_local) for folder in (here, there))
    assert [entry.sha256 for entry in one.entries] == [entry.sha256 for entry in two.entries]
    assert content_revision(one.files) == content_revision(two.files)
    other = publish(layout_of(write_directory(here, a=range(1, 10))), open_local)
    assert content_revision(other.files) != content_revision(one.files)
    with pytest.raises(ArtifactError, match="was not read"):
        content_revision(layout_of(here).files)


def test_the_time_of_a_local_file_is_not_published(rig):
    assert rig.layout.files[0].version is not msgspec.UNSET
    assert rig.manifest.files[0].version is msgspec.UNSET


def code_of(layout, opening=open_local, progress=lambda file, done: None):
    with pytest.raises(ArtifactError) as caught:
        publish(layout, opening, progress)
    return caught.value.code


def test_a_file_of_another_length_or_version_is_refused(tmp_path):
    folder = write_directory(tmp_path / "m", a=range(9))
    layout = layout_of(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert code_of(layout) == taxonomy.IDENTITY_MISMATCH
    write_directory(folder, a=range(10))
    assert code_of(layout) == taxonomy.IDENTITY_MISMATCH


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "changing"
    path.write_bytes(bytes(3 * MIB))
    file = UpstreamObject(uri=str(path), length=3 * MIB)
    layout = manifest_of(object_of(tensor("a", 0, 9), lengths=(3 * MIB,)), PROVENANCE, files=[file])

    def change(file, done):
        with path.open("r+b") as opened:
            opened.write(b"x")
        os.utime(path, ns=(1, 1))

    assert code_of(layout, progress=change) == taxonomy.IDENTITY_MISMATCH


def test_other_bytes_than_a_pin_says_are_refused(tmp_path):
    layout = layout_of(write_directory(tmp_path / "m", a=range(9)))
    file = layout.files[0]
    wrong = Pin(uri=file.uri, version=file.version, range=layout.entries[0].range, sha256=sha256(b"other"))
    assert code_of(with_pins(layout, [wrong])) == taxonomy.INTEGRITY_MISMATCH


def test_an_origin_that_ends_early_is_refused(rig):
    class Short(LocalFileOrigin):
        def stream(self, wanted):
            yield from super().stream(ByteRange(wanted.start, wanted.end - 1))

    assert code_of(rig.layout, lambda file: Short(file.uri)) == taxonomy.SOURCE_UNAVAILABLE


# -- on disk --


def test_a_manifest_is_written_and_read_again(rig, tmp_path):
    save_manifest(tmp_path / "m.json", rig.manifest)
    assert load_manifest(tmp_path / "m.json") == rig.manifest
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_a_manifest_that_cannot_be_written_leaves_what_was_there(rig, tmp_path, monkeypatch):
    target = tmp_path / "m.json"
    save_manifest(target, rig.layout)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpecError, match="No space left"):
        save_manifest(target, rig.manifest)
    assert load_manifest(target) == rig.layout
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_a_manifest_replaces_its_own_layout_and_itself(rig, tmp_path):
    for manifest in (rig.layout, rig.manifest):
        check_target(tmp_path / "m.json", rig.manifest)
        save_manifest(tmp_path / "m.json", manifest)
    check_target(tmp_path / "m.json", rig.manifest)


def test_something_else_is_never_overwritten_silently(rig, tmp_path):
    target = tmp_path / "m.json"
    other = replace(rig.manifest, provenance=Provenance(model="other", revision="r1", representation=CHECKPOINT))
    save_manifest(target, other)
    with pytest.raises(SpecError, match="holds the manifest of other"):
        check_target(target, rig.manifest)
    check_target(target, rig.manifest, replace=True)
    changed = rig.manifest.entries[0], replace(rig.manifest.entries[0], sha256=sha256(b"other"))
    save_manifest(target, replace(rig.manifest, entries=(changed[1], *rig.manifest.entries[1:])))
    with pytest.raises(SpecError, match="other contents of small"):
        check_target(target, rig.manifest)
    save_manifest(target, replace(rig.layout, entries=rig.layout.entries[1:]))
    with pytest.raises(SpecError, match="other contents of small"):
        check_target(target, rig.manifest)
    target.write_text("a shopping list")
    for wish in (False, True):
        with pytest.raises(SpecError, match="a new file, or one that holds a manifest"):
            check_target(target, rig.manifest, replace=wish)
    for nowhere in (tmp_path / "none" / "m.json", tmp_path):
        with pytest.raises(SpecError, match="a directory that exists"):
            check_target(nowhere, rig.manifest)
