"""The actor of a Node on Ray, without Ray: what it does when its agent, its raylet or its Coordinator goes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalSettings
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


@pytest.fixture
def coordinator() -> Iterator[socket.socket]:
    """A listener that never says anything: an agent waits some seconds for its Coordinator's welcome."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def start_of(tmp_path: Path, listener: socket.socket, abandon_seconds: float = 60.0) -> bytes:
    return msgspec.json.encode(
        ActorStart(
            launch=NodeLaunch("node-amber", "amber", None),
            settings=LocalSettings(scope="test", ledger=str(tmp_path / "ledger"), token="x"),
            coordinator=f"tcp://127.0.0.1:{listener.getsockname()[1]}",
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
    tmp_path: Path, raylet: Raylet, coordinator: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it for an actor without CPUs
    actor = AgentActor(raylet.process.pid)
    agent = started(actor, start_of(tmp_path, coordinator))
    environment = Path(f"/proc/{agent.pid}/environ")
    assert wait_until(lambda: b"OMP_NUM_THREADS=7" in environment.read_bytes(), 5.0)
    actor.stop()
    assert not agent.runs()


def test_a_node_is_out_while_its_raylet_is_halted_and_back_as_another_process(
    tmp_path: Path, raylet: Raylet, coordinator: socket.socket
) -> None:
    actor = AgentActor(raylet.process.pid)
    agent = started(actor, start_of(tmp_path, coordinator))
    raylet.send(signal.SIGSTOP)
    assert wait_until(lambda: state_of(actor).state == "paused", 10.0)
    assert not agent.runs()
    raylet.send(signal.SIGCONT)
    assert wait_until(lambda: state_of(actor).state == "running", 10.0)
    assert state_of(actor).pid != agent.pid
    actor.stop()


def test_a_killed_agent_is_reported_and_stays_ended(
    tmp_path: Path, raylet: Raylet, coordinator: socket.socket
) -> None:
    actor = AgentActor(raylet.process.pid)
    agent = started(actor, start_of(tmp_path, coordinator))
    os.kill(agent.pid, signal.SIGKILL)
    assert wait_until(lambda: state_of(actor).state == "ended", 5.0)
    raylet.send(signal.SIGSTOP)
    raylet.send(signal.SIGCONT)
    state = state_of(actor)
    assert (state.state, state.pid, state.exit_status) == ("ended", agent.pid, -signal.SIGKILL)
    assert state.fault is not None
    assert "SIGKILL" in state.fault.message
    actor.stop()


@pytest.mark.parametrize("gone", ["raylet", "coordinator"])
def test_an_actor_ends_with_its_agent_when_nobody_needs_it(
    tmp_path: Path, raylet: Raylet, coordinator: socket.socket, gone: str
) -> None:
    ended: list[int] = []
    actor = AgentActor(raylet.process.pid, ended.append, coordinator_check_seconds=0.05)
    agent = started(actor, start_of(tmp_path, coordinator, abandon_seconds=0.3))
    if gone == "raylet":
        raylet.end()
    else:
        coordinator.close()
    assert wait_until(lambda: ended == [EXIT_ABANDONED], 10.0)
    assert not agent.runs()


def test_an_actor_outlasts_a_coordinator_that_listens(
    tmp_path: Path, raylet: Raylet, coordinator: socket.socket
) -> None:
    ended: list[int] = []
    actor = AgentActor(raylet.process.pid, ended.append, coordinator_check_seconds=0.05)
    started(actor, start_of(tmp_path, coordinator, abandon_seconds=0.3))
    assert not wait_until(lambda: bool(ended), 0.8)
    actor.stop()
