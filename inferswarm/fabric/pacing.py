"""How new stages come up with sessions that go on meanwhile, without the streams noticing. Pure.

They are given a few steps at a time: more while asking them takes most of the time, fewer while computing does, so
that the old stages get their share of what both run on. Where sessions commit nearly as fast as the new stages
compute, as on shared cores, both take turns: one token of each session, then some steps of the new stages, for no
longer than a reader would notice.
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
"""Below this share sessions need not wait for the new stages."""
FIRST_TURN = 2
"""Steps in the first turn of the new stages; the old ones compute one token of each session in theirs."""
UNNOTICED_SECONDS = 0.1
UNNOTICED_TIMES = 3.0
"""A gap between two tokens that is no longer than so many seconds, or so many usual ones, counts as none."""
NEARLY = 0.72
"""A turn gets longer while no gap takes more than this share of that, less what a step takes."""


class Pace:
    """Steps at once for the new stages, and whether the old ones wait meanwhile, from what was seen of both."""

    def __init__(self, usual_seconds: float) -> None:
        """`usual_seconds` pass between two tokens of a session that nothing slows down."""
        self.usual_seconds = usual_seconds
        self.at_once = 1
        self.takes_turns = False
        self._grew = False
        self._unnoticed = max(UNNOTICED_SECONDS, UNNOTICED_TIMES * usual_seconds)

    def saw(self, steps: int, committed: int, seconds: float, longest: float) -> None:
        """Note that so many steps were computed in some seconds in which all sessions committed so many tokens.

        `longest` seconds passed between two tokens of a session that were committed since the time before.
        """
        if self.takes_turns:
            self._next_turn(steps, committed, seconds, longest)
            return
        falls_behind = committed > CLOSING_IN * steps
        if falls_behind and self.at_once >= ENOUGH_AT_ONCE:
            self.takes_turns, self.at_once = True, FIRST_TURN
        elif seconds < BATCH_SECONDS or falls_behind:
            self.at_once = min(MOST_AT_ONCE, 2 * self.at_once)
        elif seconds > 2 * BATCH_SECONDS:
            self.at_once = max(1, self.at_once // 2)

    def _next_turn(self, steps: int, committed: int, seconds: float, longest: float) -> None:
        """Make turns longer up to what is hardly noticed, and in any case so long that the new stages get there."""
        if committed < FAST_CLOSING * steps:
            self.takes_turns = False
            return
        room = NEARLY * self._unnoticed - longest
        grows = room > seconds / steps and not self._grew  # what a longer turn came to shows one turn later
        wanted = self.at_once + grows - (room < 0)
        self._grew = grows
        self.at_once = min(MOST_AT_ONCE, max(wanted, committed + 1))
