"""Several answers at once, each followed token by token as its client sees it: the load of the arms."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

from inferswarm.backends.partition import Partition
from inferswarm.documents import read_document
from inferswarm.errors import EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.async_client import AsyncClient
from inferswarm.fabric.expecting import expect
from inferswarm.swarm import Service

PATIENCE_SECONDS = 90.0
"""For anything that a stream waits for: longer than a recovery from nothing takes on a busy machine."""


class Seen(NamedTuple):
    """One token as it arrived at its client, on a monotonic clock."""

    at: float
    position: int
    token: int


class Followed(NamedTuple):
    """One stream after its end."""

    key: str
    seen: tuple[Seen, ...]
    record: m.SessionRecord | None
    """What the ledger holds of it; None where it ended with an error."""
    error: str

    @property
    def partition(self) -> Partition:
        """How it was computed. Raises DocumentError where there is no record, or a damaged one."""
        text = "" if self.record is None else self.record.partition
        return read_document(Partition, text, f"partition of {self.key}")

    @property
    def num_gaps(self) -> int:
        """Positions that the client did not see between the first and the last that it saw."""
        return sum(max(0, later.position - earlier.position - 1) for earlier, later in pairwise(self.seen))

    @property
    def num_repeated(self) -> int:
        """Positions that the client saw again, or out of their order."""
        return sum(later.position <= earlier.position for earlier, later in pairwise(self.seen))

    @property
    def num_unlike_ledger(self) -> int:
        """Tokens that the client saw and the ledger has not, or the other way round."""
        tokens = () if self.record is None else self.record.tokens
        told = tuple(item.token for item in self.seen)
        return sum(a != b for a, b in zip(tokens, told, strict=False)) + abs(len(tokens) - len(told))

    def longest_wait(self, since: float) -> float:
        """Return the seconds from a moment to the token that ends the longest gap behind it.

        Tokens that were on their way at that moment do not count. Raises ValueError without a token behind it.
        """
        before = [item.at for item in self.seen if item.at <= since]
        after = [*before[-1:], *(item.at for item in self.seen if item.at > since)]
        return max(pairwise(after), key=lambda gap: gap[1] - gap[0])[1] - since


class Streams:
    """Asks all its questions at once, in a thread of its own, until the end of a `with`."""

    def __init__(self, service: Service, questions: Mapping[str, m.Generate]) -> None:
        """Nothing is asked yet."""
        self._service = service
        self._questions = dict(questions)
        self._changed = threading.Condition()
        self._seen: dict[str, list[Seen]] = {key: [] for key in questions}
        self._ended: dict[str, Followed] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="streams")

    def wait_for(self, num_tokens: int) -> None:
        """Wait until every stream has so many tokens. Raises EngineError when one ends or falls silent before."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self._ended or all(len(seen) >= num_tokens for seen in self._seen.values()), PATIENCE_SECONDS
            )
            short = [key for key, seen in self._seen.items() if len(seen) < num_tokens]
        if short or not reached:
            raise EngineError("streams", f"{', '.join(short)} did not reach {num_tokens} tokens")

    def finish(self) -> tuple[Followed, ...]:
        """Wait for the end of all streams and return them. Raises EngineError when one does not end."""
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():
            raise EngineError("streams", f"not all ended within {PATIENCE_SECONDS:.0f} s")
        return tuple(self._ended[key] for key in self._questions)

    def __enter__(self) -> Streams:
        """Ask."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the end."""
        self._thread.join(PATIENCE_SECONDS)

    async def _run(self) -> None:
        client = self._service.connect()
        with contextlib.closing(client):
            await asyncio.gather(*(self._follow(client, key) for key in self._questions))

    async def _follow(self, client: AsyncClient, key: str) -> None:
        record, error = None, ""
        try:
            async with client.asking(self._questions[key]) as asking:
                while (event := await asking.next()) is not None:
                    if isinstance(event, m.TokenCommitted):
                        self._saw(key, Seen(time.monotonic(), event.position, event.token))
                record = expect(m.Generated, asking.answer, "an answer").record
        except InferSwarmError as fault:  # a session that is lost is what is counted
            error = f"{type(fault).__name__}: {fault}"
        with self._changed:
            self._ended[key] = Followed(key, tuple(self._seen[key]), record, error)
            self._changed.notify_all()

    def _saw(self, key: str, seen: Seen) -> None:
        with self._changed:
            self._seen[key].append(seen)
            self._changed.notify_all()
