"""States from a content store: the same bits as from the files, and no byte from anywhere else."""

from __future__ import annotations

import itertools
import os
import tracemalloc

import msgspec
import pytest

from inferswarm.artifacts.layout import stored_tensors
from inferswarm.artifacts.store import ContentStore, Incoming
from inferswarm.artifacts.taxonomy import (
    CACHE_TAMPERED,
    COVERAGE_INCOMPLETE,
    IDENTITY_MISMATCH,
    SOURCE_UNAVAILABLE,
    UNPLANNED_READ,
)
from inferswarm.artifacts.types import ByteRange, StoredBlob, StoredBlobs
from inferswarm.backends.direct import run_split_direct
from inferswarm.backends.registry import make_executor
from inferswarm.backends.required_bytes import StoredBytes, open_required
from inferswarm.backends.states import FileTensors, assigned_states
from inferswarm.backends.transformers_backend.describing import describe_hosted
from inferswarm.errors import ArtifactError
from inferswarm.strategies.dense.model import DenseModel
from tests.families import write_directory, write_gguf
from tests.hosted import hosted_assignment, save_family
from tests.models import write_small_llama
from tests.unit.backends.backends_support import assign

PROMPT = (5, 17, 80, 3, 64, 9)


def keep(requirement, root):
    """Put what a participant requires into a store, a blob for each stored tensor; return the requirement with it."""
    found = []
    for tensor in stored_tensors(requirement):
        with open(requirement.files[tensor.file].uri, "rb") as file:
            file.seek(tensor.range.start)
            found.append((tensor, file.read(tensor.range.length)))
    with ContentStore(root) as store:
        digests = store.publish_batch([Incoming(data) for _, data in found])
    blobs = tuple(
        StoredBlob(file=tensor.file, range=tensor.range, sha256=sha256)
        for (tensor, _), sha256 in zip(found, digests, strict=True)
    )
    return msgspec.structs.replace(requirement, stored=StoredBlobs(root=str(root), blobs=blobs))


def refused(code, call):
    with pytest.raises(ArtifactError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def blob_path(root, sha256):
    digits = sha256.removeprefix("sha256:")
    return root / "blobs" / "sha256" / digits[:2] / digits[2:]


def built(assignments):
    executors = [make_executor(assignment) for assignment in assignments]
    states = [executor.materialize(lambda done, total: None) for executor in executors]
    return states, run_split_direct(executors, PROMPT, max_tokens=3, chunk_positions=4), executors


def check_same_from_a_store(assignments, tmp_path):
    """Build a chain from the files and, once these are gone, from a store for each participant."""
    states, result, _ = built(assignments)
    assert all(state.source_digest is not None for part in states for state in part)
    kept = [
        msgspec.structs.replace(part, requirement=keep(part.requirement, tmp_path / "stores" / part.participant))
        for part in assignments
    ]
    for file in assignments[0].requirement.files:
        os.remove(file.uri)
    stored_states, stored_result, executors = built(kept)
    assert stored_states == states
    assert stored_result == result
    for part, executor in zip(kept, executors, strict=True):
        assert executor.counters().source_bytes_read == part.requirement.bytes
        assert executor.counters().state_bytes_moved_after_materialization == 0


@pytest.mark.parametrize(
    ("family", "layout"),
    [("phi3", "fused"), ("llama-tied", "paired-rows"), ("gemma3", "plus-one"), ("granite", "directory")],
)
def test_states_from_a_store_have_the_bits_of_those_from_the_files(family, layout, tmp_path):
    if layout == "directory":
        model = DenseModel.open(write_directory(family, tmp_path / "model", max_shard_size="150KB"))
        assert len(model.object.files) > 1
    else:
        model = DenseModel.open(write_gguf(family, tmp_path / "model.gguf", encoding="Q8_0"))
        is_fused = len(stored_tensors(model.object)) < len(model.object.tensors)
        assert is_fused if layout == "fused" else any(tensor.layout == layout for tensor in model.object.tensors)
    problem, last = model.problem(), len(model.description.unit_ids)
    assignments = [
        assign(model.description, *span, requirement=model.requirement(problem, f"stage-{span[0]}-{span[1]}", *span))
        for span in ((0, 2), (2, last))
    ]
    check_same_from_a_store(assignments, tmp_path)


@pytest.mark.parametrize("family", ["gpt_neox", "mixtral"])
def test_a_hosted_model_is_built_from_a_store_the_same(family, tmp_path):
    description, files = describe_hosted(save_family(family, tmp_path / "model"))
    spans = itertools.pairwise((0, 2, len(description.unit_ids)))
    check_same_from_a_store([hosted_assignment(description, files, *span) for span in spans], tmp_path)


@pytest.fixture
def model(tmp_path):
    return DenseModel.open(write_small_llama(tmp_path / "small.gguf", encoding="F32", num_blocks=2))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def needed(model, root):
    """What the first block needs, kept in a store; the file has gone."""
    kept = keep(model.requirement(model.problem(), "part", 1, 2), root)
    model.path.unlink()
    return kept


def opened(model, requirement):
    return FileTensors(requirement, assigned_states(model.description, 1, 2))


def read_all(source, requirement, rows=7):
    for tensor in requirement.tensors:
        total = tensor.shape[0] if len(tensor.shape) > 1 else 1
        for first in range(0, total, rows):
            source.rows(tensor.name, first, min(first + rows, total))


def test_exactly_the_required_bytes_are_read_each_once(model, needed):
    seen = []
    shapes = assigned_states(model.description, 1, 2)
    source = FileTensors(needed, shapes, lambda done, total: seen.append((done, total)))
    read_all(source, needed)
    source.finish()
    source.finish()
    assert source.bytes_read == needed.bytes
    assert seen[-1] == (needed.bytes, needed.bytes)

    source = opened(model, needed)
    source.rows("blk.0.attn_k.weight", 0, 8)
    refused(COVERAGE_INCOMPLETE, source.finish)
    source = opened(model, needed)
    read_all(source, needed)
    source.rows("blk.0.attn_k.weight", 0, 8)
    assert "twice" in refused(UNPLANNED_READ, source.finish).reason


def test_an_altered_blob_is_named_with_its_tensor_and_then_missing(model, needed, root):
    blob = next(blob for blob in needed.stored.blobs if blob.range == needed.tensors[1].range)
    path = blob_path(root, blob.sha256)
    path.chmod(0o600)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    for code in (CACHE_TAMPERED, SOURCE_UNAVAILABLE):
        source = opened(model, needed)
        error = refused(code, lambda source=source: read_all(source, needed))
        assert error.subject == blob.sha256
        assert error.reason.endswith(f"; part needs it from the store {root} for {needed.tensors[1].name}")
        # Nothing can be had from what has failed.
        refused(SOURCE_UNAVAILABLE, lambda source=source: source.rows(needed.tensors[0].name, 0, 1))
    assert [path.suffix for path in sorted((root / "quarantine").iterdir())] == ["", ".json"]


def test_a_blob_of_another_length_is_not_what_was_asked_for(model, needed, root):
    with ContentStore(root) as store:
        other = store.publish(b"short")
    first, *others = needed.stored.blobs
    wrong = (msgspec.structs.replace(first, sha256=other), *others)
    changed = msgspec.structs.replace(needed, stored=StoredBlobs(root=str(root), blobs=wrong))
    error = refused(IDENTITY_MISMATCH, lambda: read_all(opened(model, changed), changed))
    assert error.reason.startswith(f"has 5 B in the store; needed are {first.range.length:,} B")


@pytest.mark.parametrize("place", ["absent", "plain", "file"])
def test_a_root_that_is_no_store_here_is_refused_before_anything_is_read(model, needed, tmp_path, place):
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    stored = msgspec.structs.replace(needed.stored, root=str(tmp_path / place))
    error = refused(SOURCE_UNAVAILABLE, lambda: opened(model, msgspec.structs.replace(needed, stored=stored)))
    assert error.subject == str(tmp_path / place)
    assert f"part was to read {needed.bytes:,} B from there" in error.reason
    assert list((tmp_path / "plain").iterdir()) == []


def test_a_root_that_no_node_filled_in_is_not_the_working_directory(model, needed, root, monkeypatch):
    monkeypatch.chdir(root)
    nowhere = msgspec.structs.replace(needed, stored=msgspec.structs.replace(needed.stored, root=""))
    error = refused(SOURCE_UNAVAILABLE, lambda: opened(model, nowhere))
    assert error.subject == "part"
    assert "has not said where its artifact store is" in error.reason


def test_files_that_lie_elsewhere_need_a_store(model, needed, tmp_path):
    remote = (msgspec.structs.replace(needed.files[0], uri="https://example.org/small.gguf"),)
    bare = msgspec.structs.replace(needed, files=remote, stored=msgspec.UNSET)
    error = refused(SOURCE_UNAVAILABLE, lambda: opened(model, bare))
    assert error.subject == "https://example.org/small.gguf"
    assert "part names no artifact store" in error.reason
    source = opened(model, msgspec.structs.replace(needed, files=remote))
    read_all(source, needed)
    source.finish()


def test_a_hosted_model_elsewhere_is_refused_before_the_host_builds_anything(tmp_path):
    description, files = describe_hosted(save_family("gpt_neox", tmp_path / "model"))
    part = hosted_assignment(msgspec.structs.replace(description, configuration="{"), files, 1, 2)
    remote = tuple(msgspec.structs.replace(file, uri="hf://owner/name/m.safetensors") for file in files.files)
    part = msgspec.structs.replace(part, requirement=msgspec.structs.replace(part.requirement, files=remote))
    executor = make_executor(part)
    refused(SOURCE_UNAVAILABLE, lambda: executor.materialize(lambda done, total: None))


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_rows_of_many_blobs_in_turn_keep_few_files_open(model, needed):
    before = num_descriptors()
    source = opened(model, needed)
    matrices = [tensor for tensor in needed.tensors if len(tensor.shape) > 1]
    vectors = [tensor for tensor in needed.tensors if len(tensor.shape) == 1]
    assert len(needed.stored.blobs) == len(matrices) + len(vectors) == 9
    for row in range(min(tensor.shape[0] for tensor in matrices)):
        for tensor in matrices:
            source.rows(tensor.name, row, row + 1)
    for tensor in vectors:
        source.rows(tensor.name, 0, 1)
    assert num_descriptors() - before <= 8 + 1  # the index
    for tensor in matrices:
        source.rows(tensor.name, min(other.shape[0] for other in matrices), tensor.shape[0])
    source.finish()
    assert num_descriptors() == before
    assert None not in [source.fingerprint(tensor.name) for tensor in needed.tensors]


def test_a_store_takes_no_more_memory_than_a_file_even_when_it_hashes(tmp_path, monkeypatch):
    """One table of 16 MiB, whose file somebody touched: it is hashed and read, by pieces and by rows."""
    path = write_small_llama(tmp_path / "wide.gguf", encoding="F32", num_blocks=1, hidden=64, vocab=65_536)
    model = DenseModel.open(path)
    requirement = model.requirement(model.problem(), "part", 0, 1)
    kept = keep(requirement, tmp_path / "store")
    for blob in kept.stored.blobs:
        os.utime(blob_path(tmp_path / "store", blob.sha256))
    forgotten = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, start, length, advice: forgotten.append(length))
    peaks = []
    for described in (requirement, kept):
        source = FileTensors(described, assigned_states(model.description, 0, 1))
        tracemalloc.start()
        read_all(source, requirement, rows=4096)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        source.finish()
    assert requirement.bytes == 2**24
    assert sum(forgotten) == 2 * requirement.bytes  # of the kernel's copies
    assert peaks[1] < peaks[0] + 2**20 + 2**18  # a piece of a blob that is hashed
    assert peaks[1] < 2**23


def test_ranges_are_logged_by_their_places_in_the_files(needed):
    source = open_required(needed)
    assert isinstance(source, StoredBytes)
    first = needed.stored.blobs[0]
    inner = ByteRange(first.range.start + 4, first.range.start + 20)
    buffer = bytearray(16)
    source.read_into(0, inner, buffer)
    with ContentStore(needed.stored.root) as store, store.open_verified(first.sha256) as blob:
        assert bytes(buffer) == blob.read(ByteRange(4, 20))
    assert source.ranges_read == {0: (inner,)}
    outside = ByteRange(first.range.start, first.range.end + 1)
    refused(UNPLANNED_READ, lambda: source.read_into(0, outside, bytearray(outside.length)))
    source.close()
    assert (source.bytes_read, source.ranges_read) == (16, {0: (inner,)})
