"""Numbered calls over the channel to a child process, of which each waits for its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import frame
from inferswarm.fabric.faults import to_error

OnProgress = Callable[[m.Progressed], None]


class Calls:
    """The calls to one child that are not answered yet."""

    def __init__(self) -> None:
        """None."""
        self._waiting: dict[int, asyncio.Future[m.Answer]] = {}
        self._progress: dict[int, OnProgress] = {}
        self._next_request = 1

    async def call(
        self,
        writer: asyncio.StreamWriter,
        numbered: Callable[[int], m.Message],
        on_progress: OnProgress | None = None,
    ) -> m.Answer:
        """Send what `numbered` makes of a number, and wait for the answer. Raises the fault, or ConnectionError."""
        request = self._next_request
        self._next_request += 1
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        if on_progress is not None:
            self._progress[request] = on_progress
        try:
            writer.write(frame(numbered(request)))
            await writer.drain()
            return await future
        finally:
            self._waiting.pop(request, None)
            self._progress.pop(request, None)

    def take(self, message: m.Answered | m.Failed | m.Progressed) -> None:
        """Give an answer, a fault or progress to the call that it is for; what nobody waits for is dropped."""
        if isinstance(message, m.Progressed):
            if (callback := self._progress.get(message.request)) is not None:
                callback(message)
            return
        future = self._waiting.get(message.request)
        if future is None or future.done():
            return
        if isinstance(message, m.Answered):
            future.set_result(message.answer)
        else:
            future.set_exception(to_error(message.fault))

    def fail(self, error: InferSwarmError) -> None:
        """Let every call fail that still waits: the child has gone."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
