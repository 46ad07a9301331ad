"""The content store: what it lists was proved, what it gives out is proved again, and nobody leads it elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inferswarm.artifacts.store import ContentStore, Incoming, Use, partial_identity, prove_empty_root
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, SpecError, StoreRefused
from tests.unit.artifacts.store_samples import artifact, sample_bytes, sha

DATA = sample_bytes(3 * 2**20 + 5)
REPOSITORY = Path(__file__).resolve().parents[3]
REQUIRED, OPTIONAL = Use("plan-1", "required"), Use("plan-1", "optional")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    with ContentStore(root) as opened:
        yield opened


def blob_path(store, sha256):
    digits = sha256.removeprefix("sha256:")
    return store.root / "blobs" / "sha256" / digits[:2] / digits[2:]


def files_below(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.parent != root}


def rewrite(path, data):
    """Alter a published file as somebody with the owner's rights could, its length and times put back."""
    status = path.stat()
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def refuse(code, call):
    with pytest.raises(ArtifactError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


# Publishing


def test_published_bytes_are_under_their_digest_and_read_only(store):
    assert store.publish(DATA, sha(DATA), REQUIRED) == sha(DATA)
    path = blob_path(store, sha(DATA))
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o444
    assert files_below(store.root) == {path.relative_to(store.root).as_posix()}
    (blob,) = store.inventory().blobs
    assert (blob.sha256, blob.length, blob.kind, blob.owners) == (sha(DATA), len(DATA), "required", ("plan-1",))


def test_bytes_of_another_digest_are_refused_and_leave_nothing(store):
    refuse("UNVERIFIED_OBJECT_PUBLICATION_REFUSED", lambda: store.publish(DATA, sha(b"other")))
    assert files_below(store.root) == set()
    assert store.inventory().sequence == 0


def test_what_the_disk_gives_back_is_what_counts(store, monkeypatch):
    """A disk that loses a bit: what is written is not what lies there."""
    really = os.write

    def write(descriptor, data):
        return really(descriptor, bytes([data[0] ^ 1]) + bytes(data[1:]) if len(data) == len(DATA) else data)

    monkeypatch.setattr(os, "write", write)
    refuse("INTEGRITY_DIGEST_MISMATCH", lambda: store.publish(DATA, sha(DATA)))
    assert files_below(store.root) == set()


def test_a_batch_is_published_whole_or_not_at_all(store):
    pieces = [sample_bytes(1000, seed) for seed in range(5)]
    wrong = Incoming(pieces[4], sha(b"other"))
    refuse(
        "UNVERIFIED_OBJECT_PUBLICATION_REFUSED",
        lambda: store.publish_batch([*(Incoming(piece) for piece in pieces[:4]), wrong]),
    )
    assert files_below(store.root) == set()
    digests = store.publish_batch([Incoming(piece) for piece in (*pieces, pieces[0])])
    assert digests == tuple(sha(piece) for piece in (*pieces, pieces[0]))
    assert store.sequence == 5  # one content twice is one publication
    assert len(files_below(store.root)) == 5


def test_a_stream_is_published_without_being_held(store):
    assert store.publish_stream((DATA[at : at + 1000] for at in range(0, len(DATA), 1000)), sha(DATA)) == sha(DATA)
    assert store.counts.written == len(DATA)


def test_the_sequence_grows_with_every_publication_and_removal(store):
    seen = [store.sequence]
    for change in (
        lambda: store.publish(b"a"),
        lambda: store.publish(b"b"),
        lambda: store.collect(wanted_bytes=1),
        lambda: store.collect(),
    ):
        change()
        seen.append(store.sequence)
    assert seen == [0, 1, 2, 3, 4]
    store.publish(b"c")
    before = store.inventory()
    store.publish(b"c")
    with ContentStore(store.root) as again:
        assert again.inventory()[:2] == before[:2] == (before.store, 5)


PUBLISHER = """
import sys, time
from inferswarm.artifacts.store import ContentStore
from pathlib import Path
root, data, begin = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), float(sys.argv[3])
with ContentStore(root) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for at in range(0, len(data), 65536):
        store.publish(data[at:at + 65536])
    print(len(store.inventory().blobs), store.sequence)
"""


def test_two_processes_that_publish_the_same_both_see_it_once(root, tmp_path):
    (tmp_path / "data").write_bytes(DATA)
    command = [sys.executable, "-c", PUBLISHER, str(root), str(tmp_path / "data"), "0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    said = {child.communicate(timeout=60)[0] for child in children}
    num_pieces = -(-len(DATA) // 65536)
    assert said == {f"{num_pieces} {num_pieces}\n"}
    with ContentStore(root) as store:
        assert store.verify().verified == num_pieces


# Reading


def test_a_blob_is_read_by_ranges_and_streamed(store):
    store.publish(DATA)
    with store.open_verified(sha(DATA)) as blob:
        assert blob.length == len(DATA)
        assert blob.read(ByteRange(5, 2_000_000)) == DATA[5:2_000_000]
        assert b"".join(bytes(piece) for piece in blob.stream()) == DATA
        refuse("MALFORMED_ARTIFACT_RECORD", lambda: blob.read(ByteRange(0, len(DATA) + 1)))
    refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: blob.read(ByteRange(0, 1)))
    assert store.counts.served == 2_000_000 - 5 + len(DATA)


@pytest.mark.parametrize(("trust", "hashed"), [("always", 3), ("first-use", 1), ("until-changed", 0)])
def test_each_policy_hashes_as_often_as_it_says(root, trust, hashed):
    with ContentStore(root) as store:
        store.publish(DATA)
    with ContentStore(root, trust=trust) as store:
        for _ in range(3):
            store.open_verified(sha(DATA)).close()
        assert store.counts.hashed == hashed * len(DATA)


def test_a_file_whose_times_changed_is_hashed_once_more_and_kept(root):
    with ContentStore(root) as store:
        store.publish(DATA)
        rewrite(blob_path(store, sha(DATA)), DATA)
        before = store.counts.hashed
        for _ in range(2):
            assert store.holds(sha(DATA)) == len(DATA)
        assert store.counts.hashed - before == len(DATA)


@pytest.mark.parametrize("trust", ["always", "first-use", "until-changed"])
@pytest.mark.parametrize("altered", [b"x" + DATA[1:], DATA[:-1], DATA + b"x", b""], ids=len)
def test_an_altered_blob_is_refused_quarantined_and_not_listed(root, trust, altered):
    with ContentStore(root, trust=trust) as store:
        store.publish(DATA, use=REQUIRED)
        rewrite(blob_path(store, sha(DATA)), altered)
        error = refuse("CACHE_OBJECT_TAMPERED", lambda: store.open_verified(sha(DATA)))
        assert error.subject == sha(DATA)
        assert f"{len(altered):,} B with {sha(altered)}" in error.reason
        assert store.inventory().blobs == ()
        assert store.sequence == 2
        refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.open_verified(sha(DATA)))
        kept = {path.suffix: path for path in (root / "quarantine").iterdir()}
        assert kept[""].read_bytes() == altered
        assert sha(DATA) in kept[".json"].read_text()
        store.publish(DATA)  # it can be had again
        assert store.holds(sha(DATA)) == len(DATA)


def test_a_blob_altered_while_it_is_read_is_noticed(store):
    store.publish(DATA)
    with store.open_verified(sha(DATA)) as blob:
        pieces = blob.stream()
        next(pieces)
        path = blob_path(store, sha(DATA))
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.write(b"xxxx")
        refuse("CACHE_OBJECT_TAMPERED", lambda: list(pieces))


def test_a_blob_whose_file_has_gone_is_taken_off_the_list(store):
    store.publish(DATA)
    blob_path(store, sha(DATA)).unlink()
    refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.open_verified(sha(DATA)))
    assert store.inventory().blobs == ()


def test_publishing_over_an_altered_file_puts_the_right_one_there(store):
    store.publish(DATA)
    rewrite(blob_path(store, sha(DATA)), bytes(len(DATA)))
    store.publish(DATA)
    assert blob_path(store, sha(DATA)).read_bytes() == DATA
    assert len(list((store.root / "quarantine").iterdir())) == 2


def test_verify_finds_what_a_forger_of_times_did(store):
    others = [store.publish(sample_bytes(1000, seed)) for seed in range(3)]
    store.publish(DATA)
    path = blob_path(store, sha(DATA))
    rewrite(path, bytes(len(DATA)))
    (path.parent / "not-a-blob").write_bytes(b"")
    report = store.verify()
    assert (report.verified, report.bytes) == (3, 3000)
    assert [finding.path for finding in report.damaged] == [path.relative_to(store.root).as_posix()]
    assert [finding.path.rsplit("/")[-1] for finding in report.strays] == ["not-a-blob"]
    assert [blob.sha256 for blob in store.inventory().blobs] == sorted(others)
    assert store.verify().damaged == ()


# Names and roots


@pytest.mark.parametrize(
    "name",
    [
        "sha256:../../../etc/passwd",
        "../" * 20 + "etc/passwd",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "a" * 64,
        "",
    ],
)
def test_a_name_that_is_no_digest_reaches_no_file(store, name):
    for use in (store.open_verified, store.holds, lambda text: store.hold("o", [text])):
        refuse("MALFORMED_ARTIFACT_RECORD", lambda use=use: use(name))
    with pytest.raises(ArtifactError):
        store.publish(b"x", name or "sha256:")


def test_owners_and_objects_never_become_paths(store, tmp_path):
    whole = sample_bytes(100)
    strange = artifact(whole, 0, 100, uri="../../../escaped\0", version="../../x")
    partial = store.partial(partial_identity(strange))
    partial.write(whole)
    store.publish_partial(partial, sha(whole), Use("../../../escaped", "required"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("place", ["", "blobs", "blobs/sha256", "partials", "staging", "quarantine", "fan"])
def test_a_directory_that_is_a_link_is_refused(root, tmp_path, place):
    with ContentStore(root) as store:
        store.publish(DATA)
        place = blob_path(store, sha(DATA)).parent.relative_to(root).as_posix() if place == "fan" else place
    there, moved = root / place, tmp_path / "moved"
    there.rename(moved)
    there.symlink_to(moved)
    error = refuse("PROVENANCE_IDENTITY_MISMATCH", lambda: ContentStore(root))
    assert error.subject == str(there)
    assert str(moved) in error.reason


def test_a_blob_that_is_a_link_is_refused_and_moved_away(store, tmp_path):
    store.publish(DATA)
    path = blob_path(store, sha(DATA))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refuse("CACHE_OBJECT_TAMPERED", lambda: store.open_verified(sha(DATA)))
    assert not path.is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == DATA


def test_an_empty_root_is_proved_and_nothing_else(store, root, tmp_path):
    assert store.prove_empty().files[0] == "index.sqlite"
    (tmp_path / "file").write_bytes(b"x")
    (root / "staging" / "sly").hardlink_to(tmp_path / "file")
    assert "2 names" in refuse("PROVENANCE_IDENTITY_MISMATCH", store.prove_empty).reason
    (root / "staging" / "sly").unlink()
    (root / "partials" / "sly").symlink_to(tmp_path)
    assert "symbolic link" in refuse("PROVENANCE_IDENTITY_MISMATCH", store.prove_empty).reason
    (root / "partials" / "sly").unlink()
    store.publish(b"x")
    assert "1 B" in refuse("PROVENANCE_IDENTITY_MISMATCH", store.prove_empty).reason
    refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: prove_empty_root(tmp_path / "absent"))


def test_what_is_no_store_is_not_made_one_by_looking(tmp_path):
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(SpecError, match="the root of a store"):
            ContentStore(place, create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_index_is_refused_and_a_lost_one_made_again_by_hashing(root):
    with ContentStore(root) as store:
        digests = {store.publish(sample_bytes(1000, seed), use=REQUIRED) for seed in range(3)}
        first = store.inventory().store
        victim = blob_path(store, min(digests))
    (root / "index.sqlite").write_bytes(b"no database" * 1000)
    assert "not a database" in refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: ContentStore(root)).reason
    for path in root.glob("index.sqlite*"):
        path.unlink()
    rewrite(victim, bytes(1000))
    with ContentStore(root) as store:
        inventory = store.inventory()
        assert {blob.sha256 for blob in inventory.blobs} == digests - {min(digests)}
        assert store.counts.hashed == 3000
        assert inventory.store != first  # its sequence begins anew, and nobody takes it for the old one
        assert len(list((root / "quarantine").iterdir())) == 2


def test_a_store_that_another_keeps_is_opened_at_once_and_left_alone(store, root):
    store.publish(DATA, use=REQUIRED)
    unlisted = blob_path(store, sha(b"unlisted"))
    unlisted.parent.mkdir(exist_ok=True)
    unlisted.write_bytes(b"unlisted")
    left = root / "staging" / "left-by-a-death"
    left.write_bytes(b"half")
    before = store.inventory()
    with store._index.writing(), ContentStore(root, create=False, upkeep=False) as reader:
        with reader.open_verified(sha(DATA)) as blob:
            assert blob.read(ByteRange(5, 9)) == DATA[5:9]
        assert reader.counts.hashed == 0
    assert left.exists()
    assert store.inventory() == before
    rewrite(blob_path(store, sha(DATA)), bytes(len(DATA)))
    with ContentStore(root, upkeep=False) as reader:
        refuse("CACHE_OBJECT_TAMPERED", lambda: reader.open_verified(sha(DATA)))
    assert store.inventory().blobs == ()
    assert len(list((root / "quarantine").iterdir())) == 2
    (root / "index.sqlite").unlink()
    with pytest.raises(StoreRefused, match="index cannot be read"):
        ContentStore(root, upkeep=False)
    with pytest.raises(SpecError, match="the root of a store"):
        ContentStore(root / "absent", upkeep=False)
    assert not (root / "absent").exists()


# Quota, uses, collection


def test_optional_blobs_make_room_the_longest_unused_first_and_others_never(root):
    moments = iter(range(1, 10**6))
    with ContentStore(root, quota_bytes=4000, clock_ns=lambda: next(moments)) as store:
        required, replica, old, fresh = (
            store.publish(sample_bytes(1000, seed), use=use)
            for seed, use in enumerate((REQUIRED, Use("swarm", "replica"), OPTIONAL, None))
        )
        store.open_verified(old).close()  # used last
        incoming = store.publish(sample_bytes(1000, 9), use=REQUIRED)
        assert {blob.sha256 for blob in store.inventory().blobs} == {required, replica, old, incoming}
        error = refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.publish(sample_bytes(1001, 10)))
        assert isinstance(error, StoreRefused)
        assert (error.needed_bytes, error.free_bytes) == (1001, 1000)
        assert "1,001 B needed" in error.reason
        assert "3,000 B are required or replicas" in error.reason
        # Refused, so that nothing was evicted for it and nothing of it is there.
        assert {blob.sha256 for blob in store.inventory().blobs} == {required, replica, old, incoming}
        assert not blob_path(store, fresh).exists()
        store.release("plan-1")
        store.publish(sample_bytes(2000, 11))
        assert replica in {blob.sha256 for blob in store.inventory().blobs}
        assert store.inventory().bytes <= 4000


def test_a_partial_is_refused_before_its_first_byte(root):
    whole = sample_bytes(5000)
    with ContentStore(root, quota_bytes=4000) as store:
        error = refuse("SOURCE_OBJECT_UNAVAILABLE", lambda: store.partial(partial_identity(artifact(whole, 0, 5000))))
        assert (error.needed_bytes, error.free_bytes) == (5000, 4000)
        assert files_below(root) == set()


def test_a_collection_spares_what_is_used_and_what_is_written(store):
    whole = sample_bytes(2000)
    required = store.publish(b"required", use=REQUIRED)
    optional = store.publish(b"optional", use=OPTIONAL)
    done, open_one = (store.partial(partial_identity(artifact(whole, at, at + 1000))) for at in (0, 1000))
    done.write(whole[:500])
    open_one.write(whole[:500])
    done.close()
    assert store.collect(wanted_bytes=0).partials == 0  # too young
    planned = store.collect(partials_older_than=-1, remove=False)
    assert (planned.blobs, planned.partials, planned.partial_bytes) == ((optional,), 1, 500)
    assert store.collect(partials_older_than=-1) == planned
    assert [blob.sha256 for blob in store.inventory().blobs] == [required]
    assert store.counts.discarded == 500
    open_one.write(whole[500:1000])  # nobody took it away
    assert open_one.length == 1000


def test_a_use_may_come_before_its_blob(store):
    store.hold("plan-2", [sha(DATA)], "replica")
    store.publish(DATA)
    assert store.collect().blobs == ()
    store.release("plan-2", [sha(DATA)])
    assert store.collect().blobs == (sha(DATA),)


# Disks that cannot


UNWRITABLE = """
import os, resource, sys
from inferswarm.artifacts.store import ContentStore, partial_identity
from inferswarm.errors import StoreRefused
from tests.unit.artifacts.store_samples import artifact, sample_bytes, sha
root, limit = sys.argv[1], int(sys.argv[2])
whole = memoryview(sample_bytes(3_000_000))
identity = partial_identity(artifact(bytes(whole), 0, len(whole)))
if not limit and os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
with ContentStore(root) as store:
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for attempt in (lambda: store.publish(whole), lambda: store.partial(identity)):
        try:
            partial = attempt()
            partial.write(whole[:1_000_000])
            partial.write(whole[1_000_000:])
        except StoreRefused as error:
            print(error.subject == root, error.needed_bytes, error.free_bytes > 10**6, error.reason)
    if limit:
        partial.close()
    else:
        print(store.open_verified(sha(b"x")).read(), store.read_only, len(store.inventory().blobs))
"""


def run_unwritable(root, limit):
    command = [sys.executable, "-c", UNWRITABLE, str(root), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_disk_without_room_is_said_with_numbers_and_the_good_prefix_kept(root):
    staged, written = run_unwritable(root, 2_000_000)
    assert staged.startswith("True 3000000 True bytes cannot be staged: File too large")
    assert written.startswith("True 2000000 True ")
    whole = sample_bytes(3_000_000)
    with ContentStore(root) as store:
        assert store.inventory().blobs == ()
        partial = store.partial(partial_identity(artifact(whole, 0, len(whole))))
        assert partial.resumed_bytes == 1_000_000
        partial.write(whole[1_000_000:])
        assert store.publish_partial(partial, sha(whole)) == sha(whole)


def test_a_root_that_cannot_be_written_is_read_and_says_so():
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        root = Path(place) / "store"
        with ContentStore(root) as store:
            store.publish(b"x")
        directories = [root, *(path for path in root.rglob("*") if path.is_dir())]
        for path in directories:
            path.chmod(0o555)
        (root / "index.sqlite").chmod(0o444)
        blob, partial, read = run_unwritable(root, 0)
        for path in directories:
            path.chmod(0o755)
    assert blob.startswith("True 3000000 True a blob cannot be kept: its root cannot be written; 3,000,000 B needed")
    assert partial.startswith("True 3000000 True a partial cannot be kept: its root cannot be written")
    assert read == "b'x' True 1"
