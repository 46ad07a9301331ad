"""What is received goes on while a disk is waited for, and what waits for the index is published together."""

from __future__ import annotations

import itertools
import threading

import pytest

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import BytesMoved, Limits
from inferswarm.artifacts.acquisition.gathering import MOST_WAITING, Gathering
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.origins.http_transport import READ_BYTES
from inferswarm.artifacts.store import ContentStore, partial_identity
from inferswarm.artifacts.types import ByteRange
from tests.origin_server import serve_origin
from tests.unit.artifacts.acquiring_samples import USE, from_origin, moved, opener
from tests.unit.artifacts.store_samples import MemoryOrigin, artifact, sample_bytes
from tests.unit.fabric.processes import wait_until

WHOLE = sample_bytes(4_000_000)
PARTS = tuple(artifact(WHOLE, start, start + 500_000) for start in range(0, 4_000_000, 500_000))
ONE = Limits(connections=1, connections_per_source=1, request_bytes=10**9, small_bytes=1000, publishing=2)


class SlowNaming:
    """A store whose first naming waits; counts how many artifacts each took."""

    def __init__(self, store: ContentStore) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self._publish = store.publish_proved
        store.publish_proved = self.publish  # type: ignore[method-assign]

    def publish(self, batch, use=None) -> None:
        self.sizes.append(len(batch))
        self.begun.set()
        assert self.released.wait(20.0)
        self._publish(batch, use)


@pytest.fixture
def store(tmp_path):
    with ContentStore(tmp_path / "store") as opened:
        yield opened


def num_whole(store: ContentStore) -> int:
    """How many beginnings are whole."""
    return sum(store.held_bytes(partial_identity(part)) == part.length for part in PARTS)


def in_thread(*orders, store, origin, **named):
    """Acquire in a thread of its own; return it and what it will return."""
    done = []
    thread = threading.Thread(
        target=lambda: done.append(acquire(from_origin(*orders), store, opener(origin=origin), limits=ONE, **named))
    )
    thread.start()
    return thread, done


def test_all_arrives_while_one_naming_waits_and_the_rest_is_named_together(store) -> None:
    slow, origin = SlowNaming(store), MemoryOrigin(WHOLE)
    thread, done = in_thread(*PARTS, store=store, origin=origin, use=USE)
    assert slow.begun.wait(20.0)
    # One is at it, one that publishes may wait behind it, and two times two were left to those.
    assert wait_until(
        lambda: sum(store.held_bytes(partial_identity(part)) == part.length for part in PARTS) >= 6, 20.0
    )
    slow.released.set()
    thread.join(20.0)
    assert done[0].is_complete
    assert slow.sizes[0] == 1
    assert sum(slow.sizes) == len(PARTS)
    assert len(slow.sizes) < len(PARTS)
    assert all(store.holds(str(part.sha256)) == part.length for part in PARTS)


def test_whole_beginnings_that_nobody_named_yet_are_kept_and_go_on_without_a_byte(store) -> None:
    slow, origin, events = SlowNaming(store), MemoryOrigin(WHOLE), []
    cancelled = threading.Event()
    thread, done = in_thread(*PARTS, store=store, origin=origin, cancelled=cancelled, on_event=events.append)
    assert slow.begun.wait(20.0)
    assert wait_until(
        lambda: sum(store.held_bytes(partial_identity(part)) == part.length for part in PARTS) >= 6, 20.0
    )
    cancelled.set()
    thread.join(20.0)
    slow.released.set()
    assert not done[0].is_complete
    moved(events)  # what is counted by then adds up
    assert wait_until(lambda: len(store.inventory().blobs) >= 1, 20.0)  # who was at it ends it
    kept = [outcome for outcome in done[0].outcomes if outcome.kept_bytes == outcome.length]
    events.clear()
    again = acquire(
        from_origin(*PARTS), store, opener(origin=MemoryOrigin(WHOLE)), limits=ONE, on_event=events.append
    )
    assert again.is_complete, again.failed
    assert {item.transferred_bytes for item in again.outcomes if item.resumed_bytes == item.length} == {0}
    resumed = {item.artifact for item in again.outcomes if item.resumed_bytes == item.length}
    assert resumed
    assert {item.artifact for item in kept} <= resumed
    ended = {event.artifact for event in events if isinstance(event, BytesMoved) and event.kind == "resume_transfer"}
    assert resumed <= ended  # the ledger hears of their verified end


def test_one_that_contradicts_its_pin_fails_alone_among_those_named_together(store) -> None:
    unknown = [artifact(WHOLE, part.range.start, part.range.end, pinned=False) for part in PARTS]
    store._index.pin(partial_identity(unknown[4]), str(PARTS[0].sha256))
    slow = SlowNaming(store)
    thread, done = in_thread(*unknown, store=store, origin=MemoryOrigin(WHOLE))
    assert slow.begun.wait(20.0)
    slow.released.set()
    thread.join(20.0)
    failed = [outcome for outcome in done[0].outcomes if outcome.state != "VERIFIED_AVAILABLE"]
    assert [(item.artifact, item.failure.code) for item in failed if item.failure] == [
        (unknown[4].id, "INTEGRITY_DIGEST_MISMATCH")
    ]
    assert store.held_bytes(partial_identity(unknown[4])) == 0


def test_who_comes_leaves_what_it_has_to_the_one_that_is_at_it() -> None:
    at_it, go_on = threading.Event(), threading.Event()
    done: list[list[int]] = []

    def do(batch: list[int]) -> None:
        at_it.set()
        assert go_on.wait(20.0)
        if -1 in batch:
            raise ArithmeticError
        done.append(batch)

    gathering = Gathering(do)
    first = threading.Thread(target=gathering.put, args=(0,))
    first.start()
    assert at_it.wait(20.0)
    for number in range(1, 1 + MOST_WAITING):
        gathering.put(number)  # at once
    full = threading.Thread(target=gathering.put, args=(1 + MOST_WAITING,))
    full.start()
    assert wait_until(lambda: bool(gathering._changed._waiters), 20.0)  # type: ignore[attr-defined]
    go_on.set()
    first.join(20.0)
    full.join(20.0)
    assert (done[0], done[1]) == ([0], list(range(1, 1 + MOST_WAITING)))
    assert list(itertools.chain(*done)) == list(range(2 + MOST_WAITING))
    with pytest.raises(ArithmeticError):
        gathering.put(-1)
    gathering.put(99)
    assert done[-1] == [99]


def test_what_has_arrived_is_taken_in_long_pieces(tmp_path) -> None:
    (tmp_path / "model").write_bytes(WHOLE[:400_000])
    with serve_origin(tmp_path) as server, HttpOrigin(server.url("model")) as origin:
        pieces = origin.stream(ByteRange(0, 400_000))
        lengths = [next(pieces).nbytes]
        assert wait_until(lambda: server.bytes_sent("model") == 400_001, 20.0)
        lengths += [piece.nbytes for piece in pieces]
    assert sum(lengths) == 400_000
    assert 65_536 < max(lengths) <= READ_BYTES


def test_what_another_began_where_a_published_one_lay_is_left_alone(store, monkeypatch) -> None:
    identity = partial_identity(PARTS[0])
    partial = store.partial(identity)
    partial.write(WHOLE[:500_000])
    others = []
    # Between naming and clearing away: the name of the partial is free by then.
    monkeypatch.setattr(store._room, "unlink", lambda victims: others.append(store.partial(identity)))
    store.publish_partial(partial, str(PARTS[0].sha256))
    (other,) = others
    assert other.path.exists()
    assert store.discard_partial(other) == 0
    assert store.holds(str(PARTS[0].sha256)) == 500_000
