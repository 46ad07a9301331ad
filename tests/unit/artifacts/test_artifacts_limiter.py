"""Rates, requests and progress: what is computed without a byte moving."""

from __future__ import annotations

import threading
import time

import pytest

from inferswarm.artifacts.acquisition.coalescing import Piece, coalesce, request_size
from inferswarm.artifacts.acquisition.progress import RateMeter
from inferswarm.artifacts.limiter import BandwidthLimiter
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import SpecError


class Clock:
    """Time that passes when somebody waits for it."""

    def __init__(self):
        self.now = 0.0
        self.stops_at = None

    def __call__(self):
        return self.now

    def wait(self, timeout=None):
        self.now += timeout
        return self.stops_at is not None and self.now >= self.stops_at


def test_a_burst_goes_at_once_and_the_rest_at_the_rate():
    clock = Clock()
    limiter = BandwidthLimiter(1000, 500, clock)
    moments = []
    for _ in range(20):
        assert limiter.take(100, clock)
        moments.append(round(clock.now, 6))
    assert moments == [0.0] * 5 + [round(0.1 * number, 6) for number in range(1, 16)]
    clock.now += 100
    assert limiter.take(500, clock)
    assert clock.now == pytest.approx(101.5)  # a pause saves up one burst and no more


def test_more_than_the_burst_is_paid_back_before_the_next():
    clock = Clock()
    limiter = BandwidthLimiter(1000, 500, clock)
    limiter.take(2500, clock)
    assert clock.now == pytest.approx(2.0)
    limiter.take(1000, clock)
    assert clock.now == pytest.approx(3.0)


def test_no_rate_is_no_limit_and_a_rate_may_come_and_go():
    clock = Clock()
    limiter = BandwidthLimiter(None, clock=clock)
    assert limiter.take(10**12, clock)
    limiter.set_rate(1000)
    limiter.take(66_536, clock)
    assert clock.now == pytest.approx(1.0)
    limiter.set_rate(None)
    assert limiter.take(10**12, clock)
    assert clock.now == pytest.approx(1.0)


def test_who_stops_waiting_takes_nothing():
    clock = Clock()
    limiter = BandwidthLimiter(1000, 500, clock)
    limiter.take(500, clock)
    clock.stops_at = 0.5
    assert not limiter.take(1000, clock)
    assert limiter.passed_bytes == 500
    clock.stops_at = None
    before = clock.now
    assert limiter.take(500, clock)
    assert clock.now == before  # the second that was waited for belongs to whoever comes next


def test_who_asks_first_goes_first_and_nobody_twice():
    clock, waits = Clock(), []

    class Waiting:
        def wait(self, timeout=None):
            waits.append(round(timeout, 6))
            return False

    limiter = BandwidthLimiter(1000, 500, clock)
    limiter.take(500, clock)
    for _ in range(6):
        limiter.take(100, Waiting())
    assert waits == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_threads_together_stay_below_the_rate():
    limiter = BandwidthLimiter(20_000_000, 50_000)
    stop = threading.Event()
    began = time.monotonic()

    def take():
        while limiter.take(20_000, stop):
            pass

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    stop.wait(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    assert 0 < limiter.passed_bytes <= 50_000 + 20_000_000 * (time.monotonic() - began)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["bytes_per_second", "burst_bytes"])
def test_rates_that_are_none_are_refused(field, value):
    with pytest.raises(SpecError, match=field):
        BandwidthLimiter(**{"bytes_per_second": 1, field: value})


def pieces(*places, continued=()):
    return [Piece(number, ByteRange(*place), number in continued) for number, place in enumerate(places)]


@pytest.mark.parametrize(
    ("places", "continued", "most", "gap", "requests"),
    [
        ([(0, 10), (10, 20), (20, 30)], (), 100, 0, [[0, 1, 2]]),
        ([(20, 30), (0, 10), (10, 20)], (), 100, 0, [[1, 2, 0]]),
        ([(0, 10), (11, 20)], (), 100, 0, [[0], [1]]),
        ([(0, 10), (11, 20)], (), 100, 1, [[0, 1]]),
        ([(0, 10), (10, 20), (20, 30)], (), 20, 0, [[0, 1], [2]]),
        ([(0, 1000), (1000, 1001)], (), 20, 0, [[0], [1]]),
        (
            [(0, 10), (15, 20), (20, 30)],
            (1,),
            100,
            9,
            [[0], [1, 2]],
        ),  # 10 to 15 is there
        ([(0, 10), (5, 20)], (), 100, 100, [[0], [1]]),
        ([(0, 10), (10, 10), (10, 20)], (), 100, 0, [[0, 1, 2]]),
        ([], (), 100, 0, []),
    ],
)
def test_neighbors_are_asked_for_together(places, continued, most, gap, requests):
    found = coalesce(pieces(*places, continued=continued), most, gap)
    assert [[piece.number for piece in request] for request in found] == requests


@pytest.mark.parametrize(
    ("total", "connections", "size"),
    [(8 * 2**30, 4, 64 * 2**20), (80 * 2**20, 4, 10 * 2**20), (10, 4, 2**20), (10, 1, 64 * 2**20)],
)
def test_requests_give_every_connection_work(total, connections, size):
    assert request_size(total, connections, 64 * 2**20) == size


def test_a_rate_is_unknown_until_it_is_measured_and_time_left_when_nothing_moves():
    clock = Clock()
    meter = RateMeter(clock)
    assert meter.progress(0, 1000)[2:] == (None, None)
    meter.add(100)
    assert meter.progress(100, 1000)[2:] == (None, None)
    clock.now = 1.0
    meter.add(100)
    assert meter.progress(200, 1000)[2:] == (200.0, 4.0)
    clock.now = 100.0
    assert meter.progress(200, 1000)[2:] == (0.0, None)
    assert meter.progress(1000, 1000).seconds_left == 0.0
