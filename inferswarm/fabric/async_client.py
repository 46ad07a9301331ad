"""The client of a Coordinator for an event loop: many questions at once in one thread. Otherwise as `Client`.

Leaving a question before its answer abandons it: the Coordinator cancels the session, and the stages free it.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from types import TracebackType

import msgspec
import zmq
import zmq.asyncio

from inferswarm.errors import EngineError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import (
    ABANDON_LINGER_MILLISECONDS,
    POLL_SECONDS,
    SILENCE_SECONDS,
    ClientEvent,
    Credentials,
    check_term,
    encode_ask,
)
from inferswarm.fabric.faults import to_error
from inferswarm.fabric.frames import PROTOCOL

_from_coordinator = msgspec.msgpack.Decoder(m.ToClient)


class AsyncClient:
    """Asks one Coordinator from one event loop. Close it in the same loop."""

    def __init__(self, credentials: Credentials) -> None:
        """Nothing is connected until something is asked."""
        self._credentials = credentials
        self._context: zmq.asyncio.Context | None = None

    def key_for(self, purpose: str) -> bytes:
        """Return 32 bytes that only holders of the swarm's token can know, others for each purpose."""
        return hmac.digest(self._credentials.token.encode(), purpose.encode(), hashlib.sha256)

    def asking(self, question: m.Question, timeout_seconds: float | None = None) -> Asking:
        """Return a question to be entered with `async with`; see `Asking`."""
        if self._context is None:
            self._context = zmq.asyncio.Context()
        return Asking(self, self._context, self._credentials, question, timeout_seconds)

    async def ask(self, question: m.Question, timeout_seconds: float | None = None) -> m.ClientAnswer:
        """Ask and wait for the answer. Raises the fault instead, or EngineError when time or Coordinator run out."""
        async with self.asking(question, timeout_seconds) as asking:
            while await asking.next() is not None:
                pass
            return asking.answer

    def close(self) -> None:
        """Close all connections; nothing is asked any more."""
        if self._context is not None:
            self._context.destroy(linger=ABANDON_LINGER_MILLISECONDS)
            self._context = None


class Asking:
    """One question under way. `next` gives what comes in between, then None; after that `answer` is there."""

    def __init__(
        self,
        client: AsyncClient,
        context: zmq.asyncio.Context,
        credentials: Credentials,
        question: m.Question,
        timeout_seconds: float | None,
    ) -> None:
        """Made by `AsyncClient.asking`."""
        self._client = client
        self._context = context
        self._credentials = credentials
        self._question = question
        self._timeout_seconds = timeout_seconds
        self._answer: m.ClientAnswer | None = None
        self._over = False
        self._term = 0

    @property
    def answer(self) -> m.ClientAnswer:
        """The answer, once `next` returned None."""
        assert self._answer is not None
        return self._answer

    async def __aenter__(self) -> Asking:
        """Connect and ask. Raises SpecError for values that no message can carry."""
        asked = encode_ask(m.Ask(request=1, question=self._question))
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._credentials.endpoint)
        self._started = self._heard = time.monotonic()
        await self._socket.send(msgspec.msgpack.encode(m.Hello(token=self._credentials.token, protocol=PROTOCOL)))
        await self._socket.send(asked)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; when the answer has not come, nobody waits for it any more."""
        if not self._over:
            # Not awaited: it is on its way when this returns, and this may run because the task was cancelled.
            self._socket.send(msgspec.msgpack.encode(m.Abandon(request=1)))
        self._socket.close(linger=ABANDON_LINGER_MILLISECONDS)

    async def next(self) -> ClientEvent | None:
        """Return the next event, or None when the answer has come.

        Raises the fault that came instead, or EngineError when the Coordinator has gone, is deaf, or did not answer
        in the question's time.
        """
        while not self._over:
            if not await self._socket.poll(int(POLL_SECONDS * 1000)):
                await self._look_around()
                continue
            message = _from_coordinator.decode(await self._socket.recv())
            self._heard = time.monotonic()
            match message:
                case m.ClientAnswered():
                    self._over, self._answer = True, message.answer
                case m.Failed() | m.Turned():
                    self._over = True
                    raise to_error(message.fault)
                case m.Progressed() | m.SessionAdmitted() | m.TokenCommitted():
                    return message
                case m.Welcome():
                    self._term = message.term
        return None

    async def _look_around(self) -> None:
        """Find out whether there is still somebody to wait for. Raises EngineError otherwise."""
        self._credentials.check()
        now, limit = time.monotonic(), self._timeout_seconds
        if limit is not None and now - self._started > limit:
            raise EngineError("Coordinator", f"did not answer within {limit:.0f} s")
        if limit is None and now - self._heard > SILENCE_SECONDS:
            status = await self._client.ask(m.Status(), SILENCE_SECONDS)  # a long answer is silent, a hang is deaf
            check_term(self._term, status)
            self._heard = time.monotonic()
