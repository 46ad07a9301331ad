"""Commands to a stage."""

from __future__ import annotations

import msgspec

from inferswarm.backends.base import StageAssignment
from inferswarm.fabric.messages.base import Message
from inferswarm.strategies.chain import Description


class Warm(Message, frozen=True, kw_only=True):
    """Load the backend and touch what it touches once, so that the base can be measured."""

    primitive: str
    threads: int
    compute_unit_id: str = ""
    kind: str = "cpu"


class ProbeUnits(Message, frozen=True, kw_only=True):
    """Measure the cost classes of a model's shape on the real backend."""

    description: Description
    representation: str
    compute_unit_id: str
    kind: str = "cpu"
    threads: int
    max_positions: int
    chunk_positions: int
    budget_bytes: int
    seconds: float


class ProbeBandwidth(Message, frozen=True, kw_only=True):
    """Measure how fast memory can be read with so many threads of this process, for a record about `subject`."""

    subject: str
    threads: int
    seconds: float
    set_bytes: int


class ProbeMultiply(Message, frozen=True, kw_only=True):
    """Measure how fast the real backend multiplies, one row and a chunk of rows, in each representation."""

    representations: tuple[str, ...]
    compute_unit_id: str
    kind: str = "cpu"
    threads: int
    budget_bytes: int
    seconds: float


class ProbeAccelerator(Message, frozen=True, kw_only=True):
    """Measure copies between an accelerator and RAM, both ways, and what an empty stage takes of its memory."""

    compute_unit_id: str
    kind: str
    memory_id: str
    seconds: float


class PathEnds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to another stage: the address to send from, and the endpoint to send to."""

    source: str
    endpoint: str


class ProbePath(Message, frozen=True, kw_only=True):
    """Measure one-way message times to another stage over several pairs of addresses, through real frames.

    All pairs and sizes take turns, each message after a pause; so many turns as fit into the seconds, `max_turns` at
    most.
    """

    pairs: tuple[PathEnds, ...]
    payload_bytes: tuple[int, ...]
    max_turns: int
    seconds: float
    pause_seconds: float = 0.008
    """Between two steps both ends sleep about so long, and waking them is part of what a message costs."""


class Materialize(Message, frozen=True, kw_only=True):
    """Build the states of an assignment for one realization."""

    assignment: StageAssignment
    scope: str
    realization: str


class Connect(Message, frozen=True, kw_only=True):
    """Where to send: the next stage (None for the last), the first stage, the Coordinator's result inbox."""

    next_endpoint: str | None
    first_endpoint: str
    coordinator_endpoint: str
    next_source: str = ""
    """The address to send from, where the path was measured; empty: whichever the system takes."""
    first_source: str = ""


class Activate(Message, frozen=True, kw_only=True):
    """Take frames of this epoch: the realization has authority. 0: it has none, and only computes what is known."""

    epoch: int


class Adopt(Message, frozen=True, kw_only=True):
    """Leave the realization that this stage belongs to, and keep its states and sessions for another one.

    The assignment has the same units, threads and representation as the one that was materialized. From now on frames
    of the old address are refused; what is held of sessions stays until `Hold`.
    """

    assignment: StageAssignment
    scope: str
    realization: str


class SessionOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stage is to hold of one session when the epoch begins."""

    session: int
    terms: bytes
    """A `SessionTerms`, as in an OPEN frame."""
    positions: int
    """State of positions [0, `positions`) stays, the end of a step that was computed; 0 opens the session anew."""
    passes_from: int = 0
    """The next stage has the state of the positions below: what is computed of them is not passed on."""


class Hold(Message, frozen=True, kw_only=True):
    """Hold exactly these sessions, each up to its position; every other one is dropped.

    Before an epoch begins. A stage that computes without authority (`Activate` as epoch 0) leaves its route first.
    """

    sessions: tuple[SessionOrder, ...]


class ReportHeld(Message, frozen=True, kw_only=True):
    """Say what is held of each session, changing nothing. Answered by `Held`."""


class Refill(Message, frozen=True, kw_only=True):
    """Send the kept boundary payloads of positions [first, end) of a session to the next stage again, unsampled.

    In the steps in which they were computed. After every stage was activated. Fails when they are not all kept.
    """

    session: int
    first: int
    end: int


class Report(Message, frozen=True, kw_only=True):
    """Say what was done and what is held."""


class Stop(Message, frozen=True, kw_only=True):
    """End the process."""


StageCommand = (
    Warm
    | ProbeUnits
    | ProbeBandwidth
    | ProbeMultiply
    | ProbeAccelerator
    | ProbePath
    | Materialize
    | Connect
    | Activate
    | Adopt
    | Hold
    | Refill
    | Report
    | ReportHeld
    | Stop
)
