"""However a swarm ends, nothing of it stays: no process, port, cgroup, directory or open file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from inferswarm.fabric import messages as m
from inferswarm.resources.cgroups import MemoryController, find_memory_controller
from tests.integration.null_swarm import LEASE_SECONDS, NullSwarm, can_be_bound, listening_ports
from tests.unit.fabric.processes import Identity, all_gone, identify, processes_that_hold, wait_until

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 6.0


class Facade(NamedTuple):
    """A façade in another process, in the middle of an answer."""

    process: subprocess.Popen[str]
    processes: list[Identity]
    ports: list[int]
    directory: Path
    temporary: Path
    """Where its temporary files go."""


@pytest.fixture
def facade(tmp_path: Path) -> Iterator[Facade]:
    directory, temporary = tmp_path / "swarm", tmp_path / "temporary"
    directory.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.null_swarm", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    started = msgspec.json.decode(process.stdout.readline() or process.stderr.read())
    processes = [Identity(pid, at) for pid, at in started["processes"]]
    assert len(processes) == 5, "Coordinator, two agents, two stages"
    assert all(item.runs() for item in processes)
    assert not any(can_be_bound(port) for port in started["ports"])
    assert (directory / "ledger").exists()
    for _ in range(20):
        assert "token" in process.stdout.readline()
    yield Facade(process, processes, started["ports"], directory, temporary)
    process.kill()
    process.communicate()


def groups_of(pid: int) -> list[str]:
    """Return the names of the cgroups that a façade with this process id has made."""
    controller = find_memory_controller()
    if not isinstance(controller, MemoryController):
        return []
    return [path.name for path in controller.base.iterdir() if path.name.startswith(f"inferswarm-{pid}-")]


def assert_nothing_is_left(facade: Facade, seconds: float = END_SECONDS) -> None:
    assert all_gone(facade.processes, seconds), [item for item in facade.processes if item.runs()]
    assert wait_until(lambda: not groups_of(facade.process.pid), 1.0), groups_of(facade.process.pid)
    assert wait_until(lambda: not facade.directory.exists(), 1.0), list(facade.directory.iterdir())
    assert all(can_be_bound(port) for port in facade.ports)
    assert list(facade.temporary.iterdir()) == []
    assert processes_that_hold(facade.directory.parent) == []


def pause(seed: int) -> None:
    seconds = random.Random(seed).uniform(0.0, 0.05)
    print(f"after {seconds * 1000:.2f} ms (seed {seed})")
    time.sleep(seconds)


def test_a_killed_facade_leaves_nothing(facade: Facade) -> None:
    controller = find_memory_controller()
    if isinstance(controller, MemoryController):
        assert len(groups_of(facade.process.pid)) == 2, "the Nodes were not held by cgroups"
    pause(21)
    facade.process.kill()
    assert_nothing_is_left(facade)


def test_an_interrupted_facade_ends_by_itself_and_leaves_nothing(facade: Facade) -> None:
    pause(22)
    facade.process.send_signal(signal.SIGINT)
    _, errors = facade.process.communicate(timeout=20)
    assert facade.process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert_nothing_is_left(facade, seconds=0.0)


def test_a_facade_whose_every_process_is_killed_leaves_no_process_and_no_port(facade: Facade) -> None:
    coordinator, *rest = facade.processes
    for item in random.Random(23).sample([coordinator, *rest], len(facade.processes)):
        os.kill(item.pid, signal.SIGKILL)
    facade.process.send_signal(signal.SIGINT)
    facade.process.communicate(timeout=20)
    assert_nothing_is_left(facade)


def test_an_orderly_stop_is_quick_and_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "swarm"
    directory.mkdir()
    swarm = NullSwarm(directory, limit_bytes=600_000_000, remove_directory=True)
    swarm.realize()
    swarm.generate(range(20), 5)
    processes = swarm.processes()
    ports = [port for item in processes for port in listening_ports(item.pid)]
    started = time.monotonic()
    swarm.stop()
    assert time.monotonic() - started < 4.0
    assert all_gone(processes, 0.0)
    assert all(can_be_bound(port) for port in ports)
    assert groups_of(os.getpid()) == []
    assert not directory.exists()
    swarm.stop()


def test_a_swarm_with_a_ledger_of_its_own_keeps_it(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        swarm.realize()
        swarm.generate(range(20), 5)
    assert (tmp_path / "ledger").exists()
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        assert swarm.status().term == 2
        assert len(swarm.record(1).tokens) == 5


def test_a_coordinator_that_is_asked_to_shut_down_takes_the_stages_along(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        swarm.realize()
        stages, coordinator = swarm.stages(), swarm.coordinator()
        assert swarm.ask(m.Shutdown()) == m.Done()
        assert all_gone([coordinator], 3.0)
        assert all_gone(stages, LEASE_SECONDS + 3.0)


def test_cgroups_of_killed_runs_are_removed_at_the_next_start(tmp_path: Path) -> None:
    controller = find_memory_controller()
    if not isinstance(controller, MemoryController):
        pytest.skip(f"no cgroup can be made here: {controller.reason}")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    name = f"inferswarm-{ended.pid}-amber"
    controller.create(name, 2**26)
    mine = f"inferswarm-{os.getpid()}-kept"
    kept = controller.create(mine, 2**26)
    assert identify(os.getpid()).runs()
    try:
        NullSwarm(tmp_path, ("amber",)).stop()
        assert not (controller.base / name).exists()
        assert (controller.base / mine).exists(), "a group of a living process was taken"
    finally:
        kept.remove()
