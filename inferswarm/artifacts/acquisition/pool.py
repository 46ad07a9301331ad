"""Bounded threads that do named work, so many at a time for each source, the sources in turns.

What is left to do behind a task, and waits for a disk rather than for a source, other threads do meanwhile.

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
_WAITING_PER_THREAD: Final = 2
"""So much may wait for each thread that does what is left, before who leaves more has to wait."""
PATIENCE_SECONDS: Final = 0.4
"""How long threads may take to notice that they are to stop, before they are left behind."""


class Pool:
    """Runs tasks. One use."""

    def __init__(self, stop: Stop, num_threads: int, num_per_source: int, num_behind: int = 0) -> None:
        """`num_behind` threads do what tasks leave; 0: whoever leaves it does it itself."""
        self._stop = stop
        self._num_behind = num_behind
        self._behind: deque[Callable[[], None]] = deque()
        self._num_doing = 0
        self._num_started = 0
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
        """Run (source, task) pairs; return when all have ended, with what they left, or when it is time to stop.

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

    def leave(self, task: Callable[[], None]) -> None:
        """Have something done behind the task that calls this; wait while too much is left. Raises Stopped."""
        if not self._num_behind:
            task()
            return
        with self._changed:
            while len(self._behind) >= _WAITING_PER_THREAD * self._num_behind:
                self._changed.wait(TICK_SECONDS)
                self._stop.check()
            self._behind.append(task)
            self._changed.notify_all()
            if self._num_started >= min(self._num_behind, self._num_doing + len(self._behind)):
                return
            self._num_started += 1
            number = self._num_started
        threading.Thread(target=self._work_behind, name=f"publishing-{number}", daemon=True).start()

    def _is_busy(self) -> bool:
        with self._changed:
            if not self._is_over():
                self._changed.wait(TICK_SECONDS)
            return not self._is_over()

    def _is_over(self) -> bool:
        is_idle = not (self._running.total() or any(self._waiting.values()) or self._behind or self._num_doing)
        return self._broke is not None or is_idle

    def _abandon(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            self._waiting.clear()
            self._behind.clear()
            while (self._running.total() or self._num_doing) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            source, task = taken
            try:
                if not self._do(task):
                    return
            finally:
                with self._changed:
                    self._running[source] -= 1
                    self._changed.notify_all()

    def _work_behind(self) -> None:
        while (task := self._take_behind()) is not None:
            try:
                if not self._do(task):
                    return
            finally:
                with self._changed:
                    self._num_doing -= 1
                    self._changed.notify_all()

    def _do(self, task: Callable[[], None]) -> bool:
        """Run a task; False when it is time to stop."""
        try:
            task()
        except Stopped:
            return False
        except BaseException as error:
            self._broke = error
            self._stop.fence.set()
            raise
        return True

    def _take_behind(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._behind:
                if self._is_over() or self._stop.reason is not None:
                    self._num_started -= 1
                    return None
                self._changed.wait(TICK_SECONDS)
            self._num_doing += 1
            return self._behind.popleft()

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
