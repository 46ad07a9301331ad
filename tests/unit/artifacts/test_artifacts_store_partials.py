"""Beginnings that are kept: bound to what they are the beginning of, and harmed by no moment of a process's death."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from inferswarm.artifacts.store import ContentStore, Use, partial_identity, publication
from inferswarm.errors import ArtifactError
from tests.unit.artifacts.store_samples import artifact, sample_bytes, sha

WHOLE = sample_bytes(300_000)
PINNED = artifact(WHOLE, 100_000, 300_000)
CONTENT = WHOLE[100_000:]
IDENTITY = partial_identity(PINNED)


@pytest.fixture
def store(tmp_path):
    with ContentStore(tmp_path / "store") as opened:
        yield opened


def begin(store, identity=IDENTITY, data=CONTENT[:50_000]):
    partial = store.partial(identity)
    partial.write(data)
    partial.close()
    return partial


def refuse(code, call):
    with pytest.raises(ArtifactError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_a_beginning_goes_on_where_it_was_and_is_hashed_again(store):
    begin(store)
    partial = store.partial(IDENTITY)
    assert (partial.resumed_bytes, partial.length, partial.discarded) == (50_000, 50_000, None)
    assert store.counts.hashed == 50_000
    partial.write(CONTENT[50_000:])
    assert store.publish_partial(partial, sha(CONTENT), Use("plan-1", "required")) == sha(CONTENT)
    assert list((store.root / "partials").iterdir()) == []
    with store.open_verified(sha(CONTENT)) as blob:
        assert blob.read() == CONTENT
    assert store.counts.written == len(CONTENT)


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "etag:2"},
        {"uri": "file:///other"},
        {"sha256": sha(b"other")},
        {"sha256": msgspec.UNSET},
        {"object_length": 300_001},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_identity_has_another_file(store, changed):
    begin(store)
    other = msgspec.structs.replace(IDENTITY, **changed)
    partial = store.partial(other)
    assert (partial.length, partial.discarded) == (0, None)
    assert store.held_bytes(IDENTITY) == 50_000
    partial.close()


@pytest.mark.rule(84)
def test_a_foreign_beginning_under_the_right_name_is_discarded_restarted_and_counted(store):
    """Mutation: the record beside a partial is not compared with what is asked for."""
    foreign = msgspec.structs.replace(IDENTITY, version="etag:2")
    begin(store, foreign)
    place = store.root / "partials"
    for ending in ("part", "json"):
        (place / f"{foreign.name}.{ending}").rename(place / f"{IDENTITY.name}.{ending}")
    partial = store.partial(IDENTITY)
    assert (partial.length, partial.discarded.bytes) == (0, 50_000)
    assert partial.discarded.code == "PARTIAL_STATE_IDENTITY_MISMATCH"
    assert store.counts.discarded == 50_000
    partial.write(CONTENT)
    store.publish_partial(partial, sha(CONTENT))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda part, record: record.unlink(), "PARTIAL_STATE_IDENTITY_MISMATCH"),
        (lambda part, record: record.write_text("{}"), "PARTIAL_STATE_IDENTITY_MISMATCH"),
        (lambda part, record: record.write_text(""), "PARTIAL_STATE_IDENTITY_MISMATCH"),
        (lambda part, record: (record.unlink(), record.symlink_to(part)), "PARTIAL_STATE_IDENTITY_MISMATCH"),
        (lambda part, record: os.truncate(part, 49_999), "PARTIAL_STATE_IDENTITY_MISMATCH"),
        (lambda part, record: os.truncate(part, 200_001), "PARTIAL_STATE_IDENTITY_MISMATCH"),
        (lambda part, record: part.write_bytes(bytes(50_000)), "INTEGRITY_DIGEST_MISMATCH"),
    ],
    ids=["no-record", "no-document", "empty", "link", "short", "long", "altered"],
)
def test_a_beginning_that_is_not_as_recorded_is_discarded(store, damage, code):
    begin(store)
    part = store.root / "partials" / f"{IDENTITY.name}.part"
    damage(part, part.with_suffix(".json"))
    partial = store.partial(IDENTITY)
    assert (partial.length, partial.discarded.code) == (0, code)
    partial.close()


def test_without_a_digest_only_what_was_marked_counts(store):
    """After a loss of power a file may be longer than what was written, and nothing would ever tell."""
    unpinned = partial_identity(artifact(WHOLE, 100_000, 300_000, pinned=False))
    begin(store, unpinned)
    part = store.root / "partials" / f"{unpinned.name}.part"
    with part.open("ab") as file:
        file.write(bytes(1000))
    partial = store.partial(unpinned)
    assert partial.resumed_bytes == 50_000
    partial.write(CONTENT[50_000:])
    assert store.publish_partial(partial, pin=True) == sha(CONTENT)
    assert store.pinned(unpinned) == sha(CONTENT)


def test_without_digest_and_version_nothing_is_continued(store):
    loose = partial_identity(artifact(WHOLE, 100_000, 300_000, pinned=False, version=None))
    begin(store, loose)
    assert store.partial(loose).discarded.bytes == 50_000
    assert store.pinned(loose) is None


def test_a_second_writer_has_to_wait(store):
    partial = store.partial(IDENTITY)
    with ContentStore(store.root) as other:
        assert other.partial(IDENTITY) is None
        partial.close()
        assert other.partial(IDENTITY) is not None


def test_a_file_that_its_last_writer_renamed_while_it_was_opened_is_not_taken(store, monkeypatch):
    """Between opening a name and locking the file, another may publish it: what was opened is a blob by then."""
    partial = store.partial(IDENTITY)
    partial.write(CONTENT)
    really = fcntl.flock

    def flock(descriptor, operation):
        if partial.descriptor >= 0:
            monkeypatch.undo()
            store.publish_partial(partial, sha(CONTENT))
        really(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with ContentStore(store.root) as other:
        late = other.partial(IDENTITY)
        assert late.length == 0
        late.write(b"x")
        late.close()
    assert store.verify().damaged == ()


def test_a_publication_that_fails_halfway_takes_everything_back(store, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    partial = store.partial(IDENTITY)
    partial.write(CONTENT)
    with monkeypatch.context() as patched:
        patched.setattr(publication, "sync_directory", full)
        error = refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.publish_partial(partial, sha(CONTENT)))
    assert (error.needed_bytes, "200,000 B needed" in error.reason) == (200_000, True)
    assert [path for path in (store.root / "blobs").rglob("*") if path.is_file()] == []
    assert store.inventory()[1:] == (0, ())
    partial.close()
    assert store.publish_partial(store.partial(IDENTITY), sha(CONTENT)) == sha(CONTENT)


def test_what_the_disk_cannot_take_is_refused_before_its_first_byte(store):
    huge = msgspec.structs.replace(IDENTITY, length=2**52)
    error = refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.partial(huge))
    assert error.needed_bytes == 2**52 > error.free_bytes > 0
    assert list((store.root / "partials").iterdir()) == []


def test_an_unfinished_transfer_is_never_published_nor_read(store):
    partial = store.partial(IDENTITY)
    partial.write(CONTENT[:-1])
    refuse("UNVERIFIED_OBJECT_PUBLICATION_REFUSED", lambda: store.publish_partial(partial, sha(CONTENT[:-1])))
    assert partial.length == len(CONTENT) - 1
    refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.open_verified(sha(CONTENT[:-1])))
    assert store.inventory().blobs == ()


def test_other_bytes_are_refused_and_thrown_away(store):
    partial = store.partial(IDENTITY)
    partial.write(bytes(len(CONTENT)))
    refuse("UNVERIFIED_OBJECT_PUBLICATION_REFUSED", lambda: store.publish_partial(partial, sha(CONTENT)))
    assert list((store.root / "partials").iterdir()) == []
    assert store.counts.discarded == len(CONTENT)


def test_a_pin_is_kept_and_contradicted_by_nobody(store):
    unpinned = partial_identity(artifact(WHOLE, 100_000, 300_000, pinned=False))
    partial = store.partial(unpinned)
    partial.write(CONTENT)
    store.publish_partial(partial, pin=True)
    partial = store.partial(unpinned)
    partial.write(bytes(len(CONTENT)))
    error = refuse("INTEGRITY_DIGEST_MISMATCH", lambda: store.publish_partial(partial, pin=True))
    assert sha(CONTENT) in error.reason
    with ContentStore(store.root) as again:
        (pin,) = again.pins()
        assert (pin.version, pin.range, pin.sha256) == ("etag:1", unpinned.range, sha(CONTENT))
        assert [blob.sha256 for blob in again.inventory().blobs] == [sha(CONTENT)]


def test_what_others_first_fetched_is_kept_as_that_and_gives_way_to_an_own_first_fetch(store):
    """Mutation: take told pins for own ones: a wrong word would be held against what the origin gives."""
    unpinned = partial_identity(artifact(WHOLE, 100_000, 300_000, pinned=False))
    store.pin_told([(unpinned, sha(b"as somebody said"))])
    (told,) = store.pins()
    assert (told.is_told, told.sha256, store.pinned(unpinned)) == (True, sha(b"as somebody said"), None)
    partial = store.partial(unpinned)
    partial.write(CONTENT)
    store.publish_partial(partial, pin=True)
    store.pin_told([(unpinned, sha(b"as somebody said"))])
    with ContentStore(store.root) as again:
        (own,) = again.pins()
        assert (own.is_told, own.sha256, again.pinned(unpinned)) == (False, sha(CONTENT), sha(CONTENT))


def test_an_index_from_before_told_pins_is_read_and_written(store):
    store.close()
    with contextlib.closing(sqlite3.connect(store.root / "index.sqlite")) as index:
        index.execute("DROP TABLE told_pins")
        index.commit()
    with ContentStore(store.root, upkeep=False) as read:
        assert read.pins() == ()
    with ContentStore(store.root) as again:
        again.pin_told([(IDENTITY, sha(CONTENT))])
        assert [pin.is_told for pin in again.pins()] == [True]


def test_a_write_that_fails_to_be_published_keeps_the_partial(tmp_path):
    with ContentStore(tmp_path / "store", quota_bytes=250_000) as store:
        partial = store.partial(IDENTITY)
        partial.write(CONTENT)
        store.hold("plan-1", [store.publish(b"x" * 50_000)])
        store.quota_bytes = None
        with ContentStore(store.root, quota_bytes=100_000) as poor:
            refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: poor.publish_partial(partial, sha(CONTENT)))
        assert store.publish_partial(partial, sha(CONTENT)) == sha(CONTENT)


def test_a_kill_at_any_moment_leaves_a_store_that_opens_whole(tmp_path):
    """Twenty kills at random moments: what was said to be published is there, and all that is listed is right."""
    command = [sys.executable, "-m", "tests.unit.artifacts.store_kills", str(tmp_path / "store")]
    repository = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=repository)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert len(kills) == 20
    assert sum(kill["published"] for kill in kills) > 0
    assert sum(kill["found_partials"] for kill in kills) > 0
    with ContentStore(tmp_path / "store") as store:
        report = store.verify()
        assert (report.damaged, report.strays, report.verified) == ((), (), kills[-1]["listed"])
        assert list((store.root / "quarantine").iterdir()) == []
