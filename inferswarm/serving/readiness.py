"""Whether requests would be answered: a forward has passed through every stage of the epoch in force, recently.

Committed tokens of ordinary sessions are such forwards. Where there are none, a session of one token is computed: at
the start, as soon as another epoch is in force, and whenever the last forward is `interval_seconds` old.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.async_client import AsyncClient
from inferswarm.fabric.expecting import expect
from inferswarm.serving.problems import Refusal
from inferswarm.serving.slots import Slots

LOOK_SECONDS = 0.5
"""How often the epoch in force is asked for."""
ANSWER_SECONDS = 10.0
"""A Coordinator that does not say within this which epoch is in force is not serving."""
STALE_INTERVALS = 3.0
"""A forward older than so many intervals proves nothing: where all slots are taken, tokens should have come."""
PROMPT = (0,)
"""Any token will do."""


class Verdict(NamedTuple):
    """Whether the endpoint is ready, in which epoch, and why not."""

    ready: bool
    epoch: int | None
    reason: str
    """Empty when ready."""
    seconds_since_forward: float | None


class Readiness:
    """Watches one Coordinator while `run` is running."""

    def __init__(self, client: AsyncClient, slots: Slots, interval_seconds: float) -> None:
        """Nothing is proved yet."""
        self.became_ready = asyncio.Event()
        """Set when the endpoint was ready for the first time."""
        self._client = client
        self._slots = slots
        self._interval_seconds = interval_seconds
        self._epoch: int | None = None
        self._proved: int | None = None
        self._proved_at = 0.0
        self._reason = "the server has just started"

    def verdict(self) -> Verdict:
        """Return how things are now."""
        age = time.monotonic() - self._proved_at if self._proved is not None else None
        reason = self._reason
        if not reason and self._epoch is None:
            reason = "no epoch has authority: no plan is realized"
        elif not reason and self._proved != self._epoch:
            reason = f"no forward has passed through the stages of epoch {self._epoch} yet"
        elif not reason and age is not None and age > STALE_INTERVALS * self._interval_seconds:
            reason = f"the last forward passed through every stage {age:.0f} s ago"
        return Verdict(not reason, self._epoch, reason, age)

    def note_forward(self, epoch: int) -> None:
        """A token of a session of that epoch was committed: every stage has computed."""
        if epoch == self._epoch or self._epoch is None:
            self._proved, self._proved_at = epoch, time.monotonic()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._look()
            except InferSwarmError as error:
                self._reason = str(error)
            except Refusal as refusal:  # the queue is full: then sessions prove what there is to prove
                self._reason = refusal.problem.message
            else:
                self._reason = ""
                if self.verdict().ready:
                    self.became_ready.set()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        status = expect(m.SwarmStatus, await self._client.ask(m.Status(), ANSWER_SECONDS), "a status")
        self._epoch = status.epoch
        if self._epoch is None or self._slots.is_full:
            return
        age = time.monotonic() - self._proved_at
        if self._proved != self._epoch or age > self._interval_seconds:
            async with self._slots.place():
                await self._prove(self._epoch)

    async def _prove(self, epoch: int) -> None:
        question = m.Generate(token_ids=PROMPT, max_tokens=1, ignore_stop=True, epoch=epoch)
        expect(m.Generated, await self._client.ask(question), "an answer")
        self._proved, self._proved_at = epoch, time.monotonic()
