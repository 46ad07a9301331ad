"""How far each acquisition was and when, in the swarm's ledger: its beginning, a few steps, and how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from inferswarm.artifacts.acquisition.orders import Progress
from inferswarm.artifacts.acquisition.progress import RateMeter
from inferswarm.documents import Document, read_document
from inferswarm.fabric.audit import read_rows
from inferswarm.fabric.transfer_records import REPORTS_QUERY, REPORTS_TABLE

STEP_SECONDS: Final = 1.0
"""Between two steps at least."""
STEPS: Final = 10
"""A step is a tenth of the bytes at least: beginning and end included, so many records and one at most."""

Clock = Callable[[], float]
"""Seconds that never run backwards."""


class AcquisitionReported(Document, frozen=True, kw_only=True, tag=True):
    """How far the acquisition for a realization was."""

    realization: str
    generation: int
    state: Literal["begun", "under-way", "complete", "failed"]
    done_bytes: int
    """In place at the Nodes, verified or on the way to be: what they held before, and what has come."""
    total_bytes: int
    bytes_per_second: float | None
    """None: not known yet."""
    seconds_left: float | None
    reason: str = ""
    """Why it failed."""

    @property
    def progress(self) -> Progress:
        """The numbers alone."""
        return Progress(self.done_bytes, self.total_bytes, self.bytes_per_second, self.seconds_left)


class ReportEntry(NamedTuple):
    """One record with its place and its time, in nanoseconds since 1970."""

    number: int
    at_ns: int
    report: AcquisitionReported


class AcquisitionPace:
    """Turns what is said of one acquisition's bytes into rates."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        """Nothing was said yet."""
        self._clock = clock
        self._meter = RateMeter(clock)
        self._last: tuple[int, int] | None = None

    def take(self, done: int, total: int) -> Progress:
        """Return how far it is when so many of all bytes are in place. Another total is another acquisition."""
        before, last_total = self._last or (done, total)
        if last_total != total:
            self._meter = RateMeter(self._clock)
            before = done
        self._meter.add(max(0, done - before))  # an attempt that failed takes its bytes back
        self._last = (done, total)
        return self._meter.progress(done, total)


class AcquisitionLog:
    """Writes down some of what is said of one acquisition: not too often, and its beginning and end for certain."""

    def __init__(
        self,
        write: Callable[[AcquisitionReported], None],
        realization: str,
        generation: int,
        total_bytes: int,
        clock: Clock = time.monotonic,
    ) -> None:
        """`write` keeps a report; what it raises is raised."""
        self._write = write
        self._realization = realization
        self._generation = generation
        self._total = total_bytes
        self._clock = clock
        self._pace = AcquisitionPace(clock)
        self._progress = Progress(0, total_bytes, None, None)
        self._step = 0
        self._wrote_at = -math.inf

    def begun(self) -> None:
        """Say that it begins."""
        self._say("begun")

    def moved(self, done_bytes: int) -> None:
        """Hear how many bytes are in place."""
        self._progress = self._pace.take(done_bytes, self._total)
        step = done_bytes * STEPS // self._total if self._total else STEPS
        if self._step < step < STEPS and self._clock() - self._wrote_at >= STEP_SECONDS:
            self._step = step
            self._say("under-way")

    def ended(self, reason: str | None) -> None:
        """Say that everything is there, or the reason why it is not."""
        if reason is None:
            self._progress = Progress(self._total, self._total, self._progress.bytes_per_second, 0.0)
            self._say("complete")
        else:
            self._progress = self._progress._replace(seconds_left=None)
            self._say("failed", reason)

    def _say(self, state: Literal["begun", "under-way", "complete", "failed"], reason: str = "") -> None:
        self._wrote_at = self._clock()
        report = AcquisitionReported(
            realization=self._realization,
            generation=self._generation,
            state=state,
            reason=reason,
            **self._progress._asdict(),
        )
        self._write(report)


def read_reports(ledger: Path, after: int = 0, since_ns: int = 0) -> Iterator[ReportEntry]:
    """Return reports behind number `after` and not before `since_ns`, in order, as they are asked for.

    Raises SpecError for a file that is no ledger, DocumentError for a record that this version cannot read.
    """
    for number, at_ns, body in read_rows(ledger, REPORTS_QUERY, after, since_ns, table=REPORTS_TABLE):
        report = read_document(AcquisitionReported, bytes(body), f"{ledger}: report {number} of acquisitions")
        yield ReportEntry(number, at_ns, report)
