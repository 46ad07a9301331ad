"""Room for requests: as many at once as the plan has sessions for, and a queue of stated length and wait.

First come, first served. A place in the queue is no promise: a session may end late, or not in time at all.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferswarm.serving.problems import busy

RECENT = 16
"""How many of the last sessions an estimate of the wait is made from."""


class Slots:
    """Slots of one server; used in one event loop."""

    def __init__(self, num_slots: int, queue_length: int, queue_seconds: float) -> None:
        """At most `num_slots` requests run, `queue_length` more wait, each for at most `queue_seconds`."""
        self.num_slots = num_slots
        self.queue_length = queue_length
        self.queue_seconds = queue_seconds
        self.num_waiting = 0
        self._free = asyncio.Semaphore(num_slots)
        self._durations: deque[float] = deque(maxlen=RECENT)

    @property
    def is_full(self) -> bool:
        """Whether a request would have to wait."""
        return self._free.locked()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[float]:
        """Wait for a slot and hold it; gives the time (monotonic) until which the request may wait for anything.

        Raises Refusal (429) at once when the queue is full, and when it was waited for too long.
        """
        deadline = time.monotonic() + self.queue_seconds
        await self._enter()
        started = time.monotonic()
        try:
            yield deadline
        finally:
            self._durations.append(time.monotonic() - started)
            self._free.release()

    async def _enter(self) -> None:
        if self.is_full and self.num_waiting >= self.queue_length:
            message = f"all {self.num_slots} sessions are taken and {self.num_waiting} requests wait already"
            raise busy(message, "queue_full", self.retry_after_seconds())
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self.queue_seconds):
                await self._free.acquire()
        except TimeoutError as error:
            message = f"none of {self.num_slots} sessions became free within {self.queue_seconds:g} s"
            raise busy(message, "queue_timeout", self.retry_after_seconds()) from error
        finally:
            self.num_waiting -= 1

    def retry_after_seconds(self) -> int:
        """Return when to try again, in whole seconds: by the mean of the last sessions and who waits already."""
        mean = statistics.fmean(self._durations) if self._durations else 1.0
        return max(1, math.ceil(mean * (self.num_waiting + 1) / self.num_slots))
