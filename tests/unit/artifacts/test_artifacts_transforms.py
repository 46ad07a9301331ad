"""Results of transforms: found under exactly their conditions, never mistaken for their source, gone without harm."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest
from msgspec.structs import replace

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.store import ContentStore, Use
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, UNVERIFIED_READ
from inferswarm.artifacts.transforms import (
    ResultIndex,
    ResultWriter,
    TransformResult,
    adopt_result,
    artifact_of,
    describe_transform,
    owner_of,
    read_result,
    result_bytes,
    transform_key,
)
from inferswarm.documents import canonical_bytes, read_document
from inferswarm.errors import ArtifactError, DocumentError, StoreRefused
from tests.unit.artifacts.store_samples import artifact, sample_bytes, sha

SOURCE = sample_bytes(5_000)
CONTENT = sample_bytes(20_000, seed=1)
CONDITIONS = {"backend": "torch 2.12", "dtype": "bf16", "layout": "plain"}
MARK = "0123456789abcdef" * 2


def transform(procedure="repack", version="1", source=SOURCE, **changes):
    return describe_transform(procedure, version, sha(source), CONDITIONS | changes)


def make(store, made, content=CONTENT):
    writer = ResultWriter.begin(store, made, len(content))
    writer.write(content[:7_000])
    writer.write(content[7_000:])
    return writer.publish(MARK)


def found(store, made, length=None):
    """Return the content that is found for a transform, or None."""
    result = ResultIndex(store).open(made, len(CONTENT) if length is None else length)
    if result is None:
        return None
    with closing(result.blob):
        return result.blob.read()[: result.record.length]


def refused(code, call):
    with pytest.raises(ArtifactError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


@pytest.fixture
def store(tmp_path):
    with ContentStore(tmp_path / "store") as store:
        yield store


def blob_path(store, sha256):
    digits = sha256.removeprefix("sha256:")
    return store.root / "blobs" / "sha256" / digits[:2] / digits[2:]


@pytest.mark.rule(86)
@pytest.mark.parametrize(
    "changed",
    [
        transform(procedure="pack"),
        transform(version="2"),
        transform(source=b"other"),
        transform(backend="torch 2.13"),
        transform(dtype="fp32"),
        transform(layout="rows"),
        transform(machine="x86_64"),
        describe_transform("repack", "1", sha(SOURCE), {"backend": "torch 2.12", "dtype": "bf16"}),
    ],
)
def test_a_result_is_found_under_all_its_conditions_and_under_no_others(store, changed):
    """Any change is a miss: procedure, version, source, one condition other, one more, one less.

    Mutation: leave the conditions out of `transform_key` and of the comparison in `read_result`.
    """
    make(store, transform())
    assert found(store, transform()) == CONTENT
    assert found(store, changed) is None
    assert transform_key(changed) != transform_key(transform())


def test_a_result_of_another_length_is_a_miss(store):
    make(store, transform())
    assert found(store, transform(), len(CONTENT) - 1) is None


@pytest.mark.rule(23)
@pytest.mark.parametrize(
    ("procedure", "version", "source", "conditions"),
    [
        ("", "1", sha(SOURCE), CONDITIONS),
        ("repack", "", sha(SOURCE), CONDITIONS),
        ("repack", "1", "model.gguf", CONDITIONS),
        ("repack", "1", sha(SOURCE), {}),
        ("repack", "1", sha(SOURCE), {"backend": ""}),
    ],
)
def test_a_transform_that_does_not_say_what_it_is_is_malformed(procedure, version, source, conditions):
    """No name, no version, a source that is a place and no content, no condition.

    Mutation: let `Transform` or `TransformResult` accept an empty text.
    """
    refused(MALFORMED, lambda: describe_transform(procedure, version, source, conditions))


@pytest.mark.rule(23)
@pytest.mark.parametrize("field", ["id", "version"])
def test_records_of_results_without_name_or_version_cannot_be_read(field):
    """Neither the record inside a result nor the one that others get it by.

    Mutation: let `Transform` accept an empty id or version.
    """
    result = TransformResult(transform=transform(), length=3, source_mark=MARK)
    written = artifact_of(artifact(SOURCE, 0, 5_000), result.transform, sha(CONTENT), 20_000)
    value = getattr(result.transform, field)
    for kind, record in ((TransformResult, result), (Artifact, written)):
        text = canonical_bytes(record).decode()
        assert read_document(kind, text, "record") == record
        empty = text.replace(f'"{field}":"{value}"', f'"{field}":""')
        absent = text.replace(f'"{field}":"{value}",', "").replace(f',"{field}":"{value}"', "")
        for wrong in (empty, absent):
            assert wrong != text
            with pytest.raises(DocumentError):
                read_document(kind, wrong, "record")


def test_a_result_is_never_the_source_and_never_listed_under_it(store):
    source = store.publish(SOURCE, use=Use("plan-1", "required"))
    result = make(store, transform())
    listed = {blob.sha256: (blob.kind, blob.owners) for blob in store.inventory().blobs}
    assert listed == {
        source: ("required", ("plan-1",)),
        result: ("optional", (owner_of(transform()),)),
    }
    with store.open_verified(source) as blob:
        assert blob.read() == SOURCE


@pytest.mark.parametrize("length", [0, 7, 5_000, 70_000])
def test_a_blob_that_is_no_result_is_not_taken_for_one_whoever_lists_it(store, length):
    """The source itself, listed as its own result: its bytes do not say that they are one."""
    source = sample_bytes(length)
    made = transform(source=source)
    sha256 = store.publish(source, use=Use(owner_of(made), "optional"))
    assert found(store, made, length) is None
    with store.open_verified(sha256) as blob:
        refused(UNVERIFIED_READ, lambda: read_result(blob, made))
    assert [blob.owners for blob in store.inventory().blobs] == [()]  # it is not asked for again
    make(store, made)
    assert found(store, made) == CONTENT


def test_a_result_that_is_listed_under_another_key_is_not_taken(store):
    other = make(store, transform(dtype="fp32"))
    store.hold(owner_of(transform()), [other], "optional")
    assert found(store, transform()) is None
    assert found(store, transform(dtype="fp32")) == CONTENT


def test_two_results_under_one_key_are_none(store):
    make(store, transform())
    make(store, transform(), CONTENT[::-1])
    assert found(store, transform()) is None


def test_an_altered_result_is_refused_and_made_anew(store):
    sha256 = make(store, transform())
    path = blob_path(store, sha256)
    path.chmod(0o600)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert found(store, transform()) is None
    assert len(list((store.root / "quarantine").iterdir())) == 2
    assert make(store, transform()) == sha256
    assert found(store, transform()) == CONTENT


def test_a_result_gives_way_and_takes_nothing_with_it(store):
    source = store.publish(SOURCE, use=Use("plan-1", "required"))
    sha256 = make(store, transform())
    assert store.collect().blobs == (sha256,)
    assert found(store, transform()) is None
    assert [blob.sha256 for blob in store.inventory().blobs] == [source]
    assert make(store, transform()) == sha256
    assert found(store, transform()) == CONTENT


def test_what_was_not_published_leaves_nothing(store):
    writer = ResultWriter.begin(store, transform(), len(CONTENT))
    writer.write(CONTENT[:9_000])
    writer.close()
    writer.close()
    assert list((store.root / "partials").iterdir()) == []
    writer = ResultWriter.begin(store, transform(), len(CONTENT))
    refused("UNVERIFIED_OBJECT_PUBLICATION_REFUSED", lambda: writer.publish(MARK))  # its content is not complete
    writer.close()
    assert found(store, transform()) is None
    needed = result_bytes(transform(), len(CONTENT))
    store.quota_bytes = needed - 1
    with (
        ContentStore(store.root, quota_bytes=needed - 1) as small,
        pytest.raises(StoreRefused),
    ):
        ResultWriter.begin(small, transform(), len(CONTENT))


CHILD = """
import sys
from inferswarm.artifacts.store import ContentStore
from tests.unit.artifacts import test_artifacts_transforms as here
from inferswarm.artifacts.transforms import ResultWriter
store = ContentStore(sys.argv[1])
writer = ResultWriter.begin(store, here.transform(), len(here.CONTENT))
writer.write(here.CONTENT[:9_000])
print("begun", flush=True)
sys.stdin.read()
"""


def test_one_process_writes_a_result_at_a_time_and_a_dead_one_is_replaced(store):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "begun\n"
        assert ResultWriter.begin(store, transform(), len(CONTENT)) is None
        child.kill()
    make(store, transform())
    assert found(store, transform()) == CONTENT


def test_a_result_is_handed_to_a_peer_by_its_own_digest(store, tmp_path):
    """As the record says it: of another kind, with what it was made from, and from no origin."""
    source = artifact(SOURCE, 0, 5_000)
    sha256 = make(store, transform())
    with closing(ResultIndex(store).open(transform(), len(CONTENT)).blob) as blob:
        record, data = read_result(blob, transform()), blob.read()
    assert record.source_mark == MARK
    shared = artifact_of(source, record.transform, sha256, len(data))
    assert (shared.kind, shared.sha256, shared.transform, shared.range) == (
        "transform",
        sha256,
        transform(),
        source.range,
    )
    assert shared.id != source.id
    with ContentStore(tmp_path / "peer") as peer:
        peer.publish(data, shared.sha256, Use("plan-2", "required"))
        assert found(peer, transform()) is None  # nobody has said yet that it is one
        adopt_result(peer, shared)
        assert found(peer, transform()) == CONTENT
        refused(IDENTITY_MISMATCH, lambda: adopt_result(peer, replace(shared, transform=transform(dtype="fp32"))))
        refused(MALFORMED, lambda: adopt_result(peer, source))
        peer.publish(SOURCE)
        refused(UNVERIFIED_READ, lambda: adopt_result(peer, replace(shared, sha256=source.sha256)))
    foreign = artifact(CONTENT, 0, 5_000)
    refused(IDENTITY_MISMATCH, lambda: artifact_of(foreign, record.transform, sha256, len(data)))
    refused(IDENTITY_MISMATCH, lambda: artifact_of(source, record.transform, source.sha256, len(data)))
    refused(IDENTITY_MISMATCH, lambda: artifact_of(shared, record.transform, sha256, len(data)))
