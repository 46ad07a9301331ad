"""How fast bytes move, from what moved within the last seconds; unknown is None and never a guess."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from inferswarm.artifacts.acquisition.orders import Progress

WINDOW_SECONDS: Final = 5.0
LEAST_SECONDS: Final = 0.25
"""A rate over less is that of one piece's arrival."""


class RateMeter:
    """Counts bytes as they arrive, from several threads. `clock` gives seconds that never run backwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._began: float | None = None
        self._arrived: deque[tuple[float, int]] = deque()

    def add(self, num_bytes: int) -> None:
        """Count bytes that arrived now."""
        with self._mutex:
            now = self._clock()
            if self._began is None:
                self._began = now
            self._arrived.append((now, num_bytes))
            self._forget(now)

    def rate(self) -> float | None:
        """Return bytes per second over the last seconds; None until there is a rate to speak of."""
        with self._mutex:
            now = self._clock()
            if self._began is None or now - self._began < LEAST_SECONDS:
                return None
            self._forget(now)
            return sum(count for _, count in self._arrived) / min(now - self._began, WINDOW_SECONDS)

    def progress(self, done_bytes: int, total_bytes: int) -> Progress:
        """Return how far it is. Nothing left takes no time; what stands still takes an unknown one."""
        rate = self.rate()
        left = total_bytes - done_bytes
        seconds = 0.0 if left == 0 else left / rate if rate else None
        return Progress(done_bytes, total_bytes, rate, seconds)

    def _forget(self, now: float) -> None:
        while self._arrived and now - self._arrived[0][0] > WINDOW_SECONDS:
            self._arrived.popleft()
