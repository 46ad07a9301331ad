"""The embedded engine: Coordinator and agents as child processes of this one, on this machine.

Each child holds the read end of a pipe whose write end is here. When this process ends, however it ends, the pipe
closes and the children end by themselves; a SIGKILL needs no handler.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec

from inferswarm.errors import EngineError, EnvelopeExceeded, InferSwarmError
from inferswarm.fabric.agent import AgentSpec
from inferswarm.fabric.agent_bond import GRACE_SECONDS
from inferswarm.fabric.coordinator_main import Ready
from inferswarm.fabric.engines.base import NodeLaunch, NodePlace, ProcessInfo
from inferswarm.fabric.faults import Fault, to_error
from inferswarm.fabric.proc import signal_name
from inferswarm.fabric.stage_journal import MEMORY_BYTES, SPILL_BYTES
from inferswarm.fabric.stage_liveness import SILENT_SECONDS
from inferswarm.fabric.transport import parse_endpoint
from inferswarm.resources.cgroups import MemoryController, find_memory_controller

START_SECONDS = 30.0
STOP_SECONDS = 8.0
"""How long a process may take to end by itself; its own children get less."""
PATIENCE_SECONDS = 15.0
"""How long suspended sessions wait for a Node: an agent that is started again takes some seconds."""
GROUPS_SECONDS = 3.0
"""How long to wait for the stages of a killed agent, which end with it, until its cgroup can be removed."""


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a local swarm runs. `port` is the Coordinator's; 0 takes a free one."""

    scope: str
    ledger: str
    token: str
    address: str = "127.0.0.1"
    port: int = 0
    lease_seconds: float = 2.0
    mechanism: str = "auto"
    remove_directory: str | None = None
    """The Coordinator removes this directory when it ends: a swarm without a name keeps nothing."""
    grace_seconds: float = GRACE_SECONDS
    """How long agents keep their stages without a Coordinator."""
    silent_seconds: float = SILENT_SECONDS
    """How long a stage may give no sign of life, and a system that is sent to may acknowledge nothing."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long sessions whose plan has lost a Node wait for it, or for another plan."""
    journal_memory_bytes: int = MEMORY_BYTES
    journal_spill_bytes: int = SPILL_BYTES
    """What each stage keeps of what it sent to the next one, in memory and in files beside the ledger."""
    stores_directory: str = ""
    """Where the Nodes' artifact stores are, each in a directory of its Node's name; empty: they have none."""
    store_quota_bytes: int | None = None
    """What each of them may hold; None: as much as the disk."""
    transfer_bytes_per_second: float | None = None
    """What each Node's courier may receive in a second, and what it may give; None: any."""
    keep_results: bool = False
    """Whether stages keep in them what they decode, and read it the next time."""
    keep_spares: bool = False
    """Whether every Node keeps a warm, empty stage for one that is lost: its memory is in no plan."""


class Child:
    """One child process with its lifeline and the end of its standard error."""

    def __init__(
        self,
        role: str,
        module: str,
        specification: bytes,
        launch: NodeLaunch | None = None,
        group: str | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start `python -m module` and write its specification to its standard input.

        `environment` None is this process's own; `pass_fds` are descriptors that it inherits beside its lifeline.
        """
        self.role = role
        self.launch = launch
        self.group = group
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in wait_until_gone)
        theirs, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--lifeline-fd", str(theirs), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=[theirs, *pass_fds],
                start_new_session=True,
                env=None if environment is None else dict(environment),
            )
        finally:
            os.close(theirs)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended already: its exit status says why
            self.process.stdin.write(specification)
            self.process.stdin.close()

    def info(self) -> ProcessInfo:
        """Return what is known of it."""
        status = self.process.poll()
        return ProcessInfo(self.role, self.process.pid, status, "running" if status is None else "ended")

    def ended_with(self) -> InferSwarmError:
        """Return the error that the process ended with, of its own type when it was one of ours."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else ""
        with contextlib.suppress(msgspec.DecodeError):
            return to_error(msgspec.json.decode(last, type=Fault))
        status = self.process.returncode
        how = signal_name(-status) if status is not None and status < 0 else f"exit status {status}"
        return EngineError(self.role, f"ended with {how}{': ' + last if last else ''}")

    def let_go(self) -> None:
        """Close the lifeline: the process ends by itself."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def wait_until_gone(self, deadline: float) -> None:
        """Wait for the end, and force it after the deadline."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


class LocalEngine:
    """Implements `Engine` with child processes."""

    def __init__(
        self, settings: LocalSettings, *, coordinator: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start nothing yet.

        `coordinator` is the endpoint of one that somebody else has started, for an engine of agents alone;
        `environment` is that of the agents (None: this process's own).
        """
        self._settings = settings
        self._environment = environment
        self._coordinator: Child | None = None
        self._agents: list[Child] = []
        self._endpoint = coordinator
        self._remove_abandoned_groups()

    def _remove_abandoned_groups(self) -> None:
        """Remove empty cgroups of runs whose process has gone; their names hold its pid."""
        controller = find_memory_controller()
        if isinstance(controller, MemoryController):
            controller.remove_abandoned(_is_abandoned)

    def start_coordinator(self) -> str:
        """Start the Coordinator; see `Engine`. After its end another one, at the same endpoint."""
        settings = self._settings
        port, wait_seconds = settings.port, 0.0
        if (ended := self._coordinator) is not None:
            if ended.process.poll() is None:
                raise EngineError("coordinator", "is running: only one that has ended can be started again")
            ended.let_go()
            ended.wait_until_gone(time.monotonic())
            self._coordinator = None
            wait_seconds = 2 * settings.lease_seconds + 1.0  # the rest of the lease that nobody gave back
        if self._endpoint:
            port = parse_endpoint(self._endpoint)[1]
        specification = msgspec.json.encode(
            {
                "scope": settings.scope,
                "ledger": settings.ledger,
                "token": settings.token,
                "address": settings.address,
                "port": port,
                "lease_seconds": settings.lease_seconds,
                "remove_directory": settings.remove_directory,
                "wait_seconds": wait_seconds,
                "patience_seconds": settings.patience_seconds,
                "silent_seconds": settings.silent_seconds,
            }
        )
        child = Child("coordinator", "inferswarm.fabric.coordinator_main", specification)
        self._coordinator = child
        assert child.process.stdout is not None
        if not select.select([child.process.stdout], [], [], START_SECONDS)[0]:
            raise EngineError("coordinator", f"did not serve within {START_SECONDS:.0f} s")
        line = child.process.stdout.readline()
        if not line:
            child.process.wait()
            raise child.ended_with()
        self._endpoint = msgspec.json.decode(line, type=Ready).endpoint
        return self._endpoint

    def nodes(self) -> tuple[NodePlace, ...]:
        """Return the Nodes that agents were started for; see `Engine`. Each is as alive as its agent."""
        return tuple(
            NodePlace(child.launch.name, child.launch.node_id, child.process.poll() is None)
            for child in self._agents
            if child.launch is not None
        )

    def start_agent(self, launch: NodeLaunch) -> int:
        """Start an agent; see `Engine`."""
        self.stop_agent(launch.name)
        group = f"inferswarm-{os.getpid()}-{secrets.token_hex(3)}-{launch.name}"
        specification = AgentSpec(
            node_id=launch.node_id,
            name=launch.name,
            address=self._settings.address,
            coordinator=self._endpoint,
            token=self._settings.token,
            group=group,
            limit_bytes=launch.limit_bytes,
            mechanism=self._settings.mechanism,
            scope=self._settings.scope,
            state_directory=self._state_of(launch.node_id),
            grace_seconds=self._settings.grace_seconds,
            silent_seconds=self._settings.silent_seconds,
            journal_memory_bytes=self._settings.journal_memory_bytes,
            journal_spill_bytes=self._settings.journal_spill_bytes,
            keeps_spare=self._settings.keep_spares,
            store_directory=self._store_of(launch.name),
            store_quota_bytes=self._settings.store_quota_bytes,
            transfer_bytes_per_second=self._settings.transfer_bytes_per_second,
            keeps_results=self._settings.keep_results,
        )
        module = "inferswarm.fabric.agent_main"
        child = Child(
            f"agent {launch.name}", module, msgspec.json.encode(specification), launch, group, self._environment
        )
        self._agents.append(child)
        return child.process.pid

    def stop_agent(self, name: str) -> None:
        """End an agent; see `Engine`. Its cgroup goes with it."""
        self._end_agents([child for child in self._agents if child.launch and child.launch.name == name])

    def _state_of(self, node_id: str) -> str:
        """Return where a Node keeps what outlives its agent: beside the ledger, which its terms belong to."""
        return os.path.join(f"{self._settings.ledger}.nodes", hashlib.sha256(node_id.encode()).hexdigest()[:16])

    def _store_of(self, name: str) -> str:
        """Return where a Node's artifact store is, which outlives the swarm; empty where it has none."""
        directory = self._settings.stores_directory
        return os.path.join(directory, name) if directory else ""

    def processes(self) -> tuple[ProcessInfo, ...]:
        """Return what was started; see `Engine`."""
        children = [*([self._coordinator] if self._coordinator else []), *self._agents]
        return tuple(child.info() for child in children)

    def check(self) -> None:
        """Raise when the Coordinator has ended; see `Engine`."""
        child = self._coordinator
        if child is None:
            raise EngineError("coordinator", "is not running: the swarm is closed")
        if child.process.poll() is not None:
            raise child.ended_with()

    def check_agents(self) -> None:
        """Raise what an agent ended with, when one has ended."""
        for child in self._agents:
            if child.process.poll() is not None:
                raise self._stopped_by_envelope(child) or child.ended_with()

    def _stopped_by_envelope(self, child: Child) -> EnvelopeExceeded | None:
        """Return the error of an agent that its own cgroup has killed; its group is still there to say so."""
        controller = find_memory_controller()
        if child.launch is None or child.launch.limit_bytes is None or not isinstance(controller, MemoryController):
            return None
        group = controller.find(child.group or "")
        if group is None or group.oom_kills() == 0:
            return None
        name, limit = child.launch.name, child.launch.limit_bytes
        return EnvelopeExceeded(name, controller.mechanism, limit, "its agent alone needed more")

    def stop(self) -> None:
        """End everything; see `Engine`."""
        deadline = time.monotonic() + STOP_SECONDS
        self._end_agents(self._agents)
        if self._coordinator is not None:
            self._coordinator.let_go()
            self._coordinator.wait_until_gone(deadline)
        self._coordinator = None

    def _end_agents(self, agents: Sequence[Child]) -> None:
        if not agents:
            return
        deadline = time.monotonic() + STOP_SECONDS
        for child in agents:
            child.let_go()
        for child in agents:
            child.wait_until_gone(deadline)
        self._remove_groups({child.group for child in agents if child.group is not None})
        self._agents = [child for child in self._agents if child not in agents]

    def _remove_groups(self, groups: set[str]) -> None:
        """Remove what killed agents could not remove themselves, as soon as their stages have ended too."""
        controller = find_memory_controller()
        if not isinstance(controller, MemoryController):
            return
        deadline = time.monotonic() + GROUPS_SECONDS
        while any(controller.find(group) is not None for group in groups) and time.monotonic() < deadline:
            controller.remove_abandoned(groups.__contains__)
            time.sleep(0.02)


def _is_abandoned(name: str) -> bool:
    prefix, _, rest = name.partition("-")
    pid = rest.partition("-")[0]
    return prefix == "inferswarm" and pid.isdigit() and not os.path.exists(f"/proc/{pid}")
