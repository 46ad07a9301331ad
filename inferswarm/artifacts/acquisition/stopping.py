"""What ends an acquisition early: the caller's wish or the deadline, noticed between any two pieces of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

StopReason = Literal["cancelled", "late"]


class Stopped(Exception):  # internal: it never leaves `acquire`
    """Work is given up where it is."""


class Stop:
    """One acquisition's end. `deadline` is a moment of `clock`."""

    def __init__(self, cancelled: threading.Event | None, deadline: float | None, clock: Callable[[], float]) -> None:
        self._cancelled = cancelled
        self._deadline = deadline
        self._clock = clock
        self.fence = threading.Event()
        """Set once, for threads that wait for something else."""

    @property
    def reason(self) -> StopReason | None:
        """Return why to stop; None: go on."""
        if self._cancelled is not None and self._cancelled.is_set():
            return "cancelled"
        if self._deadline is not None and self._clock() >= self._deadline:
            return "late"
        return "cancelled" if self.fence.is_set() else None

    def check(self) -> None:
        """Raise Stopped when it is time."""
        if self.reason is not None:
            raise Stopped
