"""One session that is being computed: what was sent, what was committed, what of it is text, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from statistics import median

from inferswarm.backends.base import LogProbabilities
from inferswarm.backends.partition import Step
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.ledger import CommitRow, SessionRow
from inferswarm.fabric.text_side import TextSide
from inferswarm.strategies.text.stop import StopMatcher

RECENT_TOKENS = 32
"""So many tokens say how fast a session goes now."""

OnToken = Callable[[int, int, int, str, LogProbabilities | None], Awaitable[None]]
"""Called with session, position, token, the text that can be shown because of it, and its log-probabilities."""


class ActiveSession:
    """A session between its admission and its last report."""

    def __init__(
        self,
        row: SessionRow,
        session_positions: int,
        text: TextSide | None,
        on_token: OnToken,
        grid: tuple[Step, ...] = (),
    ) -> None:
        """Begin; needs a running event loop.

        `session_positions` is the longest that the session could become when it was first opened; `text` is None
        where only token ids are known; `grid` are the steps that the prompt is computed in.
        """
        loop = asyncio.get_running_loop()
        self.row = row
        self.session_positions = session_positions
        self.on_token = on_token
        self.grid = grid
        self.text: list[str] = []
        self.commits: list[CommitRow] = []
        self.sent: list[Step] = []
        self.expected: tuple[CommitRow, ...] = ()
        """The commits that a replay must reproduce."""
        self.suspended = False
        """Bound to no epoch: nothing computes it until it is resumed."""
        self.ending: str | None = None
        """Why the answer ends, once its last token is committed."""
        self.note = ""
        """What whoever reads the record should know of how it was computed."""
        self.feeding: asyncio.Task[None] | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[str] = loop.create_future()
        self.closed: asyncio.Future[tuple[m.SessionReport, ...]] = loop.create_future()
        self._detokenizer = None if text is None else text.detokenizer()
        self._matcher = StopMatcher(row.stop_strings)
        self._began_ns = row.at_ns
        self._started_ns = time.monotonic_ns()

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._matcher.matched

    def now_ns(self) -> int:
        """Return the time of day by a clock that never goes back during a session."""
        return self._began_ns + time.monotonic_ns() - self._started_ns

    def usual_seconds(self) -> float:
        """Return the median time between the last tokens, in seconds; 0 where too few came."""
        times = [commit.at_ns for commit in self.commits[-RECENT_TOKENS:]]
        return median((after - before) / 1e9 for before, after in pairwise(times)) if len(times) > 1 else 0.0

    def longest_gap(self, since: int) -> float:
        """Return the longest time between two tokens, the later of which is at least the `since`-th, in seconds."""
        times = [commit.at_ns for commit in self.commits[max(since - 1, 0) :]]
        return max(((after - before) / 1e9 for before, after in pairwise(times)), default=0.0)

    def restore(self, commits: Iterable[CommitRow]) -> None:
        """Go on from what an earlier Coordinator committed, suspended.

        Raises SpecError for a token that the tokenizer lacks.
        """
        self.suspended = True
        self.sent = list(self.grid)
        for commit in commits:
            self.take(commit)
        last = self.commits[-1].at_ns if self.commits else self.row.at_ns
        self._began_ns = max(time.time_ns(), last)
        self._started_ns = time.monotonic_ns()
        if self.ending is not None:
            self.finished.set_result(self.ending)  # it ended before its Coordinator did

    def note_sent(self, step: Step) -> None:
        """Note that a step of the prompt was asked of the stages; again after a loss changes nothing."""
        end = self.sent[-1].start + self.sent[-1].count if self.sent else 0
        if end <= step.start < len(self.row.prompt):
            self.sent.append(step)

    def stop_feeding(self) -> None:
        """Give the stages nothing more."""
        if self.feeding is not None:
            self.feeding.cancel()
            self.feeding = None

    def suspend(self) -> None:
        """Wait for another epoch. The answer goes on; what was opened on the stages is void."""
        self.stop_feeding()
        self.suspended = True
        self.opened.cancel()
        loop = asyncio.get_running_loop()
        self.opened, self.closed = loop.create_future(), loop.create_future()

    def take(self, commit: CommitRow) -> str:
        """Add a committed token and return the text that can be shown because of it; may set `ending`.

        Raises SpecError for a token that the tokenizer lacks.
        """
        self.commits.append(commit)
        shown, self.ending = self.show(commit.token)
        return shown

    def fail(self, error: InferSwarmError) -> None:
        """End every wait of this session with an error."""
        for future in (self.opened, self.finished, self.closed):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: not every wait is waited for

    def show(self, token: int) -> tuple[str, str | None]:
        """Return the text that the newest committed token lets be shown, and why the answer ends, if it does.

        A stop string is no part of the text, nor is what comes after it. Raises SpecError for a token that the
        tokenizer lacks.
        """
        ending = None
        if token in self.row.stop:
            ending = "stop"
        elif len(self.commits) >= self.row.max_tokens:
            ending = "length"
        if self._detokenizer is None:
            return "", ending
        piece = "" if ending == "stop" else self._detokenizer.push(token)  # an end token is no part of the text
        if ending is not None:
            piece += self._detokenizer.finish()
        shown, matched = self._matcher.push(piece)
        if matched is not None:
            ending = "stop"
        elif ending is not None:
            shown += self._matcher.finish()
        self.text.append(shown)
        return shown, ending

    def ran_past_its_end(self, position: int) -> bool:
        """Return whether a result is one that the stages had under way when a stop string was found here."""
        return self.matched is not None and position >= len(self.row.prompt) + len(self.commits)

    def difference(self) -> str | None:
        """Return how the newest commit of a replay differs from the record; None when equal, or not recorded."""
        index = len(self.commits) - 1
        if index >= len(self.expected):
            return None
        new, recorded = self.commits[index], self.expected[index]
        if (new.token, new.logits_digest) != (recorded.token, recorded.logits_digest):
            return (
                f"token {new.token} with logits {new.logits_digest}; the record has "
                f"token {recorded.token} with {recorded.logits_digest}"
            )
        if new.logprobs != recorded.logprobs:
            return f"log-probabilities {new.logprobs}; the record has {recorded.logprobs}"
        return None
