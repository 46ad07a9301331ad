"""Decoded tensors that are kept in a store: the same states as without, and only where everything is equal."""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import torch

from inferswarm.artifacts.gguf_types import PLAIN_ENCODINGS, READABLE_ENCODINGS
from inferswarm.artifacts.store import ContentStore
from inferswarm.artifacts.taxonomy import COVERAGE_INCOMPLETE, SOURCE_UNAVAILABLE, UNPLANNED_READ
from inferswarm.artifacts.transforms import transform_key
from inferswarm.artifacts.types import ByteRange, KeptResults, TensorRecord
from inferswarm.backends import decoding_identity
from inferswarm.backends.decoding_identity import decoding, surroundings
from inferswarm.backends.decoding_transform import decode_result, encode_rows
from inferswarm.backends.dequantize import decode_rows, num_rows
from inferswarm.backends.registry import make_executor
from inferswarm.backends.states import FileTensors, assigned_states, open_tensors
from inferswarm.backends.transform_cache import KeptTensors
from inferswarm.documents import canonical_bytes, read_document
from inferswarm.errors import ArtifactError
from inferswarm.strategies.dense.model import DenseModel
from tests.families import write_gguf
from tests.models import write_small_llama
from tests.unit.backends.backends_support import assign
from tests.unit.backends.test_backends_required_bytes import blob_path, built, keep, read_all, refused

TENSORS = 7
"""Quantized tensors of one block of the small model."""


def with_results(requirement, quota_bytes=None):
    stored = msgspec.structs.replace(requirement.stored, results=KeptResults(quota_bytes=quota_bytes))
    return msgspec.structs.replace(requirement, stored=stored)


def results_of(root):
    """Return the digests of a store's results."""
    with ContentStore(root) as store:
        blobs = store.inventory().blobs
    found = [blob for blob in blobs if any(owner.startswith("transform:") for owner in blob.owners)]
    assert {blob.kind for blob in found} <= {"optional"}
    return [blob.sha256 for blob in found]


def remove_sources(requirement):
    """Remove the blobs of quantized tensors: who builds states without them has read results."""
    for record in requirement.tensors:
        if record.encoding not in PLAIN_ENCODINGS:
            blob = requirement.stored.blobs[requirement.stored.holding(record.file, record.range)]
            blob_path(Path(requirement.stored.root), blob.sha256).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("family", "encoding", "representation", "layout"),
    [
        ("phi3", "Q8_0", "fp32", "fused"),
        ("llama-tied", "Q8_0", "bf16", "paired-rows"),
        ("gemma3", "Q4_1", "bf16", "plus-one"),
    ],
)
def test_states_made_of_results_are_those_made_of_the_bytes(family, encoding, representation, layout, tmp_path):
    model = DenseModel.open(write_gguf(family, tmp_path / "model.gguf", encoding=encoding))
    assert layout == "fused" or any(tensor.layout == layout for tensor in model.object.tensors)
    last = len(model.description.unit_ids)
    plain = []
    for span in ((0, 2), (2, last)) if layout == "paired-rows" else ((0, last),):
        requirement = keep(model.requirement(model.problem(), "stage-{}-{}".format(*span), *span), tmp_path / "store")
        plain.append(assign(model.description, *span, representation=representation, requirement=requirement))
    states, result, _ = built(plain)
    kept = [msgspec.structs.replace(part, requirement=with_results(part.requirement)) for part in plain]
    num = sum(record.encoding not in PLAIN_ENCODINGS for part in plain for record in part.requirement.tensors)
    for made, read in ((num, 0), (0, num)):
        kept_states, kept_result, executors = built(kept)
        assert (kept_states, kept_result) == (states, result)
        counts = [executor._source.counts for executor in executors]
        shared = num - len(results_of(tmp_path / "store"))  # a tied table is asked for by both
        assert sum(count.made for count in counts) == max(made - shared, 0)
        assert sum(count.read for count in counts) == read + (shared if made else 0)
        for part, executor in zip(kept, executors, strict=True):
            assert executor.counters().source_bytes_read == part.requirement.bytes
            assert executor.counters().state_bytes_moved_after_materialization == 0
        for part in kept:
            remove_sources(part.requirement)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    return DenseModel.open(write_small_llama(path, num_blocks=2))


@pytest.fixture
def needed(model, tmp_path):
    """What the first block needs, in a store that keeps results."""
    return with_results(keep(model.requirement(model.problem(), "part", 1, 2), tmp_path / "store"))


def opened(model, requirement, representation="fp32", progress=lambda done, total: None):
    source = open_tensors(
        assign(model.description, 1, 2, representation=representation, requirement=requirement),
        assigned_states(model.description, 1, 2),
        progress,
    )
    assert isinstance(source, KeptTensors)
    return source


def values_of(source, tensors, rows=7):
    values = {}
    for tensor in tensors:
        total = num_rows(tensor)
        pieces = [source.rows(tensor.name, low, min(low + rows, total)) for low in range(0, total, rows)]
        values[tensor.name] = np.concatenate(pieces).tobytes()
    marks = {tensor.name: source.fingerprint(tensor.name) for tensor in tensors}
    return values, marks


def decoded(model, requirement):
    source = FileTensors(requirement, assigned_states(model.description, 1, 2))
    found = values_of(source, requirement.tensors)
    source.finish()
    return found


def run(model, requirement, representation="fp32"):
    """Read everything; return it with what was done with results."""
    source = opened(model, requirement, representation)
    found = values_of(source, requirement.tensors)
    source.finish()
    return found, source.counts[:2]


@pytest.mark.rule(86)
def test_a_result_is_a_miss_where_anything_that_decides_its_bits_differs(model, needed, monkeypatch):
    """Another version of what computes, another procedure, another machine, another form of the numbers.

    Mutation: leave one of them out of `decoding`.
    """
    assert run(model, needed)[1] == (0, TENSORS)
    real = importlib.metadata.version
    for place, name, changed in (
        (importlib.metadata, "version", lambda name: "9" if name == "gguf" else real(name)),
        (importlib.metadata, "version", lambda name: "9" if name == "numpy" else real(name)),
        (platform, "machine", lambda: "other"),
        (decoding_identity, "DECODING_VERSION", "0"),
        (decoding_identity, "DECODING", "other"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, changed)
            assert run(model, needed)[1] == (0, TENSORS), name
    assert run(model, needed, "bf16")[1] == (0, TENSORS)
    assert run(model, needed)[1] == (TENSORS, 0)


@pytest.mark.rule(86)
def test_every_property_of_a_tensor_is_a_condition(needed):
    """All but its name, which decides no bits; plain numbers and unknown representations are not kept.

    Mutation: leave encoding, layout, shape or the place in the blob out of `decoding`.
    """
    record = next(tensor for tensor in needed.tensors if tensor.name == "blk.0.attn_q.weight")
    place = needed.stored.holding(record.file, record.range)
    blob = needed.stored.blobs[place]
    others = [item for index, item in enumerate(needed.stored.blobs) if index != place]

    def key(record=record, blob=blob):
        blobs = tuple(sorted([*others, blob], key=lambda item: item.range))
        stored = msgspec.structs.replace(needed.stored, blobs=blobs)
        return transform_key(decoding(record, stored, "fp32", surroundings()))

    replace = msgspec.structs.replace
    assert key(replace(record, name="another", stored_name="name")) == key()
    first = ByteRange(record.range.start, record.range.start + record.range.length // 2)
    second = ByteRange(first.end, record.range.end)
    keys = [
        key(),
        key(replace(record, encoding="Q4_0")),
        key(replace(record, layout="plus-one")),
        key(replace(record, shape=(record.shape[0] // 2, record.shape[1] * 2))),
        key(replace(record, range=first)),
        key(replace(record, range=second)),
        key(blob=replace(blob, sha256="sha256:" + "0" * 64)),
    ]
    assert len(set(keys)) == len(keys)
    for unkept in (replace(record, encoding="F32"), replace(record, encoding="BF16")):
        assert decoding(unkept, needed.stored, "fp32", surroundings()) is None
    assert decoding(record, needed.stored, "fp8", surroundings()) is None


def quantized(encoding):
    """Return two rows of made-up blocks whose numbers are finite, and the record of their tensor."""
    kind = gguf.GGMLQuantizationType[encoding]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    columns = 2 * max(block_size, 256)
    size = columns // block_size * block_bytes
    data = bytes(byte & 0x3B for byte in hashlib.shake_128(encoding.encode()).digest(2 * size))
    return TensorRecord(name="t", encoding=encoding, shape=(2, columns), range=ByteRange(0, 2 * size)), data


RESULTS_OF_VERSION_1 = "932e2ffe5c1cd8ef816cf579259b0035b7a7ad2a5b96853e62c4a4494885b62a"
"""sha256 over what version 1 of decoding makes of `quantized`, in both representations."""


def test_the_version_of_decoding_names_these_bits():
    """When this fails although nothing was to change, something changed; else raise DECODING_VERSION with it."""
    state = hashlib.sha256()
    for encoding in READABLE_ENCODINGS:
        if encoding not in PLAIN_ENCODINGS:
            rows = decode_rows(*quantized(encoding))
            for representation in decoding_identity.KEPT:
                state.update(encode_rows(rows, representation))
    assert (decoding_identity.DECODING_VERSION, state.hexdigest()) == ("1", RESULTS_OF_VERSION_1)


def test_numbers_are_rounded_as_torch_rounds_them():
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    edges = np.arange(0, 2**32, 2**15, dtype=np.uint64).astype(np.uint32)  # halves of bf16's last place
    values = np.concatenate([bits, edges, edges + np.uint32(1), edges - np.uint32(1)]).view(np.float32)
    values = values[np.isfinite(values)][: 300_000 // 64 * 64].reshape(-1, 64)
    rounded = torch.from_numpy(values.copy()).to(torch.bfloat16)
    kept = bytearray(encode_rows(values, "bf16"))
    assert kept == rounded.view(torch.int16).numpy().tobytes()
    again = decode_result(kept, 64, "bf16")
    assert again.tobytes() == rounded.float().numpy().tobytes()
    exact = bytearray(encode_rows(values, "fp32"))
    assert decode_result(exact, 64, "fp32").tobytes() == values.tobytes()


def test_an_altered_result_is_decoded_again_and_replaced(model, needed, tmp_path):
    expected = decoded(model, needed)
    run(model, needed)
    before = results_of(tmp_path / "store")
    path = blob_path(tmp_path / "store", before[0])
    path.chmod(0o600)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert run(model, needed) == (expected, (TENSORS - 1, 1))
    assert results_of(tmp_path / "store") == before
    assert [path.suffix for path in sorted((tmp_path / "store" / "quarantine").iterdir())] == ["", ".json"]


def test_a_source_that_is_listed_as_its_own_result_is_decoded(model, needed, tmp_path):
    expected = decoded(model, needed)
    with ContentStore(tmp_path / "store") as store:
        for record in needed.tensors:
            made = decoding(record, needed.stored, "fp32", surroundings())
            if made is not None:
                store.hold(f"transform:{transform_key(made)}", [made.source], "optional")
    assert run(model, needed) == (expected, (0, TENSORS))
    assert run(model, needed) == (expected, (TENSORS, 0))


@pytest.mark.rule(17)
@pytest.mark.parametrize("when", ["before", "found", "reading"])
def test_results_may_go_at_any_moment(model, needed, tmp_path, when):
    """Before anybody looks, between finding and reading, and while one is read.

    Mutation: let `KeptTensors` raise what `_look_up` does not find any more.
    """
    expected = decoded(model, needed)
    run(model, needed)

    def collect():
        with ContentStore(tmp_path / "store") as store:
            store.hold("plan", [blob.sha256 for blob in needed.stored.blobs])
            assert len(store.collect().blobs) == TENSORS

    if when == "before":
        collect()
        source = opened(model, needed)
    else:
        source = opened(model, needed)
        first = needed.tensors[0] if when == "found" else biggest(needed)
        if when == "reading":
            values = source.rows(first.name, 0, 3)
        collect()
    if when == "reading":
        rest = source.rows(first.name, 3, num_rows(first))
        assert np.concatenate([values, rest]).tobytes() == expected[0][first.name]
        others = [tensor for tensor in needed.tensors if tensor != first]
        assert values_of(source, others)[0].items() <= expected[0].items()
    else:
        assert values_of(source, needed.tensors) == expected
    source.finish()
    assert source.counts.read == (1 if when == "reading" else 0)
    assert source.counts.made == TENSORS - source.counts.read


def biggest(requirement):
    return max(requirement.tensors, key=lambda tensor: tensor.range.length)


def test_what_does_not_fit_is_not_kept_and_fails_nothing(model, needed, tmp_path):
    expected = decoded(model, needed)
    with ContentStore(tmp_path / "store") as store:
        spare = store.publish(b"somebody else's, optional" * 4_000)
        held = store.inventory().bytes
    for quota in (held, held - 1, held + 20_000):
        source = opened(model, with_results(needed, quota))
        assert values_of(source, needed.tensors) == expected
        source.finish()
        assert "free under the quota" in source.counts.refused
        assert source.counts.made == len(results_of(tmp_path / "store")) == (quota > held)
    with ContentStore(tmp_path / "store") as store:
        assert store.holds(spare)  # nothing had to go for a result
        assert list((tmp_path / "store" / "partials").iterdir()) == []


def test_a_disk_that_refuses_fails_nothing(model, needed, tmp_path, monkeypatch):
    expected = decoded(model, needed)
    real = os.fsync
    calls = []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    source = opened(model, needed)
    assert values_of(source, needed.tensors) == expected
    source.finish()
    assert "No space left on device" in source.counts.refused
    monkeypatch.undo()
    assert list((tmp_path / "store" / "partials").iterdir()) == []
    made = source.counts.made
    assert run(model, needed) == (expected, (made, TENSORS - made))


CHILD = """
import hashlib, sys
from inferswarm.artifacts.types import ParticipantRequirement
from inferswarm.backends.states import FileTensors, assigned_states
from inferswarm.backends.transform_cache import KeptTensors
from inferswarm.documents import read_document
from inferswarm.strategies.dense.model import DenseModel
needed = read_document(ParticipantRequirement, open(sys.argv[1]).read(), "requirement")
shapes = assigned_states(DenseModel.open(sys.argv[2]).description, 1, 2)
print("ready", flush=True)
sys.stdin.read(1)
source = KeptTensors(needed, shapes, "fp32", FileTensors)
state = hashlib.sha256()
for tensors in shapes.values():
    for name, shape in tensors.items():
        for first in range(0, shape[0] if shape[1:] else 1, 8):
            state.update(source.rows(name, first, first + 8 if shape[1:] else 1))
        state.update(source.fingerprint(name).encode())
source.finish()
print(state.hexdigest(), *source.counts[:2])
"""


def test_two_processes_that_build_at_once_have_the_same_states_and_one_set_of_results(model, needed, tmp_path):
    (tmp_path / "needed.json").write_bytes(canonical_bytes(needed))
    values, marks = decoded(model, needed)
    state = hashlib.sha256()
    for tensors in assigned_states(model.description, 1, 2).values():
        for name in tensors:
            state.update(values[name] + marks[name].encode())
    command = [sys.executable, "-c", CHILD, str(tmp_path / "needed.json"), str(model.path)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 2
    for child in children:
        child.stdin.close()
    answers = []
    for child in children:
        with child:
            answers.append(child.stdout.read().split())
    assert [answer[0] for answer in answers] == [state.hexdigest()] * 2
    assert sum(int(answer[2]) for answer in answers) >= TENSORS
    assert len(results_of(tmp_path / "store")) == TENSORS
    with ContentStore(tmp_path / "store") as store:
        report = store.verify()
        assert (report.damaged, report.strays) == ((), ())
    assert run(model, needed)[1] == (TENSORS, 0)


def test_exactly_the_required_rows_are_read_each_once_also_of_results(model, needed):
    run(model, needed)
    seen = []
    source = opened(model, needed, progress=lambda done, total: seen.append((done, total)))
    values_of(source, needed.tensors)
    source.finish()
    source.finish()
    assert source.bytes_read == needed.bytes
    assert seen[-1] == (needed.bytes, needed.bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    source = opened(model, needed)
    source.rows("blk.0.attn_k.weight", 0, 8)
    refused(COVERAGE_INCOMPLETE, source.finish)
    source = opened(model, needed)
    read_all(source, needed)
    source.rows("blk.0.attn_k.weight", 0, 8)
    assert "twice" in refused(UNPLANNED_READ, source.finish).reason


def test_results_take_no_more_memory_than_the_rows_that_are_asked_for(tmp_path):
    path = write_small_llama(tmp_path / "wide.gguf", encoding="Q8_0", num_blocks=1, hidden=64, vocab=65_536)
    wide = DenseModel.open(path)
    needed = with_results(keep(wide.requirement(wide.problem(), "part", 0, 1), tmp_path / "store"))
    shapes = assigned_states(wide.description, 0, 1)
    peaks = []
    for is_kept in (False, True, True):
        source = KeptTensors(needed, shapes, "fp32", FileTensors) if is_kept else FileTensors(needed, shapes)
        tracemalloc.start()
        read_all(source, needed, rows=4096)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        source.finish()
    plain, made, read = peaks
    assert made < plain + 2**21  # the rows once more, and a piece that is hashed when it is published
    assert read < max(plain, 2**22) < 2**24 == 65_536 * 64 * 4


def test_rows_in_another_order_give_no_mark_and_no_result(model, needed, tmp_path):
    name, total = "blk.0.attn_k.weight", 32
    for read in (False, True):
        source = opened(model, needed)
        if read:
            run(model, needed)
            source = opened(model, needed)
        source.rows(name, 16, total)
        source.rows(name, 0, 16)
        assert source.fingerprint(name) is None
        refused(COVERAGE_INCOMPLETE, source.finish)
        assert bool(results_of(tmp_path / "store")) is read


def test_nothing_stays_open_and_a_missing_store_says_what_it_says_without_results(model, needed, tmp_path):
    gc.collect()  # what other tests gave up in the middle
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        run(model, needed)
        assert len(os.listdir("/proc/self/fd")) == before
    source = opened(model, needed)
    remove_sources(needed)
    source.rows("blk.0.attn_k.weight", 0, 8)  # its result is there
    for path in (tmp_path / "store" / "blobs").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(ArtifactError) as caught:
        source.rows("blk.0.attn_q.weight", 0, 8)
    assert caught.value.code == SOURCE_UNAVAILABLE
    del caught, source
    for root in ("", str(tmp_path / "absent")):
        nowhere = msgspec.structs.replace(needed, stored=msgspec.structs.replace(needed.stored, root=root))
        refused(SOURCE_UNAVAILABLE, lambda nowhere=nowhere: opened(model, nowhere))


def test_without_the_switch_nothing_is_kept_and_nothing_is_written_about_it(model, tmp_path):
    requirement = keep(model.requirement(model.problem(), "part", 1, 2), tmp_path / "store")
    assert b"results" not in canonical_bytes(requirement)
    assert read_document(type(requirement), canonical_bytes(requirement), "requirement") == requirement
    make_executor(assign(model.description, 1, 2, requirement=requirement)).materialize(lambda done, total: None)
    assert results_of(tmp_path / "store") == []
