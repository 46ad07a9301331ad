"""Work that one thread at a time can do, and that costs about the same for one thing as for many.

Whoever comes while it is done leaves what it has and goes on; whoever does it takes all that was left, until nothing
is. So nobody waits, and things are done together when they come fast, one by one when they do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

MOST_WAITING: Final = 64
"""So many things may wait; who brings another one then waits itself: each keeps a file open."""
Left = TypeVar("Left")


class Gathering(Generic[Left]):
    """Hands things to `do`, from several threads, in the order in which they came."""

    def __init__(self, do: Callable[[list[Left]], None]) -> None:
        """`do` is called by one thread at a time, with at least one thing."""
        self._do = do
        self._changed = threading.Condition()
        self._waiting: list[Left] = []
        self._is_doing = False

    def put(self, thing: Left) -> None:
        """Have a thing done: by this thread, with what is left to it meanwhile, or by the one that is at it.

        Raises what `do` raises, in the thread that called it; what is left then is done when the next thing comes.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_doing or len(self._waiting) < MOST_WAITING)
            self._waiting.append(thing)
            if self._is_doing:
                return
            self._is_doing = True
        try:
            while batch := self._take():
                self._do(batch)
        except BaseException:
            with self._changed:
                self._is_doing = False
                self._changed.notify_all()
            raise

    def _take(self) -> list[Left]:
        """Return what is left; nothing, and this thread is done, where nothing is."""
        with self._changed:
            batch, self._waiting = self._waiting, []
            self._is_doing = bool(batch)
            self._changed.notify_all()
            return batch
