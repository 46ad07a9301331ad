"""What a stage sent to the next one, kept so that a lost next stage can be given it again: the boundary journal.

For each session the payloads of consecutive steps, as they were sent, in the recorded partition. A stage keeps
`memory_bytes` of them in memory and up to `spill_bytes` more in files without a name, which end with the process;
sixteen bytes beside each step say where it is.
When there is room in neither, the session that takes most loses everything that is kept of it, and is kept from the
next step on: another way of recovery has to serve it, and the others stay whole. A disk that fails does the same.
"""

from __future__ import annotations

import bisect
import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO, NamedTuple

from inferswarm.errors import FabricError

MEMORY_BYTES = 2**20
"""Kept in memory without being asked for: what short sessions of a small model take."""
SPILL_BYTES = 2**29
"""Kept in files without being asked for."""


class JournalSettings(NamedTuple):
    """How much a stage keeps, in bytes over all sessions, and where files go. No directory: none are written."""

    memory_bytes: int = MEMORY_BYTES
    spill_bytes: int = SPILL_BYTES
    directory: str | None = None


class KeptStep(NamedTuple):
    """One step as it was sent: positions [start, start + num_positions), and their payload."""

    start: int
    num_positions: int
    payload: bytes


class _Kept:
    """What is kept of one session: a stream of payloads, the first steps of it in memory and the others in a file."""

    def __init__(self, first: int) -> None:
        self.first = first
        """The position of the first step."""
        self.ends = array("q")
        """The position behind each step."""
        self.places = array("q")
        """How many bytes of payload there are up to the end of each step."""
        self.in_memory: list[bytes] = []
        self.memory_bytes = 0
        self._file: IO[bytes] | None = None

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.first

    @property
    def num_bytes(self) -> int:
        return self.places[-1] if self.places else 0

    @property
    def spilled_bytes(self) -> int:
        return self.num_bytes - self.memory_bytes

    @property
    def is_spilled(self) -> bool:
        return len(self.ends) > len(self.in_memory)

    def keep(self, payload: bytes) -> None:
        self.in_memory.append(payload)
        self.memory_bytes += len(payload)

    def spill(self, payload: bytes, directory: str | None) -> bool:
        """Write a payload behind the others; False when the disk does not take it."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
            return os.pwrite(self._file.fileno(), payload, self.spilled_bytes) == len(payload)
        except OSError:
            return False

    def note(self, end: int, size: int) -> None:
        self.ends.append(end)
        self.places.append(self.num_bytes + size)

    def payload(self, index: int) -> bytes:
        if index < len(self.in_memory):
            return self.in_memory[index]
        assert self._file is not None
        begin = self.places[index - 1] if index else 0
        size = self.places[index] - begin
        found = os.pread(self._file.fileno(), size, begin - self.memory_bytes)
        if len(found) != size:
            raise FabricError(f"the journal's file gives {len(found)} of {size} bytes")
        return found

    def pop(self) -> None:
        self.ends.pop()
        self.places.pop()
        if len(self.in_memory) > len(self.ends):
            self.memory_bytes -= len(self.in_memory.pop())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class BoundaryJournal:
    """The kept payloads of all sessions of one stage. For one thread."""

    def __init__(self, settings: JournalSettings | None = None) -> None:
        """Keep nothing yet."""
        self._settings = settings or JournalSettings()
        self._sessions: dict[int, _Kept] = {}
        self.memory_bytes = 0
        self.spilled_bytes = 0
        self.dropped_sessions = 0
        """How often everything that was kept of a session was dropped."""

    def append(self, session: int, start: int, count: int, payload: bytes) -> None:
        """Keep one more step. One that does not continue what is kept replaces it."""
        size = len(payload)
        spill_bytes = 0 if self._settings.directory is None else self._settings.spill_bytes
        if size > max(self._settings.memory_bytes, spill_bytes):
            self._drop(session)  # the step alone is more than is ever kept
            return
        if (known := self._sessions.get(session)) is not None and known.end != start:
            self.forget(session)
        while True:
            kept = self._sessions.setdefault(session, _Kept(start))
            if not kept.is_spilled and self.memory_bytes + size <= self._settings.memory_bytes:
                kept.keep(payload)
                self.memory_bytes += size
                break
            if self.spilled_bytes + size <= spill_bytes:
                if not kept.spill(payload, self._settings.directory):
                    self._drop(session)  # it goes on, and recovers in another way
                    return
                self.spilled_bytes += size
                break
            self._drop(max(self._sessions, key=lambda number: self._sessions[number].num_bytes))
        kept.note(start + count, size)

    def kept(self, session: int) -> tuple[int, int]:
        """Return the positions [first, end) that are kept of a session; (0, 0) when nothing is."""
        kept = self._sessions.get(session)
        return (0, 0) if kept is None or not kept.ends else (kept.first, kept.end)

    def read(self, session: int, first: int, end: int) -> Iterator[KeptStep]:
        """Yield the steps of positions [first, end), in order.

        Raises FabricError, before the first is given, unless all of them are kept and steps begin and end there.
        """
        kept = self._sessions.get(session)
        starts = [] if kept is None else [kept.first, *kept.ends]
        begin, behind = bisect.bisect_left(starts, first), bisect.bisect_left(starts, end)
        if kept is None or not begin < behind < len(starts) or (starts[begin], starts[behind]) != (first, end):
            found = self.kept(session)
            raise FabricError(
                f"session {session}: steps over positions {first} to {end} are not kept; the journal has whole steps "
                f"over {found[0]} to {found[1]}"
            )
        return (
            KeptStep(starts[index], starts[index + 1] - starts[index], kept.payload(index))
            for index in range(begin, behind)
        )

    def cut(self, session: int, length: int) -> None:
        """Forget the steps that reach past position `length`."""
        kept = self._sessions.get(session)
        if kept is None:
            return
        before = kept.memory_bytes, kept.spilled_bytes
        while kept.ends and kept.end > length:
            kept.pop()
        self.memory_bytes += kept.memory_bytes - before[0]
        self.spilled_bytes += kept.spilled_bytes - before[1]

    def forget(self, session: int) -> None:
        """Forget everything of a session; of an unknown one there is nothing."""
        kept = self._sessions.pop(session, None)
        if kept is not None:
            self.memory_bytes -= kept.memory_bytes
            self.spilled_bytes -= kept.spilled_bytes
            kept.close()

    def _drop(self, session: int) -> None:
        self.forget(session)
        self.dropped_sessions += 1

    def close(self) -> None:
        """Forget everything."""
        for session in list(self._sessions):
            self.forget(session)
