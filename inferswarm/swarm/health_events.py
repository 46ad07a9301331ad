"""What happened in a running swarm, as events of health: each about what it shows, and nothing wider.

A stage that was lost says nothing of its Node, and a Node that left nothing of its integrity. Integrity is touched by
three things only: a frame with a wrong checksum, bytes with another digest than was recorded, and a replay of a
recorded partition that did not come out bit for bit. A replay goes over every participant, so it concerns each of
their implementations until a check tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH
from inferswarm.documents import digest
from inferswarm.errors import (
    ArtifactError,
    EnvelopeExceeded,
    InferSwarmError,
    MeasurementError,
    ReplayDiverged,
    StageLost,
)
from inferswarm.evidence.events import EventKind, HealthEvent, Scope
from inferswarm.evidence.health import health_of
from inferswarm.evidence.types import make_context
from inferswarm.fabric import messages as m
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.standing import implementation_scope
from inferswarm.resources.types import ResourceGraph

CHECKSUM_CODE = "CHECKSUM_MISMATCH"
COORDINATOR = "coordinator"
"""The end of a path that is no Node: no plan goes over it."""
CORRUPT_BYTES = (INTEGRITY_MISMATCH, "CACHE_OBJECT_TAMPERED")
"""Codes of an ArtifactError that say that bytes are not those that were recorded."""

TELLING = (ReplayDiverged, EnvelopeExceeded, StageLost, ArtifactError)
"""Errors that may say something of a resource's health."""


def evidence_of(**facts: str | int | float) -> str:
    """Return the digest of what was seen, as the id of evidence that no record holds."""
    return digest(make_context(**facts))


def events_of_fault(
    error: InferSwarmError, graph: ResourceGraph, plan: ExecutionPlan | None, at_ns: int
) -> tuple[HealthEvent, ...]:
    """Return what an error of the fabric shows; nothing for what says nothing of a resource's health.

    `plan` is the one that had authority, where one had.
    """
    match error:
        case ReplayDiverged():
            return _diverged(error, plan, at_ns)
        case EnvelopeExceeded():
            memories = [memory for memory in graph.memory_resources if memory.node_id == _node(graph, error.node)]
            scopes = [Scope("memory-resource", memory.id) for memory in memories if memory.kind == "ram"]
            return _events("envelope-exceeded", scopes, at_ns, str(error))
        case StageLost():
            return _lost(error, graph, at_ns)
        case ArtifactError() if error.code in CORRUPT_BYTES:
            evidence = evidence_of(code=error.code, subject=error.subject, reason=error.reason, at_ns=at_ns)
            scope = Scope("artifact-at-source", error.subject)
            return _events("digest-mismatch", [scope], at_ns, str(error), evidence)
        case _:
            return ()


def failed_probe(error: MeasurementError, question: m.Question, at_ns: int) -> tuple[HealthEvent, ...]:
    """Return that a probe failed on a stage: what to expect of its Compute Unit, or else its Node, is unknown."""
    if not isinstance(question, m.OnNode) or not isinstance(question.command, m.OnStage):
        return ()
    unit = getattr(question.command.command, "compute_unit_id", "")
    scope = Scope("compute-unit", unit) if unit else Scope("node", question.node_id)
    return _events("probe-failed", [scope], at_ns, str(error))


def _node(graph: ResourceGraph, name: str) -> str | None:
    return next((node.id for node in graph.nodes if node.name == name), None)


def _events(
    kind: EventKind, scopes: Iterable[Scope], at_ns: int, detail: str, *evidence: str
) -> tuple[HealthEvent, ...]:
    implicated = tuple(sorted(set(scopes)))
    if not implicated:
        return ()
    ids = tuple(sorted(evidence))
    return (HealthEvent(kind=kind, implicated=implicated, at_ns=str(at_ns), evidence_ids=ids, detail=detail),)


def participant_scope(participant: str, node_id: str) -> Scope:
    """Return the scope of a running plan's participant. No plan is made of it."""
    return Scope("participant", f"{participant}@{node_id}")


def _lost(error: StageLost, graph: ResourceGraph, at_ns: int) -> tuple[HealthEvent, ...]:
    node = _node(graph, error.node)
    if node is None:
        return ()
    if error.participant == "its agent":
        return _events("left", [Scope("node", node)], at_ns, str(error))
    scopes = [participant_scope(error.participant, node), Scope("node", node)]
    return _events("left", scopes, at_ns, str(error))


def _diverged(error: ReplayDiverged, plan: ExecutionPlan | None, at_ns: int) -> tuple[HealthEvent, ...]:
    if plan is None:
        return ()
    scopes = [
        implementation_scope(plan.primitive, plan.representation_of(placement), placement.compute_unit_id)
        for placement in plan.placements
    ]
    scopes += [Scope("compute-unit", placement.compute_unit_id) for placement in plan.placements]
    evidence = evidence_of(kind="replay", plan=digest(plan), position=error.position, seen=str(error), at_ns=at_ns)
    return _events("result-mismatch", scopes, at_ns, f"a replay diverged: {error}", evidence)


# -- members --


class Members(NamedTuple):
    """Who is there of those who should be, and what that changes."""

    missing: frozenset[str]
    """Ids of Nodes that are no members now."""
    events: tuple[HealthEvent, ...]


def observe_members(
    graph: ResourceGraph, status: m.SwarmStatus, events: Iterable[HealthEvent], at_ns: int
) -> Members:
    """Return which Nodes of the graph are no members now, and an event for each whose availability changed."""
    present = {node.node_id for node in status.nodes}
    known = tuple(events)
    found: list[HealthEvent] = []
    for node in graph.nodes:
        scope = Scope("node", node.id)
        state = health_of(scope, known).availability.state
        if node.id not in present:
            if state != "unavailable":
                found += _events("left", [scope], at_ns, f"Node {node.name} is no member of the swarm")
        elif state == "unavailable":
            found += _events("returned", [scope], at_ns, f"Node {node.name} is a member again")
        elif state == "unknown":
            found += _events("joined", [scope], at_ns, f"Node {node.name} joined the swarm")
    return Members(frozenset(node.id for node in graph.nodes if node.id not in present), tuple(found))


# -- frames --


class Refused(NamedTuple):
    """Frames that one receiver has refused for their checksum, since it began."""

    receiver: str
    """A Node's id, or `COORDINATOR`."""
    senders: tuple[str, ...]
    """Who may have sent them."""
    num_frames: int


def refused_frames(
    plan: ExecutionPlan, reports: Iterable[m.StageReport], coordinator: Mapping[str, int]
) -> tuple[Refused, ...]:
    """Return what each participant of a plan, and the Coordinator, have refused; `coordinator` is by code.

    A participant receives from the one before it; the first from the last and from the Coordinator, which are not
    told apart; the Coordinator from the last.
    """
    nodes = [placement.node_id for placement in plan.placements]
    before = {placement.participant: nodes[index - 1] for index, placement in enumerate(plan.placements)}
    first = plan.placements[0].participant
    own = {placement.participant: placement.node_id for placement in plan.placements}
    found = []
    for report in reports:
        receiver = own[report.participant]
        senders = {before[report.participant]} | ({COORDINATOR} if report.participant == first else set())
        count = dict(report.refusals).get(CHECKSUM_CODE, 0)
        found.append(Refused(receiver, tuple(sorted(senders - {receiver})), count))
    found.append(Refused(COORDINATOR, (nodes[-1],), coordinator.get(CHECKSUM_CODE, 0)))
    return tuple(item for item in found if item.num_frames)


def corrupt_frames(refused: Refused, num_new: int, plan_digest: str, at_ns: int) -> tuple[HealthEvent, ...]:
    """Return the event that frames with a wrong checksum are: about the paths that they may have come over."""
    scopes = [Scope("path", f"{sender}->{refused.receiver}") for sender in refused.senders]
    scopes += [Scope("node", end) for end in (*refused.senders, refused.receiver) if end != COORDINATOR]
    detail = f"{num_new} frames with a wrong checksum, {refused.num_frames} in all, at {refused.receiver}"
    evidence = evidence_of(
        kind="frames", receiver=refused.receiver, count=refused.num_frames, plan=plan_digest, at_ns=at_ns
    )
    return _events("checksum-mismatch", scopes, at_ns, detail, evidence)
