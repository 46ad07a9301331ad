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
from inferswarm.errors import EngineError, SpecError, StageLost
from inferswarm.fabric import messages as m
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.proc import mapped_files
from inferswarm.swarm import Swarm
from tests.integration.null_swarm import NODE_NAMES, LongAnswer, expected
from tests.integration.ray_cluster import RayCluster, RayNullSwarm
from tests.integration.test_swarm_rejoin import NODES, lose_and_rejoin
from tests.unit.fabric.processes import Identity, all_gone, wait_until

pytestmark = pytest.mark.slow  # a cluster of three nodes takes a minute to start, on a busy machine longer
PROMPT = tuple(range(20))


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
    agent = swarm.node(name).pid
    return [process for process in swarm.processes() if process.pid == agent or process in swarm.stages()]


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


@pytest.mark.parametrize("killed", ["agent", "actor"])
def test_a_killed_agent_or_actor_costs_its_epoch_and_the_node_joins_again(swarm: RayNullSwarm, killed: str) -> None:
    swarm.realize()
    stages = swarm.stages()
    before = swarm.node("birch").incarnation
    answer = LongAnswer(swarm, PROMPT)
    answer.wait_for(20)
    agent = swarm.node("birch").pid
    os.kill(agent if killed == "agent" else psutil.Process(agent).ppid(), signal.SIGKILL)
    error = answer.error()
    assert isinstance(error, StageLost)
    assert error.node == "birch"
    assert lose(swarm, "birch")
    assert all_gone(stages, 10.0)
    assert state_of(swarm, "birch") == "ended"
    swarm.start_agent("birch")
    swarm.wait_for_nodes(len(NODE_NAMES))
    assert swarm.node("birch").incarnation != before
    assert_serves(swarm)


def test_a_halted_raylet_is_out_by_our_lease_and_back_when_it_runs(cluster: RayCluster, swarm: RayNullSwarm) -> None:
    swarm.realize()
    before = swarm.node("birch").incarnation
    cluster.send_raylet("birch", signal.SIGSTOP)
    try:
        assert lose(swarm, "birch")
        assert is_alive_for_ray(swarm, "birch")  # Ray gives up such a node only after a minute
        assert state_of(swarm, "birch") == "ended"
    finally:
        cluster.send_raylet("birch", signal.SIGCONT)
    swarm.wait_for_nodes(len(NODE_NAMES))
    assert swarm.node("birch").incarnation != before
    assert_serves(swarm)


def test_a_killed_raylet_is_lost_by_our_lease_and_its_processes_end(cluster: RayCluster, swarm: RayNullSwarm) -> None:
    swarm.realize()
    processes = processes_of(swarm, "cedar")
    cluster.send_raylet("cedar", signal.SIGKILL)
    assert lose(swarm, "cedar")
    assert is_alive_for_ray(swarm, "cedar")  # Ray needs a quarter of a minute
    assert all_gone(processes, 10.0)
    assert state_of(swarm, "cedar") != "running"
    assert_serves(swarm, NODE_NAMES[:2])


def test_a_ray_node_that_is_started_again_takes_its_node(cluster: RayCluster, swarm: RayNullSwarm) -> None:
    before = swarm.node("cedar").incarnation
    cluster.send_raylet("cedar", signal.SIGKILL)
    assert lose(swarm, "cedar")
    cluster.restore()
    swarm.start_agent("cedar")
    swarm.wait_for_nodes(len(NODE_NAMES))
    assert swarm.node("cedar").incarnation != before
    assert_serves(swarm)


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


def test_nothing_is_left_when_the_owner_is_killed(cluster: RayCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.ray_cluster", cluster.address, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        processes = msgspec.json.decode(owner.stdout.readline(), type=list[Identity])
        owner.kill()
    assert len(processes) == 2 + 2 + 2 + 2  # Coordinator and driver, agents, stages, actors
    assert all_gone(processes, 30.0)


def test_a_lost_node_joins_again_through_the_facade(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.restore()
    with Swarm.ray(cluster.address, NODES, state=tmp_path, lease_seconds=1.0) as swarm:
        lose_and_rejoin(swarm)


def test_the_demonstration_holds_over_ray(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.restore()
    lines: list[str] = []
    terminal = Terminal(lines.append, lines.append)
    arguments = ("smollm2-135m", "Why is the sky blue?", 48, tmp_path / "out", tmp_path / "state", "auto", terminal)
    assert run_demo(*arguments, cluster.address) == 0, "\n".join(lines)


def test_where_no_cluster_is_a_typed_error_says_so(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Ray cluster"):
        RayNullSwarm("127.0.0.1:1", tmp_path)
