"""Health of a scope on five axes that are never folded into one.

They are availability, compatibility, integrity, qualification and performance. Health is a pure function of an
ordered list of events. Each event moves one axis of the scope that it concerns and leaves the other four as they
were, reason and time included. What nothing was seen of is unknown, which is neither good nor bad. What was away and
came back is `returned` until a check of its availability passes; a second arrival is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from inferswarm.documents import Digits, Document
from inferswarm.evidence.events import AXES, EFFECTS, Axis, HealthEvent, Scope
from inferswarm.evidence.quarantine import quarantines_of

STATES: Final[dict[Axis, tuple[str, ...]]] = {
    "availability": ("unknown", "available", "unavailable", "returned"),
    "compatibility": ("unknown", "compatible", "incompatible"),
    "integrity": ("unknown", "trusted", "quarantined"),
    "qualification": ("unknown", "applicable", "stale", "degraded", "suspended", "invalid"),
    "performance": ("unknown", "as-expected", "degraded", "improved"),
}
NOTHING_SEEN = "nothing was seen of it"


class AxisState(Document, frozen=True, kw_only=True):
    """What is known on one axis, why, and since when; `since_ns` is None while nothing was seen."""

    axis: Axis
    state: str = "unknown"
    since_ns: Digits | None = None
    evidence_ids: tuple[str, ...] = ()
    detail: str = NOTHING_SEEN

    def __post_init__(self) -> None:
        """Refuse a state that the axis does not have, and one without a reason."""
        super().__post_init__()
        if self.state not in STATES[self.axis]:
            raise ValueError(f"{self.axis} is {self.state!r}, needed one of {', '.join(STATES[self.axis])}")
        if not self.detail:
            raise ValueError(f"{self.axis} needs a reason")


class Health(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.health/1"):
    """Five answers about one scope; there is no sixth that sums them up."""

    scope: Scope
    availability: AxisState = AxisState(axis="availability")
    compatibility: AxisState = AxisState(axis="compatibility")
    integrity: AxisState = AxisState(axis="integrity")
    qualification: AxisState = AxisState(axis="qualification")
    performance: AxisState = AxisState(axis="performance")

    def __post_init__(self) -> None:
        """Refuse an answer in the place of another."""
        super().__post_init__()
        for axis in AXES:
            if (found := self.on(axis).axis) != axis:
                raise ValueError(f"{axis} holds a state of {found}")

    def on(self, axis: Axis) -> AxisState:
        """Return what is known on one axis."""
        found: AxisState = getattr(self, axis)
        return found


class Exclusion(NamedTuple):
    """Why a scope may not be used, on one axis; the axis decides which gate says so."""

    axis: Axis
    reason: str


def health_of(scope: Scope, events: Iterable[HealthEvent]) -> Health:
    """Return the health of a scope after these events, in the order given; events about others change nothing."""
    own = [event for event in events if scope in event.concerns]
    states = {axis: AxisState(axis=axis) for axis in AXES}
    for event in own:
        if event.axis != "integrity":
            states[event.axis] = _next(states[event.axis], event)
    states["integrity"] = _integrity(own, scope)
    return Health(scope=scope, **states)


def exclusions(health: Health) -> tuple[Exclusion, ...]:
    """Return why the scope may not take part, axis by axis; empty when nothing speaks against it.

    Unknown speaks against nothing, and neither does performance, whatever it is: that is for ranking plans. Whether
    a missing or stale qualification excludes is for the correctness policy to say, so only an invalid or suspended
    one is named here.
    """
    against: dict[Axis, tuple[str, ...]] = {
        "availability": ("unavailable", "returned"),
        "compatibility": ("incompatible",),
        "integrity": ("quarantined",),
        "qualification": ("suspended", "invalid"),
    }
    found = []
    for axis, states in against.items():
        current = health.on(axis)
        if current.state in states:
            found.append(Exclusion(axis, f"{health.scope} is {current.state}: {current.detail}"))
    return tuple(found)


def _next(current: AxisState, event: HealthEvent) -> AxisState:
    """Return the state after an event of the same axis; integrity is not decided here."""
    state = EFFECTS[event.kind].state
    if event.kind == "joined" and current.state in ("unavailable", "returned"):
        state = "returned"
    if event.kind == "availability-revalidated" and current.state == "unavailable":
        return current  # a check of what is away is no check
    return AxisState(
        axis=event.axis, state=state, since_ns=event.at_ns, evidence_ids=event.evidence_ids, detail=event.detail
    )


def _integrity(own: list[HealthEvent], scope: Scope) -> AxisState:
    """Return quarantined while the scope is shut, trusted after a check or a revalidation, else unknown."""
    state = quarantines_of(own)
    if shut := state.of(scope):
        return AxisState(
            axis="integrity",
            state="quarantined",
            since_ns=shut[0].since_ns,
            evidence_ids=shut[0].evidence_ids,
            detail=shut[0].detail,
        )
    checks = [event for event in own if EFFECTS[event.kind] == ("integrity", "trusted")]
    if not checks:
        return AxisState(axis="integrity")
    last = checks[-1]
    return AxisState(
        axis="integrity",
        state="trusted",
        since_ns=last.at_ns,
        evidence_ids=last.evidence_ids,
        detail=last.detail,
    )
