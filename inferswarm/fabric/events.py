"""What can happen to authority, and what follows from it. Pure data for `transitions.apply`."""

from __future__ import annotations

import msgspec

from inferswarm.documents import Document
from inferswarm.fabric.authority import RefusalCode, SessionState
from inferswarm.fabric.recovery_records import (
    SafeBoundary,
    SessionBoundary,
    TransitionMode,
    TransitionOutcome,
    TransitionRecord,
    Trigger,
)
from inferswarm.planner.change import ChangeVerdict


class LeaseGranted(Document, frozen=True, kw_only=True, tag=True):
    """The Coordinator holds the scope's lease with `term` until `lease_until`. A lower term is refused."""

    term: int
    lease_until: float


class NodeJoined(Document, frozen=True, kw_only=True, tag=True):
    """A Node presented itself. A new incarnation replaces the old one, whose participants are lost."""

    node_id: str
    incarnation: str
    lease_until: float


class NodeRenewed(Document, frozen=True, kw_only=True, tag=True):
    """A member is alive."""

    node_id: str
    incarnation: str
    lease_until: float


class NodeLeft(Document, frozen=True, kw_only=True, tag=True):
    """A member is gone for certain."""

    node_id: str
    reason: str


class ClockAdvanced(Document, frozen=True, kw_only=True, tag=True):
    """Time has passed: leases that ran out lapse now."""


class Adoption(Document, frozen=True, kw_only=True):
    """Stages of a dead realization that go on, with their state, under a new realization's id."""

    realization_id: str
    """The one that died."""
    participants: tuple[str, ...]
    """Those that are taken over. They keep their names and their Nodes."""


class RealizationStarted(Document, frozen=True, kw_only=True, tag=True):
    """An attempt to realize a plan begins, under an id that was never used.

    `transition` makes it an attempt of the change that is under way; `adopts` takes stages over.
    """

    realization_id: str
    plan_digest: str
    participants: tuple[tuple[str, str], ...]
    transition: int | msgspec.UnsetType = msgspec.UNSET
    adopts: Adoption | msgspec.UnsetType = msgspec.UNSET


class RealizationReadied(Document, frozen=True, kw_only=True, tag=True):
    """Every participant reported its states and answered."""

    realization_id: str


class RealizationEnded(Document, frozen=True, kw_only=True, tag=True):
    """The attempt failed or its stages were stopped; its id is dead for good."""

    realization_id: str
    reason: str


class RealizationReclaimed(Document, frozen=True, kw_only=True, tag=True):
    """The stages of a dead realization that never had an epoch have been stopped."""

    realization_id: str


class EpochRequested(Document, frozen=True, kw_only=True, tag=True):
    """Give authority to a ready realization.

    With `transition` it is the end of the change that is under way. Where that overlaps, the old epoch settles, and
    `boundaries` says from which position on the new epoch commits each session; the old one commits below it. A
    session that is not named is suspended, or cancelled when it cannot be resumed.
    """

    realization_id: str
    transition: int | msgspec.UnsetType = msgspec.UNSET
    boundaries: tuple[SessionBoundary, ...] | msgspec.UnsetType = msgspec.UNSET


class EpochRetired(Document, frozen=True, kw_only=True, tag=True):
    """Take authority from an epoch; its open sessions end.

    While a change away from this epoch is under way, sessions that can be resumed are suspended instead. Of an epoch
    that settles, boundaries are drawn back to what is committed.
    """

    epoch: int
    reason: str


class EpochReclaimed(Document, frozen=True, kw_only=True, tag=True):
    """The resources of an epoch without authority have been returned."""

    epoch: int


class ParticipantLost(Document, frozen=True, kw_only=True, tag=True):
    """A participant of a realization died or fell silent."""

    realization_id: str
    participant: str
    reason: str


class SessionRequested(Document, frozen=True, kw_only=True, tag=True):
    """A request asks for a session on the current epoch.

    `resumable` says that prompt, commits and sampling inputs are kept, so that it may outlive its epoch; `max_tokens`
    that it commits no more than so many, and is complete with fewer only when it `stopped`.
    """

    prompt_tokens: int
    resumable: bool | msgspec.UnsetType = msgspec.UNSET
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET


class ResumptionRequested(Document, frozen=True, kw_only=True, tag=True):
    """Bind a suspended session to the epoch in force, whose stages have its state up to what is committed."""

    session: int


class SessionEnded(Document, frozen=True, kw_only=True, tag=True):
    """A session needs no more tokens."""

    session: int
    state: SessionState
    reason: str
    stopped: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the answer itself ended it: a stop token or a stop string."""

    def __post_init__(self) -> None:
        """Refuse an end that is none, and a failure without a reason."""
        super().__post_init__()
        if self.state is SessionState.OPEN:
            raise ValueError("a session does not end as OPEN")
        if self.state is SessionState.FAILED and not self.reason:
            raise ValueError(f"session {self.session} fails without a reason")


class TransitionStarted(Document, frozen=True, kw_only=True, tag=True):
    """Something asks for another epoch. One change at a time."""

    trigger: Trigger
    detail: str
    safe_boundary: SafeBoundary = SafeBoundary.COMMITTED_POSITION
    recovery_contract: str = ""


class TransitionPlanned(Document, frozen=True, kw_only=True, tag=True):
    """A plan was chosen for the change that is under way. Again after an attempt died: the next best plan."""

    transition: int
    plan_digest: str
    decision_digest: str
    snapshot_digest: str
    mode: TransitionMode
    evidence_used: tuple[str, ...] = ()
    evidence_rejected: tuple[str, ...] = ()
    verdict: ChangeVerdict | msgspec.UnsetType = msgspec.UNSET


class TransitionConcluded(Document, frozen=True, kw_only=True, tag=True):
    """The change that is under way ends without an activation; an attempt that is alive dies."""

    transition: int
    outcome: TransitionOutcome
    reason: str
    verdict: ChangeVerdict | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Refuse an end that is none, one that only an activation makes, and one without a reason."""
        super().__post_init__()
        if self.outcome in (TransitionOutcome.PREPARING, TransitionOutcome.ACTIVATED):
            raise ValueError(f"a change is not concluded as {self.outcome.value}")
        if not self.reason:
            raise ValueError(f"transition {self.transition} ends without a reason")


class RecoveryGivenUp(Document, frozen=True, kw_only=True, tag=True):
    """Nothing will serve the suspended sessions: they fail."""

    reason: str

    def __post_init__(self) -> None:
        """Refuse a failure without a reason."""
        super().__post_init__()
        if not self.reason:
            raise ValueError("recovery is given up without a reason")


class ResultArrived(Document, frozen=True, kw_only=True, tag=True):
    """A stage claims the token at `position` of a session."""

    epoch: int
    realization_id: str
    plan_digest: str
    session: int
    position: int


Event = (
    LeaseGranted
    | NodeJoined
    | NodeRenewed
    | NodeLeft
    | ClockAdvanced
    | RealizationStarted
    | RealizationReadied
    | RealizationEnded
    | RealizationReclaimed
    | EpochRequested
    | EpochRetired
    | EpochReclaimed
    | ParticipantLost
    | SessionRequested
    | ResumptionRequested
    | SessionEnded
    | ResultArrived
    | TransitionStarted
    | TransitionPlanned
    | TransitionConcluded
    | RecoveryGivenUp
)


class Refused(Document, frozen=True, kw_only=True, tag=True):
    """The event changed nothing, and why."""

    code: RefusalCode
    detail: str


class Committed(Document, frozen=True, kw_only=True, tag=True):
    """The token at `position` of a session is now part of its history."""

    session: int
    position: int
    epoch: int


class EpochActivated(Document, frozen=True, kw_only=True, tag=True):
    """An epoch has authority from now on."""

    epoch: int
    realization_id: str
    plan_digest: str


class EpochLost(Document, frozen=True, kw_only=True, tag=True):
    """An epoch lost its authority (retired, or a participant was lost)."""

    epoch: int
    state: str
    reason: str


class EpochSettling(Document, frozen=True, kw_only=True, tag=True):
    """An epoch gave its authority to its successor and commits on only below its sessions' boundaries."""

    epoch: int
    successor: int


class SessionOpened(Document, frozen=True, kw_only=True, tag=True):
    """A session exists, bound to an epoch; its first commit is at position `prompt_tokens`."""

    session: int
    epoch: int
    prompt_tokens: int


class SessionSuspended(Document, frozen=True, kw_only=True, tag=True):
    """A session is bound to no epoch any more; its `committed` tokens stay, and it may be resumed."""

    session: int
    epoch: int
    reason: str
    committed: int


class SessionResumed(Document, frozen=True, kw_only=True, tag=True):
    """From `position` on, `epoch` alone commits a session. Said again when the position moves back."""

    session: int
    epoch: int
    position: int


class SessionClosed(Document, frozen=True, kw_only=True, tag=True):
    """A session will commit nothing more; `committed` tokens stay."""

    session: int
    state: SessionState
    reason: str
    committed: int


class MemberLost(Document, frozen=True, kw_only=True, tag=True):
    """A Node is no longer a member."""

    node_id: str
    reason: str


class RealizationDied(Document, frozen=True, kw_only=True, tag=True):
    """A realization's id is dead for good."""

    realization_id: str
    reason: str


class TransitionRecorded(Document, frozen=True, kw_only=True, tag=True):
    """The record of a change has a new version. Its last one has an outcome that is final."""

    record: TransitionRecord


Effect = (
    Refused
    | Committed
    | EpochActivated
    | EpochSettling
    | EpochLost
    | SessionOpened
    | SessionSuspended
    | SessionResumed
    | SessionClosed
    | MemberLost
    | RealizationDied
    | TransitionRecorded
)
