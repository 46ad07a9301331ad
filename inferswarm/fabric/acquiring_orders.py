"""The pure part of acquiring: which artifacts first, what their digests are by now, tickets, what a stage is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.source_choices import Choice, Want
from inferswarm.artifacts.sources import ORIGIN, USUAL_POLICY, Source, SourcePolicy, is_remote_first
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.taxonomy import COVERAGE_INCOMPLETE, IDENTITY_MISMATCH, INTEGRITY_MISMATCH
from inferswarm.artifacts.tickets import Ticket, TicketBooth
from inferswarm.artifacts.types import ByteRange, StoredBlob, StoredBlobs
from inferswarm.errors import ArtifactError
from inferswarm.fabric import messages as m
from inferswarm.fabric.transfer_records import Place, pin_place
from inferswarm.planner.plan import ExecutionPlan

THE_ORIGIN: Final = Source(ORIGIN, ORIGIN)
"""Where each object was described; its address is the artifact's own."""
Content = tuple[str, str, ByteRange]
"""Whose digest one first fetch says for all: object, version (empty: none is stated), range."""


class Round(NamedTuple):
    """What is acquired at once, and what waits for the digests that this finds."""

    now: list[Want]
    later: list[Want]


class HeldArtifact(NamedTuple):
    """An artifact as it was ordered, and the digest under which the Node holds it."""

    artifact: Artifact
    sha256: str


class Terms(NamedTuple):
    """What all orders and tickets of one acquisition have in common."""

    generation: int
    expires_at: int
    policy: SourcePolicy = USUAL_POLICY
    unpublished: frozenset[Content] = frozenset()
    """Whose digest no manifest says: if it is known, a first fetch has found it."""


def check_needed(needed: m.NeededArtifacts, plan: ExecutionPlan, plan_digest: str) -> None:
    """Refuse artifacts of another plan, and a plan of which a participant has none.

    Raises ArtifactError `PROVENANCE_IDENTITY_MISMATCH`, `REQUIRED_STATE_COVERAGE_INCOMPLETE`.
    """
    if needed.plan.plan_digest != plan_digest:
        found = needed.plan.plan_digest
        raise ArtifactError(IDENTITY_MISMATCH, "the plan's artifacts", f"are those of {found}, not of {plan_digest}")
    names = {item.participant for item in needed.plan.participants}
    wanted = {placement.participant for placement in plan.placements}
    if names != wanted:
        raise ArtifactError(
            COVERAGE_INCOMPLETE, "the plan's artifacts", f"are for {sorted(names)}, the plan has {sorted(wanted)}"
        )


def content_of(artifact: Artifact) -> Content:
    """Return of what an artifact's digest is the digest, whoever needs it."""
    version = artifact.origin.version
    return (artifact.origin.uri, "" if isinstance(version, msgspec.UnsetType) else version, artifact.range)


def is_known(artifact: Artifact) -> bool:
    """Return whether an artifact's record says its digest."""
    return not isinstance(artifact.sha256, msgspec.UnsetType)


def unpublished_of(artifacts: PlanArtifacts) -> frozenset[Content]:
    """Return the contents whose digests the artifacts of a plan, as they were derived, do not say."""
    everything = (artifact for item in artifacts.participants for artifact in item.artifacts)
    return frozenset(content_of(artifact) for artifact in everything if not is_known(artifact))


def with_known_digests(artifacts: PlanArtifacts, pins: Mapping[Place, str]) -> PlanArtifacts:
    """Return the artifacts with the digests that earlier first fetches found of the same version."""

    def known(artifact: Artifact) -> Artifact:
        place = None if is_known(artifact) else pin_place(artifact)
        return artifact if place is None or place not in pins else replace(artifact, sha256=pins[place])

    participants = tuple(
        replace(item, artifacts=tuple(map(known, item.artifacts))) for item in artifacts.participants
    )
    return replace(artifacts, participants=participants)


def unknown_places_of(artifacts: PlanArtifacts) -> set[Place]:
    """Return of what nobody has said a digest, where a pin could say it."""
    wants = (artifact for item in artifacts.participants for artifact in item.artifacts)
    places = (pin_place(artifact) for artifact in wants if not is_known(artifact))
    return {place for place in places if place is not None}


def unknown_places(wants: Iterable[Want], found: Mapping[Content, str]) -> dict[Place, Content]:
    """Return of what nobody has said a digest yet, where a pin could say it."""
    places = ((pin_place(want.artifact), content_of(want.artifact)) for want in wants if not is_known(want.artifact))
    return {place: content for place, content in places if place is not None and content not in found}


def digests_told(
    places: Collection[Place], told: Mapping[str, Iterable[Pin]], name_of: Callable[[str], str]
) -> dict[Place, str]:
    """Return the digests that first fetches found for these places, as Nodes, by id, say; others are left out.

    Raises ArtifactError `INTEGRITY_DIGEST_MISMATCH` naming both Nodes where two say different ones.
    """
    said: dict[Place, tuple[str, Pin]] = {}
    for node_id, pins in told.items():
        for pin in pins:
            place = (pin.uri, pin.version, pin.range.start, pin.range.end)
            if place not in places:
                continue
            first, known = said.setdefault(place, (node_id, pin))
            if known.sha256 != pin.sha256:
                subject = f"bytes {pin.range.start:,} to {pin.range.end:,} of {pin.uri}"
                reason = (
                    f"of version {pin.version} were {_said(known, name_of(first))}, and "
                    f"{_said(pin, name_of(node_id))}; a published manifest says which is right"
                )
                raise ArtifactError(INTEGRITY_MISMATCH, subject, reason)
    return {place: pin.sha256 for place, (_, pin) in said.items()}


def _said(pin: Pin, node: str) -> str:
    how = f"as Node {node} was told" if pin.is_told else f"when Node {node} first fetched them"
    return f"{pin.sha256} {how}"


def next_round(wants: Iterable[Want], found: Mapping[Content, str]) -> Round:
    """Return what to acquire at once: of what several need and nobody knows the digest of, one first.

    `found` are the digests that earlier rounds found: the others are held to them.
    """
    now: list[Want] = []
    later: list[Want] = []
    firsts: set[Content] = set()
    for want in wants:
        content = content_of(want.artifact)
        if is_known(want.artifact):
            now.append(want)
        elif content in found:
            now.append(want._replace(artifact=replace(want.artifact, sha256=found[content])))
        elif content in firsts:
            later.append(want)
        else:
            firsts.add(content)
            now.append(want)
    return Round(now, later)


def shut_pairs(wants: Iterable[Want], shut: frozenset[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return (source id, artifact id) that may not be used, from (source id, digest of a content)."""
    by_digest: dict[str, list[str]] = {}
    for source, sha256 in shut:
        by_digest.setdefault(sha256, []).append(source)
    return tuple(
        (source, want.artifact.id)
        for want in wants
        if not isinstance(want.artifact.sha256, msgspec.UnsetType)
        for source in by_digest.get(want.artifact.sha256, ())
    )


def orders_of(
    wants: Sequence[Want], choices: Sequence[Choice], booth: TicketBooth, terms: Terms
) -> tuple[m.AcquisitionOrder, ...]:
    """Return the orders for choices; for a peer each has a ticket that is good for this attempt alone."""
    return tuple(_order_of(want, choice, booth, terms) for want, choice in zip(wants, choices, strict=True))


def _order_of(want: Want, choice: Choice, booth: TicketBooth, terms: Terms) -> m.AcquisitionOrder:
    ticket, source, sha256 = "", choice.source, want.artifact.sha256
    if source is not None and source.id != ORIGIN:
        assert not isinstance(sha256, msgspec.UnsetType), "nobody advertises what has no digest"
        ticket = booth.issue(
            Ticket(
                scope=booth.scope,
                artifact=sha256,
                participant=choice.participant,
                node_id=choice.node_id,
                source=source,
                attempt=choice.attempt,
                generation=terms.generation,
                expires_at=terms.expires_at,
            )
        )
    return m.AcquisitionOrder(
        artifact=want.artifact,
        source=source,
        ticket=ticket,
        attempt=choice.attempt,
        fetches_anew=source is not None and is_remote_first(terms.policy),
        is_pinned=is_known(want.artifact) and content_of(want.artifact) in terms.unpublished,
    )


def stored_blobs(held: Iterable[HeldArtifact], files: Sequence[str]) -> StoredBlobs:
    """Return under which digests a Node keeps the weights of a participant; its root is the Node's to say."""
    places = {uri: index for index, uri in enumerate(files)}
    blobs = (
        StoredBlob(places[item.artifact.origin.uri], item.artifact.range, item.sha256)
        for item in held
        if item.artifact.states
    )
    return StoredBlobs("", tuple(sorted(blobs, key=lambda blob: (blob.file, blob.range))))


def describe(artifact: Artifact) -> str:
    """Return what people call an artifact: its states, and which bytes of which object it is."""
    name = ", ".join(artifact.states) or "metadata"
    return f"{name} (bytes {artifact.range.start:,} to {artifact.range.end:,} of {artifact.origin.uri})"
