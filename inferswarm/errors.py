"""Every error that InferSwarm raises on purpose, in one tree.

::

    InferSwarmError
     + DocumentError          bytes do not form the document that they claim to be
     + SpecError              the caller's input is wrong: field, what was found, what was needed
     |  + AdmissionError      a request was refused before any work was done
     + DiscoveryError         a probe of this machine failed
     + MeasurementError       a measurement could not be completed, or its result cannot be used
     + ModelError             a model's files cannot be understood
     |  + UnsupportedModel    they are understood, and need something that is not there
     + ArtifactError          bytes are missing, altered or not what was declared; `.code` is from a closed list
     |  + StoreRefused        a Node's store of verified bytes cannot take more: quota, full disk, read-only root
     + EvidenceError          a record is missing, altered or contradicts itself
     + InfeasiblePlan         no plan exists; `.violations` say what was needed and what was there
     + FabricError            the running swarm
        + EngineError         a process of the swarm could not be started or has gone
        + EnvelopeExceeded    a Node's enforced memory envelope stopped the work
        + RealizationFailed   a plan could not be turned into running stages
        + StageLost           a stage died or fell silent; names the Node
        + AuthorityUncertain  two claims to one scope, or a lapsed lease: serving stops
        + CommitRefused       a result is not the next commit of the current authority; `.code` says why
        + WireError           a frame is malformed, of another version, or fails its checksum
        + ReplayDiverged      a replay of a recorded partition did not reproduce the record

`assert` is for this package's own invariants, never for input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self


class InferSwarmError(Exception):
    """Root of the tree: catching it catches everything that is raised on purpose."""


class DocumentError(InferSwarmError):
    """Bytes do not form the document that they claim to be.

    Attributes: `source` (where the bytes came from) and `reason`.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


class SpecError(InferSwarmError):
    """The caller's input is wrong.

    Attributes: `field` (which input), `found` (what it was), `needed` (what would have been right).
    """

    def __init__(self, field: str, found: object, needed: str) -> None:
        super().__init__(f"{field}: found {found!r}, needed {needed}")
        self.field = field
        self.found = found
        self.needed = needed


class AdmissionError(SpecError):
    """A request was refused before any work was done for it."""


class DiscoveryError(InferSwarmError):
    """A probe of this machine failed. Attributes: `probe`, `reason`."""

    def __init__(self, probe: str, reason: str) -> None:
        super().__init__(f"probe {probe!r}: {reason}")
        self.probe = probe
        self.reason = reason


class MeasurementError(InferSwarmError):
    """A measurement could not be completed, or its result cannot be used."""


class ModelError(InferSwarmError):
    """A model's files cannot be understood. Attributes: `source`, `reason`."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason

    def with_more(self, more: str) -> Self:
        """Return the same error of the same class with `more` behind its reason."""
        longer = type(self).__new__(type(self))
        longer.__dict__.update(self.__dict__)
        longer.reason = f"{self.reason}; {more}"
        longer.args = (f"{self.source}: {longer.reason}",)
        return longer


class UnsupportedModel(ModelError):
    """A model is understood and needs something that is not there; `field` names it."""

    def __init__(self, source: str, field: str, found: object, supported: str) -> None:
        super().__init__(source, f"{field} is {found!r}; supported: {supported}")
        self.field = field
        self.found = found


class ArtifactError(InferSwarmError):
    """Bytes are missing, altered or not what was declared. `code` is from the closed list in `artifacts`."""

    def __init__(self, code: str, subject: str, reason: str) -> None:
        super().__init__(f"{code}: {subject}: {reason}")
        self.code = code
        self.subject = subject
        self.reason = reason


class StoreRefused(ArtifactError):
    """A Node's store of verified bytes cannot take more, whatever their source: quota, full disk, read-only root.

    `subject` is its root; `needed_bytes` and `free_bytes` are None where they are not what is wrong.
    """

    def __init__(
        self, code: str, subject: str, reason: str, needed_bytes: int | None = None, free_bytes: int | None = None
    ) -> None:
        super().__init__(code, subject, reason)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class EvidenceError(InferSwarmError):
    """A record is missing, altered or contradicts itself."""


class Violation(NamedTuple):
    """One constraint that a plan breaks: on which resource, how much was needed, how much was there."""

    resource: str
    constraint: str
    required: float
    available: float | None
    unit: str
    detail: str = ""

    def __str__(self) -> str:
        """One line for people; an unknown quantity is called unknown."""
        there = "unknown" if self.available is None else f"{self.available:,.0f}"
        tail = f" ({self.detail})" if self.detail else ""
        return f"{self.resource}: {self.constraint}: needs {self.required:,.0f} {self.unit}, has {there}{tail}"


class InfeasiblePlan(InferSwarmError):
    """No plan exists. `violations` say what was needed and what was there; `missing`, what was never seen."""

    def __init__(self, summary: str, violations: Sequence[Violation] = (), missing: Sequence[str] = ()) -> None:
        lines = [*map(str, violations), *(f"missing evidence: {what}" for what in missing)]
        super().__init__("\n  ".join([summary, *lines]))
        self.violations = tuple(violations)
        self.missing = tuple(missing)


class FabricError(InferSwarmError):
    """Something in the running swarm."""


class EngineError(FabricError):
    """A process of the swarm could not be started, or has gone. Attributes: `process`, `reason`."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"{process}: {reason}")
        self.process = process
        self.reason = reason


class EnvelopeExceeded(FabricError):
    """A Node's enforced memory envelope stopped the work. Attributes: `node`, `mechanism`, `limit_bytes`."""

    def __init__(self, node: str, mechanism: str, limit_bytes: int, detail: str) -> None:
        super().__init__(
            f"Node {node!r}: stopped by its memory envelope of {limit_bytes:,} B ({mechanism}): {detail}"
        )
        self.node = node
        self.mechanism = mechanism
        self.limit_bytes = limit_bytes


class RealizationFailed(FabricError):
    """A plan could not be turned into running stages. Attributes: `node`, `reason`."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"Node {node!r}: {reason}")
        self.node = node
        self.reason = reason


class StageLost(FabricError):
    """A stage died or fell silent. Attributes: `node`, `participant`, `reason`, `committed` (tokens kept)."""

    def __init__(self, node: str, participant: str, reason: str, committed: int | None = None) -> None:
        kept = "" if committed is None else f"; {committed} committed tokens are kept in the ledger"
        super().__init__(f"Node {node!r} lost {participant}: {reason}{kept}")
        self.node = node
        self.participant = participant
        self.reason = reason
        self.committed = committed


class AuthorityUncertain(FabricError):
    """Two claims to one scope, or a lapsed lease: serving stops rather than guesses."""


class CommitRefused(FabricError):
    """A result is not the next commit of the current authority; `code` says why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class WireError(FabricError):
    """A frame is malformed, of another version, or fails its checksum; `code` says which."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class ReplayDiverged(FabricError):
    """A replay of a recorded partition did not reproduce the record at `position`."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"position {position}: {detail}")
        self.position = position
