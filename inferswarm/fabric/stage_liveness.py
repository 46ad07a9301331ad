"""When a stage that says nothing is taken for lost. Pure: whoever watches says how much time has passed.

A stage's signs of life come from a thread of their own, so a step of any length is no silence. Time that the watcher
itself did not run is nobody's silence either: what arrived meanwhile has not been read yet.
"""

from __future__ import annotations

from typing import NamedTuple

SILENT_SECONDS = 10.0
"""Twenty signs of life that did not come. Less would take a machine that swaps or is starved for a dead stage."""
STOPPED_SECONDS = 0.75
"""For a process that the kernel says is stopped: the sign of life that came before and the next one, and a half."""
LONGEST_TICK_SECONDS = 0.25
"""What one look counts at most, five times as long as an agent pauses between two looks."""


class LivenessSettings(NamedTuple):
    """How long a stage may be silent, in seconds, and how long when the kernel says that it is stopped."""

    silent_seconds: float = SILENT_SECONDS
    stopped_seconds: float = STOPPED_SECONDS


class Silence:
    """How long one stage has said nothing, as far as its watcher looked."""

    def __init__(self, settings: LivenessSettings | None = None) -> None:
        """Nothing was missed yet."""
        self._settings = settings or LivenessSettings()
        self._has_begun = False
        self.seconds = 0.0

    def heard(self) -> None:
        """A sign of life came."""
        self._has_begun = True
        self.seconds = 0.0

    def passed(self, seconds: float, *, is_stopped: bool) -> str | None:
        """Note that time has passed since the last look. Returns why the stage is lost, or None while it is not.

        Before its first sign of life only the time counts in which it is stopped: loading may take long.
        """
        if not self._has_begun and not is_stopped:
            self.seconds = 0.0
            return None
        self.seconds += min(seconds, LONGEST_TICK_SECONDS)
        if is_stopped and self.seconds >= self._settings.stopped_seconds:
            return f"it was stopped and gave no sign of life for {self.seconds:.1f} s"
        if self.seconds >= self._settings.silent_seconds:
            return f"it gave no sign of life for {self.seconds:.0f} s"
        return None
