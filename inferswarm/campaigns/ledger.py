"""The ledger of an evidence root: one line for everything that happened, each bound to the line before it.

A line is the canonical JSON of a `LedgerEntry`; `previous` is the digest of the line before without its newline, or
of no bytes. An altered, missing or exchanged line breaks the chain for everyone who reads it. Lines dropped from the
end show to those who kept the digest of a later line, as an acceptance does; the chain does not say who wrote it.

Writers hold a lock, and a line is on the disk before `append` returns. Lines that a crash left unfinished were never
acknowledged: the next writer drops them, and until then a reader calls the chain broken.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, Literal, NamedTuple

from inferswarm.artifacts.assembly import sync_directory
from inferswarm.campaigns.layout import LEDGER_LOCK, NANOSECONDS, ledger_path
from inferswarm.campaigns.ledger_lock import shared_lock, wait_for
from inferswarm.campaigns.plain_files import open_own, read_plain
from inferswarm.campaigns.records import SCHEMA, Disposition, LedgerEntry
from inferswarm.documents import canonical_bytes, digest_bytes, read_document
from inferswarm.errors import DocumentError, EvidenceError, SpecError

NOTHING = digest_bytes(b"")
"""What the first line names as the one before it."""
EntryKind = Literal["requested", "finished", "accepted", "waived", "authorized"]


SAID: Final[frozenset[EntryKind]] = frozenset({"accepted", "waived", "authorized"})
"""Lines about what people say: none is older than what it was said of."""
AHEAD_NANOSECONDS: Final = 24 * 3600 * NANOSECONDS
"""How far a time may be ahead of the verifier's: a day. A clock that takes local time for UTC is off by 14 hours."""


class Break(NamedTuple):
    """Where a chain does not hold: the line, from 1, what it needed to be and what it was."""

    line: int
    expected: str
    found: str


class Chain(NamedTuple):
    """What a ledger's bytes hold: the entries up to the first break, the digest of each line, and that break."""

    entries: tuple[LedgerEntry, ...]
    digests: tuple[str, ...]
    broken: Break | None

    @property
    def head(self) -> str:
        """Return the digest of the last line that holds, which whoever keeps it can ask for later."""
        return self.digests[-1] if self.digests else NOTHING


def read_chain(data: bytes, source: str) -> Chain:
    """Read a ledger's bytes as far as they hold; never raises."""
    lines = data.split(b"\n")
    unfinished = lines.pop()
    entries: list[LedgerEntry] = []
    digests: list[str] = []
    for number, line in enumerate(lines, start=1):
        expected = digests[-1] if digests else NOTHING
        try:
            entry = read_document(LedgerEntry, line, f"{source}:{number}")
        except DocumentError as error:
            return Chain(tuple(entries), tuple(digests), Break(number, "a ledger entry", str(error)))
        for needed, found in (
            (f"schema {SCHEMA}", f"schema {entry.schema}"),
            (f"sequence {number - 1}", f"sequence {entry.sequence}"),
            (f"previous {expected}", f"previous {entry.previous}"),
            ("the canonical form", "the canonical form" if _is_canonical(entry, line) else "another form"),
            (_disposition_needed(entry), _disposition_found(entry)),
        ):
            if needed != found:
                return Chain(tuple(entries), tuple(digests), Break(number, needed, found))
        entries.append(entry)
        digests.append(digest_bytes(line))
    broken = Break(len(lines) + 1, "a line with its end", "an unfinished line") if unfinished else None
    return Chain(tuple(entries), tuple(digests), broken)


def _is_canonical(entry: LedgerEntry, line: bytes) -> bool:
    try:
        return canonical_bytes(entry) == line
    except DocumentError:  # half of a character, which JSON can name and nobody can write
        return False


def _disposition_needed(entry: LedgerEntry) -> str:
    return "a disposition" if entry.kind == "finished" else "no disposition"


def _disposition_found(entry: LedgerEntry) -> str:
    return "no disposition" if entry.disposition is None else "a disposition"


def num_requests(entries: Iterable[LedgerEntry], campaign: str, edition: int, arm: str) -> int:
    """Return how many attempts of an arm some lines request."""
    which = ("requested", campaign, edition, arm)
    return sum((entry.kind, entry.campaign, entry.edition, entry.arm) == which for entry in entries)


def lies_ahead(at: int) -> bool:
    """Return whether a time of day in nanoseconds has not come yet, by more than clocks may differ."""
    return at > time.time_ns() + AHEAD_NANOSECONDS


def latest(entries: Iterable[LedgerEntry]) -> int:
    """Return the latest time of day of some lines, in nanoseconds; 0 of none."""
    return max((int(entry.at) for entry in entries), default=0)


def read_ledger(root: Path) -> Chain:
    """Read the ledger of an evidence root. Raises EvidenceError when it is not there, unreadable or broken."""
    path = ledger_path(root)
    return _whole(read_chain(ledger_bytes(root), str(path)), path)


def ledger_bytes(root: Path) -> bytes:
    """Return the ledger's bytes, between two lines of whoever writes it.

    A copy of a root has no lock and no writers; then nothing is waited for. Raises EvidenceError when it is no plain
    file that can be read, LockHeldError when a writer does not go on.
    """
    path = ledger_path(root)
    try:
        with shared_lock(root / LEDGER_LOCK):
            return read_plain(path)
    except OSError as error:
        raise EvidenceError(f"{path}: the ledger cannot be read: {error.strerror}") from error


def _whole(chain: Chain, path: Path) -> Chain:
    if chain.broken:
        line, expected, found = chain.broken
        raise EvidenceError(f"{path}: line {line} breaks the chain: needed {expected}, found {found}")
    return chain


class Ledger:
    """The ledger of an evidence root, to read and to append to; several processes may at once.

    Raises SpecError when the root cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = ledger_path(root)
        self._is_held = False
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError("evidence root", str(root), f"a writable directory ({error.strerror})") from error

    def read(self) -> Chain:
        """Return the whole chain, empty where there is no ledger yet. Raises EvidenceError when it is broken."""
        return read_ledger(self.root) if self._path.exists() else Chain((), (), None)

    @contextmanager
    def held(self) -> Iterator[Chain]:
        """Hold the ledger for as long as the block lasts, and give it the chain: nobody else appends meanwhile.

        The block may append itself. One thread at a time. Raises EvidenceError when the chain is broken.
        """
        with self._lock():
            self._is_held = True
            try:
                with self._opened() as descriptor:
                    chain = self._sound_part(descriptor)
                yield chain
            finally:
                self._is_held = False

    def append(
        self,
        kind: EntryKind,
        *,
        campaign: str,
        edition: int,
        arm: str,
        run_id: str,
        subject: str,
        disposition: Disposition | None = None,
        at: int | None = None,
    ) -> LedgerEntry:
        """Add one line and return it once it is on the disk.

        `subject` is the digest of the record's exact bytes, `at` nanoseconds since 1970 (now, if None). Of a record
        that is about a whole campaign, `arm` and `run_id` are "". Raises EvidenceError when the chain that is there
        is broken, or what people say would stand before a line that it comes after; SpecError when the disk refuses.
        Then nothing was added.
        """
        with nullcontext() if self._is_held else self._lock(), self._opened() as descriptor:
            chain = self._sound_part(descriptor)
            when = time.time_ns() if at is None else at
            if kind in SAID and when < (last := latest(chain.entries)):
                raise EvidenceError(f"{self._path}: has a line of {last}, and this is of {when}: say it again")
            entry = LedgerEntry(
                schema=SCHEMA,
                sequence=len(chain.entries),
                previous=chain.head,
                kind=kind,
                campaign=campaign,
                edition=edition,
                arm=arm,
                run_id=run_id,
                subject=subject,
                disposition=disposition,
                at=str(when),
            )
            self._add_line(descriptor, canonical_bytes(entry) + b"\n")
        return entry

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold an exclusive `flock` on the lock's file, so that other libraries' locks on it count."""
        try:
            descriptor = open_own(self.root / LEDGER_LOCK)
        except OSError as error:
            raise self._refused(error) from error
        try:
            wait_for(descriptor, fcntl.LOCK_EX, self.root / LEDGER_LOCK)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the ledger, whose lock is held; a new one is in its directory for good before anything is in it."""
        try:
            descriptor = open_own(self._path)
            try:
                if os.fstat(descriptor).st_size == 0:
                    sync_directory(self.root)
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> SpecError:
        return SpecError("ledger", str(self._path), f"room and leave to write ({error.strerror})")

    def _sound_part(self, descriptor: int) -> Chain:
        """Return the chain without an unfinished last line, which is cut off. Raises EvidenceError when broken."""
        data = read_plain(self._path)
        end = data.rfind(b"\n") + 1
        chain = _whole(read_chain(data[:end], str(self._path)), self._path)
        if end < len(data):
            os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        return chain

    def _add_line(self, descriptor: int, line: bytes) -> None:
        """Write a line and sync it; on a full disk take back what was written of it, and raise."""
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            written = 0
            while written < len(line):
                written += os.write(descriptor, line[written:])
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, start)
            raise
