"""What an agent is to its Coordinator: a member, somebody who asks to be one, or one that was left alone. Pure.

Times are readings of one monotonic clock, in seconds. An agent that hears nothing keeps its stages for a while: a
Coordinator that comes back adopts them. After that they end: nobody may execute an epoch without an authority.
"""

from __future__ import annotations

from enum import Enum

BEATS_PER_LEASE = 4
GRACE_SECONDS = 30.0
"""A Coordinator that is started again takes the rest of its predecessor's lease, 2 s, and some seconds to import."""


class Due(Enum):
    """What an agent does next."""

    NOTHING = "NOTHING"
    BEAT = "BEAT"
    JOIN = "JOIN"
    GIVE_UP = "GIVE_UP"
    """Stop the stages, and come back as another incarnation."""


class Bond:
    """One agent's bond to whoever is its Coordinator."""

    def __init__(self, now: float, *, grace_seconds: float, lease_seconds: float = 2.0) -> None:
        """Nobody was heard yet. The lease is the Coordinator's to say: see `welcomed`."""
        self.lease_seconds = lease_seconds
        self._grace_seconds = grace_seconds
        self._is_member = False
        self._heard_at = now
        self._join_at = now
        self._beat_at = now
        self._gave_up = False

    def heard(self, now: float) -> None:
        """Somebody with authority said something."""
        self._heard_at = now
        self._gave_up = False

    def welcomed(self, now: float, lease_seconds: float) -> None:
        """The Coordinator says that this Node is a member, for so long after each beat."""
        self.heard(now)
        self.lease_seconds = lease_seconds
        self._is_member = True

    def greeted(self, now: float) -> bool:
        """The Coordinator asks who this is. Returns whether to introduce oneself: not when that was just done."""
        self.heard(now)
        was_member, self._is_member = self._is_member, False
        if not was_member and now < self._join_at:
            return False
        self._join_at = now + self.lease_seconds
        return True

    def voided(self, now: float, after_seconds: float) -> None:
        """Count for nothing as this incarnation. The next one introduces itself after so many seconds."""
        self.heard(now)
        self._is_member = False
        self._join_at = now + after_seconds

    def unsent(self, now: float) -> None:
        """What was due reached nobody: there is no connection. As soon as there is, it introduces itself."""
        self._is_member = False
        self._join_at = now

    def due(self, now: float) -> Due:
        """Return what to do now; what is returned counts as done."""
        silence = now - self._heard_at
        if silence > self._grace_seconds and not self._gave_up:
            self._gave_up = True
            self._is_member = False
            self._join_at = now
            return Due.GIVE_UP
        if self._is_member and silence > self.lease_seconds:
            self._is_member = False
            self._join_at = now
        if self._is_member:
            if now < self._beat_at:
                return Due.NOTHING
            self._beat_at = now + self.lease_seconds / BEATS_PER_LEASE
            return Due.BEAT
        if now >= self._join_at:
            self._join_at = now + self.lease_seconds
            return Due.JOIN
        return Due.NOTHING
