"""A client of a Coordinator: questions out, progress, tokens and one answer back. Blocking.

Each question uses a connection of its own, so several may be under way from several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import NamedTuple

import msgspec
import zmq

from inferswarm.errors import EngineError, InferSwarmError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.expecting import expect
from inferswarm.fabric.faults import to_error
from inferswarm.fabric.frames import PROTOCOL

ABANDON_LINGER_MILLISECONDS = 500
SILENCE_SECONDS = 10.0
"""After so long without a message the Coordinator is asked whether it is there, and has as long to answer."""
POLL_SECONDS = 0.2
"""How often a waiting client looks whether the Coordinator still lives."""

ClientEvent = m.Progressed | m.SessionAdmitted | m.TokenCommitted
OnEvent = Callable[[ClientEvent], None]


class Credentials(NamedTuple):
    """What it takes to ask a Coordinator: where it is, the swarm's token, and what raises when it has gone."""

    endpoint: str
    token: str
    check: Callable[[], None]

    def __repr__(self) -> str:
        """Without the token."""
        return f"Credentials({self.endpoint})"


class Client:
    """Asks one Coordinator. `check` raises when the Coordinator is known to have gone."""

    def __init__(self, endpoint: str, token: str, check: Callable[[], None]) -> None:
        """Nothing is connected until something is asked."""
        self.endpoint = endpoint
        self._token = token
        self._check = check
        self.on_fault: Callable[[InferSwarmError, m.Question], None] | None = None
        """Called with each fault and the question that it answers, before it is raised."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    @property
    def credentials(self) -> Credentials:
        """What another client of the same Coordinator needs."""
        return Credentials(self.endpoint, self._token, self._check)

    def close(self) -> None:
        """Close all connections; questions under way end with an error."""
        self._context.destroy(linger=0)

    def ask(
        self, question: m.Question, on_event: OnEvent | None = None, timeout_seconds: float | None = None
    ) -> m.ClientAnswer:
        """Ask and wait for the answer. Raises the fault instead, or EngineError when time or Coordinator run out."""
        events = self.events(question, timeout_seconds)
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                answer: m.ClientAnswer = end.value
                return answer
            if on_event is not None:
                on_event(event)

    def events(
        self, question: m.Question, timeout_seconds: float | None = None
    ) -> Generator[ClientEvent, None, m.ClientAnswer]:
        """Ask, yield what comes in between, and return the answer. Raises as `ask`."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(self.endpoint)
            socket.send(msgspec.msgpack.encode(m.Hello(token=self._token, protocol=PROTOCOL)))
            socket.send(encode_ask(m.Ask(request=1, question=question)))
            try:
                return (yield from self._receive(socket, timeout_seconds))
            except InferSwarmError as error:
                if self.on_fault is not None:
                    self.on_fault(error, question)
                raise
            except GeneratorExit:
                socket.send(msgspec.msgpack.encode(m.Abandon(request=1)))
                raise
        finally:
            socket.close(linger=ABANDON_LINGER_MILLISECONDS)

    def _receive(
        self, socket: zmq.Socket[bytes], timeout_seconds: float | None
    ) -> Generator[ClientEvent, None, m.ClientAnswer]:
        decoder = msgspec.msgpack.Decoder(m.ToClient)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        heard_at = time.monotonic()
        term = 0
        while True:
            if not socket.poll(int(POLL_SECONDS * 1000)):
                self._check()
                if timeout_seconds is None and time.monotonic() - heard_at > SILENCE_SECONDS:
                    # A long answer is silent, a hang is deaf.
                    check_term(term, self.ask(m.Status(), timeout_seconds=SILENCE_SECONDS))
                    heard_at = time.monotonic()
                if deadline is not None and time.monotonic() > deadline:
                    raise EngineError("Coordinator", f"did not answer within {timeout_seconds:.0f} s")
                continue
            message = decoder.decode(socket.recv())
            heard_at = time.monotonic()
            match message:
                case m.ClientAnswered():
                    return message.answer
                case m.Failed() | m.Turned():
                    raise to_error(message.fault)
                case m.Progressed() | m.SessionAdmitted() | m.TokenCommitted():
                    yield message
                case m.Welcome():
                    term = message.term


def status_of(client: Client) -> m.SwarmStatus:
    """Ask a Coordinator who is there."""
    return expect(m.SwarmStatus, client.ask(m.Status()), "a status")


def check_term(term: int, status: m.ClientAnswer) -> None:
    """Raise EngineError when another Coordinator than the one of `term` is there: it was not asked.

    A session that the first one opened may go on: `Follow` tells, from any position. Term 0: nobody answered yet.
    """
    if isinstance(status, m.SwarmStatus) and term not in (0, status.term):
        reason = f"that of term {term} was asked, that of term {status.term} is there; follow the session"
        raise EngineError("Coordinator", reason)


def encode_ask(ask: m.Ask) -> bytes:
    """Encode a question. Raises SpecError for values that no message can carry."""
    try:
        return msgspec.msgpack.encode(ask)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise SpecError(type(ask.question).__name__, str(error), "Unicode text, and numbers below 2^63") from error
