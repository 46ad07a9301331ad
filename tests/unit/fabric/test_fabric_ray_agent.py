"""The actor of a Node on Ray, without Ray: what it does when its agent, its raylet or its Coordinator goes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine, LocalSettings
from inferswarm.fabric.engines.ray_agent import EXIT_ABANDONED, AgentActor
from inferswarm.fabric.engines.ray_messages import ActorStart, AgentState, FromActor
from tests.unit.fabric.processes import Identity, identify, wait_until

PAUSE_SECONDS = 0.2


class Raylet:
    """A process that stands for a raylet."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "60"], env={**os.environ, "OMP_NUM_THREADS": "7"})

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def raylet() -> Iterator[Raylet]:
    raylet = Raylet()
    yield raylet
    raylet.end()


def running_coordinator(directory: Path) -> LocalEngine:
    engine = LocalEngine(settings_in(directory))
    engine.start_coordinator()
    return engine


def settings_in(directory: Path) -> LocalSettings:
    return LocalSettings(scope="test", ledger=str(directory / "ledger"), token="x")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    engine = running_coordinator(tmp_path_factory.mktemp("scope"))
    yield engine
    engine.stop()


def start_of(coordinator: LocalEngine, abandon_seconds: float = 60.0) -> bytes:
    return msgspec.json.encode(
        ActorStart(
            launch=NodeLaunch("node-amber", "amber", None),
            settings=coordinator._settings,
            coordinator=coordinator._endpoint,
            pause_seconds=PAUSE_SECONDS,
            abandon_seconds=abandon_seconds,
        )
    )


def state_of(actor: AgentActor) -> AgentState:
    return msgspec.json.decode(actor.state(), type=AgentState)


def started(actor: AgentActor, start: bytes) -> Identity:
    answer = msgspec.json.decode(actor.start(start), type=FromActor)
    assert isinstance(answer, AgentState)
    assert answer.pid is not None
    return identify(answer.pid)


def test_an_agent_has_the_environment_of_its_raylet(
    raylet: Raylet, coordinator: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it for an actor without CPUs
    actor = AgentActor(raylet.process.pid)
    agent = started(actor, start_of(coordinator))
    environment = Path(f"/proc/{agent.pid}/environ")
    assert wait_until(lambda: b"OMP_NUM_THREADS=7" in environment.read_bytes(), 5.0)
    actor.stop()
    assert not agent.runs()


def test_a_node_is_out_while_its_raylet_is_halted_and_back_as_another_process(
    raylet: Raylet, coordinator: LocalEngine
) -> None:
    actor = AgentActor(raylet.process.pid)
    agent = started(actor, start_of(coordinator))
    raylet.send(signal.SIGSTOP)
    assert wait_until(lambda: state_of(actor).state == "paused", 10.0)
    assert not agent.runs()
    raylet.send(signal.SIGCONT)
    assert wait_until(lambda: state_of(actor).state == "running", 10.0)
    assert state_of(actor).pid != agent.pid
    actor.stop()


def test_a_killed_agent_is_reported_and_stays_ended(raylet: Raylet, coordinator: LocalEngine) -> None:
    actor = AgentActor(raylet.process.pid)
    agent = started(actor, start_of(coordinator))
    os.kill(agent.pid, signal.SIGKILL)
    assert wait_until(lambda: state_of(actor).state == "ended", 5.0)
    raylet.send(signal.SIGSTOP)
    raylet.send(signal.SIGCONT)
    state = state_of(actor)
    assert (state.state, state.pid, state.exit_status) == ("ended", agent.pid, -signal.SIGKILL)
    assert state.fault is not None
    assert "SIGKILL" in state.fault.message
    actor.stop()


def test_an_actor_ends_with_its_agent_when_its_raylet_has_gone(raylet: Raylet, coordinator: LocalEngine) -> None:
    ended: list[int] = []
    actor = AgentActor(raylet.process.pid, ended.append)
    agent = started(actor, start_of(coordinator))
    raylet.end()
    assert wait_until(lambda: ended == [EXIT_ABANDONED], 10.0)
    assert not agent.runs()


def test_an_actor_ends_with_its_agent_when_no_coordinator_listens_for_long(raylet: Raylet, tmp_path: Path) -> None:
    ended: list[int] = []
    coordinator = running_coordinator(tmp_path)
    actor = AgentActor(raylet.process.pid, ended.append, coordinator_check_seconds=0.05)
    agent = started(actor, start_of(coordinator, abandon_seconds=0.3))
    assert not wait_until(lambda: bool(ended), 0.8)  # it listens
    coordinator.stop()
    assert wait_until(lambda: ended == [EXIT_ABANDONED], 10.0)
    assert not agent.runs()
