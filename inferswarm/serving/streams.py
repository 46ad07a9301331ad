"""Server-sent events over one connection, and what happens when its other end goes away or does not read.

Nothing here is buffered beyond what the connection itself takes: an event waits until the reader has made room for
it, for so long and no longer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.types import Receive, Send

from inferswarm.serving.bodies import Body
from inferswarm.serving.problems import Problem

GOODBYE_SECONDS = 1.0
"""How long a cancelled answer may take to tell its reader so."""


class SlowReader(Exception):
    """The client did not read for longer than it may; its connection is given up."""


class EventStream:
    """One response of server-sent events. `start` sends the header, `end` the end; in between events."""

    def __init__(self, send: Send, patience_seconds: float) -> None:
        """A reader may take `patience_seconds` to make room for an event."""
        self._send = send
        self._patience_seconds = patience_seconds
        self.started = False

    async def start(self) -> None:
        """Send status and headers."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # proxies shall pass events on, not collect them
        ]
        self.started = True
        await self._put({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, body: Body, position: int | None = None) -> None:
        """Send one event; `position` becomes its id, which a client that reconnects names."""
        head = b"" if position is None else b"id: %d\n" % position
        await self._text(head + b"data: " + msgspec.json.encode(body) + b"\n\n")

    async def alive(self) -> None:
        """Send a comment, so that everybody on the way sees that the connection is used."""
        await self._text(b": working\n\n")

    async def done(self) -> None:
        """Send the mark of a complete answer, and end."""
        await self._text(b"data: [DONE]\n\n")
        await self._text(b"", more=False)

    async def fail(self, problem: Problem) -> None:
        """Send an error instead of the rest, and end: no mark, so that nobody takes it for a complete answer."""
        await self._text(b"data: " + problem.body() + b"\n\n")
        await self._text(b"", more=False)

    async def _text(self, data: bytes, more: bool = True) -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": more})

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._send(message)
        except TimeoutError as error:
            raise SlowReader from error


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]
) -> None:
    """Do some work, and cancel it as soon as the client has gone. `running` holds its task meanwhile.

    The request's body must have been read. Raises what the work raised, unless it was cancelled.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    running.add(task)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.discard(task)
        gone.cancel()
        task.cancel()  # does nothing to one that is done
        await asyncio.wait({task, gone})
    with contextlib.suppress(asyncio.CancelledError):
        task.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
