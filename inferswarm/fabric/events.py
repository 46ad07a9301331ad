"""What can happen to authority, and what follows from it. Pure data for `transitions.apply`."""

from __future__ import annotations

from inferswarm.documents import Document
from inferswarm.fabric.authority import RefusalCode, SessionState


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


class RealizationStarted(Document, frozen=True, kw_only=True, tag=True):
    """An attempt to realize a plan begins, under an id that was never used."""

    realization_id: str
    plan_digest: str
    participants: tuple[tuple[str, str], ...]


class RealizationReadied(Document, frozen=True, kw_only=True, tag=True):
    """Every participant reported its states and answered."""

    realization_id: str


class RealizationEnded(Document, frozen=True, kw_only=True, tag=True):
    """The attempt failed or its stages were stopped; its id is dead for good."""

    realization_id: str
    reason: str


class EpochRequested(Document, frozen=True, kw_only=True, tag=True):
    """Give authority to a ready realization."""

    realization_id: str


class EpochRetired(Document, frozen=True, kw_only=True, tag=True):
    """Take authority from an epoch; its open sessions end."""

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
    """A request asks for a session on the current epoch."""

    prompt_tokens: int


class SessionEnded(Document, frozen=True, kw_only=True, tag=True):
    """A session needs no more tokens."""

    session: int
    state: SessionState
    reason: str

    def __post_init__(self) -> None:
        """Refuse an end that is none."""
        super().__post_init__()
        if self.state is SessionState.OPEN:
            raise ValueError("a session does not end as OPEN")


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
    | EpochRequested
    | EpochRetired
    | EpochReclaimed
    | ParticipantLost
    | SessionRequested
    | SessionEnded
    | ResultArrived
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


class SessionOpened(Document, frozen=True, kw_only=True, tag=True):
    """A session exists, bound to an epoch; its first commit is at position `prompt_tokens`."""

    session: int
    epoch: int
    prompt_tokens: int


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


Effect = (
    Refused | Committed | EpochActivated | EpochLost | SessionOpened | SessionClosed | MemberLost | RealizationDied
)
