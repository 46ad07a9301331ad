"""How new stages come up with sessions that go on meanwhile, without the streams noticing. Pure.

They are given a few steps at a time: more while asking them takes most of the time, fewer while computing does, so
that the old stages get their share of what both run on. Where sessions commit nearly as fast as the new stages
compute, as on shared cores, the sessions pause behind each token, for no longer than a reader would notice.
"""

from __future__ import annotations

BATCH_SECONDS = 0.02
"""About so long the new stages compute before they are given more: a few times what asking them takes."""
MOST_AT_ONCE = 64
ENOUGH_AT_ONCE = 8
"""With so many it is no longer the asking that takes most of the time, however long an answer takes."""
CLOSING_IN = 0.5
"""New stages get there when sessions commit fewer tokens than this share of the steps computed meanwhile."""
FAST_CLOSING = 0.1
"""Below this share sessions need not pause so long."""
LEAST_PAUSE_SECONDS = 0.001
UNNOTICED_SECONDS = 0.1
UNNOTICED_TIMES = 3.0
"""A gap between two tokens that is no longer than so many seconds, or so many usual ones, counts as none."""
SLOWED = 1.5
"""So many times as long a token takes beside the new stages; what is left of such a gap may be a pause."""


class Pace:
    """Steps at once for the new stages, and a pause for the old ones, from what was seen of both."""

    def __init__(self, usual_seconds: float) -> None:
        """`usual_seconds` pass between two tokens of a session that nothing slows down."""
        self.at_once = 1
        self.pause_seconds = 0.0
        self._is_last = False
        self._usual = usual_seconds
        self._most = max(UNNOTICED_SECONDS, UNNOTICED_TIMES * usual_seconds) - SLOWED * usual_seconds

    def last_steps(self) -> None:
        """Have sessions pause as long as they may from now on, so that what is left is computed alone."""
        self._is_last = True
        self.pause_seconds = self._most

    def saw(self, steps: int, committed: int, seconds: float) -> None:
        """Note that so many steps were computed in some seconds in which all sessions committed so many tokens."""
        if self._is_last:
            return
        falls_behind = committed > CLOSING_IN * steps
        if falls_behind and self.at_once >= ENOUGH_AT_ONCE:
            self.pause_seconds = min(self._most, max(self._usual, 2 * self.pause_seconds, LEAST_PAUSE_SECONDS))
        elif self.pause_seconds and committed < FAST_CLOSING * steps:
            self.pause_seconds = 0.0 if self.pause_seconds <= LEAST_PAUSE_SECONDS else self.pause_seconds / 2
        if seconds < BATCH_SECONDS or (falls_behind and self.at_once < ENOUGH_AT_ONCE):
            self.at_once = min(MOST_AT_ONCE, 2 * self.at_once)
        elif not falls_behind and seconds > 2 * BATCH_SECONDS:
            self.at_once = max(1, self.at_once // 2)
