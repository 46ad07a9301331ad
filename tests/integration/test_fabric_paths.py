"""Paths of real processes: measured over several addresses of this machine, and taken by the stages that run."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from inferswarm.errors import RealizationFailed
from inferswarm.fabric import messages as m
from tests.integration.null_swarm import NullSwarm, expected, node_id
from tests.unit.fabric.processes import wait_until

PROMPT = tuple(range(20))
FIRST, SECOND = "127.0.0.1", "127.0.0.2"
"""On Linux the whole of 127.0.0.0/8 is this machine's, so both are always there."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NullSwarm]:
    with NullSwarm(tmp_path_factory.mktemp("swarm")) as swarm:
        yield swarm


def start(swarm: NullSwarm, name: str, *addresses: str) -> m.StageStarted:
    answer = swarm.ask(m.OnNode(node_id=node_id(name), command=m.StartStage(stage="probe", addresses=addresses)))
    assert isinstance(answer, m.StageStarted)
    return answer


def test_each_pair_of_addresses_is_measured_and_one_that_cannot_connect_is_reported_by_name(swarm: NullSwarm) -> None:
    start(swarm, "amber", SECOND)
    reached = start(swarm, "birch", SECOND, "203.0.113.9")
    endpoints = dict(reached.endpoints)
    assert list(endpoints) == [FIRST, SECOND]
    assert dict(reached.unbound) == {"203.0.113.9": "Cannot assign requested address"}
    ends = (
        m.PathEnds(FIRST, endpoints[FIRST]),
        m.PathEnds(SECOND, endpoints[SECOND]),
        m.PathEnds(FIRST, "tcp://127.0.0.1:1"),
    )
    command = m.ProbePath(pairs=ends, payload_bytes=(64, 4096, 65536, 2**24), max_turns=8, seconds=0.5)
    answer = swarm.ask(m.OnNode(node_id=node_id("amber"), command=m.OnStage(stage="probe", command=command)))
    for name in ("amber", "birch"):
        swarm.ask(m.OnNode(node_id=node_id(name), command=m.StopStage(stage="probe")))
    assert isinstance(answer, m.PathSamples)
    *good, refused = answer.pairs
    for pair in good:
        assert (pair.failure, pair.payload_bytes) == ("", (64, 4096, 65536, 2**24))
        assert all(len(samples) >= 5 for samples in pair.seconds[:3])
        assert len(pair.seconds[3]) >= 1
    assert (refused.ends, refused.failure, refused.seconds) == (ends[2], "connection refused", ())


def test_running_stages_send_over_the_addresses_of_the_plan(swarm: NullSwarm) -> None:
    """Mutation: connect to the endpoint that the agent was told, or let the system choose the source."""
    amber, birch = (node_id(name) for name in ("amber", "birch"))
    paths = (m.PathUse(amber, birch, "127.0.0.3", SECOND), m.PathUse(birch, amber, "127.0.0.5", "127.0.0.4"))
    realized = swarm.realize(paths=paths)
    assert realized.paths == paths
    assert list(swarm.generate(PROMPT, 12).record.tokens) == list(expected(PROMPT, 12).tokens)

    def connections(pid: int) -> set[tuple[str, str]]:
        found = psutil.Process(pid).net_connections(kind="tcp")
        return {(item.laddr.ip, item.raddr.ip) for item in found if item.status == "ESTABLISHED"}

    first, last = realized.pids
    assert wait_until(lambda: ("127.0.0.3", SECOND) in connections(first), 5.0), connections(first)
    assert ("127.0.0.5", "127.0.0.4") in connections(last)
    swarm.ask(m.Retire())


def test_without_measured_paths_stages_send_as_the_agents_listen(swarm: NullSwarm) -> None:
    realized = swarm.realize()
    assert realized.paths == ()
    assert list(swarm.generate(PROMPT, 6).record.tokens) == list(expected(PROMPT, 6).tokens)
    assert {item.laddr.ip for item in psutil.Process(realized.pids[0]).net_connections(kind="tcp")} == {FIRST}
    swarm.ask(m.Retire())


def test_an_address_that_is_gone_fails_the_realization_and_leaves_no_stage(swarm: NullSwarm) -> None:
    amber, birch = (node_id(name) for name in ("amber", "birch"))
    with pytest.raises(RealizationFailed, match=r"203\.0\.113\.9, where nothing listens: Cannot assign") as caught:
        swarm.realize(paths=(m.PathUse(amber, birch, FIRST, "203.0.113.9"),))
    assert caught.value.node == "birch"
    assert swarm.status().epoch is None
    swarm.realize()
    swarm.ask(m.Retire())
