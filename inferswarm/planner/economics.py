"""What things cost, normalised: the planner's only view of evidence.

Times are seconds. Each curve carries `low` and `high`, factors around its point estimate that came from the
spread of the samples and the residuals of the fit, and the ids of the records it was made of.
"""

from __future__ import annotations

from typing import Literal

from inferswarm.documents import Document

Phase = Literal["first-pass", "step"]
"""`first-pass`: several positions of a prompt in one go. `step`: one new position."""


class ServiceCurve(Document, frozen=True, kw_only=True):
    """Time of one unit of a cost class on a Compute Unit, for `n` positions behind a context of `c` positions.

    seconds = base + per_position × n + per_context × n × (c + n / 2); for a step, n = 1.
    """

    compute_unit_id: str
    cost_class: str
    representation: str
    phase: Phase
    base_seconds: float
    seconds_per_position: float = 0.0
    seconds_per_position_context: float = 0.0
    low: float = 1.0
    high: float = 1.0
    evidence_ids: tuple[str, ...] = ()

    def seconds(self, positions: int, context: float) -> float:
        """Return the point estimate for `positions` new positions behind `context` earlier ones."""
        return (
            self.base_seconds
            + self.seconds_per_position * positions
            + self.seconds_per_position_context * positions * (context + positions / 2)
        )


class PathCurve(Document, frozen=True, kw_only=True):
    """Time of one message over a directed pair of Nodes, software included: latency + bytes × per_byte."""

    source: str
    target: str
    latency_seconds: float
    seconds_per_byte: float
    low: float = 1.0
    high: float = 1.0
    evidence_ids: tuple[str, ...] = ()

    def seconds(self, payload_bytes: float) -> float:
        """Return the point estimate for one message of `payload_bytes`."""
        return self.latency_seconds + self.seconds_per_byte * payload_bytes


class Economics(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.economics/1"):
    """All curves that apply to one problem on one graph, and what is missing. At most one curve for each thing."""

    services: tuple[ServiceCurve, ...]
    paths: tuple[PathCurve, ...]
    missing: tuple[str, ...] = ()
    """What was looked for and not found, each with its reason."""
