"""Bounded threads that do named work, so many at a time for each source, the sources in turns.

Threads end with their process, not it with them: one that hangs in a system call is left behind, fenced off by
whoever gave it work.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from inferswarm.artifacts.acquisition.stopping import Stop, Stopped

TICK_SECONDS: Final = 0.1
"""How often the one who waits looks up: a cancellation is noticed within it."""
PATIENCE_SECONDS: Final = 0.4
"""How long threads may take to notice that they are to stop, before they are left behind."""


class Pool:
    """Runs tasks. One use."""

    def __init__(self, stop: Stop, num_threads: int, num_per_source: int) -> None:
        self._stop = stop
        self._num_threads = num_threads
        self._num_per_source = num_per_source
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._running: Counter[str] = Counter()
        self._broke: BaseException | None = None

    def run(
        self,
        tasks: Iterable[tuple[str, Callable[[], None]]],
        on_tick: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        """Run (source, task) pairs; return when all have ended, or when it is time to stop.

        `on_tick` is called here, every so often, and `on_stop` to wake up what waits for bytes. What a task raises
        that is no `Stopped` ends all, and is raised.
        """
        for source, task in tasks:
            self._waiting.setdefault(source, deque()).append(task)
        num_tasks = sum(map(len, self._waiting.values()))
        for number in range(min(self._num_threads, num_tasks)):
            threading.Thread(target=self._work, name=f"acquiring-{number}", daemon=True).start()
        while self._is_busy():
            on_tick()
            if self._stop.reason is not None:
                self._stop.fence.set()
                on_stop()
                self._abandon()
                break
        if self._broke is not None:
            raise self._broke

    def _is_busy(self) -> bool:
        with self._changed:
            if not self._is_over():
                self._changed.wait(TICK_SECONDS)
            return not self._is_over()

    def _is_over(self) -> bool:
        return self._broke is not None or not (self._running.total() or any(self._waiting.values()))

    def _abandon(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            self._waiting.clear()
            while self._running.total() and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            source, task = taken
            try:
                task()
            except Stopped:
                return
            except BaseException as error:
                self._broke = error
                self._stop.fence.set()
                raise
            finally:
                with self._changed:
                    self._running[source] -= 1
                    self._changed.notify_all()

    def _take(self) -> tuple[str, Callable[[], None]] | None:
        with self._changed:
            while any(self._waiting.values()) and self._stop.reason is None:
                free = [
                    source
                    for source, queue in self._waiting.items()
                    if queue and self._running[source] < self._num_per_source
                ]
                if free:
                    # Whoever has the fewest going is next, so that no source waits for another's queue to end.
                    source = min(free, key=lambda source: self._running[source])
                    self._running[source] += 1
                    return source, self._waiting[source].popleft()
                self._changed.wait(TICK_SECONDS)
            return None
