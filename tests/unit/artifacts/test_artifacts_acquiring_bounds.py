"""What acquiring is bounded by: ends, connections, rates, room, and what another process is doing."""

from __future__ import annotations

import threading
import time

import pytest

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import Limits, pool
from inferswarm.artifacts.acquisition.pool import PATIENCE_SECONDS, TICK_SECONDS
from inferswarm.artifacts.limiter import BandwidthLimiter
from inferswarm.artifacts.store import ContentStore, partial_identity
from inferswarm.errors import SpecError
from tests.unit.artifacts.acquiring_samples import ONE, PARTS, USE, WHOLE, from_origin, moved, opener
from tests.unit.artifacts.store_samples import MemoryOrigin


@pytest.fixture
def store(tmp_path):
    with ContentStore(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def events():
    return []


@pytest.mark.parametrize(("ending", "hangs"), [("cancelled", False), ("late", False), ("cancelled", True)])
def test_an_end_comes_soon_and_keeps_what_came(store, events, ending, hangs):
    """A source that hangs for half a minute does not hold it up: TICK + PATIENCE is what it may take."""
    assert TICK_SECONDS + PATIENCE_SECONDS < 1
    origin = MemoryOrigin(WHOLE, seconds_per_piece=0.02, hangs_at=600_000 if hangs else None)
    cancelled = threading.Event()
    began = time.monotonic()
    timer = threading.Timer(0.25, cancelled.set)
    timer.start()
    done = acquire(
        from_origin(*PARTS),
        store,
        opener(origin=origin),
        limits=ONE,
        cancelled=cancelled if ending == "cancelled" else None,
        deadline=began + 0.25 if ending == "late" else None,
        on_event=events.append,
    )
    assert 0.25 <= time.monotonic() - began < 10
    timer.join()
    outcome = done.outcomes[4]
    assert (outcome.state, outcome.how) == ("MISSING", ending)
    assert outcome.kept_bytes == store.held_bytes(partial_identity(PARTS[4])) > 0
    assert origin.is_closed.is_set()
    before = moved(events)
    origin.released.set()
    time.sleep(0.1)
    assert moved(events) == before  # who was left behind cannot write any more
    assert store.held_bytes(partial_identity(PARTS[4])) == outcome.kept_bytes
    again = acquire(from_origin(*PARTS), store, opener(origin=MemoryOrigin(WHOLE)))
    assert again.is_complete
    assert again.outcomes[4].resumed_bytes == outcome.kept_bytes


def test_who_waits_for_bytes_is_woken_and_ends(store, monkeypatch):
    """Turns red when origins are closed only after threads were left behind."""
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 20)
    began = time.monotonic()
    origin = MemoryOrigin(WHOLE, hangs_at=600_000, is_deaf=False)
    cancelled = threading.Event()
    timer = threading.Timer(0.1, cancelled.set)
    timer.start()
    done = acquire(from_origin(PARTS[4]), store, opener(origin=origin), cancelled=cancelled)
    assert time.monotonic() - began < 10
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("acquiring-")] == []
    assert (done.outcomes[0].how, done.outcomes[0].failure) == ("cancelled", None)
    timer.join()


def test_a_full_store_fails_its_artifacts_before_their_bytes_move(tmp_path):
    with ContentStore(tmp_path / "small", quota_bytes=450_000) as store:
        origin = MemoryOrigin(WHOLE)
        done = acquire(from_origin(*PARTS), store, opener(origin=origin), use=USE, limits=ONE)
        failed = {outcome.artifact: outcome.failure for outcome in done.failed}
        assert set(failed) == {PARTS[4].id, PARTS[5].id}
        assert {failure.side for failure in failed.values()} == {"store"}
        assert "1,100,000 B needed" in failed[PARTS[4].id].reason


def test_progress_is_measured_and_never_invented(store):
    seen = []
    origin = MemoryOrigin(WHOLE, seconds_per_piece=0.015)
    acquire(from_origin(*PARTS), store, opener(origin=origin), limits=ONE, on_progress=seen.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes == 3_000_000
    assert [progress.done_bytes for progress in seen] == sorted(progress.done_bytes for progress in seen)
    assert all((progress.seconds_left is None) <= (progress.bytes_per_second is None) for progress in seen[:-1])
    rate = seen[-1].bytes_per_second
    assert 0 < rate < 65_536 / 0.015


def test_a_limiter_holds_the_rate(store):
    limiter = BandwidthLimiter(6_000_000, burst_bytes=100_000)
    began = time.monotonic()
    done = acquire(from_origin(*PARTS[:5]), store, opener(origin=MemoryOrigin(WHOLE)), limiter=limiter)
    assert done.is_complete
    assert limiter.passed_bytes == 1_500_000
    assert time.monotonic() - began > (1_500_000 - 100_000 - 65_536) / 6_000_000


@pytest.mark.parametrize("field", ["connections", "connections_per_source", "request_bytes", "batch_blobs"])
def test_limits_of_nothing_are_refused(store, field):
    with pytest.raises(SpecError, match=field):
        acquire([], store, opener(), limits=Limits()._replace(**{field: 0}))


def test_no_more_connections_than_allowed(store):
    origin = MemoryOrigin(WHOLE, seconds_per_piece=0.002)
    running, most, really, lock = [0], [0], origin.stream, threading.Lock()

    def stream(wanted):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        yield from really(wanted)
        with lock:
            running[0] -= 1

    origin.stream = stream
    limits = Limits(connections=8, connections_per_source=3, request_bytes=1)
    assert acquire(from_origin(*PARTS), store, opener(origin=origin), limits=limits).is_complete
    assert most[0] == 3


def test_a_partial_that_another_writes_is_waited_for(store):
    with ContentStore(store.root) as other:
        partial = other.partial(partial_identity(PARTS[4]))

        def finish():
            partial.write(WHOLE[400_000:1_500_000])
            other.publish_partial(partial)

        timer = threading.Timer(0.2, finish)
        timer.start()
        done = acquire(from_origin(*PARTS), store, opener(origin=MemoryOrigin(WHOLE)), limits=ONE)
        timer.join()
    assert done.is_complete
    assert [outcome.how for outcome in done.outcomes].index("cache-hit") == 4
