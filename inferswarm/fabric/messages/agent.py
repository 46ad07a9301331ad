"""Commands to an agent, and what travels between stage, agent and Coordinator."""

from __future__ import annotations

import msgspec

from inferswarm.fabric.faults import Fault
from inferswarm.fabric.messages.answers import Answer, SessionHeld
from inferswarm.fabric.messages.artifacts import CourierCommand, CourierHello
from inferswarm.fabric.messages.base import Message
from inferswarm.fabric.messages.stage import Adopt, StageCommand


class StartStage(Message, frozen=True, kw_only=True):
    """Start an empty stage process under a name; it listens at the agent's address, and at `addresses`."""

    stage: str
    addresses: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    """The logical CPUs that it is bound to; empty: to none."""
    threads: int = 0
    """With how many threads it will compute on CPUs; 0: nobody says."""


class OnStage(Message, frozen=True, kw_only=True):
    """Pass a command to a stage and its answer back."""

    stage: str
    command: StageCommand


class StopStage(Message, frozen=True, kw_only=True):
    """Stop a stage and wait until its process has gone."""

    stage: str


class AdoptStage(Message, frozen=True, kw_only=True):
    """Keep a stage under another name from now on, and pass the command to it; its answer comes back."""

    stage: str
    renamed: str
    command: Adopt


class InspectNode(Message, frozen=True, kw_only=True):
    """Say what the Node's processes hold, now and at their peak."""

    reset_peak: bool = False


class OnCourier(Message, frozen=True, kw_only=True):
    """Pass a command to the Node's courier and its answer back. Refused by a Node without an artifact store."""

    command: CourierCommand


AgentCommand = StartStage | OnStage | StopStage | AdoptStage | InspectNode | OnCourier


class Answered(Message, frozen=True, kw_only=True):
    """The answer to a request."""

    request: int
    answer: Answer


class Failed(Message, frozen=True, kw_only=True):
    """A request failed."""

    request: int
    fault: Fault


class Progressed(Message, frozen=True, kw_only=True):
    """A long request goes on: `done` of `total`, in the unit that `note` names."""

    request: int
    done: int
    total: int
    note: str


class StageCall(Message, frozen=True, kw_only=True):
    """Agent to stage: a numbered command."""

    request: int
    command: StageCommand


class StageHello(Message, frozen=True, kw_only=True):
    """Stage to agent: alive and bound; the fields are those of `StageStarted`."""

    pid: int
    endpoint: str
    endpoints: tuple[tuple[str, str], ...] = ()
    unbound: tuple[tuple[str, str], ...] = ()


class StageAlive(Message, frozen=True, kw_only=True):
    """Stage to agent, from a thread of its own: the process is not stuck. `busy_seconds`: in the current step."""

    steps: int
    busy_seconds: float
    plan_digest: str = ""
    sessions: tuple[SessionHeld, ...] = ()
    """What was held before the current step."""


FromStage = StageHello | StageAlive | Answered | Failed | Progressed
FromCourier = CourierHello | Answered | Failed | Progressed


class AgentCall(Message, frozen=True, kw_only=True):
    """Coordinator to agent: a numbered command, under the Coordinator's term, for one incarnation of the Node.

    Numbers of a later term are higher, so that an answer is never taken for that to a successor's call.
    """

    request: int
    term: int
    incarnation: str
    command: AgentCommand


class Welcome(Message, frozen=True, kw_only=True):
    """Coordinator to agent: you are a member for `lease_seconds` after each beat."""

    term: int
    lease_seconds: float


class BeatSeen(Message, frozen=True, kw_only=True):
    """Coordinator to agent: your lease is renewed."""

    term: int


class Turned(Message, frozen=True, kw_only=True):
    """Coordinator to anybody: refused, and why."""

    fault: Fault
    term: int = 0


class Greet(Message, frozen=True, kw_only=True):
    """Coordinator to agent: you are no member here yet; introduce yourself, as the incarnation that you are.

    The stages stay: what was realized under an earlier Coordinator may be adopted.
    """

    term: int


class Void(Message, frozen=True, kw_only=True):
    """Coordinator to agent: this incarnation counts for nothing; stop its stages and come back as another one."""

    term: int
    reason: str


class Farewell(Message, frozen=True, kw_only=True):
    """Coordinator to agent: the scope's service ends on purpose; stop all stages, nobody will adopt them."""

    term: int


class HeldStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stage that an agent has. What it cannot say at once is left out; adopting it tells."""

    stage: str
    """Its name: realization and participant."""
    pid: int
    plan_digest: str = ""
    """Of the assignment that it holds the states of; empty before it was materialized."""
    sessions: tuple[SessionHeld, ...] | None = None


class Join(Message, frozen=True, kw_only=True):
    """Agent to Coordinator: a Node presents itself with the swarm's token."""

    token: str
    protocol: int
    package: str
    node_id: str
    name: str
    incarnation: str
    pid: int
    mechanism: str
    stages: tuple[HeldStage, ...] = ()
    """All that it has, those that are just starting included."""
    highest_term: int = 0
    """The highest term that this Node has ever obeyed."""
    courier: str = ""
    """Where peers get blobs of the Node's artifact store; empty: it has none."""


class Beat(Message, frozen=True, kw_only=True):
    """Agent to Coordinator: the lease should go on."""

    node_id: str
    incarnation: str


class StageGone(Message, frozen=True, kw_only=True):
    """Agent to Coordinator: a stage's process has ended without being asked to."""

    stage: str
    fault: Fault
