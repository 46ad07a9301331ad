"""Who may decide what, as one frozen value: members, leases, realizations, epochs, sessions.

Pure data; `transitions.apply` is the only thing that makes a new one. Times are seconds of the clock that drives
the machine (a process's monotonic clock, or a simulator's).
"""

from __future__ import annotations

from enum import StrEnum

from inferswarm.documents import Document


class EpochState(StrEnum):
    """An epoch's life: it has authority only while ACTIVE."""

    ACTIVE = "ACTIVE"
    SETTLING = "SETTLING"
    RETIRED = "RETIRED"
    RECLAIMED = "RECLAIMED"
    NON_EXECUTABLE = "NON_EXECUTABLE"


class RealizationState(StrEnum):
    """An attempt to turn a plan into running stages. DEAD is final."""

    PREPARING = "PREPARING"
    READY = "READY"
    ACTIVATED = "ACTIVATED"
    DEAD = "DEAD"


class SessionState(StrEnum):
    """One request's life."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


class RefusalCode(StrEnum):
    """Why a result or a request was refused."""

    NO_ACTIVE_AUTHORITY = "NO_ACTIVE_AUTHORITY"
    LEASE_LAPSED = "LEASE_LAPSED"
    RETIRED_OR_SUPERSEDED_EPOCH = "RETIRED_OR_SUPERSEDED_EPOCH"
    WRONG_REALIZATION = "WRONG_REALIZATION"
    PLAN_DIGEST_MISMATCH = "PLAN_DIGEST_MISMATCH"
    SESSION_MISMATCH = "SESSION_MISMATCH"
    NON_NEXT_COMMIT_POSITION = "NON_NEXT_COMMIT_POSITION"
    MALFORMED_POSITION = "MALFORMED_POSITION"
    SCOPE_ALREADY_OWNED = "SCOPE_ALREADY_OWNED"
    TERM_NOT_HIGHER = "TERM_NOT_HIGHER"
    UNKNOWN_REALIZATION = "UNKNOWN_REALIZATION"
    REALIZATION_ID_REUSED = "REALIZATION_ID_REUSED"
    REALIZATION_NOT_READY = "REALIZATION_NOT_READY"
    NODE_NOT_A_MEMBER = "NODE_NOT_A_MEMBER"
    NODE_IDENTITY_IN_USE = "NODE_IDENTITY_IN_USE"
    UNKNOWN_EPOCH = "UNKNOWN_EPOCH"


class Member(Document, frozen=True, kw_only=True):
    """A Node whose lease runs."""

    node_id: str
    incarnation: str
    lease_until: float


class Realization(Document, frozen=True, kw_only=True):
    """One attempt to realize one plan on given Nodes."""

    id: str
    plan_digest: str
    participants: tuple[tuple[str, str], ...]
    """Pairs of participant and Node id, in the order of the route."""
    state: RealizationState
    reason: str = ""


class Epoch(Document, frozen=True, kw_only=True):
    """One activation. Equal plans activated twice are two epochs."""

    number: int
    realization_id: str
    plan_digest: str
    state: EpochState
    reason: str = ""


class OpenSession(Document, frozen=True, kw_only=True):
    """A session that may still commit. `next_position` is the only position that it can commit."""

    number: int
    epoch: int
    prompt_tokens: int
    next_position: int


class AuthorityState(Document, frozen=True, kw_only=True):
    """Everything that decides who may do what in one scope."""

    scope: str
    term: int = 0
    lease_until: float = 0.0
    members: tuple[Member, ...] = ()
    realizations: tuple[Realization, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    sessions: tuple[OpenSession, ...] = ()
    next_session: int = 1
    next_epoch: int = 1

    def member(self, node_id: str) -> Member | None:
        """Return the member with that Node id."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def realization(self, realization_id: str) -> Realization | None:
        """Return the realization with that id."""
        return next((item for item in self.realizations if item.id == realization_id), None)

    def epoch(self, number: int) -> Epoch | None:
        """Return the epoch with that number."""
        return next((epoch for epoch in self.epochs if epoch.number == number), None)

    def active_epoch(self) -> Epoch | None:
        """Return the one epoch that has authority."""
        return next((epoch for epoch in self.epochs if epoch.state is EpochState.ACTIVE), None)

    def session(self, number: int) -> OpenSession | None:
        """Return the open session with that number."""
        return next((session for session in self.sessions if session.number == number), None)
