"""Clients of a soak: each asks one question after the other and compares every answer with its reference.

A client whose Coordinator has ended follows its session at the next one, from the position that it has seen.
Some answers are left in the middle, as clients do.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import closing

from inferswarm.errors import AdmissionError, EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from tests.soak.beds import Bed, Wanted
from tests.soak.checks import check_answer

LEFT_SHARE = 0.1
"""Of answers that their client leaves in the middle."""
AGAIN_SECONDS = 0.2
"""Between two tries of a client that was turned away, or finds no Coordinator."""
SILENT_SECONDS = 240.0
"""Longer than anything that a client waits for, with further losses in between; more silence is a violation."""


class Journal:
    """What all clients and the disturber saw, kept by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.num_seen = 0
        """Tokens that any client has seen."""

    def count(self, what: str, number: int = 1) -> None:
        """Count something that is as it should be."""
        with self._lock:
            self.counts[what] += number

    def saw(self) -> None:
        """Count a token that a client has seen."""
        with self._lock:
            self.num_seen += 1

    def violated(self, *what: str) -> None:
        """Keep what should not be."""
        with self._lock:
            self.violations += what


class LoadClient:
    """One client, in a thread of its own, until it is told to stop."""

    def __init__(self, bed: Bed, journal: Journal, seed: int) -> None:
        """Begin to ask."""
        self._bed = bed
        self._journal = journal
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._session: int | None = None
        self._seen: dict[int, int] = {}
        self._prompt_tokens = 0
        self._heard_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more once the present answer has ended."""
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end; False when it does not come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for the next token for longer than any may take."""
        return self._thread.is_alive() and time.monotonic() - self._heard_at > SILENT_SECONDS

    def __str__(self) -> str:
        """Say what it waits for."""
        waited = time.monotonic() - self._heard_at
        return f"session {self._session}: {len(self._seen)} tokens seen, nothing heard for {waited:.0f} s"

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._heard_at = time.monotonic()
                self._ask()
        except BaseException as error:
            self._journal.violated(f"a client failed: {type(error).__name__}: {error}")
            raise

    def _ask(self) -> None:
        index = self._chance.randrange(len(self._bed.questions))
        question, wanted = self._bed.questions[index], self._bed.wanted[index]
        leaves_at = self._chance.randrange(1, len(wanted.tokens)) if self._chance.random() < LEFT_SHARE else None
        self._session, self._seen, self._prompt_tokens = None, {}, 0
        try:
            record = self._answered(question, leaves_at)
        except AdmissionError as error:
            if error.field != "sessions":
                raise
            self._journal.count("turned away: every place is taken")
            time.sleep(AGAIN_SECONDS)
            return
        except EngineError:
            if self._session is None:
                self._journal.count("asked again: the Coordinator ended before it admitted")
                time.sleep(AGAIN_SECONDS)
                return
            self._journal.count("followed at another Coordinator")
            record = self._followed(self._session)
        except InferSwarmError as error:
            self._journal.violated(f"session {self._session} ended with {type(error).__name__}: {error}")
            time.sleep(AGAIN_SECONDS)
            return
        if record is None:
            self._left(wanted)
            return
        self._settle(check_answer(wanted, record, self._seen, whole=True), "answers")

    def _answered(self, question: m.Generate, leaves_at: int | None) -> m.SessionRecord | None:
        """Return the record of the answer; None when it was left at that many tokens."""
        with closing(self._bed.client.events(question)) as events:
            while True:
                try:
                    self._heard(next(events))
                except StopIteration as end:
                    answer = end.value
                    break
                if leaves_at is not None and len(self._seen) >= leaves_at:
                    return None
        assert isinstance(answer, m.Generated)
        return answer.record

    def _heard(self, event: object) -> None:
        if isinstance(event, m.SessionAdmitted):
            self._session, self._prompt_tokens = event.session, event.prompt_tokens
        if isinstance(event, m.TokenCommitted):
            if event.position != self._prompt_tokens + len(self._seen):
                self._journal.violated(
                    f"session {event.session}: position {event.position} came as the {len(self._seen) + 1}. token"
                )
            self._seen[event.position] = event.token
            self._heard_at = time.monotonic()
            self._journal.saw()

    def _followed(self, session: int) -> m.SessionRecord:
        while True:
            follow = m.Follow(session=session, from_position=self._prompt_tokens + len(self._seen))
            try:
                record = self._bed.client.ask(follow, self._heard)
            except EngineError:
                time.sleep(AGAIN_SECONDS)
                continue
            assert isinstance(record, m.SessionRecord)
            return record

    def _left(self, wanted: Wanted) -> None:
        """Look at what is kept of a session whose client has left: a part of the answer, or all of it."""
        assert self._session is not None
        record = self._followed(self._session)
        findings = check_answer(wanted, record, dict(self._seen), whole=False)
        if record.state not in ("CANCELLED", "COMPLETED"):
            findings.append(f"session {record.session}, left by its client, is {record.state}: {record.reason}")
        self._settle(findings, "left by their client")

    def _settle(self, findings: list[str], kind: str) -> None:
        self._journal.count("tokens", len(self._seen))
        self._journal.count(kind)
        self._journal.violated(*findings)
