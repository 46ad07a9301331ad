"""The Coordinator's side of its Nodes: who is a member, what was asked of whom, what came back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from inferswarm.errors import EngineError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.faults import to_error

SendTo = Callable[[bytes, msgspec.Struct], Awaitable[None]]
OnProgress = Callable[[m.Progressed], None]
TERM_SHIFT = 32
"""Calls are numbered from the term times two to the power of this: no two terms share a number."""


class NodeLink(NamedTuple):
    """One member as the Coordinator reaches it."""

    identity: bytes
    join: m.Join


class _Call(NamedTuple):
    node_id: str
    future: asyncio.Future[m.Answer]
    on_progress: OnProgress | None


class Membership:
    """Links to the members and the calls that wait for their answers."""

    def __init__(self, send: SendTo, term: int) -> None:
        """`send(identity, message)` puts a message on the wire; calls are made under `term`."""
        self._send = send
        self._links: dict[str, NodeLink] = {}
        self._lost: dict[str, EngineError] = {}
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count((term << TERM_SHIFT) + 1)
        self.term = term

    def add(self, identity: bytes, join: m.Join) -> None:
        """Remember how to reach a Node that has joined; answers over an earlier connection are not waited for."""
        earlier = self._links.get(join.node_id)
        if earlier is not None and earlier.identity != identity:
            self._fail_calls(EngineError(f"Node {join.name!r}", "came back over another connection"), join.node_id)
        self._links[join.node_id] = NodeLink(identity, join)
        self._lost.pop(join.node_id, None)

    def remove(self, node_id: str, reason: str) -> None:
        """Forget a Node and fail every call that waits for it."""
        link = self._links.pop(node_id, None)
        name = node_id if link is None else link.join.name
        self._lost[node_id] = EngineError(f"Node {name!r}", f"is no member any more: {reason}")
        self._fail_calls(self._lost[node_id], node_id)

    def _fail_calls(self, error: EngineError, node_id: str) -> None:
        for call in list(self._calls.values()):
            if call.node_id == node_id and not call.future.done():
                call.future.set_exception(error)

    def link(self, node_id: str) -> NodeLink | None:
        """Return how a member is reached."""
        return self._links.get(node_id)

    def links(self) -> tuple[NodeLink, ...]:
        """Return all members."""
        return tuple(self._links.values())

    def name_of(self, node_id: str) -> str:
        """Return a Node's name, or its id when it is no member."""
        link = self._links.get(node_id)
        return node_id if link is None else link.join.name

    def node_of(self, identity: bytes) -> str | None:
        """Return the Node behind a connection."""
        return next((node for node, link in self._links.items() if link.identity == identity), None)

    async def call(self, node_id: str, command: m.AgentCommand, on_progress: OnProgress | None = None) -> m.Answer:
        """Ask a Node's agent and wait. Raises its fault, or EngineError when the Node goes meanwhile."""
        link = self._links.get(node_id)
        if link is None:
            if node_id in self._lost:
                raise self._lost[node_id]
            known = sorted(item.join.name for item in self._links.values())
            raise SpecError("node", node_id, f"a member of this swarm: {known}")
        number = next(self._numbers)
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._calls[number] = _Call(node_id, future, on_progress)
        try:
            incarnation = link.join.incarnation
            call = m.AgentCall(request=number, term=self.term, incarnation=incarnation, command=command)
            await self._send(link.identity, call)
            return await future
        finally:
            del self._calls[number]

    async def on_stage(
        self, node_id: str, stage: str, command: m.StageCommand, on_progress: OnProgress | None = None
    ) -> m.Answer:
        """Ask a stage through its agent."""
        return await self.call(node_id, m.OnStage(stage=stage, command=command), on_progress)

    def answered(self, node_id: str, message: m.Answered | m.Failed | m.Progressed) -> None:
        """Hand a Node's answer to the call that waits for it; one nobody asked this Node for is dropped."""
        call = self._calls.get(message.request)
        if call is None or call.node_id != node_id or call.future.done():
            return
        match message:
            case m.Answered():
                call.future.set_result(message.answer)
            case m.Failed():
                call.future.set_exception(to_error(message.fault))
            case m.Progressed():
                if call.on_progress is not None:
                    call.on_progress(message)

    def statuses(self, lease_until: Callable[[str], float | None]) -> tuple[m.NodeStatus, ...]:
        """Return what is known of each member; `lease_until` gives the end of a Node's lease."""
        now = time.monotonic()
        statuses = []
        for link in sorted(self._links.values(), key=lambda item: item.join.name):
            until = lease_until(link.join.node_id)
            statuses.append(
                m.NodeStatus(
                    node_id=link.join.node_id,
                    name=link.join.name,
                    incarnation=link.join.incarnation,
                    pid=link.join.pid,
                    mechanism=link.join.mechanism,
                    lease_left_seconds=0.0 if until is None else max(0.0, until - now),
                )
            )
        return tuple(statuses)
