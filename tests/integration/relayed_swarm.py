"""A swarm whose data connections pass through relays in this process, which can cut them, damage a byte, or hang up.

Coordinator, agents and stages are as they are everywhere. What is between them is this: agents reach the Coordinator
through a proxy, which puts a relay's endpoint in the place of every endpoint that frames are sent to.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec.structs import replace

from inferswarm.fabric import messages as m
from inferswarm.fabric.transport import make_endpoint, parse_endpoint
from tests.integration.null_swarm import NullSwarm
from tests.unit.fabric.cut_connections import drop_what_arrives
from tests.unit.fabric.processes import Identity

POLL_SECONDS = 0.05


class Passage:
    """One connection through a relay: what its sender sends goes on, and either end learns when the other closes."""

    def __init__(self, sender: socket.socket, target: str) -> None:
        """Connect to the target."""
        self._ends = (sender, socket.create_connection(parse_endpoint(target)))
        self.is_damaging = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, here or at an end
            while True:
                for end in select.select(self._ends, [], [])[0]:
                    received = bytearray(end.recv(2**16))
                    if not received:
                        self.close()
                        return
                    if self.is_damaging:
                        received[len(received) // 2] ^= 1
                        self.is_damaging = False
                    self._ends[end is self._ends[0]].sendall(received)
        self.close()

    def cut(self) -> None:
        """Drop every packet that comes from either end: nobody is told."""
        for end in self._ends:
            drop_what_arrives(end)

    def damage(self) -> None:
        """Change one bit of what passes next."""
        self.is_damaging = True

    def close(self) -> None:
        """Hang up."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Relay:
    """Takes connections in the place of a target."""

    def __init__(self, target: str, *, cuts: bool = False) -> None:
        """Listen; `cuts`: whatever connects is cut off at once, so that connecting is all that ever works."""
        self.target = target
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = make_endpoint(*self._listener.getsockname()[:2])
        self.passages: list[Passage] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                with contextlib.suppress(OSError):  # the target has gone
                    self.passages.append(Passage(connection, self.target))
                    if self._cuts:
                        self.passages[-1].cut()

    def close(self) -> None:
        """Take no more connections, and hang up on those that there are."""
        self._listener.close()
        for passage in self.passages:
            passage.close()


class RelayedSwarm(NullSwarm):
    """A null swarm with a relay before each inbox."""

    def __init__(self, directory: Path, **fields: Any) -> None:
        """Start it; `fields` as for `NullSwarm`."""
        self.relays: dict[str, Relay] = {}
        """Before the inbox of each stage, and of the Coordinator's results, which has no name."""
        self.unreachable: set[str] = set()
        """Nodes to whose stages nothing gets through any more."""
        self._names: dict[bytes, str] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._agents_side = self._context.socket(zmq.ROUTER)
        self._port = self._agents_side.bind_to_random_port("tcp://127.0.0.1")
        self._stopped = threading.Event()
        self._proxy = threading.Thread(target=self._pass_control)
        self._starts: dict[tuple[bytes, int], str] = {}
        super().__init__(directory, **fields)

    def start_agent(self, name: str) -> Identity:
        """Start an agent that finds the proxy where it looks for the Coordinator."""
        if not self._proxy.is_alive():
            self._proxy.start()
        direct, self.engine._endpoint = self.engine._endpoint, f"tcp://127.0.0.1:{self._port}"
        try:
            return super().start_agent(name)
        finally:
            self.engine._endpoint = direct

    def stop(self) -> None:
        """Stop everything, the relays last."""
        super().stop()
        self._stopped.set()
        if self._proxy.is_alive():
            self._proxy.join()
        self._agents_side.close(linger=0)
        self._context.term()
        for relay in self.relays.values():
            relay.close()

    def _pass_control(self) -> None:
        sides: dict[bytes, zmq.Socket[bytes]] = {}
        poller = zmq.Poller()
        poller.register(self._agents_side, zmq.POLLIN)
        while not self._stopped.is_set():
            for ready, _ in poller.poll(POLL_SECONDS * 1000):
                if ready is self._agents_side:
                    identity, body = self._agents_side.recv_multipart()
                    if identity not in sides:
                        sides[identity] = self._context.socket(zmq.DEALER)
                        sides[identity].connect(self.endpoint)
                        poller.register(sides[identity], zmq.POLLIN)
                    sides[identity].send(self._from_agent(identity, body))
                else:
                    (identity,) = [known for known, side in sides.items() if side is ready]
                    self._agents_side.send_multipart([identity, self._to_agent(identity, ready.recv())])
        for side in sides.values():
            side.close(linger=0)

    def _from_agent(self, identity: bytes, body: bytes) -> bytes:
        message = msgspec.msgpack.decode(body, type=m.ToCoordinator)
        if isinstance(message, m.Join):
            self._names[identity] = message.name
        if isinstance(message, m.Answered) and isinstance(message.answer, m.StageStarted):
            name = self._starts[identity, message.request]
            relay = Relay(message.answer.endpoint, cuts=self._names[identity] in self.unreachable)
            self.relays[name] = relay
            return msgspec.msgpack.encode(replace(message, answer=replace(message.answer, endpoint=relay.endpoint)))
        return body

    def _to_agent(self, identity: bytes, body: bytes) -> bytes:
        message = msgspec.msgpack.decode(body, type=m.ToAgent)
        if not isinstance(message, m.AgentCall):
            return body
        command = message.command
        if isinstance(command, m.StartStage):
            self._starts[identity, message.request] = command.stage
        if not isinstance(command, m.OnStage) or not isinstance(command.command, m.Connect):
            return body
        links = command.command
        results = self.relays.setdefault("", Relay(links.coordinator_endpoint))
        links = replace(links, coordinator_endpoint=results.endpoint)
        own = self.relays.get(command.stage)
        if own is not None and links.first_endpoint == own.endpoint:
            links = replace(links, first_endpoint=own.target)  # a first stage knows itself by it
        return msgspec.msgpack.encode(replace(message, command=replace(command, command=links)))
