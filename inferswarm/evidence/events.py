"""What happens to resources, as documents: each kind of event belongs to one of five axes and says nothing of others.

An event names everything that it implicates, and concerns the narrowest of it: a frame with a wrong checksum
implicates the path, the sender and its Node, and concerns the path. Where several scopes of the narrowest kind are
implicated, the evidence cannot tell them apart and concerns each.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

from inferswarm.documents import Digits, Document, digest

Axis = Literal["availability", "compatibility", "integrity", "qualification", "performance"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)

ScopeKind = Literal[
    "artifact-at-source",
    "path",
    "participant",
    "implementation",
    "source",
    "artifact",
    "memory-resource",
    "compute-unit",
    "node",
]
NARROW_TO_WIDE: Final[tuple[ScopeKind, ...]] = get_args(ScopeKind)
"""Kinds of scope, narrowest first. An implementation is a primitive in a representation on a Compute Unit."""

EventKind = Literal[
    "joined",
    "left",
    "heartbeat-missed",
    "unreachable",
    "returned",
    "availability-revalidated",
    "compatible",
    "incompatible",
    "integrity-checked",
    "checksum-mismatch",
    "digest-mismatch",
    "result-mismatch",
    "state-corrupted",
    "integrity-revalidation-passed",
    "integrity-revalidation-failed",
    "qualified",
    "qualification-missing",
    "qualification-stale",
    "qualification-degraded",
    "qualification-suspended",
    "qualification-invalid",
    "performed-as-expected",
    "slowed",
    "sped-up",
    "throttled",
    "overheated",
    "link-narrowed",
    "envelope-exceeded",
    "probe-failed",
]
EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)


class Effect(NamedTuple):
    """Which axis an event is about, and the state that it is evidence of."""

    axis: Axis
    state: str


EFFECTS: Final[dict[EventKind, Effect]] = {
    "joined": Effect("availability", "available"),
    "left": Effect("availability", "unavailable"),
    "heartbeat-missed": Effect("availability", "unavailable"),
    "unreachable": Effect("availability", "unavailable"),
    "returned": Effect("availability", "returned"),
    "availability-revalidated": Effect("availability", "available"),
    "compatible": Effect("compatibility", "compatible"),
    "incompatible": Effect("compatibility", "incompatible"),
    "integrity-checked": Effect("integrity", "trusted"),
    "checksum-mismatch": Effect("integrity", "quarantined"),
    "digest-mismatch": Effect("integrity", "quarantined"),
    "result-mismatch": Effect("integrity", "quarantined"),
    "state-corrupted": Effect("integrity", "quarantined"),
    "integrity-revalidation-passed": Effect("integrity", "trusted"),
    "integrity-revalidation-failed": Effect("integrity", "quarantined"),
    "qualified": Effect("qualification", "applicable"),
    "qualification-missing": Effect("qualification", "unknown"),
    "qualification-stale": Effect("qualification", "stale"),
    "qualification-degraded": Effect("qualification", "degraded"),
    "qualification-suspended": Effect("qualification", "suspended"),
    "qualification-invalid": Effect("qualification", "invalid"),
    "performed-as-expected": Effect("performance", "as-expected"),
    "slowed": Effect("performance", "degraded"),
    "sped-up": Effect("performance", "improved"),
    "throttled": Effect("performance", "degraded"),
    # Heat and a narrower link are no measurement: what to expect is unknown until there is one.
    "overheated": Effect("performance", "unknown"),
    "link-narrowed": Effect("performance", "unknown"),
    "probe-failed": Effect("performance", "unknown"),
    # What was measured of its memory did not hold; it has to be measured again. It shuts nothing.
    "envelope-exceeded": Effect("qualification", "stale"),
}
REVALIDATIONS: Final[tuple[EventKind, ...]] = (
    "availability-revalidated",
    "integrity-revalidation-passed",
    "integrity-revalidation-failed",
)


class Scope(Document, frozen=True, order=True):
    """What evidence is about."""

    kind: ScopeKind
    id: str

    def __post_init__(self) -> None:
        """Refuse a scope without a name."""
        super().__post_init__()
        if not self.id:
            raise ValueError(f"a scope of kind {self.kind} needs an id")

    def __str__(self) -> str:
        """Name it for people."""
        return f"{self.kind} {self.id}"


class HealthEvent(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.health-event/1"):
    """Something that was seen."""

    kind: EventKind
    implicated: tuple[Scope, ...]
    """Everything that could be behind it, sorted, each once."""
    at_ns: Digits
    evidence_ids: tuple[str, ...] = ()
    """Records that show it. An event about integrity and a revalidation need them."""
    detail: str

    def __post_init__(self) -> None:
        """Refuse an event about nothing, and a claim about integrity without evidence."""
        super().__post_init__()
        if not self.implicated or list(self.implicated) != sorted(set(self.implicated)):
            raise ValueError("an event implicates at least one scope, sorted, each once")
        if not self.detail.strip():
            raise ValueError("an event says what was seen")
        if (self.axis == "integrity" or self.kind in REVALIDATIONS) and not self.evidence_ids:
            raise ValueError(f"{self.kind} needs the ids of the records that show it")

    @property
    def id(self) -> str:
        """Return the digest that identifies this event."""
        return digest(self)

    @property
    def axis(self) -> Axis:
        """Return the one axis that it is about."""
        return EFFECTS[self.kind].axis

    @property
    def concerns(self) -> tuple[Scope, ...]:
        """Return the narrowest of what it implicates."""
        narrowest = min(NARROW_TO_WIDE.index(scope.kind) for scope in self.implicated)
        return tuple(scope for scope in self.implicated if NARROW_TO_WIDE.index(scope.kind) == narrowest)
