"""What one stage holds of sessions, under whichever realization it computes: terms, steps, and what it sent on.

Sessions outlive the path that they were computed on: a stage that is adopted keeps them and gets a new path. One is
shortened only to where a step ended that was computed here. What is left then has the bits that it would have if
nothing had been computed behind it, because no step changes what an earlier one stored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from inferswarm.backends.base import Drawn, Sampler, StageExecutor
from inferswarm.backends.sampling import make_sampler
from inferswarm.errors import FabricError
from inferswarm.fabric.frames import Frame
from inferswarm.fabric.messages import SessionHeld, SessionOrder, SessionReport
from inferswarm.fabric.stage_journal import BoundaryJournal, JournalSettings
from inferswarm.fabric.terms import SessionTerms

_terms = msgspec.msgpack.Decoder(SessionTerms)


class _Draw:
    """Draws a session's tokens as its newest terms say: an executor keeps one sampler from open to close."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def draw(self, logits: npt.NDArray[np.float32], position: int) -> Drawn:
        return self.sampler.draw(logits, position)


class HeldSession:
    """What a stage keeps of an open session besides its executor's state."""

    def __init__(self, terms: SessionTerms, draw: _Draw | None = None) -> None:
        """`draw` draws its tokens, at the stage that holds the head."""
        self.waiting: Frame | None = None
        """The next input, while it may not run yet."""
        self.ends = array("q")
        """Where each step that is held ended."""
        self.passes_from = 0
        """What is computed of positions below is not sent on: the next stage has it."""
        self.positions = 0
        self.steps = 0
        self.compute_seconds = 0.0
        self.bytes_sent = 0
        self.frames_sent = 0
        self.hops: list[float] = []
        self.draw = draw
        self.take_terms(terms)

    def take_terms(self, terms: SessionTerms) -> None:
        """Go on as these terms say. Raises as `make_sampler`."""
        if self.draw is not None:
            self.draw.sampler = make_sampler(terms.sampling, terms.history, terms.prompt_tokens)
        self.terms = terms
        self.committed = terms.prompt_tokens - 1 + terms.committed
        """The last position that is known to be committed, or the last one of the prompt."""
        self.generated = terms.committed
        self.waiting = None

    def report(self, participant: str, node_id: str) -> SessionReport:
        """Return what was done for it here."""
        return SessionReport(
            participant=participant,
            node_id=node_id,
            positions=self.positions,
            steps=self.steps,
            compute_seconds=self.compute_seconds,
            bytes_sent=self.bytes_sent,
            frames_sent=self.frames_sent,
            hop_seconds=tuple(self.hops),
        )


class HeldSessions:
    """The sessions of one stage: its executor's state of them, and its journal. For one thread."""

    def __init__(
        self, executor: StageExecutor, *, holds_head: bool, journal_settings: JournalSettings | None = None
    ) -> None:
        """The stage that `holds_head` draws tokens, and sends nothing to a next one that would be worth keeping."""
        self._executor = executor
        self._holds_head = holds_head
        self._sessions: dict[int, HeldSession] = {}
        self.journal = None if holds_head else BoundaryJournal(journal_settings)

    def get(self, number: int) -> HeldSession | None:
        """Return an open session, or None."""
        return self._sessions.get(number)

    def length(self, number: int) -> int:
        """Return how many positions of a session are held. Raises FabricError when it was never open."""
        return self._executor.length(str(number))

    def open(self, number: int, terms: SessionTerms) -> None:
        """Begin a session. Raises FabricError as every executor does, SpecError without a seed that is needed."""
        draw = None
        if self._holds_head:
            draw = _Draw(make_sampler(terms.sampling, terms.history, terms.prompt_tokens))
        self._executor.open(str(number), draw, session_positions=terms.session_positions)
        self._sessions[number] = HeldSession(terms, draw)

    def close(self, number: int) -> HeldSession | None:
        """End a session, free what it held, and return it; None when it is unknown."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self._executor.close(str(number))
            if self.journal is not None:
                self.journal.forget(number)
        return session

    def close_all(self) -> None:
        """End every session."""
        for number in list(self._sessions):
            self.close(number)

    def computed(self, number: int, start: int, count: int, payload: bytes | None) -> None:
        """Note a step that was computed, and keep what goes to the next stage."""
        self._sessions[number].ends.append(start + count)
        if self.journal is not None and payload is not None:
            self.journal.append(number, start, count, payload)

    def held(self) -> tuple[SessionHeld, ...]:
        """Return what is held of each session, and from which position on the journal has all of it."""
        return tuple(self._held(number) for number in self._sessions)

    def _held(self, number: int) -> SessionHeld:
        positions = self.length(number)
        first, end = (0, 0) if self.journal is None else self.journal.kept(number)
        return SessionHeld(number, positions, first if end == positions else positions)

    def hold(self, orders: Iterable[SessionOrder]) -> tuple[SessionHeld, ...]:
        """Hold exactly the named sessions, each up to its position, and return what is held then.

        One that is not here, or not up to a step's end at that position, is opened anew and holds nothing. Raises
        FabricError for terms that cannot be read, and when there is no room, SpecError as `open`.
        """
        named = [(order, _read_terms(order)) for order in orders]
        for number in set(self._sessions) - {order.session for order, _ in named}:
            self.close(number)
        for order, terms in named:
            if not self._shorten(order, terms):
                self.close(order.session)
                self.open(order.session, terms)
            self._sessions[order.session].passes_from = order.passes_from
        return tuple(self._held(order.session) for order, _ in named)

    def _shorten(self, order: SessionOrder, terms: SessionTerms) -> bool:
        """Cut a session to its position; False, having changed nothing, where that would not be exact."""
        session = self._sessions.get(order.session)
        if session is None or order.positions not in session.ends:
            return False
        if terms.session_positions != session.terms.session_positions:
            return False  # a model may have chosen its rotary factors by it
        self._executor.truncate(str(order.session), order.positions)
        del session.ends[session.ends.index(order.positions) + 1 :]
        if self.journal is not None:
            self.journal.cut(order.session, order.positions)
        session.take_terms(terms)
        return True


def _read_terms(order: SessionOrder) -> SessionTerms:
    try:
        return _terms.decode(order.terms)
    except msgspec.DecodeError as error:
        raise FabricError(f"the terms of session {order.session} cannot be read: {error}") from error
