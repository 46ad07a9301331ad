"""How fast bytes may move: one bucket of tokens for all threads of a process.

What is promised: over any time t, no more than `burst` + `rate` × t bytes are let through, and threads are served in
the order in which they asked. What is not promised: fairness between threads that ask for unlike amounts at once; ask
for pieces (at most 1 MiB) and it follows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from inferswarm.errors import SpecError


class Stopping(Protocol):
    """What ends a wait early; a `threading.Event` is one."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most so many seconds; return whether it is."""


class BandwidthLimiter:
    """Lets bytes through at `bytes_per_second`; None: at any speed.

    `burst_bytes` may go at once after a pause; None: what passes in a quarter of a second, at least 64 KiB. More than
    the burst may be asked for: it is paid back before the next is let through. Raises SpecError for a rate or a burst
    that is not above 0. `clock` gives seconds that never run backwards.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        burst_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _require_positive("bytes_per_second", bytes_per_second)
        _require_positive("burst_bytes", burst_bytes)
        self._clock = clock
        self._mutex = threading.Lock()
        self._given_burst = burst_bytes
        self._rate = bytes_per_second
        self._tokens = self.burst_bytes
        self._at = clock()
        self._passed = 0

    @property
    def bytes_per_second(self) -> float | None:
        """Return the rate; None: any."""
        return self._rate

    @property
    def burst_bytes(self) -> float:
        """Return what may go at once after a pause."""
        return self._given_burst or max((self._rate or 0.0) / 4, 65_536.0)

    @property
    def passed_bytes(self) -> int:
        """Return how many bytes were let through so far."""
        return self._passed

    def set_rate(self, bytes_per_second: float | None) -> None:
        """Change the rate for whoever asks from here on. Raises SpecError as at creation."""
        _require_positive("bytes_per_second", bytes_per_second)
        with self._mutex:
            self._refill()
            self._rate = bytes_per_second
            self._tokens = min(self._tokens, self.burst_bytes)

    def take(self, num_bytes: int, stop: Stopping | None = None) -> bool:
        """Wait until so many bytes may pass; return False, with nothing taken, when `stop` was set before."""
        seconds = self._reserve(num_bytes)
        if seconds <= 0:
            return True
        if stop is None:
            time.sleep(seconds)
        elif stop.wait(seconds):
            self._give_back(num_bytes)
            return False
        return True

    def _reserve(self, num_bytes: int) -> float:
        """Take the tokens, into debt if need be, and return how long the debt takes to pay."""
        with self._mutex:
            self._passed += num_bytes
            if self._rate is None:
                return 0.0
            self._refill()
            self._tokens -= num_bytes
            return max(0.0, -self._tokens / self._rate)

    def _give_back(self, num_bytes: int) -> None:
        with self._mutex:
            self._passed -= num_bytes
            self._tokens += num_bytes

    def _refill(self) -> None:
        now = self._clock()
        if self._rate is not None:
            self._tokens = min(self.burst_bytes, self._tokens + (now - self._at) * self._rate)
        self._at = now


def _require_positive(field: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise SpecError(field, value, "more than 0 and finite, or None")
