"""Commands to a stage."""

from __future__ import annotations

from inferswarm.backends.base import StageAssignment
from inferswarm.fabric.messages.base import Message
from inferswarm.strategies.chain import Description


class Warm(Message, frozen=True, kw_only=True):
    """Load the backend and touch what it touches once, so that the base can be measured."""

    primitive: str
    threads: int


class ProbeUnits(Message, frozen=True, kw_only=True):
    """Measure the cost classes of a model's shape on the real backend."""

    description: Description
    representation: str
    compute_unit_id: str
    threads: int
    max_positions: int
    chunk_positions: int
    budget_bytes: int
    seconds: float


class ProbeBandwidth(Message, frozen=True, kw_only=True):
    """Measure how fast memory can be read with so many threads."""

    threads: int
    seconds: float
    set_bytes: int


class ProbeMultiply(Message, frozen=True, kw_only=True):
    """Measure how fast the real backend multiplies, one row and a chunk of rows, in each representation."""

    representations: tuple[str, ...]
    compute_unit_id: str
    threads: int
    budget_bytes: int
    seconds: float


class ProbePath(Message, frozen=True, kw_only=True):
    """Measure one-way message times to another stage's endpoint, through real frames, each after a pause."""

    endpoint: str
    payload_bytes: tuple[int, ...]
    num_samples: int
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


class Activate(Message, frozen=True, kw_only=True):
    """The realization has authority as this epoch."""

    epoch: int


class Report(Message, frozen=True, kw_only=True):
    """Say what was done and what is held."""


class Stop(Message, frozen=True, kw_only=True):
    """End the process."""


StageCommand = (
    Warm | ProbeUnits | ProbeBandwidth | ProbeMultiply | ProbePath | Materialize | Connect | Activate | Report | Stop
)
