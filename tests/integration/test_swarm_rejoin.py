"""A Node that was lost joins again, whichever engine runs its agent, and the swarm's events tell of it in order."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from inferswarm.errors import SpecError
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.resources import Envelope
from inferswarm.swarm import Swarm
from tests.unit.fabric.processes import wait_until

NODES = tuple(Envelope(name=name, threads=1, memory_bytes=300_000_000) for name in ("amber", "birch"))


def lose_and_rejoin(swarm: Swarm) -> None:
    """Kill the agent of birch, have it join again, and look at what is told of it."""
    before = {node.name: node for node in swarm.status().nodes}
    scope = Scope("node", before["birch"].node_id)
    with pytest.raises(SpecError, match="birch"):
        swarm.rejoin("birch")  # it is a member
    os.kill(before["birch"].pid, signal.SIGKILL)
    assert wait_until(lambda: [node.name for node in swarm.status().nodes] == ["amber"], 20.0)
    assert swarm.health.of(scope).availability.state == "unavailable"
    swarm.rejoin("birch")
    after = {node.name: node for node in swarm.status().nodes}
    assert after["amber"].incarnation == before["amber"].incarnation
    assert after["birch"].node_id == before["birch"].node_id
    assert after["birch"].incarnation != before["birch"].incarnation
    told = [event for event in swarm.events() if event.source == "authority"]
    about = [event.kind for event in told if getattr(event.document, "node_id", "") == scope.id]
    assert about == ["NodeJoined", "MemberLost", "NodeJoined"]
    assert [event.number for event in told] == list(range(1, len(told) + 1))
    seen = [event.document for event in swarm.events() if event.source == "health"]
    assert [item.kind for item in seen if isinstance(item, HealthEvent) and scope in item.concerns] == [
        "joined",
        "left",
        "returned",
        "availability-revalidated",
    ]


def test_a_lost_node_of_the_local_engine_joins_again(tmp_path: Path) -> None:
    with Swarm.local(NODES, state=tmp_path, lease_seconds=1.0) as swarm:
        lose_and_rejoin(swarm)
