"""A Ray cluster of several nodes on this machine, started and ended by the tests, and a null swarm on it.

Each Ray node is a process group of its own and ends as one: `ray stop` would end every Ray process of the machine.
As a program (`python -m tests.integration.ray_cluster ADDRESS DIRECTORY`) it is an owner for tests to kill: it starts
such a swarm and says in one line of JSON what it started.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from inferswarm.fabric.engines.base import Engine
from inferswarm.fabric.engines.ray_engine import RayEngine
from tests.integration.null_swarm import NODE_NAMES, NullSwarm
from tests.unit.fabric.processes import Identity, identify

START_SECONDS = 150.0
"""How long Ray waits for parts of itself: its own limits are too short for a loaded machine."""
OBJECT_STORE_BYTES = 80_000_000
"""Ray takes no less than 75 MB; nothing of ours is stored there."""
NODE_OPTIONS = ("--num-cpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}", "--include-log-monitor=false")


def free_port() -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class RayCluster:
    """Ray nodes that carry the names of Nodes, with token authentication. `environment` is for whoever connects."""

    def __init__(self, names: Sequence[str] = NODE_NAMES) -> None:
        """Start the first node with Ray's own services, then the others at once."""
        self._directory = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it holds paths of sockets
        self._groups: dict[str, int] = {}
        self.environment: Mapping[str, str] = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(20),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_agent_register_timeout_ms": str(int(START_SECONDS * 1000)),
        }
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        head = [
            "--head",
            f"--port={port}",
            f"--temp-dir={self._directory}",
            "--include-dashboard=false",
            "--no-monitor",
        ]
        try:
            self._start({names[0]: head})
            self._start({name: [f"--address={self.address}"] for name in names[1:]})
        except BaseException:
            self.stop()
            raise

    def _start(self, options: Mapping[str, Sequence[str]]) -> None:
        """Start Ray nodes at once, and wait for them."""
        started = {name: self._launch(name, options[name]) for name in options}
        for name, process in started.items():
            status = process.wait(2 * START_SECONDS)
            assert status == 0, (self._directory / f"start-{name}.log").read_text()

    def _launch(self, name: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.integration.ray_start", "start", *NODE_OPTIONS, *options]
        with (self._directory / f"start-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--labels=inferswarm-node={name}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        self._groups[name] = process.pid
        return process

    def raylet(self, name: str) -> Identity | None:
        """Return the raylet of a Ray node, or None when it has ended."""
        pids = [pid for pid in self._members(name) if psutil.Process(pid).name() == "raylet"]
        return identify(pids[0]) if pids else None

    def send_raylet(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the raylet of a Ray node, which must be there."""
        raylet = self.raylet(name)
        assert raylet is not None
        os.kill(raylet.pid, number)

    def _members(self, name: str) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == self._groups[name] and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def restore(self) -> None:
        """Start the Ray nodes whose raylet has ended again, under the same names."""
        ended = [name for name in self._groups if self.raylet(name) is None]
        for name in ended:
            self.end(name)
        self._start({name: [f"--address={self.address}"] for name in ended})

    def end(self, name: str) -> None:
        """Kill every process of a Ray node."""
        for pid in self._members(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        """Kill every node, and remove what they wrote."""
        for name in self._groups:
            self.end(name)
        shutil.rmtree(self._directory, ignore_errors=True)


class RayNullSwarm(NullSwarm):
    """A null swarm whose agents are on the nodes of a Ray cluster."""

    def __init__(self, address: str, directory: Path, nodes: Sequence[str] = NODE_NAMES[:2]) -> None:
        """Start it; the cluster's token must be in the environment."""
        self._address = address
        super().__init__(directory, nodes, scope=f"null-{secrets.token_hex(3)}")

    def make_engine(self) -> Engine:
        """Return the engine that starts everything."""
        return RayEngine(self.settings, self._address)


def main() -> None:
    """Own a swarm until a signal ends this process."""
    with RayNullSwarm(sys.argv[1], Path(sys.argv[2])) as swarm:
        swarm.realize()
        actors = [identify(psutil.Process(node.pid).ppid()) for node in swarm.status().nodes]
        sys.stdout.write(msgspec.json.encode([*swarm.processes(), *actors]).decode() + "\n")
        sys.stdout.flush()
        while True:
            time.sleep(1.0)


if __name__ == "__main__":
    main()
