"""The Ray engine on a real cluster of three nodes: what it starts and lists, and whose word counts when one goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from inferswarm.demo import Terminal, run_demo
from inferswarm.errors import EngineError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.proc import mapped_files, maps_torch
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from tests.answers.test_spine_answers import assert_equals_unsplit
from tests.integration.null_swarm import NODE_NAMES, LongAnswer, expected
from tests.integration.ray_cluster import RayCluster, RayNullSwarm
from tests.integration.test_swarm_rejoin import NODES, lose_and_rejoin
from tests.unit.fabric.processes import Identity, all_gone, descendants, identify, wait_until

pytestmark = pytest.mark.long

PROMPT = tuple(range(20))
OBJECT_BYTES = 1_000_000
THREE = tuple(Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in NODE_NAMES)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def three(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNullSwarm]:
    with RayNullSwarm(cluster.address, tmp_path_factory.mktemp("three"), NODE_NAMES) as swarm:
        yield swarm


@pytest.fixture
def swarm(cluster: RayCluster, three: RayNullSwarm) -> RayNullSwarm:
    """The swarm of the module, whole: whoever was lost before is back."""
    three.ask(m.Retire())
    cluster.restore()
    for name in set(NODE_NAMES) - {node.name for node in three.status().nodes}:
        three.start_agent(name)
    three.wait_for_nodes(len(NODE_NAMES))
    return three


def state_of(swarm: RayNullSwarm, name: str) -> str:
    (state,) = [info.state for info in swarm.engine.processes() if info.role == f"agent {name}"]
    return state


def is_alive_for_ray(swarm: RayNullSwarm, name: str) -> bool:
    return any(node.name == name and node.is_alive for node in swarm.engine.nodes())


def lose(swarm: RayNullSwarm, name: str) -> bool:
    """Wait until a Node is no member any more."""
    return wait_until(lambda: name not in {node.name for node in swarm.status().nodes}, 20.0)


def processes_of(swarm: RayNullSwarm, name: str) -> list[Identity]:
    """Return the agent of a Node, its stages, and the actor that keeps it."""
    agent = swarm.node(name).pid
    return [identify(agent), *descendants(agent), identify(psutil.Process(agent).ppid())]


def assert_serves(swarm: RayNullSwarm, nodes: Sequence[str] = NODE_NAMES) -> None:
    swarm.ask(m.Retire())
    swarm.realize(nodes)
    assert swarm.generate(PROMPT, 40).record.tokens == expected(PROMPT, 40).tokens


def test_agents_are_placed_by_name_and_no_token_passes_through_ray(swarm: RayNullSwarm) -> None:
    assert {node.name for node in swarm.engine.nodes() if node.is_alive} == set(NODE_NAMES)
    assert_serves(swarm)
    listed = {info.role: info for info in swarm.engine.processes()}
    assert sorted(listed) == [*sorted(f"agent {name}" for name in NODE_NAMES), "coordinator", "ray driver"]
    assert {info.state for info in listed.values()} == {"running"}
    assert all(listed[f"agent {node.name}"].pid == node.pid for node in swarm.status().nodes)
    assert swarm.stages()[0].pid not in {info.pid for info in listed.values()}
    carriers = [
        listed["coordinator"].pid,
        *(node.pid for node in swarm.status().nodes),
        *(s.pid for s in swarm.stages()),
    ]
    assert not any("_raylet" in path for pid in carriers for path in mapped_files(pid))
    assert "ray" not in sys.modules
    swarm.engine.check_agents()


def test_a_name_that_no_ray_node_carries_is_refused_and_the_others_stay(swarm: RayNullSwarm) -> None:
    with pytest.raises(SpecError, match="'nobody'"):
        swarm.engine.start_agent(NodeLaunch("node-nobody", "nobody", None))
    assert_serves(swarm)


@pytest.mark.parametrize("killed", ["agent", pytest.param("actor", marks=pytest.mark.slow)])
def test_an_answer_goes_on_when_the_node_of_a_killed_agent_or_actor_is_back(swarm: RayNullSwarm, killed: str) -> None:
    swarm.realize()
    before = swarm.node("birch").incarnation
    processes = processes_of(swarm, "birch")
    answer = LongAnswer(swarm, PROMPT, 2000, patient=True)
    answer.wait_for(20)
    os.kill((processes[0] if killed == "agent" else processes[-1]).pid, signal.SIGKILL)
    assert lose(swarm, "birch")
    assert all_gone(processes[:-1], 10.0)
    assert wait_until(lambda: state_of(swarm, "birch") == "ended", 20.0)
    swarm.start_agent("birch")
    record = answer.join(60.0).record
    assert tuple(answer.tokens) == record.tokens == expected(PROMPT, 2000).tokens
    assert swarm.node("birch").incarnation != before


def test_a_halted_raylet_is_out_by_our_lease_and_back_when_it_runs(cluster: RayCluster, swarm: RayNullSwarm) -> None:
    swarm.realize()
    before = swarm.node("birch").incarnation
    cluster.send_raylet("birch", signal.SIGSTOP)
    try:
        assert lose(swarm, "birch")
        assert is_alive_for_ray(swarm, "birch")
        assert state_of(swarm, "birch") == "ended"
    finally:
        cluster.send_raylet("birch", signal.SIGCONT)
    swarm.wait_for_nodes(len(NODE_NAMES))
    assert swarm.node("birch").incarnation != before
    assert_serves(swarm)


@pytest.mark.slow
def test_an_answer_over_three_ray_nodes_equals_the_unsplit_execution_and_ray_stores_nothing(
    cluster: RayCluster, smollm2_path: Path, tmp_path: Path
) -> None:
    model = Model(smollm2_path)
    with Swarm.ray(cluster.address, THREE, state=tmp_path, lease_seconds=1.0) as swarm:
        stored = cluster.stored_bytes()  # Ray stores a few bytes for an actor that starts
        plan = swarm.force(model, NODE_NAMES, cuts=(0, 15), representation="bf16")
        with swarm.realize(plan, model) as service:
            assert not maps_torch(service.coordinator_pid)
            answer = service.generate("Rivers of Europe are", max_tokens=12, ignore_stop=True)
            assert all(report.state_bytes_moved == 0 for report in service.stage_reports())
        assert [report.positions for report in answer.reports] == [answer.expected_positions] * len(NODE_NAMES)
        assert_equals_unsplit(swarm, model, plan, answer)
        assert cluster.stored_bytes() == stored
        cluster.store(OBJECT_BYTES)
        assert sum(cluster.stored_bytes().values()) >= sum(stored.values()) + OBJECT_BYTES


@pytest.mark.slow
def test_another_driver_goes_on_where_one_was_killed(swarm: RayNullSwarm) -> None:
    def driver() -> int:
        return next(info.pid for info in swarm.engine.processes() if info.role == "ray driver")

    killed = driver()
    agents = {node.pid for node in swarm.status().nodes}
    os.kill(killed, signal.SIGKILL)
    assert {state_of(swarm, name) for name in NODE_NAMES} == {"running"}
    assert driver() != killed
    assert {node.pid for node in swarm.status().nodes} == agents
    assert_serves(swarm)


@pytest.mark.slow
def test_a_killed_raylet_is_lost_by_our_lease_and_its_ray_node_takes_the_node_again(
    cluster: RayCluster, swarm: RayNullSwarm
) -> None:
    swarm.realize()
    before = swarm.node("cedar").incarnation
    processes = processes_of(swarm, "cedar")
    cluster.send_raylet("cedar", signal.SIGKILL)
    assert lose(swarm, "cedar")
    assert is_alive_for_ray(swarm, "cedar")
    assert all_gone(processes, 10.0)
    assert state_of(swarm, "cedar") != "running"
    assert_serves(swarm, NODE_NAMES[:2])
    cluster.restore()
    swarm.start_agent("cedar")
    swarm.wait_for_nodes(len(NODE_NAMES))
    assert swarm.node("cedar").incarnation != before
    assert_serves(swarm)


@pytest.mark.slow
def test_nothing_is_left_when_the_owner_is_killed(cluster: RayCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.ray_cluster", cluster.address, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        processes = msgspec.json.decode(owner.stdout.readline(), type=list[Identity])
        owner.kill()
    assert len(processes) == 2 + 2 + 2 + 2  # Coordinator and driver, agents, stages, actors
    assert all_gone(processes, 30.0)


@pytest.mark.slow
def test_a_lost_node_joins_again_through_the_facade(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.restore()
    with Swarm.ray(cluster.address, NODES, state=tmp_path, lease_seconds=1.0) as swarm:
        lose_and_rejoin(swarm)


@pytest.mark.slow
def test_the_demonstration_holds_over_ray(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.restore()
    lines: list[str] = []
    terminal = Terminal(lines.append, lines.append)
    arguments = ("smollm2-135m", "Why is the sky blue?", 48, tmp_path / "out", tmp_path / "state", "auto", terminal)
    assert run_demo(*arguments, cluster.address) == 0, "\n".join(lines)


def test_where_no_cluster_is_a_typed_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Ray cluster 127\.0\.0\.1:1: cannot be reached"):
        RayNullSwarm("127.0.0.1:1", tmp_path)
    with pytest.raises(SpecError, match="HOST:PORT"):
        RayNullSwarm("nowhere", tmp_path)
