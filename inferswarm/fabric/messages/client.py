"""Questions of a client and the Coordinator's answers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from inferswarm.backends.base import LogProbabilities, StageAssignment
from inferswarm.fabric.messages.agent import (
    AgentCall,
    AgentCommand,
    Answered,
    Beat,
    BeatSeen,
    Failed,
    Farewell,
    Greet,
    Join,
    Progressed,
    StageGone,
    Turned,
    Void,
    Welcome,
)
from inferswarm.fabric.messages.answers import Answer, Materialized, PathUse, SessionReport, StageReport
from inferswarm.fabric.messages.artifacts import NeededArtifacts
from inferswarm.fabric.messages.base import Message
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.planner.change import ChangeVerdict
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.strategies.sampling import GREEDY_SAMPLING, Sampling

MAX_COUNT = 2**31 - 1
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
SessionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Status(Message, frozen=True, kw_only=True):
    """Ask who is there."""


class OnNode(Message, frozen=True, kw_only=True):
    """Pass a command to a Node's agent."""

    node_id: str
    command: AgentCommand


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another plan for the same model, and what it takes to realize it; the fields are those of `Realize`."""

    plan: ExecutionPlan
    assignments: tuple[StageAssignment, ...]
    run_ahead: int
    paths: tuple[PathUse, ...] = ()
    artifacts: NeededArtifacts | msgspec.UnsetType = msgspec.UNSET


class Realize(Message, frozen=True, kw_only=True):
    """Turn a plan into running stages and give it authority."""

    plan: ExecutionPlan
    assignments: tuple[StageAssignment, ...]
    model_path: str | None
    """Where the text side (tokenizer, chat template) is read from; None: token ids only."""
    run_ahead: int
    paths: tuple[PathUse, ...] = ()
    """The addresses that the plan was priced with; a path that is not among them goes as the agents listen."""
    artifacts: NeededArtifacts | msgspec.UnsetType = msgspec.UNSET
    """What its Nodes acquire into their stores first; UNSET: stages read the model where it lies."""
    fallbacks: tuple[Fallback, ...] = ()
    """What to realize instead when a loss leaves this plan without its Nodes: the best first."""


class Change(Message, frozen=True, kw_only=True):
    """Serve by another plan from now on; open sessions go on under it. Answered like `Realize`.

    Refused, and the plan in force untouched, when `epoch` is not in force, another change is under way, or a session
    that is open could not go on. When the preparation of an overlapping change fails, the plan in force stays.
    """

    order: Realize
    epoch: int
    """The one that the question was decided for."""
    mode: TransitionMode
    """Both plans at once (MAKE_BEFORE_BREAK), or one after the other (SAFE_INTERRUPTED_COLD_CUTOVER)."""
    trigger: Trigger
    detail: str
    verdict: ChangeVerdict | msgspec.UnsetType = msgspec.UNSET
    decision_digest: str = ""
    snapshot_digest: str = ""


class Retain(Message, frozen=True, kw_only=True):
    """Record that a change was considered and not made."""

    epoch: int
    trigger: Trigger
    detail: str
    is_policy: bool
    """Whether a rule forbids it, rather than that it is not worth it."""
    reason: str
    plan: ExecutionPlan | None = None
    """The plan that was considered; None: there was none, or it is the one in force."""
    verdict: ChangeVerdict | msgspec.UnsetType = msgspec.UNSET
    decision_digest: str = ""
    snapshot_digest: str = ""


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: str
    content: str | tuple[str, ...]
    """One text, or the texts of its parts in order: how they are joined is the chat template's affair."""


class Generate(Message, frozen=True, kw_only=True):
    """Answer a prompt: exactly one of `text`, `chat` and `token_ids`."""

    text: str | None = None
    chat: tuple[ChatMessage, ...] = ()
    token_ids: tuple[TokenId, ...] = ()
    max_tokens: Annotated[int, msgspec.Meta(le=MAX_COUNT)] | None
    """None: as many as the plan has room for behind the prompt."""
    epoch: int | None = None
    """The epoch that the client believes in; another one in force refuses the request. None: whichever it is."""
    ignore_stop: bool = False
    """The model's own end tokens end nothing (benchmarks and equality runs)."""
    sampling: Sampling = GREEDY_SAMPLING
    """Without a seed, the Coordinator chooses one where it is needed, and records it."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer where the first of them is complete; they are no part of it."""


class Replay(Message, frozen=True, kw_only=True):
    """Compute a recorded session again, step by step as its partition says, and compare each position."""

    session: SessionNumber
    max_tokens: Annotated[int, msgspec.Meta(le=MAX_COUNT)] | None = None
    """Where to end; None: where the recorded request would have ended."""
    epoch: int | None = None
    """As in `Generate`."""


class Retire(Message, frozen=True, kw_only=True):
    """Take authority from the current epoch and stop its stages; nothing when it is another than `epoch`."""

    epoch: int | None = None


class ShowSession(Message, frozen=True, kw_only=True):
    """Return what the ledger holds of a session."""

    session: SessionNumber


class Follow(Message, frozen=True, kw_only=True):
    """Return a session's committed tokens from a position on, then those that are still to come, until it ends.

    Positions count prompt tokens too. The session may be of any state; following it keeps it neither open nor alive.
    """

    session: SessionNumber
    from_position: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class StageReports(Message, frozen=True, kw_only=True):
    """Ask every stage of the current epoch what it has done; refused when it is another than `epoch`."""

    epoch: int | None = None


class Shutdown(Message, frozen=True, kw_only=True):
    """End the Coordinator."""


Question = (
    Status
    | OnNode
    | Realize
    | Change
    | Retain
    | Generate
    | Replay
    | Retire
    | StageReports
    | ShowSession
    | Follow
    | Shutdown
)


class Hello(Message, frozen=True, kw_only=True):
    """Client to Coordinator: here is the swarm's token."""

    token: str
    protocol: int


class Ask(Message, frozen=True, kw_only=True):
    """Client to Coordinator: a numbered question."""

    request: int
    question: Question


class Abandon(Message, frozen=True, kw_only=True):
    """Client to Coordinator: nobody waits for the answer to that request any more; its session is cancelled."""

    request: int


class NodeStatus(Message, frozen=True, kw_only=True):
    """One member."""

    node_id: str
    name: str
    incarnation: str
    pid: int
    mechanism: str
    lease_left_seconds: float


class SwarmStatus(Message, frozen=True, kw_only=True):
    """Who is there, and which epoch has authority (None: none)."""

    scope: str
    term: int
    pid: int
    nodes: tuple[NodeStatus, ...]
    epoch: int | None
    plan_digest: str | None
    refusals: tuple[tuple[str, int], ...]
    """Refused results and requests so far, by code."""


class StageReportList(Message, frozen=True, kw_only=True):
    """The stages' own counters, in route order."""

    reports: tuple[StageReport, ...]


class Realized(Message, frozen=True, kw_only=True):
    """The plan runs as `epoch`. States and kernels come from the stages, in route order."""

    epoch: int
    realization: str
    stages: tuple[Materialized, ...]
    pids: tuple[int, ...]
    seconds: float
    paths: tuple[PathUse, ...] = ()
    """The measured paths that its messages take, in route order."""


class SessionAdmitted(Message, frozen=True, kw_only=True):
    """A request has become an open session, before any work is done for it."""

    request: int
    session: int
    epoch: int
    plan_digest: str
    prompt_tokens: int


class TokenCommitted(Message, frozen=True, kw_only=True):
    """A token is in the ledger; `text` is what can be shown because of it (possibly nothing yet)."""

    request: int
    session: int
    position: int
    token: int
    text: str
    logprobs: LogProbabilities | None = None
    """As `backends.base.Drawn` has them, when they were asked for."""


class SessionRecord(Message, frozen=True, kw_only=True):
    """What the ledger holds of a session. `replay_of` is 0 for an original. Times are seconds since the request."""

    session: int
    epoch: int
    state: str
    reason: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    logits_digests: tuple[str, ...]
    margins: tuple[float, ...]
    commit_seconds: tuple[float, ...]
    partition: str
    """The partition document as JSON."""
    replay_of: int
    max_tokens: int
    sampling: Sampling
    """As it was obeyed: the seed is the one that was used."""
    stop: tuple[str, ...]
    matched_stop: str | None
    """The stop string that ended it; None when something else did."""
    logprobs: tuple[LogProbabilities, ...] | None
    """For each token, as `backends.base.Drawn` has them; None when they were not asked for."""
    model: str = ""
    """Digest of the model: its description, and the bytes that the stages read. Empty where none were read."""


class Generated(Message, frozen=True, kw_only=True):
    """A finished request."""

    record: SessionRecord
    text: str
    finish_reason: str
    """`stop` (an end token, or the record's `matched_stop`) or `length`."""
    reports: tuple[SessionReport, ...]


ClientAnswer = SwarmStatus | StageReportList | Realized | Generated | SessionRecord | Answer


class ClientAnswered(Message, frozen=True, kw_only=True):
    """The answer to a client's question."""

    request: int
    answer: ClientAnswer


ToCoordinator = Hello | Ask | Abandon | Join | Beat | StageGone | Answered | Failed | Progressed
ToAgent = Welcome | BeatSeen | Turned | Greet | Void | Farewell | AgentCall
ToClient = ClientAnswered | Failed | Progressed | SessionAdmitted | TokenCommitted | Turned | Welcome
