"""Answers of stages and agents."""

from __future__ import annotations

import msgspec

from inferswarm.evidence.types import Observation
from inferswarm.fabric.messages.artifacts import (
    ArtifactsAcquired,
    InventoryReported,
    ResultsReported,
    ServedReported,
)
from inferswarm.fabric.messages.base import Message
from inferswarm.fabric.messages.stage import PathEnds


class Done(Message, frozen=True, kw_only=True):
    """It is done; there is nothing to say."""


class StageStarted(Message, frozen=True, kw_only=True):
    """The process lives; frames go to `endpoint`, or to one of `endpoints`, which are by address."""

    pid: int
    endpoint: str
    endpoints: tuple[tuple[str, str], ...] = ()
    unbound: tuple[tuple[str, str], ...] = ()
    """Addresses that it was told to listen at and cannot, with the reason."""


class Observed(Message, frozen=True, kw_only=True):
    """What a probe measured, and how its run went."""

    observations: tuple[Observation, ...]
    num_warm_up: int = 0
    """Samples of each cell that were left out before the first."""
    conditions: tuple[tuple[str, str], ...] = ()
    """What the machine was busy with before it, by name (see `resources.conditions`)."""


class PairSamples(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was seen over one pair of addresses: one-way seconds (half a round trip) by size, or why nothing was."""

    ends: PathEnds
    payload_bytes: tuple[int, ...] = ()
    seconds: tuple[tuple[float, ...], ...] = ()
    left_out: str = ""
    """Why the largest size was not sent; empty when it was, or was not asked for."""
    failure: str = ""
    """Why the pair has no samples; empty when it has."""


class PathSamples(Message, frozen=True, kw_only=True):
    """What was seen over each pair of addresses, in the question's order, and how the run went as in `Observed`."""

    pairs: tuple[PairSamples, ...]
    num_warm_up: int = 0
    conditions: tuple[tuple[str, str], ...] = ()


class PathUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The addresses over which messages go from one Node (id) to another, each as its own Node writes it."""

    source_node: str
    target_node: str
    source: str
    target: str


class StateHeld(Message, frozen=True, kw_only=True):
    """One state as it is in memory."""

    state_id: str
    representation: str
    bytes: int
    source_digest: str | None = None
    """As `backends.base.MaterializedState` has it."""


class Materialized(Message, frozen=True, kw_only=True):
    """The states are there. `source_bytes` were read for them, `required_bytes` were the requirement."""

    states: tuple[StateHeld, ...]
    kernel: str
    source_bytes: int
    required_bytes: int
    seconds: float


class SessionHeld(msgspec.Struct, frozen=True, array_like=True):
    """State of positions [0, `positions`) of a session is in a stage.

    The boundary payloads that it sent for [`journal_from`, `positions`) are kept; equal to `positions`: none.
    """

    session: int
    positions: int
    journal_from: int


class Adopted(Message, frozen=True, kw_only=True):
    """The stage belongs to the new realization; the fields are those of `StageStarted`, then what it holds."""

    pid: int
    endpoint: str
    endpoints: tuple[tuple[str, str], ...] = ()
    unbound: tuple[tuple[str, str], ...] = ()
    materialized: Materialized
    sessions: tuple[SessionHeld, ...]


class Held(Message, frozen=True, kw_only=True):
    """What a stage holds of sessions after `Hold`: of each one no more than was asked for, and perhaps less."""

    sessions: tuple[SessionHeld, ...]


class StageReport(Message, frozen=True, kw_only=True):
    """What a stage did since it started, from its own counters."""

    participant: str
    positions: int
    steps: int
    source_bytes: int
    state_bytes_moved: int
    """Source bytes read since materialization, plus received payload bytes that belong to no session and no step."""
    frames_sent: int
    bytes_sent: int
    refusals: tuple[tuple[str, int], ...]
    resident_bytes: int
    resident_peak_bytes: int
    anonymous_bytes: int


class SessionReport(msgspec.Struct, frozen=True, array_like=True):
    """What one stage did for one session. Times are seconds; `hop_seconds` are raw samples, newest last."""

    participant: str
    node_id: str
    positions: int
    steps: int
    compute_seconds: float
    bytes_sent: int
    frames_sent: int
    hop_seconds: tuple[float, ...]
    """From the sender's last moment before encoding to this stage having checked the frame (one machine only)."""


class NodeReport(Message, frozen=True, kw_only=True):
    """Memory of a Node's processes, in bytes. None: the mechanism does not say."""

    mechanism: str
    limit_bytes: int | None
    charged_bytes: int | None
    """What the mechanism counts against the limit now, without what it could reclaim."""
    charged_peak_bytes: int | None
    """Highest sampled value of `charged_bytes`."""
    mechanism_peak_bytes: int | None
    """The mechanism's own peak, reclaimable pages included."""
    overflows: int
    """How often the mechanism stopped a process."""
    resident_peak_bytes: int
    """Sum over agent and stages of VmHWM; file pages shared with other processes are counted in each."""
    agent_resident_bytes: int


Answer = (
    Done
    | StageStarted
    | Observed
    | PathSamples
    | Materialized
    | Adopted
    | Held
    | StageReport
    | NodeReport
    | InventoryReported
    | ArtifactsAcquired
    | ServedReported
    | ResultsReported
)
