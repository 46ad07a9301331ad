"""What outlives a simulated Coordinator: the lease's row, the machine's last state, commits, refusals, records.

A write is taken only from the holder of the lease's row, as a transaction would look at it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from inferswarm.errors import AuthorityUncertain
from inferswarm.fabric.authority import AuthorityState, SessionState
from inferswarm.fabric.recovery_records import TransitionRecord


class LeaseRow(NamedTuple):
    """Whose the scope is, under which term, and until when."""

    term: int = 0
    holder: str = ""
    until: float = -1.0


class SessionLog(NamedTuple):
    """One session as the ledger has it: a client that comes back reads it from here."""

    prompt_tokens: int
    max_tokens: int
    tokens: tuple[tuple[int, int], ...] = ()
    """Token and epoch of each committed position."""
    state: SessionState = SessionState.OPEN
    reason: str = ""

    @property
    def next_position(self) -> int:
        """The position behind the last committed one."""
        return self.prompt_tokens + len(self.tokens)


class SimulatedLedger:
    """One scope's ledger. Lasts as long as the simulation."""

    def __init__(self, scope: str) -> None:
        self.kept = AuthorityState(scope=scope)
        self.lease = LeaseRow()
        self.sessions: dict[int, SessionLog] = {}
        self.refusals: Counter[str] = Counter()
        self.records: list[TransitionRecord] = []

    def acquire(self, holder: str, now: float, seconds: float) -> int | None:
        """Take the lease and return its term, or None while it is somebody else's."""
        if self.lease.until >= now and self.lease.holder != holder:
            return None
        self.lease = LeaseRow(self.lease.term + 1, holder, now + seconds)
        return self.lease.term

    def renew(self, holder: str, term: int, now: float, seconds: float) -> None:
        """Extend the lease. Raises AuthorityUncertain when it belongs to somebody else."""
        self.check(holder, term)
        self.lease = self.lease._replace(until=now + seconds)

    def check(self, holder: str, term: int) -> None:
        """Raise AuthorityUncertain unless the row is this holder's."""
        if (self.lease.holder, self.lease.term) != (holder, term):
            raise AuthorityUncertain(f"term {term} of {holder} was followed by term {self.lease.term}")

    def open_sessions(self) -> tuple[tuple[int, int], ...]:
        """Return number and next position of each session that is open."""
        return tuple(
            (number, log.next_position) for number, log in self.sessions.items() if log.state is SessionState.OPEN
        )

    def commit(self, session: int, position: int, token: int, epoch: int) -> None:
        """Append one token. Raises ValueError for a position that is not the next one."""
        log = self.sessions[session]
        if position != log.next_position or log.state is not SessionState.OPEN:
            raise ValueError(f"session {session} in state {log.state} is at {log.next_position}, not at {position}")
        self.sessions[session] = log._replace(tokens=(*log.tokens, (token, epoch)))
