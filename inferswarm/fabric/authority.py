"""Who may decide what, as one frozen value: members, leases, realizations, epochs, sessions, a change under way.

Pure data; `transitions.apply` is the only thing that makes a new one. Times are seconds of the clock that drives
the machine (a process's monotonic clock, or a simulator's). The value stays small: an epoch that was reclaimed and a
realization whose stages were stopped are forgotten when the realization's id has an attempt number, because such an
id can be refused without being remembered. What happened to them is in the ledger.
"""

from __future__ import annotations

import re
from enum import StrEnum

from inferswarm.documents import Document
from inferswarm.fabric.recovery_records import TransitionRecord


class EpochState(StrEnum):
    """An epoch's life: it has authority while ACTIVE, and while SETTLING below its sessions' boundaries."""

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
    EPOCH_STILL_SETTLING = "EPOCH_STILL_SETTLING"
    TRANSITION_UNDER_WAY = "TRANSITION_UNDER_WAY"
    UNKNOWN_TRANSITION = "UNKNOWN_TRANSITION"
    TRANSITION_OUT_OF_ORDER = "TRANSITION_OUT_OF_ORDER"
    OUTCOME_CONTRADICTS_AUTHORITY = "OUTCOME_CONTRADICTS_AUTHORITY"
    ADOPTION_REFUSED = "ADOPTION_REFUSED"
    UNSAFE_BOUNDARY = "UNSAFE_BOUNDARY"
    BEFORE_CUTOVER_BOUNDARY = "BEFORE_CUTOVER_BOUNDARY"
    SESSION_SUSPENDED = "SESSION_SUSPENDED"
    SESSION_NOT_SUSPENDED = "SESSION_NOT_SUSPENDED"
    ANSWER_INCOMPLETE = "ANSWER_INCOMPLETE"


_NUMBERED = re.compile(r"realization-([1-9][0-9]{0,15})-[0-9a-f]+")


def numbered_realization_id(attempt: int, nonce: str) -> str:
    """Return the id of the attempt with that number (from 1) and a nonce of hexadecimal digits.

    Raises ValueError for what would make no such id.
    """
    realization_id = f"realization-{attempt}-{nonce}"
    if attempt_of(realization_id) != attempt:
        raise ValueError(f"attempt {attempt!r} and nonce {nonce!r} make no realization id")
    return realization_id


def attempt_of(realization_id: str) -> int | None:
    """Return the attempt number in a realization's id, or None when it has none."""
    match = _NUMBERED.fullmatch(realization_id)
    return None if match is None else int(match[1])


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
    incarnations: tuple[tuple[str, str], ...] = ()
    """Pairs of Node id and the incarnation that its stages belong to."""
    gone: tuple[str, ...] = ()
    """Participants whose stages are known to have ended, or were adopted by another realization."""
    transition: int | None = None
    """The change that it is an attempt of."""

    def survivors(self) -> tuple[str, ...]:
        """Return the participants whose stages may still be there."""
        return tuple(name for name, _ in self.participants if name not in self.gone)


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
    """The epoch that it is bound to; of a suspended session, the last one."""
    prompt_tokens: int
    next_position: int
    resumable: bool = False
    """Whether everything that its state was made from is kept, so that it may outlive its epoch."""
    max_tokens: int | None = None
    suspended: bool = False
    """Bound to no epoch: it commits nothing until it is resumed."""
    settling_epoch: int | None = None
    """The epoch that still commits it below `boundary`; None when there is none."""
    boundary: int | None = None

    def committing_epoch(self) -> int | None:
        """Return the number of the one epoch that may commit the next position."""
        if self.suspended:
            return None
        return self.epoch if self.settling_epoch is None else self.settling_epoch


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
    next_attempt: int = 1
    """A numbered realization id below this was used, or never will be."""
    transition: TransitionRecord | None = None
    """The one change of epochs that is under way."""
    next_transition: int = 1

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

    def settling_epoch(self) -> Epoch | None:
        """Return the one epoch that drains."""
        return next((epoch for epoch in self.epochs if epoch.state is EpochState.SETTLING), None)

    def session(self, number: int) -> OpenSession | None:
        """Return the open session with that number."""
        return next((session for session in self.sessions if session.number == number), None)
