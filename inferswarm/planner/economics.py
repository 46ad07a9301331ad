"""What things cost, normalised: the planner's only view of evidence.

Times are seconds. Each curve carries `low` and `high`, factors around its point estimate that came from the
spread of the samples and the residuals of the fit, and the ids of the records it was made of.

A curve is *measured*, or *declared*: made from figures that somebody stated. Declared curves are no evidence. The
planner leaves them aside, as if nobody had them, unless it is asked for an estimate; and then it says so.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inferswarm.documents import Document

Provenance = Literal["measured", "declared"]
"""Where a curve comes from: records of measurements, or figures that somebody stated."""

Phase = Literal["first-pass", "step", "opening"]
"""`first-pass`: several positions of a prompt in one go. `step`: one new position. `opening`: once for each request,
whatever its length; needed where the problem says that a unit opens requests, and counted wherever there is one."""


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
    basis: Literal["declared"] | msgspec.UnsetType = msgspec.UNSET
    """Left out: measured. It is not written then, so the digests of measured curves do not know of it."""
    states: Literal["apart"] | msgspec.UnsetType = msgspec.UNSET
    """`apart`: states in another Memory Resource than the nearest. Left out, and not written: in the nearest."""

    @property
    def provenance(self) -> Provenance:
        """Where the curve comes from."""
        return "measured" if isinstance(self.basis, msgspec.UnsetType) else self.basis

    @property
    def apart(self) -> bool:
        """Whether it is for states in another Memory Resource than the nearest."""
        return not isinstance(self.states, msgspec.UnsetType)

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
    basis: Literal["declared"] | msgspec.UnsetType = msgspec.UNSET
    """Left out: measured, as for a service curve."""
    opening_seconds: float | msgspec.UnsetType = msgspec.UNSET
    """What a request takes once besides, with its first message over the path: what is at its end was at rest. Left
    out, and not written: nothing."""
    link_ids: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The Links that its messages go over, where that is known. Left out, and not written: one of the pair's Links,
    and nothing says which."""

    @property
    def provenance(self) -> Provenance:
        """Where the curve comes from."""
        return "measured" if isinstance(self.basis, msgspec.UnsetType) else self.basis

    @property
    def once_seconds(self) -> float:
        """What a request takes once besides; 0 where nothing is stated."""
        return 0.0 if isinstance(self.opening_seconds, msgspec.UnsetType) else self.opening_seconds

    def seconds(self, payload_bytes: float) -> float:
        """Return the point estimate for one message of `payload_bytes`."""
        return self.latency_seconds + self.seconds_per_byte * payload_bytes


class Economics(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.economics/1"):
    """All curves that apply to one problem on one graph, and what is missing.

    At most one curve for each thing, but a measured and a declared one may be there side by side.
    """

    services: tuple[ServiceCurve, ...]
    paths: tuple[PathCurve, ...]
    missing: tuple[str, ...] = ()
    """What was looked for and not found, each with its reason."""

    @property
    def rests_on_declared(self) -> bool:
        """Whether any curve is declared."""
        curves: tuple[ServiceCurve | PathCurve, ...] = (*self.services, *self.paths)
        return any(curve.provenance == "declared" for curve in curves)


def usable(economics: Economics, allow_estimates: bool) -> Economics:
    """Return the curves that a decision may use: the measured ones, and on request declared ones where none was.

    What is left aside counts as unknown and is named in `missing`: a measured figure is never replaced by a declared
    one, and a declared one never stands in for a measurement that nobody asked to do without.
    """
    if not economics.rests_on_declared:
        return economics
    measured = tuple(curve for curve in economics.services if curve.provenance == "measured")
    paths = tuple(curve for curve in economics.paths if curve.provenance == "measured")
    if allow_estimates:
        known = {_service_key(curve) for curve in measured}
        pairs = {(curve.source, curve.target) for curve in paths}
        return msgspec.structs.replace(
            economics,
            services=tuple(
                curve
                for curve in economics.services
                if curve.provenance == "measured" or _service_key(curve) not in known
            ),
            paths=tuple(
                curve
                for curve in economics.paths
                if curve.provenance == "measured" or (curve.source, curve.target) not in pairs
            ),
        )
    num_services, num_paths = len(economics.services) - len(measured), len(economics.paths) - len(paths)
    left_aside = (
        f"{num_services} service curves and {num_paths} path curves are made from declared figures, not from "
        "measurements; an estimate from them is made on request only"
    )
    return msgspec.structs.replace(
        economics, services=measured, paths=paths, missing=(*economics.missing, left_aside)
    )


def _service_key(curve: ServiceCurve) -> tuple[str, str, str, Phase, bool]:
    return curve.compute_unit_id, curve.cost_class, curve.representation, curve.phase, curve.apart
