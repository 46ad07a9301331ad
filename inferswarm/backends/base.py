"""The seam between the fabric and whatever executes units: bytes in, bytes out. Torch-free to import.

A *stage executor* owns the states and the mutable state (keys and values) of one participant. The fabric gives it
payloads as bytes: little-endian int32 token ids when the participant holds the embedding, otherwise the boundary
tensor's raw bytes, in the representation that the plan's payloads have. It returns the next boundary's bytes, or,
when the participant holds the head and was asked to sample, the token that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from inferswarm.artifacts.types import ParticipantRequirement
from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.strategies.chain import Description
from inferswarm.strategies.dense.description import DecoderDescription

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class UnitThreads(Document, frozen=True):
    """Threads for the units from `first_unit` on, up to `end_unit` (excluded)."""

    first_unit: int
    end_unit: int
    threads: int


class UnitBinding(Document, frozen=True, kw_only=True):
    """The Compute Unit that a participant executes on: its identity, its kind, and the logical CPUs it is bound to.

    An accelerator is found again by its identity, never by its place in a list.
    """

    id: str
    kind: str
    cpus: tuple[int, ...] = ()
    """Empty: bound to none."""


class StageAssignment(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.assignment/2"):
    """Everything that one participant must know to execute its part of a plan."""

    participant: str
    plan_digest: str
    primitive: str
    representation: str
    description: Description
    first_unit: int
    end_unit: int
    threads: tuple[UnitThreads, ...]
    """Covers [first_unit, end_unit). A stage has one entry; an unsplit oracle follows the split's entries."""
    requirement: ParticipantRequirement | None
    """None only for backends that need no bytes (null) and for probes with random states."""
    max_positions: int
    sessions: int
    chunk_positions: int
    compute_unit: UnitBinding | msgspec.UnsetType = msgspec.UNSET
    """What it executes on. Left out, and not written: the CPU, bound to none of its logical CPUs."""
    payload_representation: str | msgspec.UnsetType = msgspec.UNSET
    """What hidden states at its boundaries are in. Left out, and not written: what it computes in."""

    @property
    def boundary_representation(self) -> str:
        """What hidden states arrive in and leave in: the executor converts where it computes in another one."""
        carried = self.payload_representation
        return self.representation if isinstance(carried, msgspec.UnsetType) else carried

    @property
    def kind(self) -> str:
        """The kind of Compute Unit that it executes on."""
        return "cpu" if isinstance(self.compute_unit, msgspec.UnsetType) else self.compute_unit.kind

    @property
    def unit_ids(self) -> tuple[str, ...]:
        """Return the ids of the assigned units, in order."""
        return self.description.unit_ids[self.first_unit : self.end_unit]


def described_decoder(assignment: StageAssignment) -> DecoderDescription:
    """Return the description of a decoder whose blocks are described by data.

    Raises SpecError for a model that a host library computes.
    """
    if not isinstance(assignment.description, DecoderDescription):
        needed = f"a described decoder, which primitive {assignment.primitive!r} can compute"
        raise SpecError("model", assignment.description.architecture, needed)
    return assignment.description


LogProbabilities = tuple[tuple[int, float], ...]
"""(token, natural logarithm of its probability by the raw row): the drawn one first, then the most likely ones."""


class Drawn(NamedTuple):
    """A token taken from one row of logits."""

    token: int
    margin: float
    """Top-1 minus top-2 logit of the raw row, whatever was drawn."""
    logprobs: LogProbabilities | None = None
    """None when not asked for."""


class Sampler(Protocol):
    """Draws a session's tokens. It may keep the session's history; it is the same object from open to close."""

    def draw(self, logits: npt.NDArray[np.float32], position: int) -> Drawn:
        """Return the token at `position` given the raw logits, [vocabulary], of the position before it.

        What was drawn at `position` or later before is forgotten. Raises FabricError for logits that are not finite.
        """


class StepOutput(NamedTuple):
    """What one step gives: a boundary payload for the next stage, or a sampled token with its logits' digest."""

    payload: bytes | None = None
    token: int | None = None
    logits_digest: str | None = None
    """xxh3-128 (hexadecimal) of the raw logits row that the token was sampled from."""
    margin: float | None = None
    """Top-1 minus top-2 logit."""
    logprobs: LogProbabilities | None = None
    """As in `Drawn`."""


class Counters(NamedTuple):
    """What an executor has done since it was made."""

    positions: int
    steps: int
    materialized_bytes: int
    source_bytes_read: int
    state_bytes_moved_after_materialization: int


class MaterializedState(NamedTuple):
    """One state as it now is in memory."""

    state_id: str
    representation: str
    bytes: int
    source_digest: str | None = None
    """Digest of the source bytes that it was made of, whatever it was made into (see `states.source_digests`)."""


class StageExecutor(Protocol):
    """What every backend offers for one participant."""

    def materialize(self, progress: Callable[[int, int], None]) -> tuple[MaterializedState, ...]:
        """Read exactly the assigned ranges and build the states.

        `progress(done, total)` counts source bytes. Raises ArtifactError for missing, short or unplanned bytes.
        """

    def open(self, session: str, sampler: Sampler | None = None, *, session_positions: int | None = None) -> None:
        """Reserve mutable state for one session, whose tokens `sampler` draws (None: always the most likely).

        `session_positions` is the longest that it may become (None: the assignment's `max_positions`). Raises
        FabricError when all of it is taken or the id is in use.
        """

    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """Compute positions [start, start + count) of a session.

        Raises FabricError when `start` is not the session's length or the payload's size is wrong. With
        `sample`, a participant that holds the head returns the token after the last position.
        """

    def length(self, session: str) -> int:
        """Return how many positions a session has computed here."""

    def truncate(self, session: str, length: int) -> None:
        """Forget positions from `length` on."""

    def close(self, session: str) -> None:
        """Free a session's mutable state. Closing an unknown session is an error."""

    def counters(self) -> Counters:
        """Return what was done so far."""

    def kernel(self) -> str:
        """Return what decides the bits besides the partition: library versions, instruction set, kernel names."""
