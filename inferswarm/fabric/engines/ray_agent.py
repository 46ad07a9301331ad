"""What runs on a Ray node for a Node: an actor that starts the agent's process there, watches it and its raylet.

The actor is thin on purpose. The agent is a process of its own, the same as on every engine, inside its envelope from
its first allocation, and it ends with the actor. A Node is in the swarm only while its raylet runs: Ray gives up a
node whose raylet does not answer, though late, and what runs there then ends in the middle of something. So the actor
takes its agent out first, and starts another one when the raylet runs again. This module does not import Ray.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

import msgspec
import psutil

from inferswarm.errors import EngineError, InferSwarmError
from inferswarm.fabric.engines.local import LocalEngine
from inferswarm.fabric.engines.ray_messages import ActorStart, AgentState, Refused
from inferswarm.fabric.engines.ray_placing import own_place
from inferswarm.fabric.faults import to_fault
from inferswarm.fabric.transport import parse_endpoint

CHECK_SECONDS = 0.1
"""How often the actor looks at its raylet."""
COORDINATOR_CHECK_SECONDS = 5.0
"""How often it looks whether a Coordinator listens; each time for as long at most."""
EXIT_ABANDONED = 75
"""Exit status of an actor that nobody needs any more."""

_HALTED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
_GONE = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})


class AgentActor:
    """Keeps the agent of one Node on the machine where it runs; every answer is an encoded `FromActor` message."""

    def __init__(
        self,
        raylet_pid: int | None = None,
        end: Callable[[int], None] = os._exit,
        coordinator_check_seconds: float = COORDINATOR_CHECK_SECONDS,
    ) -> None:
        """Watch the raylet (this process's parent unless given); `end` ends this process when nobody needs it."""
        self._end = end
        self._raylet = psutil.Process(os.getppid() if raylet_pid is None else raylet_pid)
        self._coordinator_check_seconds = coordinator_check_seconds
        self._lock = threading.Lock()
        self._given: ActorStart | None = None
        self._engine: LocalEngine | None = None
        self._is_paused = False
        self._halted_at: float | None = None
        self._reached_at = time.monotonic()
        self._closed = threading.Event()
        for watch in (self._watch_raylet, self._watch_coordinator):
            threading.Thread(target=watch, name=watch.__name__, daemon=True).start()

    def place(self) -> bytes:
        """Return where the actor runs, as an encoded `Place`."""
        return msgspec.json.encode(own_place())

    def start(self, start: bytes) -> bytes:
        """Start the agent that an encoded `ActorStart` asks for, after ending the one that was there."""
        with self._lock:
            self._release()
            self._given = msgspec.json.decode(start, type=ActorStart)
            self._is_paused = False
            self._reached_at = time.monotonic()
            try:
                self._launch(self._given)
            except InferSwarmError as error:
                return msgspec.json.encode(Refused(fault=to_fault(error)))
            return msgspec.json.encode(self._state())

    def state(self) -> bytes:
        """Return how the agent is."""
        with self._lock:
            return msgspec.json.encode(self._state())

    def stop(self) -> bytes:
        """End the agent and wait until it has gone; the actor stays until it is ended itself."""
        with self._lock:
            self._closed.set()
            self._release()
            return msgspec.json.encode(self._state())

    def _state(self) -> AgentState:
        if self._engine is None:
            return AgentState(state="paused" if self._is_paused else "ended")
        (info,) = self._engine.processes()
        try:
            self._engine.check_agents()
        except InferSwarmError as error:
            return AgentState(state="ended", pid=info.pid, exit_status=info.exit_status, fault=to_fault(error))
        return AgentState(state="running", pid=info.pid)

    def _launch(self, given: ActorStart) -> None:
        """Start the agent, in the environment of the raylet: Ray changes that of actors (threads, accelerators)."""
        try:
            environment = self._raylet.environ()
            engine = LocalEngine(given.settings, coordinator=given.coordinator, environment=environment)
            engine.start_agent(given.launch)
        except (psutil.Error, OSError) as error:
            raise EngineError(f"agent {given.launch.name}", f"cannot be started: {error}") from error
        self._engine = engine

    def _release(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    # -- what is watched --

    def _watch_raylet(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            status = self._raylet_status()
            with self._lock:
                if status is None:
                    self._abandon()
                elif status in _HALTED:
                    self._consider_pause()
                else:
                    self._halted_at = None
                    self._come_back()

    def _consider_pause(self) -> None:
        """Take the agent out when the raylet has not run for long enough. One that ended by itself stays ended."""
        if self._given is None or self._engine is None or self._state().state != "running":
            return
        now = time.monotonic()
        self._halted_at = self._halted_at or now
        if now - self._halted_at >= self._given.pause_seconds:
            self._is_paused = True
            self._release()

    def _come_back(self) -> None:
        if self._is_paused and self._given is not None:
            self._is_paused = False
            with contextlib.suppress(EngineError):  # then it has ended, and that is what its state says
                self._launch(self._given)

    def _raylet_status(self) -> str | None:
        """Return what the kernel says the raylet does; None when it has gone."""
        try:
            status = str(self._raylet.status())
        except psutil.NoSuchProcess:
            return None
        return None if status in _GONE or not self._raylet.is_running() else status

    def _watch_coordinator(self) -> None:
        """End with the agent when no Coordinator was there for long: whoever wanted the Node has gone for good."""
        while not self._closed.wait(self._coordinator_check_seconds):
            given = self._given
            if given is None:
                continue
            with contextlib.suppress(OSError):
                socket.create_connection(parse_endpoint(given.coordinator), COORDINATOR_CHECK_SECONDS).close()
                self._reached_at = time.monotonic()
            if time.monotonic() - self._reached_at > given.abandon_seconds:
                with self._lock:
                    self._abandon()

    def _abandon(self) -> None:
        self._closed.set()
        self._release()
        self._end(EXIT_ABANDONED)
