"""Which pages of the pool belong to which session. Pure bookkeeping: no tensors, no torch.

A page is 64 positions of keys and values of every block that a participant holds. Pages are taken when a session
reaches them and come back when it is truncated or closed; page numbers mean nothing else, 0 included. A session
gets the page behind its last one whenever that is free, so that its pages usually form one run that can be read
without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from inferswarm.errors import FabricError

PAGE_POSITIONS: Final = 64


@dataclass
class _Session:
    length: int = 0
    pages: list[int] = field(default_factory=list)


class PageTable:
    """Pages of open sessions. Every error leaves the table as it was."""

    def __init__(self, num_pages: int, max_sessions: int) -> None:
        self.num_pages = num_pages
        self.max_sessions = max_sessions
        self._free = set(range(num_pages))
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str) -> None:
        """Begin a session of length 0. Raises FabricError when the id is in use or all sessions are taken."""
        if session in self._sessions:
            raise FabricError(f"session {session!r} is open already")
        if len(self._sessions) >= self.max_sessions:
            raise FabricError(f"session {session!r}: all {self.max_sessions} sessions are taken")
        self._sessions[session] = _Session()

    def close(self, session: str) -> None:
        """Give all pages of a session back. Raises FabricError when it is unknown."""
        self._free.update(self._get(session).pages)
        del self._sessions[session]

    def length(self, session: str) -> int:
        """Return how many positions a session has. Raises FabricError when it is unknown."""
        return self._get(session).length

    def extend(self, session: str, count: int) -> None:
        """Lengthen a session, taking the pages that it now reaches. Raises FabricError when too few are free."""
        found = self._get(session)
        needed = -(-(found.length + count) // PAGE_POSITIONS) - len(found.pages)
        if needed > len(self._free):
            raise FabricError(
                f"session {session!r} needs {needed} more pages of {PAGE_POSITIONS} positions to hold "
                f"{found.length + count} positions; {len(self._free)} of {self.num_pages} are free"
            )
        for _ in range(needed):
            page = self._next_page(found)
            self._free.remove(page)
            found.pages.append(page)
        found.length += count

    def truncate(self, session: str, length: int) -> None:
        """Shorten a session and give back the pages that it no longer reaches.

        Raises FabricError when the session is unknown or has fewer positions.
        """
        found = self._get(session)
        if not 0 <= length <= found.length:
            raise FabricError(f"session {session!r} has {found.length} positions and cannot be cut to {length}")
        kept = -(-length // PAGE_POSITIONS)
        self._free.update(found.pages[kept:])
        del found.pages[kept:]
        found.length = length

    def pages(self, session: str) -> tuple[int, ...]:
        """Return a session's pages in the order of its positions."""
        return tuple(self._get(session).pages)

    def first_of_run(self, session: str) -> int | None:
        """Return the session's first page when its pages follow one another, else None (and None without pages)."""
        pages = self._get(session).pages
        if not pages or pages[-1] - pages[0] != len(pages) - 1 or pages != list(range(pages[0], pages[-1] + 1)):
            return None
        return pages[0]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is free or belongs to one session that reaches it."""
        owned = [page for session in self._sessions.values() for page in session.pages]
        assert len(owned) == len(set(owned)), "a page belongs to two sessions"
        assert not self._free & set(owned), "a page is free and owned"
        assert self._free | set(owned) == set(range(self.num_pages)), "a page is lost"
        assert len(self._sessions) <= self.max_sessions, "too many sessions"
        for name, session in self._sessions.items():
            reached = -(-session.length // PAGE_POSITIONS)
            assert len(session.pages) == reached, f"session {name!r} reaches {reached} pages, has {session.pages}"

    def _get(self, session: str) -> _Session:
        if session not in self._sessions:
            raise FabricError(f"session {session!r} is not open")
        return self._sessions[session]

    def _next_page(self, session: _Session) -> int:
        """Return the page behind the session's last one if it is free, else one with room to grow."""
        if session.pages and session.pages[-1] + 1 in self._free:
            return session.pages[-1] + 1
        first, length = max(self._free_runs(), key=lambda run: (run[1], -run[0]))
        # Behind another session's last page that session will want to grow: leave it half of the room.
        behind = any(other.pages and other.pages[-1] + 1 == first for other in self._sessions.values())
        return first + length // 2 if behind else first

    def _free_runs(self) -> list[tuple[int, int]]:
        """Return (first page, number of pages) of each unbroken run of free pages."""
        runs: list[tuple[int, int]] = []
        for page in sorted(self._free):
            if runs and sum(runs[-1]) == page:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((page, 1))
        return runs
