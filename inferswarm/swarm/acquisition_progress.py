"""How far an acquisition is, for people: bytes in place, the share, the rate, what is left of the time.

Rate and time left are worked out from the reports as they come, and left out until they are known. A report counts
what is in place, so what a Node finds in its own store counts with what came; what the first report has does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import IO, Final

from inferswarm.artifacts.acquisition.orders import Progress
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquisition_log import AcquisitionPace, Clock
from inferswarm.fabric.acquisition_rounds import ACQUIRED
from inferswarm.units import format_bytes, format_rate, format_seconds

LINE_SECONDS: Final = 1.0
"""Between two lines of text at least."""
REDRAW_SECONDS: Final = 0.2
"""Between two drawings of a terminal's line at least: as often as eyes follow."""
STEPS: Final = 10
"""So many lines of text at most, the last one included."""

OnAcquired = Callable[[m.Progressed], None]


def progress_line(progress: Progress) -> str:
    """Return one line; what is not known is not in it."""
    done, total = progress.done_bytes, progress.total_bytes
    parts = [f"{format_bytes(done)} of {format_bytes(total)} in place ({done / total if total else 1:.0%})"]
    if done < total and progress.bytes_per_second is not None:
        parts.append(format_rate(progress.bytes_per_second))
        if progress.seconds_left is not None:
            parts.append(f"about {format_seconds(progress.seconds_left)} left")
    return ", ".join(parts)


def acquisition_lines(show: Callable[[str], None] = print, clock: Clock = time.monotonic) -> OnAcquired:
    """Return a callback for `Swarm.realize` that shows a line of text per tenth of an acquisition at most.

    Lines are a second apart, except for the one that says that all bytes are in place. For notebooks and logs.
    """
    return _Shown(lambda line, is_last: show(line), clock, LINE_SECONDS, STEPS).hear


def acquisition_shown_on(stream: IO[str], clock: Clock = time.monotonic) -> OnAcquired:
    """Return a callback for `Swarm.realize`: one line that a terminal keeps up to date, elsewhere lines of text."""

    def draw(line: str, is_last: bool) -> None:
        stream.write(f"\r\033[K{line}" + ("\n" if is_last else ""))
        stream.flush()

    def write(line: str) -> None:
        stream.write(f"{line}\n")

    if not stream.isatty():
        return acquisition_lines(write, clock)
    return _Shown(draw, clock, REDRAW_SECONDS, None).hear


class _Shown:
    """Shows some of the reports: not too often, and everything in place once."""

    def __init__(self, show: Callable[[str, bool], None], clock: Clock, seconds: float, steps: int | None) -> None:
        self._show = show
        self._clock = clock
        self._seconds = seconds
        self._steps = steps
        self._pace = AcquisitionPace(clock)
        self._shown_at = -math.inf
        self._step = 0
        self._is_over = False

    def hear(self, report: m.Progressed) -> None:
        """Take a report, which may be of something else."""
        if report.note != ACQUIRED or not report.total or self._is_over:
            return
        progress = self._pace.take(report.done, report.total)
        self._is_over = report.done == report.total
        step = self._step + 1 if self._steps is None else report.done * self._steps // report.total
        now = self._clock()
        if self._is_over or (step > self._step and now - self._shown_at >= self._seconds):
            self._step, self._shown_at = step, now
            self._show(progress_line(progress), self._is_over)
