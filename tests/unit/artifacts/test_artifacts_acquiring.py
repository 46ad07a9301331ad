"""Acquiring: exactly the missing bytes, from the one source each is ordered from, verified before they count."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import BytesMoved, Limits, Order, Tampered
from inferswarm.artifacts.byte_ledger import ByteLedger, LedgerEvent, event_of
from inferswarm.artifacts.store import ContentStore, partial_identity
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError
from tests.unit.artifacts.acquiring_samples import ONE, PARTS, USE, WHOLE, from_origin, moved, opener, states
from tests.unit.artifacts.store_samples import MemoryOrigin, artifact, sha


@pytest.fixture
def store(tmp_path):
    with ContentStore(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def events():
    return []


def test_what_is_ordered_is_fetched_once_verified_and_published(store, events):
    origin = MemoryOrigin(WHOLE)
    done = acquire(from_origin(*PARTS), store, opener(origin=origin), use=USE, limits=ONE, on_event=events.append)
    assert done.is_complete
    assert origin.asked == [ByteRange(0, 3_000_000)]
    assert origin.is_closed.is_set()
    assert moved(events) == {"received": 3_000_000, "acquired": 3_000_000}
    for part, outcome in zip(PARTS, done.outcomes, strict=True):
        assert (outcome.artifact, outcome.how, outcome.source) == (part.id, "acquired", "origin")
        assert (outcome.sha256, outcome.hash_known_by) == (part.sha256, "record")
        assert outcome.transferred_bytes == part.length
        assert states(events, part) == ["AUTHORIZED", "ACQUIRING", "VERIFIED_AVAILABLE"]
        with store.open_verified(part.sha256) as blob:
            assert blob.read() == WHOLE[part.range.start : part.range.end]
    assert {blob.kind for blob in store.inventory().blobs} == {"required"}
    assert list((store.root / "partials").iterdir()) == list((store.root / "staging").iterdir()) == []
    (traffic,) = done.traffic
    assert (traffic.bytes_read, traffic.seen) == (3_000_000, origin.described)


@pytest.mark.rule(87)
def test_what_is_there_is_not_asked_for_again(store, events):
    """Mutation: the store is not looked at first."""
    acquire(from_origin(*PARTS[:4]), store, opener(origin=MemoryOrigin(WHOLE)), use=USE)
    origin = MemoryOrigin(WHOLE)
    done = acquire(from_origin(*PARTS), store, opener(origin=origin), use=USE, limits=ONE, on_event=events.append)
    assert [outcome.how for outcome in done.outcomes] == ["cache-hit"] * 4 + ["acquired"] * 3
    assert moved(events) == {"cache_hit": 400_000, "received": 2_600_000, "acquired": 2_600_000}
    assert origin.asked == [ByteRange(400_000, 3_000_000)]
    assert states(events, PARTS[0]) == ["VERIFIED_AVAILABLE"]
    untouched = opener(origin=MemoryOrigin(WHOLE))
    assert acquire(from_origin(*PARTS), store, untouched, use=USE).is_complete
    assert untouched.calls == []


def test_what_is_fetched_anew_is_asked_for_and_published_over_itself(store, events):
    """Small ones in a batch and long ones in partials; an altered blob gives way to what comes."""
    acquire(from_origin(*PARTS), store, opener(origin=MemoryOrigin(WHOLE)), use=USE)
    path = blob_path(store, PARTS[2])
    path.chmod(0o600)
    path.write_bytes(bytes(PARTS[2].length))
    before, origin = store.inventory().blobs, MemoryOrigin(WHOLE)
    anew = [order._replace(fetches_anew=True) for order in from_origin(*PARTS)]
    done = acquire(anew, store, opener(origin=origin), use=USE, limits=ONE, on_event=events.append)
    assert [outcome.how for outcome in done.outcomes] == ["acquired"] * len(PARTS)
    assert moved(events) == {"received": 3_000_000, "acquired": 3_000_000}
    assert [event.artifact for event in events if isinstance(event, Tampered)] == [PARTS[2].id]
    assert [(blob.sha256, blob.kind) for blob in store.inventory().blobs] == [
        (blob.sha256, blob.kind) for blob in before
    ]
    assert store.verify().damaged == ()
    assert list((store.root / "partials").iterdir()) == list((store.root / "staging").iterdir()) == []
    bad = acquire(anew, store, opener(origin=MemoryOrigin(bytes(len(WHOLE)))), use=USE)
    assert {outcome.failure.code for outcome in bad.failed} == {"INTEGRITY_DIGEST_MISMATCH"}
    assert acquire(from_origin(*PARTS), store, opener(), use=USE).is_complete  # what was there still is


def blob_path(store, part):
    digits = part.sha256.removeprefix("sha256:")
    return store.root / "blobs" / "sha256" / digits[:2] / digits[2:]


def test_an_altered_blob_is_missing_and_fetched_again(store, events):
    acquire(from_origin(PARTS[2]), store, opener(origin=MemoryOrigin(WHOLE)))
    path = blob_path(store, PARTS[2])
    path.chmod(0o600)
    path.write_bytes(bytes(PARTS[2].length))
    done = acquire(from_origin(PARTS[2]), store, opener(origin=MemoryOrigin(WHOLE)), on_event=events.append)
    assert [outcome.how for outcome in done.outcomes] == ["acquired"]
    assert [event.artifact for event in events if isinstance(event, Tampered)] == [PARTS[2].id]


def test_gaps_are_asked_around_or_read_through_and_counted(store, events):
    around, through = MemoryOrigin(WHOLE), MemoryOrigin(WHOLE)
    wanted = from_origin(PARTS[0], PARTS[2])  # 4,990 B that nobody wants lie between them
    acquire(wanted, store, opener(origin=around), limits=ONE, on_event=events.append)
    assert around.asked == [ByteRange(0, 10), ByteRange(5_000, 400_000)]
    assert moved(events) == {"received": 395_010, "acquired": 395_010}
    events.clear()
    store.collect()
    acquire(wanted, store, opener(origin=through), limits=ONE._replace(gap_bytes=4_990), on_event=events.append)
    assert through.asked == [ByteRange(0, 400_000)]
    assert moved(events) == {"received": 400_000, "acquired": 395_010, "unrelated": 4_990}
    (gap,) = (event for event in events if isinstance(event, BytesMoved) and event.kind == "unrelated")
    assert gap.range == ByteRange(10, 5_000)


def test_an_interruption_keeps_a_beginning_that_goes_on_with_another_source(store, events):
    broken = MemoryOrigin(WHOLE, breaks_at=900_000)
    done = acquire(from_origin(*PARTS), store, opener(origin=broken), limits=ONE, on_event=events.append)
    outcomes = dict(zip(PARTS, done.outcomes, strict=True))
    failed = outcomes[PARTS[4]]
    assert (failed.state, failed.how, failed.kept_bytes, failed.transferred_bytes) == (
        "MISSING",
        "failed",
        *[500_000] * 2,
    )
    assert (failed.failure.side, failed.failure.code) == ("source", "SOURCE_OBJECT_UNAVAILABLE")
    assert "broke off at 900000" in failed.failure.reason
    assert done.failed == (failed,)  # its neighbors went on
    assert moved(events)["partial_staging"] == 500_000
    events.clear()

    peer = MemoryOrigin(WHOLE[400_000:1_500_000], uri="peer:/blob")
    order = Order.from_peer(PARTS[4], "node-2", "peer:/blob")
    done = acquire([order], store, opener(**{"node-2": peer}), limits=ONE, on_event=events.append)
    (outcome,) = done.outcomes
    assert (outcome.how, outcome.source) == ("acquired", "node-2")
    assert (outcome.resumed_bytes, outcome.transferred_bytes) == (500_000, 600_000)
    assert peer.asked == [ByteRange(500_000, 1_100_000)]
    assert moved(events) == {
        "partial_found": 500_000,
        "resumed_prefix": 500_000,
        "received": 600_000,
        "resume_transfer": 600_000,
    }


def test_a_small_beginning_is_kept_too(store, events):
    broken = MemoryOrigin(WHOLE, breaks_at=3_000)
    done = acquire(from_origin(PARTS[1]), store, opener(origin=broken), on_event=events.append)
    assert done.outcomes[0].kept_bytes == store.held_bytes(partial_identity(PARTS[1])) == 2_990
    assert moved(events) == {"received": 2_990, "partial_staging": 2_990}
    good = MemoryOrigin(WHOLE)
    assert acquire(from_origin(PARTS[1]), store, opener(origin=good)).outcomes[0].resumed_bytes == 2_990
    assert good.asked == [ByteRange(3_000, 5_000)]


@pytest.mark.parametrize("number", [1, 2])  # one in memory, one in a partial
@pytest.mark.parametrize("size", [1, -1])
def test_corruption_is_thrown_away_and_named_with_its_source(store, events, number, size):
    bad = bytearray(WHOLE)
    bad[PARTS[number].range.start if size > 0 else PARTS[number].range.end - 1] ^= 1
    done = acquire(
        from_origin(*PARTS), store, opener(origin=MemoryOrigin(bytes(bad))), limits=ONE, on_event=events.append
    )
    (failed,) = done.failed
    assert failed.artifact == PARTS[number].id
    assert (failed.failure.side, failed.failure.code) == ("source", "INTEGRITY_DIGEST_MISMATCH")
    assert "origin gave sha256:" in failed.failure.reason
    assert PARTS[number].id in failed.failure.reason
    assert moved(events)["integrity_failure"] == PARTS[number].length
    assert failed.kept_bytes == store.held_bytes(partial_identity(PARTS[number])) == 0
    assert PARTS[number].sha256 not in {blob.sha256 for blob in store.inventory().blobs}


def test_a_corrupt_end_takes_the_kept_beginning_with_it(store, events):
    acquire(from_origin(PARTS[4]), store, opener(origin=MemoryOrigin(WHOLE, breaks_at=900_000)))
    bad = bytearray(WHOLE)
    bad[1_000_000] ^= 1
    done = acquire(from_origin(PARTS[4]), store, opener(origin=MemoryOrigin(bytes(bad))), on_event=events.append)
    assert "of which 500,000 B were kept from before" in done.outcomes[0].failure.reason
    assert moved(events) == {
        "partial_found": 500_000,
        "received": 600_000,
        "integrity_failure": 600_000,
        "partial_discarded": 500_000,
    }


def test_a_ledger_of_many_attempts_balances(store):
    """Broken off, corrupt, foreign, cut in the middle, whole: everything received is explained, and there once."""
    ledger = ByteLedger()
    wanted = PARTS[1:6]

    def note(event):
        if isinstance(event, BytesMoved):
            ledger.append(event_of("stage-0", event, 0))

    for part in wanted:
        required = {"artifact": part.id, "bytes": part.length, "at_ns": "0"}
        ledger.append(LedgerEvent(kind="required", participant="stage-0", **required))
    bad = bytearray(WHOLE)
    bad[2_000_000] ^= 1
    attempts = [
        (PARTS[1:5], MemoryOrigin(WHOLE, breaks_at=500_000)),
        (PARTS[4:5], MemoryOrigin(WHOLE, breaks_at=800_000)),
        (PARTS[4:5], MemoryOrigin(WHOLE, breaks_at=900_000)),  # what was kept is foreign by then
        (PARTS[5:6], MemoryOrigin(bytes(bad))),
        (PARTS[4:6], MemoryOrigin(WHOLE)),
    ]
    for number, (parts, origin) in enumerate(attempts):
        acquire(from_origin(*parts), store, opener(origin=origin), limits=ONE, on_event=note)
        ledger.check_conservation()
        for record in store.root.glob("partials/*.json") if number == 1 else ():
            record.write_text("{}")
    ledger.check_complete()
    sums = Counter()
    for event in ledger.events:
        sums[event.kind] += event.bytes
    assert sums["acquired"] + sums["resumed_prefix"] + sums["resume_transfer"] == sum(part.length for part in wanted)
    assert (sums["partial_discarded"], sums["integrity_failure"]) == (400_000, PARTS[5].length)
    assert (sums["resumed_prefix"], sums["resume_transfer"]) == (500_000, 600_000)


def test_a_source_that_cannot_be_opened_is_asked_once(store):
    gone = opener(origin=ArtifactError("SOURCE_OBJECT_UNAVAILABLE", "file:///model", "is not there"))
    done = acquire(from_origin(*PARTS), store, gone)
    assert len(gone.calls) == 1
    assert {outcome.failure.reason for outcome in done.failed} == {"file:///model: is not there"}
    assert len(done.failed) == len(PARTS)


def test_a_source_that_gives_nothing_is_not_asked_for_each(store):
    dead = MemoryOrigin(WHOLE, breaks_at=0)
    dead.stream = lambda wanted: dead.asked.append(wanted) or broken_stream()
    done = acquire(from_origin(*PARTS), store, opener(origin=dead), limits=ONE)
    assert len(done.failed) == len(PARTS)
    assert len(dead.asked) <= 3


def broken_stream():
    raise ArtifactError("SOURCE_OBJECT_UNAVAILABLE", "x", "refused")
    yield memoryview(b"")


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        (MemoryOrigin(WHOLE, version="etag:2"), "PROVENANCE_IDENTITY_MISMATCH"),
        (MemoryOrigin(WHOLE, version=None), "PROVENANCE_IDENTITY_MISMATCH"),
        (MemoryOrigin(WHOLE + b"x"), "PROVENANCE_IDENTITY_MISMATCH"),
    ],
    ids=["version", "unversioned", "length"],
)
def test_another_object_under_the_name_is_refused_unread(store, origin, code):
    done = acquire(from_origin(*PARTS[:2]), store, opener(origin=origin))
    assert [outcome.failure.code for outcome in done.failed] == [code] * 2
    assert origin.asked == []


def test_nothing_moves_without_authorization(store, events):
    def authorize(order):
        if order.artifact is PARTS[2]:
            raise ArtifactError("SOURCE_UNAUTHORIZED", "ticket", "is of generation 1, the newest freeze is 2")

    origin = MemoryOrigin(WHOLE)
    done = acquire(
        from_origin(*PARTS[1:3]),
        store,
        opener(origin=origin),
        authorize=authorize,
        limits=ONE,
        on_event=events.append,
    )
    (failed,) = done.failed
    assert (failed.failure.side, failed.failure.code, failed.transferred_bytes) == ("order", "SOURCE_UNAUTHORIZED", 0)
    assert origin.asked == [ByteRange(10, 5_000)]
    assert states(events, PARTS[2]) == []


def test_what_nobody_hashed_is_pinned_by_what_arrived_and_labelled(store, events):
    unpinned = artifact(WHOLE, 5_000, 400_000, pinned=False)
    done = acquire(from_origin(unpinned), store, opener(origin=MemoryOrigin(WHOLE)), on_event=events.append)
    (outcome,) = done.outcomes
    assert (outcome.sha256, outcome.hash_known_by) == (PARTS[2].sha256, "first-fetch-pinned")
    untouched = opener()
    again = acquire(from_origin(unpinned), store, untouched).outcomes[0]
    assert (again.how, again.sha256, again.hash_known_by) == ("cache-hit", PARTS[2].sha256, "first-fetch-pinned")
    store.collect()
    bad = bytearray(WHOLE)
    bad[6_000] ^= 1
    (failed,) = acquire(from_origin(unpinned), store, opener(origin=MemoryOrigin(bytes(bad)))).outcomes
    assert failed.failure.code == "INTEGRITY_DIGEST_MISMATCH"
    assert store.inventory().blobs == ()


def test_a_strict_policy_refuses_what_nobody_hashed_even_when_it_is_there(store):
    unpinned = artifact(WHOLE, 5_000, 400_000, pinned=False)
    acquire(from_origin(unpinned), store, opener(origin=MemoryOrigin(WHOLE)))
    done = acquire(from_origin(unpinned, PARTS[2]), store, opener(), strict=True)
    assert [outcome.how for outcome in done.outcomes] == ["failed", "cache-hit"]
    assert done.failed[0].failure.code == "UNVERIFIED_SOURCE_READ_REFUSED"


def test_a_peer_is_no_source_of_what_nobody_hashed(store):
    unpinned = artifact(WHOLE, 0, 10, pinned=False)
    done = acquire([Order.from_peer(unpinned, "node-2", "peer:/x")], store, opener())
    assert done.failed[0].failure.code == "UNVERIFIED_SOURCE_READ_REFUSED"


@pytest.mark.rule(82)
def test_several_sources_are_asked_at_once_each_for_its_own(store):
    """Mutation: one source has to end before the next begins. Each waits here for the others."""
    meeting = threading.Barrier(3, timeout=20)
    origins = {}
    for name, part in (("node-1", PARTS[2]), ("node-2", PARTS[4]), ("origin", PARTS[5])):
        place = part.range
        whole = WHOLE if name == "origin" else WHOLE[place.start : place.end]
        origins[name] = MemoryOrigin(whole, uri="file:///model" if name == "origin" else f"peer:/{name}")
        really = origins[name].stream

        def stream(wanted, really=really):
            meeting.wait()
            yield from really(wanted)

        origins[name].stream = stream
    orders = [
        Order.from_peer(PARTS[2], "node-1", "peer:/node-1"),
        Order.from_peer(PARTS[4], "node-2", "peer:/node-2"),
        Order.from_origin(PARTS[5]),
    ]
    done = acquire(orders, store, opener(**origins), limits=Limits(request_bytes=10**9))
    assert done.is_complete
    assert {outcome.source: outcome.transferred_bytes for outcome in done.outcomes} == {
        "node-1": 395_000,
        "node-2": 1_100_000,
        "origin": 1_499_999,
    }


def test_two_orders_for_the_same_bytes_are_one_transfer(store):
    origin = MemoryOrigin(WHOLE)
    tied = artifact(WHOLE, 0, 10, uri="file:///model", version="etag:1")
    twin = tied.__class__(**{name: getattr(tied, name) for name in tied.__struct_fields__} | {"states": ("other",)})
    done = acquire(from_origin(tied, twin), store, opener(origin=origin))
    assert [outcome.how for outcome in done.outcomes] == ["acquired", "cache-hit"]
    assert origin.asked == [ByteRange(0, 10)]


@pytest.mark.rule(81)
def test_what_a_peer_offers_and_has_not_is_published_by_nobody(store):
    """Mutation: what came is not compared with the digest that was ordered."""
    done = acquire(
        [Order.from_peer(PARTS[2], "bad", "peer:/1"), Order.from_peer(PARTS[2], "good", "peer:/2")],
        store,
        opener(
            bad=MemoryOrigin(bytes(395_000), uri="peer:/1"), good=MemoryOrigin(WHOLE[5_000:400_000], uri="peer:/2")
        ),
    )
    assert [outcome.how for outcome in done.outcomes] == ["failed", "acquired"]  # the second is an attempt of its own
    assert done.failed[0].failure.code == "INTEGRITY_DIGEST_MISMATCH"
    assert [blob.sha256 for blob in store.inventory().blobs] == [PARTS[2].sha256]


def test_a_fault_of_ours_is_not_taken_for_a_failure_of_a_source(store):
    def broken(event):
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        acquire(from_origin(PARTS[0]), store, opener(), authorize=lambda order: broken(order))


@pytest.mark.rule(80)
def test_the_same_content_elsewhere_is_a_hit_whatever_its_name(store):
    """Mutation: artifacts are looked up by object and range instead of by digest."""
    acquire(from_origin(PARTS[2]), store, opener(origin=MemoryOrigin(WHOLE)))
    moved_part = artifact(WHOLE, 5_000, 400_000, uri="hf://elsewhere", version="commit:1")
    assert moved_part.sha256 == sha(WHOLE[5_000:400_000])
    assert acquire(from_origin(moved_part), store, opener()).outcomes[0].how == "cache-hit"
