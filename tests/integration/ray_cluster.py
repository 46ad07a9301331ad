"""A Ray cluster of several nodes on this machine, started and ended by the tests, and a null swarm on it.

Each Ray node is a process group of its own and ends as one: `ray stop` would end every Ray process of the machine.
It has a directory of its own too: nodes that start at once in one directory may choose the same name for a socket,
and of two that do, one ends (Ray 2.60: the raylet aborts with "bind: Address already in use").
As a program (`python -m tests.integration.ray_cluster ADDRESS DIRECTORY`) it is an owner for tests to kill: it starts
such a swarm and says in one line of JSON what it started.
"""

from __future__ import annotations

import importlib.util
import os
import re
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
from tests.unit.fabric.processes import Identity, all_gone, descendants, identify, wait_until

START_SECONDS = 150.0
"""How long Ray waits for parts of itself: its own limits are too short for a loaded machine."""
HEALTH_CHECKS = 15
"""So many failed checks, one every 3 s, until Ray gives up a node, not 5: whose word counts is seen before that."""
OBJECT_STORE_BYTES = 80_000_000
"""Ray takes no less than 75 MB; nothing of ours is stored there."""
NODE_OPTIONS = ("--num-cpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}", "--include-log-monitor=false")


def free_port() -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


class RayCluster:
    """Ray nodes that carry the names of Nodes, with token authentication. `environment` is for whoever connects."""

    def __init__(self, names: Sequence[str] = NODE_NAMES) -> None:
        """Start the first node with Ray's own services, then the others at once."""
        assert importlib.util.find_spec("ray") is not None, "Ray is not installed: pip install 'inferswarm[ray]'"
        self._directory = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it holds paths of sockets
        self._groups: dict[str, int] = {}
        self._spare_imports(self._directory / "modules")
        self.environment: Mapping[str, str] = {
            "PYTHONPATH": os.pathsep.join([str(self._directory / "modules"), *_python_path()]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(20),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_agent_register_timeout_ms": str(int(START_SECONDS * 1000)),
            "RAY_event_stats_print_interval_ms": "1000",  # object stores tell of themselves as often
            "RAY_health_check_failure_threshold": str(HEALTH_CHECKS),
            "RAY_worker_niceness": "0",
        }
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        head = [
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            "--no-monitor",
        ]
        try:
            self._start({names[0]: head})
            self._start({name: [f"--address={self.address}"] for name in names[1:]})
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def _spare_imports(directory: Path) -> None:
        """Keep from Ray's processes what they load only because it is there.

        Ray loads jsonschema, which loads a parser for addresses where it is installed, as it is with Jupyter: 1.6 of
        the 2.4 s of CPU time that `import ray` takes (measured), for each of the ten processes of a cluster.
        """
        directory.mkdir()
        (directory / "rfc3987_syntax.py").write_text("raise ImportError(__name__)\n")

    def _start(self, options: Mapping[str, Sequence[str]]) -> None:
        """Start Ray nodes at once, and wait for them."""
        started = {name: self._launch(name, options[name]) for name in options}
        for name, process in started.items():
            status = process.wait(2 * START_SECONDS)
            assert status == 0, (self._directory / f"start-{name}.log").read_text()

    def _launch(self, name: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.integration.ray_start", "start", *NODE_OPTIONS, *options]
        command.append(f"--temp-dir={self._directory / name}")
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

    def stored_bytes(self) -> dict[str, int]:
        """Return what each node's object store has ever held, as it tells of itself after this was asked."""
        before = {name: len(self._dumps(name)) for name in self._groups}
        assert wait_until(lambda: all(len(self._dumps(name)) > num + 1 for name, num in before.items()), 30.0)
        return {name: self._dumps(name)[-1] for name in self._groups}

    def _dumps(self, name: str) -> list[int]:
        """Return the totals that the object store of a node has told so far, oldest first."""
        logs = sorted(
            (self._directory / name).glob("session_2*/logs/raylet*.out"), key=lambda log: log.stat().st_mtime
        )
        return [int(number) for number in re.findall(r"num bytes created total: (\d+)", logs[-1].read_text())]

    def store(self, num_bytes: int) -> None:
        """Put one object of that size into the object store of the first node."""
        program = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); ray.put(bytes(int(sys.argv[2])))"
        command = [sys.executable, "-c", program, self.address, str(num_bytes)]
        subprocess.run(command, check=True, env={**os.environ, **self.environment}, capture_output=True)

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
        """Kill every node, wait until nothing of it runs, and remove what they wrote."""
        started = [identify(pid) for name in self._groups for pid in self._members(name)]
        started += [child for process in started for child in descendants(process.pid)]
        for name in self._groups:
            self.end(name)
        gone = all_gone(started, 30.0)
        shutil.rmtree(self._directory, ignore_errors=True)
        assert gone, [process for process in started if process.runs()]


class RayNullSwarm(NullSwarm):
    """A null swarm whose agents are on the nodes of a Ray cluster."""

    def __init__(self, address: str, directory: Path, nodes: Sequence[str] = NODE_NAMES[:2]) -> None:
        """Start it; the cluster's token must be in the environment."""
        self._address = address
        super().__init__(directory, nodes, scope=f"null-{secrets.token_hex(3)}", patience_seconds=60.0)

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
