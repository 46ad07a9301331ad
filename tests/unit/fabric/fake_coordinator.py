"""A Coordinator that only says what a test tells it to, over a real socket, to an agent that is a real one."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio

from inferswarm.fabric import messages as m
from inferswarm.fabric.agent import Agent, AgentSpec
from inferswarm.fabric.envelope import NodeEnvelope
from inferswarm.fabric.faults import to_error

LEASE_SECONDS = 0.6
PATIENCE_SECONDS = 20.0
Message = TypeVar("Message", bound=m.Message)


class FakeCoordinator:
    """Listens on a port of its own, or on that of one that has ended. Use it in a `with`."""

    def __init__(self, term: int, port: int = 0) -> None:
        self.term = term
        self.incarnation = ""
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._agent = b""
        self._numbers = itertools.count(term << 32)
        self._decoder = msgspec.msgpack.Decoder(m.ToCoordinator)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.endpoint.rpartition(":")[2])

    async def hears(self, kind: type[Message], *, beating: bool = False) -> Message:
        """Wait for a message of this kind; the others before it are dropped, or beats answered when `beating`."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self._agent, body = await self._socket.recv_multipart()
                message = self._decoder.decode(body)
                if isinstance(message, kind):
                    return message
                if beating and isinstance(message, m.Beat):
                    await self.says(m.BeatSeen(term=self.term))

    async def says(self, message: m.ToAgent) -> None:
        """Say something to whoever was heard last."""
        await self._socket.send_multipart([self._agent, msgspec.msgpack.encode(message)])

    async def welcomes(self) -> m.Join:
        """Take an agent as a member."""
        join = await self.hears(m.Join)
        self.incarnation = join.incarnation
        await self.says(m.Welcome(term=self.term, lease_seconds=LEASE_SECONDS))
        return join

    async def orders(self, command: m.AgentCommand, **other: Any) -> m.Answer:
        """Order something, beat by beat until it is answered. `other` replaces term or incarnation."""
        number = next(self._numbers)
        fields = {"term": self.term, "incarnation": self.incarnation, **other}
        await self.says(m.AgentCall(request=number, command=command, **fields))
        while True:
            message = await self.hears(m.Message)  # type: ignore[type-abstract]
            match message:
                case m.Beat():
                    await self.says(m.BeatSeen(term=self.term))
                case m.Answered(request=request, answer=answer) if request == number:
                    return answer
                case m.Failed(request=request, fault=fault) if request == number:
                    raise to_error(fault)
                case _:
                    pass

    def __enter__(self) -> FakeCoordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=200)


class RunningAgent:
    """An agent of this process. Use it in an `async with`: the end stops it."""

    def __init__(self, coordinator: str, state: Path, *, grace_seconds: float = 30.0, spares: bool = False) -> None:
        spec = AgentSpec(
            node_id="n1",
            name="amber",
            address="127.0.0.1",
            coordinator=coordinator,
            token="secret",
            group="",
            limit_bytes=None,
            mechanism="none",
            scope="scope",
            state_directory=str(state),
            grace_seconds=grace_seconds,
            keeps_spare=spares,
            spare_pause_seconds=0.1,
        )
        self.agent = Agent(spec, NodeEnvelope())

    async def __aenter__(self) -> RunningAgent:
        self.task = asyncio.create_task(self.agent.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.agent.stop()
        if not self.task.done():
            await self.task
