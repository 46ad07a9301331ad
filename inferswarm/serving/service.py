"""What the endpoint knows and holds: the Coordinator's client, the model, slots, readiness, names of answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from inferswarm.errors import AdmissionError
from inferswarm.fabric import messages as m
from inferswarm.fabric.async_client import Asking, AsyncClient
from inferswarm.fabric.client import ClientEvent
from inferswarm.fabric.expecting import expect
from inferswarm.serving.bodies import TokenBytes
from inferswarm.serving.identity import SessionNames
from inferswarm.serving.problems import bad_request, busy
from inferswarm.serving.readiness import Readiness
from inferswarm.serving.slots import Slots

RETRY_SECONDS = 0.05
"""How long to wait before asking again for a session that the Coordinator has no room for."""


class ServingSettings(NamedTuple):
    """How one model is served."""

    model: str
    """The name that requests must give."""
    max_positions: int
    """Longest session, in tokens of prompt and answer together."""
    num_sessions: int
    """Sessions at once, as the plan has them."""
    queue_length: int = 16
    queue_seconds: float = 30.0
    patience_seconds: float = 30.0
    """How long a client may take to make room for the next event of its stream."""
    ready_seconds: float = 60.0
    """An idle server proves at least so often that a forward passes through every stage."""
    max_followers: int = 64


class Running(NamedTuple):
    """A request that is an open session."""

    admitted: m.SessionAdmitted
    asking: Asking


async def tokens_of(asking: Asking, alive_seconds: float) -> AsyncGenerator[m.TokenCommitted | None, None]:
    """Yield committed tokens as they come, and None whenever none came for `alive_seconds`. Close it (`aclosing`)."""
    waiting: asyncio.Future[ClientEvent | None] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(asking.next())
            done, _ = await asyncio.wait({waiting}, timeout=alive_seconds)
            if not done:
                yield None
                continue
            event, waiting = waiting.result(), None
            if event is None:
                return
            if isinstance(event, m.TokenCommitted):
                yield event
    finally:
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})


class Serving:
    """One endpoint's state. Made in the event loop that it serves in; `scope` is the Coordinator's."""

    def __init__(
        self, client: AsyncClient, settings: ServingSettings, scope: str, texts: TokenBytes | None = None
    ) -> None:
        """`texts` is the model's; without it no log-probabilities are reported."""
        self.client = client
        self.settings = settings
        self.texts = texts
        self.created = int(time.time())
        self.names = SessionNames(client.key_for("names of answers"), scope, settings.model)
        self.slots = Slots(settings.num_sessions, settings.queue_length, settings.queue_seconds)
        self.readiness = Readiness(client, self.slots, settings.ready_seconds)
        self.running: set[asyncio.Task[None]] = set()
        """Answers under way; cancelling one ends it truthfully."""
        self._num_followers = 0

    @asynccontextmanager
    async def session(self, question: m.Generate) -> AsyncIterator[Running]:
        """Wait for room, open a session and give it; leaving it before its end cancels it on every stage.

        Raises Refusal when there is no room in time, or the error with which the Coordinator refused.
        """
        if question.sampling.logprobs is not None and self.texts is None:
            message = "logprobs: this server was started without a tokenizer"
            raise bad_request("logprobs", message, "unsupported_value")
        async with self.slots.place() as deadline:
            while True:
                async with self.client.asking(question) as asking:
                    try:
                        admitted = await asking.next()
                    except AdmissionError as error:
                        # A session that was cancelled a moment ago, or one of another client of the Coordinator.
                        if error.field != "sessions":
                            raise
                        if time.monotonic() > deadline:
                            raise busy(str(error), "sessions_taken", self.slots.retry_after_seconds()) from error
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    yield Running(expect(m.SessionAdmitted, admitted, "an admission"), asking)
                    return

    @asynccontextmanager
    async def following(self, session: int, from_position: int) -> AsyncIterator[Asking]:
        """Follow a session of the ledger. Raises Refusal when too many do so already."""
        if self._num_followers >= self.settings.max_followers:
            raise busy(f"{self._num_followers} clients follow sessions already", "too_many_followers", 5)
        self._num_followers += 1
        try:
            async with self.client.asking(m.Follow(session=session, from_position=from_position)) as asking:
                yield asking
        finally:
            self._num_followers -= 1

    def stop(self) -> None:
        """Cancel every answer under way; each tells its client so."""
        for task in self.running:
            task.cancel()
