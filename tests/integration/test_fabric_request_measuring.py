"""What a request costs beside computing, measured on real processes, and the first pass before a stage serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.errors import CommitRefused
from inferswarm.resources.types import ComputeUnit, Node
from inferswarm.swarm.request_measuring import NUM_REQUESTS, measure_requests
from tests.integration.null_swarm import NullSwarm, node_id

NODE = Node(id=node_id("amber"), name="amber", host_id="host")
UNIT = ComputeUnit(id="cpu", node_id=NODE.id, kind="cpu", name="CPU", threads=1, memory_ids=("ram",))


def test_requests_are_timed_while_nothing_serves_and_refused_while_a_plan_has_authority(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        assert swarm.client is not None
        opening, between = measure_requests(swarm.client, NODE, UNIT)
        assert len(opening) == len(between) == NUM_REQUESTS
        assert min(opening) > 0
        assert min(between) > 0
        assert len(swarm.processes()) == 2  # Coordinator and agent: the stage has gone
        swarm.realize(("amber",))
        with pytest.raises(CommitRefused, match="SCOPE_ALREADY_OWNED"):
            measure_requests(swarm.client, NODE, UNIT)
        # What was computed before the first session counts for nobody.
        assert [(report.positions, report.steps) for report in swarm.stage_reports()] == [(0, 0)]
