"""The zeros that a ledger of bytes proves, each by its mechanism.

A zero is never read from what lies on a disk at the end: received and deleted would look the same. Each is derived
from entries that must be there if the thing happened, and is unknown where those entries were not kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from inferswarm.artifacts.byte_ledger import ByteLedger, LedgerEvent
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.requirement import coalesce
from inferswarm.artifacts.taxonomy import RECONCILIATION_MISMATCH
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError


class ZeroInvariant(NamedTuple):
    """A number that must be 0, and what it is derived from; None: nothing was kept that would show it."""

    name: str
    value: int | None
    mechanism: str

    @property
    def holds(self) -> bool:
        """Whether it is known to be 0."""
        return self.value == 0


def zero_invariants(
    ledger: ByteLedger,
    plan: PlanArtifacts,
    authorized: Collection[tuple[str, str, str]],
    serving_since_ns: int | None = None,
    results: Collection[str] = (),
) -> tuple[ZeroInvariant, ...]:
    """Return every number that must be 0 after what `plan` needed was acquired.

    `authorized` holds (participant, artifact id, source id) of every attempt that was allowed; `serving_since_ns` is
    when the plan began to serve, None when it did not. `results` are ids of results of transforms that participants
    were to get beside what the plan needs: their bytes are of no object's ranges.
    """
    received = [event for event in ledger.events if event.kind == "received"]
    of_objects = [event for event in received if event.artifact not in results]
    guarded = [event.bytes for event in ledger.events if event.kind == "coordinator_observed"]
    late = None if serving_since_ns is None else sum(e.bytes for e in received if int(e.at_ns) >= serving_since_ns)
    return (
        ZeroInvariant(
            "unrelated_model_bytes_acquired",
            _unrelated(of_objects, plan),
            "the range of every received entry, less the ranges of the participant's artifacts; what lies between "
            "tensors and was read along counts; results of transforms that were declared do not",
        ),
        ZeroInvariant(
            "unexplained_full_object_bytes",
            _full_objects(of_objects, plan) + ledger.total("unexplained_full_object"),
            "the union of the received ranges of each object, against its length and what the participant declared",
        ),
        ZeroInvariant(
            "unexplained_received_bytes",
            sum(map(abs, ledger.unexplained().values())),
            "the transport's count of every attempt, less what the ledger says became of it",
        ),
        ZeroInvariant(
            "unauthorized_source_bytes",
            _unauthorized(received, authorized),
            "participant, artifact and source of every received entry, against the authorizations; of bytes of no "
            "artifact, participant and source",
        ),
        ZeroInvariant(
            "reacquired_verified_bytes",
            _reacquired(ledger.events),
            "received entries of an artifact that stand after its hit or its verified end",
        ),
        ZeroInvariant(
            "unverified_materialized_bytes",
            _unverified(ledger.events),
            "materialized entries of an artifact before which the ledger has no hit and no verified end",
        ),
        ZeroInvariant(
            "coordinator_observed_bytes",
            sum(guarded) if guarded else None,
            "what the guard at the Coordinator's entries reported; unknown without a report",
        ),
        ZeroInvariant(
            "steady_state_model_bytes_moved", late, "received entries from the moment on at which the plan served"
        ),
    )


def check_zeros(invariants: Iterable[ZeroInvariant]) -> None:
    """Refuse a number that is not known to be 0. Raises ArtifactError `RECONCILIATION_MISMATCH`."""
    for item in invariants:
        if not item.holds:
            found = "unknown" if item.value is None else f"{item.value:,}"
            raise ArtifactError(
                RECONCILIATION_MISMATCH, item.name, f"is {found}, must be 0 (derived from {item.mechanism})"
            )


def _declared(plan: PlanArtifacts) -> dict[tuple[str, str], list[ByteRange]]:
    """Return (participant, object) → the ranges of its artifacts there."""
    found: dict[tuple[str, str], list[ByteRange]] = {}
    for item in plan.participants:
        for artifact in item.artifacts:
            found.setdefault((item.participant, artifact.origin.uri), []).append(artifact.range)
    return found


def _place(event: LedgerEvent) -> tuple[tuple[str, str], ByteRange]:
    assert not isinstance(event.object, msgspec.UnsetType)
    assert not isinstance(event.range, msgspec.UnsetType)
    return (event.participant, event.object), event.range


def _unrelated(received: Iterable[LedgerEvent], plan: PlanArtifacts) -> int:
    declared = {key: coalesce(ranges) for key, ranges in _declared(plan).items()}
    total = 0
    for event in received:
        key, place = _place(event)
        inside = sum(
            max(0, min(whole.end, place.end) - max(whole.start, place.start)) for whole in declared.get(key, ())
        )
        total += place.length - inside
    return total


def _full_objects(received: Iterable[LedgerEvent], plan: PlanArtifacts) -> int:
    """Return the bytes of the objects that a participant received whole without having declared all of them."""
    objects: dict[str, UpstreamObject] = {a.origin.uri: a.origin for p in plan.participants for a in p.artifacts}
    came: dict[tuple[str, str], list[ByteRange]] = {}
    for event in received:
        key, place = _place(event)
        came.setdefault(key, []).append(place)
    declared = _declared(plan)
    return sum(
        objects[key[1]].length
        for key, ranges in came.items()
        if key[1] in objects
        and coalesce(ranges) == (whole := (ByteRange(0, objects[key[1]].length),))
        and coalesce(declared.get(key, ())) != whole
    )


def _unauthorized(received: Iterable[LedgerEvent], authorized: Collection[tuple[str, str, str]]) -> int:
    pairs = {(participant, source) for participant, _, source in authorized}
    return sum(
        event.bytes
        for event in received
        if (event.participant, event.source) not in pairs
        or (
            event.artifact is not msgspec.UNSET
            and (event.participant, event.artifact, event.source) not in authorized
        )
    )


def _reacquired(events: Iterable[LedgerEvent]) -> int:
    verified: set[tuple[str, object]] = set()
    total = 0
    for event in events:
        key = (event.participant, event.artifact)
        if event.kind == "received" and key in verified:
            total += event.bytes
        elif event.kind in ("cache_hit", "acquired", "resume_transfer"):
            verified.add(key)
    return total


def _unverified(events: Iterable[LedgerEvent]) -> int:
    verified: set[tuple[str, object]] = set()
    total = 0
    for event in events:
        key = (event.participant, event.artifact)
        if event.kind in ("cache_hit", "acquired", "resume_transfer"):
            verified.add(key)
        elif event.kind == "materialized" and key not in verified:
            total += event.bytes
    return total
