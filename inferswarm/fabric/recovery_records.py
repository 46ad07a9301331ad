"""What is recorded of one change of epochs: why it was asked for, how it was tried, and how it ended.

A record is a frozen document that is replaced by its next version while the change is under way. Its last version
goes to the ledger and is never edited. Positions are positions of a session's history; times are seconds of the clock
that drives the machine.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from inferswarm.documents import Document
from inferswarm.planner.change import ChangeVerdict


class Trigger(StrEnum):
    """What made somebody ask for another epoch."""

    FIRST_PLAN = "FIRST_PLAN"
    NODE_JOINED = "NODE_JOINED"
    NODE_LOST = "NODE_LOST"
    PARTICIPANT_LOST = "PARTICIPANT_LOST"
    COORDINATOR_RESTARTED = "COORDINATOR_RESTARTED"
    DRAIN = "DRAIN"
    QUARANTINE = "QUARANTINE"
    EVIDENCE_CHANGED = "EVIDENCE_CHANGED"
    REQUEST = "REQUEST"


class TransitionMode(StrEnum):
    """How the new epoch comes to the sessions' state."""

    MAKE_BEFORE_BREAK = "MAKE_BEFORE_BREAK"
    """The serving epoch commits on while the new realization is prepared beside it."""
    SAFE_INTERRUPTED_CUTOVER = "SAFE_INTERRUPTED_COLD_CUTOVER"
    """Both do not fit at once: the old epoch is retired first, and nothing is served until the new one is there."""
    REBUILD_ONE_STAGE = "REBUILD_ONE_STAGE"
    """The surviving stages are adopted; what was lost is computed again from the inputs that its neighbor kept."""
    REPLAY = "REPLAY"
    """Every stage computes the recorded history again."""
    READOPTION = "READOPTION"
    """Every stage survived and is adopted: only authority was lost."""


OVERLAPPING = TransitionMode.MAKE_BEFORE_BREAK
RECOVERIES = frozenset({TransitionMode.REBUILD_ONE_STAGE, TransitionMode.REPLAY, TransitionMode.READOPTION})
"""Modes for a scope whose epoch is lost."""


class TransitionOutcome(StrEnum):
    """PREPARING while it is under way; everything else is final."""

    PREPARING = "PREPARING"
    ABORTED_PLANNING = "ABORTED_PLANNING"
    RETAINED_CURRENT_EPOCH = "RETAINED_CURRENT_EPOCH"
    RETAINED_BY_POLICY = "RETAINED_BY_POLICY"
    FAILED_UNRECOVERABLE_STATE = "FAILED_UNRECOVERABLE_STATE"
    ABORTED_PREPARATION = "ABORTED_PREPARATION"
    FAILED_REALIZATION = "FAILED_COLD_REALIZATION"
    ACTIVATED = "ACTIVATED"


KEEPS_AUTHORITY = frozenset(
    {
        TransitionOutcome.RETAINED_CURRENT_EPOCH,
        TransitionOutcome.RETAINED_BY_POLICY,
        TransitionOutcome.ABORTED_PREPARATION,
    }
)
"""Outcomes that say: the epoch of before serves on."""
ENDS_SESSIONS = frozenset({TransitionOutcome.FAILED_UNRECOVERABLE_STATE, TransitionOutcome.FAILED_REALIZATION})
"""Outcomes that say: nothing serves, and the sessions that waited have failed."""
NEEDS_AN_ATTEMPT = frozenset({TransitionOutcome.ABORTED_PREPARATION, TransitionOutcome.FAILED_REALIZATION})


class SafeBoundary(StrEnum):
    """Where the strategy allows a session to move to another epoch."""

    COMMITTED_POSITION = "COMMITTED_POSITION"
    """Between any two committed positions."""
    SESSION_END = "SESSION_END"
    """Nowhere inside a session."""


class ReplaySource(StrEnum):
    """Where the inputs of a session's state come from under the new epoch."""

    LEDGER = "LEDGER"
    BOUNDARY_JOURNAL = "BOUNDARY_JOURNAL"
    SURVIVING_STATE = "SURVIVING_STATE"


_SOURCES = {
    TransitionMode.REBUILD_ONE_STAGE: ReplaySource.BOUNDARY_JOURNAL,
    TransitionMode.READOPTION: ReplaySource.SURVIVING_STATE,
}


def replay_source(mode: TransitionMode) -> ReplaySource:
    """Return where a mode takes a session's inputs from."""
    return _SOURCES.get(mode, ReplaySource.LEDGER)


class SessionBoundary(Document, frozen=True):
    """A session and a position: everything before it is committed when the position is reached."""

    session: int
    position: int


class ReplayRange(Document, frozen=True):
    """The positions [first, end) of a session that are computed again, and from what."""

    session: int
    source: ReplaySource
    first: int
    end: int


class Attempt(Document, frozen=True, kw_only=True):
    """One realization that died before it got authority."""

    realization_id: str
    plan_digest: str
    mode: TransitionMode
    reason: str


class PhaseTime(Document, frozen=True):
    """When a phase of a change began."""

    phase: str
    at_seconds: float


class TransitionRecord(Document, frozen=True, kw_only=True):
    """One change of epochs, from what asked for it to how it ended."""

    number: int
    term: int
    trigger: Trigger
    detail: str
    outcome: TransitionOutcome = TransitionOutcome.PREPARING
    reason: str = ""
    safe_boundary: SafeBoundary = SafeBoundary.COMMITTED_POSITION
    recovery_contract: str = ""
    """How the strategy says that state may be made again, in its words."""
    old_epoch: int | None = None
    old_plan_digest: str | None = None
    new_epoch: int | None = None
    plan_digest: str | None = None
    """The plan that is tried, or was activated."""
    snapshot_digest: str | None = None
    """The resource graph after what happened."""
    decision_digest: str | None = None
    evidence_used: tuple[str, ...] = ()
    evidence_rejected: tuple[str, ...] = ()
    verdict: ChangeVerdict | msgspec.UnsetType = msgspec.UNSET
    """What the economics of change said, where they were asked."""
    mode: TransitionMode | None = None
    realization_id: str | None = None
    """The attempt that is alive, or was activated."""
    attempts: tuple[Attempt, ...] = ()
    """Those that died, in order."""
    authority_before: str = ""
    """State of the old epoch when the change was asked for; empty when there was none."""
    authority_after: str = ""
    """State of the epoch that answers for the scope at the end; empty when none does."""
    committed: tuple[SessionBoundary, ...] = ()
    """The next position of each open session, at the end of the change or at its present version."""
    boundaries: tuple[SessionBoundary, ...] = ()
    """From where on the new epoch commits, for sessions that moved without a pause."""
    replays: tuple[ReplayRange, ...] = ()
    phases: tuple[PhaseTime, ...] = ()

    @property
    def is_under_way(self) -> bool:
        """Whether it may still change."""
        return self.outcome is TransitionOutcome.PREPARING
