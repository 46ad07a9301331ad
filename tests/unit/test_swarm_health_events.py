"""From what happened in a swarm to events: each about what it shows and nothing wider."""

from __future__ import annotations

import pytest

from inferswarm.errors import (
    AdmissionError,
    ArtifactError,
    CommitRefused,
    EngineError,
    EnvelopeExceeded,
    InferSwarmError,
    MeasurementError,
    ReplayDiverged,
    StageLost,
    WireError,
)
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.quarantine import quarantines_of
from inferswarm.fabric import messages as m
from inferswarm.resources.types import ResourceGraph
from inferswarm.swarm.health_events import (
    COORDINATOR,
    Refused,
    corrupt_frames,
    events_of_fault,
    failed_probe,
    observe_members,
    refused_frames,
)
from tests.integration.null_swarm import null_plan
from tests.unit.test_swarm_health import GRAPH

AT = 10**18
PLAN = null_plan(("amber", "birch"))
NODE = Scope("node", "node-1")


def concerned(error: InferSwarmError, graph: ResourceGraph = GRAPH) -> list[tuple[str, str]]:
    found = events_of_fault(error, graph, PLAN, AT)
    return [(event.kind, str(scope)) for event in found for scope in event.concerns]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StageLost("birch", "stage-0", "killed"), [("left", "participant stage-0@node-1")]),
        (StageLost("birch", "its agent", "lease lapsed"), [("left", "node node-1")]),
        (StageLost("swarm", "session 1", "lost"), []),
        (EnvelopeExceeded("birch", "cgroup-v1", 10**9, "killed"), [("envelope-exceeded", "memory-resource ram-1")]),
        (
            ReplayDiverged(21, "another token"),
            [
                ("result-mismatch", "implementation null/fp32@cpu-amber"),
                ("result-mismatch", "implementation null/fp32@cpu-birch"),
            ],
        ),
        (ArtifactError("INTEGRITY_DIGEST_MISMATCH", "/m", "x"), [("digest-mismatch", "artifact-at-source /m")]),
        (ArtifactError("SOURCE_OBJECT_UNAVAILABLE", "/m", "x"), []),
        (ArtifactError("PROVENANCE_IDENTITY_MISMATCH", "/m", "was replaced"), []),
        (EngineError("agent", "ended"), []),
        (WireError("PEER_NOT_RECEIVING", "slow"), []),
        (CommitRefused("NO_ACTIVE_AUTHORITY", "none"), []),
        (AdmissionError("partition", "a", "b"), []),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, InferSwarmError) else "",
)
def test_an_error_is_evidence_of_exactly_what_it_says(
    error: InferSwarmError, expected: list[tuple[str, str]]
) -> None:
    assert concerned(error) == expected


def test_a_replay_of_no_known_plan_is_no_evidence_about_anybody() -> None:
    assert events_of_fault(ReplayDiverged(21, "another token"), GRAPH, None, AT) == ()


def test_a_failed_probe_makes_the_performance_of_its_unit_unknown() -> None:
    question = m.OnNode(node_id="node-1", command=m.OnStage(stage="probe", command=m.Report()))
    (event,) = failed_probe(MeasurementError("no echo"), question, AT)
    assert (event.kind, event.axis, event.concerns) == ("probe-failed", "performance", (NODE,))
    assert failed_probe(MeasurementError("x"), m.Status(), AT) == ()


def status(*nodes: str) -> m.SwarmStatus:
    members = tuple(
        m.NodeStatus(node_id=node, name=node, incarnation="1", pid=1, mechanism="none", lease_left_seconds=1.0)
        for node in nodes
    )
    return m.SwarmStatus(scope="s", term=1, pid=1, nodes=members, epoch=None, plan_digest=None, refusals=())


def test_members_are_noted_when_they_change_and_only_then() -> None:
    events: list[HealthEvent] = []
    seen = []
    for there in (True, True, False, False, True, True):
        found = observe_members(GRAPH, status(*(["node-1"] if there else [])), events, AT)
        events += found.events
        seen.append(([event.kind for event in found.events], sorted(found.missing)))
    assert seen == [
        (["joined"], []),
        ([], []),
        (["left"], ["node-1"]),
        ([], ["node-1"]),
        (["returned"], []),
        ([], []),
    ]
    assert quarantines_of(events).active == ()


def report(participant: str, **refusals: int) -> m.StageReport:
    return m.StageReport(
        participant=participant,
        positions=0,
        steps=0,
        source_bytes=0,
        state_bytes_moved=0,
        frames_sent=0,
        bytes_sent=0,
        refusals=tuple(sorted(refusals.items())),
        resident_bytes=0,
        resident_peak_bytes=0,
        anonymous_bytes=0,
    )


def test_corrupt_frames_concern_the_paths_that_they_may_have_come_over() -> None:
    """The second stage hears from the first alone; the first from the last and from the Coordinator."""
    reports = (report("stage-0", CHECKSUM_MISMATCH=2), report("stage-1", CHECKSUM_MISMATCH=1, MALFORMED_FRAME=5))
    found = refused_frames(PLAN, reports, {"CHECKSUM_MISMATCH": 4, "WRONG_SCOPE": 9})
    assert found == (
        Refused("node-amber", (COORDINATOR, "node-birch"), 2),
        Refused("node-birch", ("node-amber",), 1),
        Refused(COORDINATOR, ("node-birch",), 4),
    )
    scopes = [scope for item in found for event in corrupt_frames(item, 1, "p", AT) for scope in event.concerns]
    assert [str(scope) for scope in scopes] == [
        "path coordinator->node-amber",
        "path node-birch->node-amber",
        "path node-amber->node-birch",
        "path node-birch->coordinator",
    ]
    assert refused_frames(PLAN, (report("stage-0", MALFORMED_FRAME=3), report("stage-1")), {"WRONG_SCOPE": 2}) == ()
