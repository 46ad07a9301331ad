"""Measuring paths inside a stage: messages to another stage over every pair of addresses that connects, and back.

Each pair has a connection of its own, from its source address to its target address, and the echo comes back the
other way round: from the target address to the source address. Half a round trip is what one message takes.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from inferswarm.errors import MeasurementError, WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.frames import Address, Frame, FrameKind, encode
from inferswarm.fabric.transport import Inbox, Outbox, begin_connection, finish_connection, parse_endpoint

CONNECT_SECONDS: Final = 1.0
"""How long the pairs of one path, all at once, may take to connect."""
ECHO_SECONDS: Final = 2.0
"""How long an echo may stay away; of a large message as much longer as its size needs."""
WARM_UP_TURNS: Final = 5
MIN_TURNS: Final = 5
"""Fewer samples than this are no measurement, so as many are taken however slow a path is."""
LARGE_BYTES: Final = 2**20
"""Messages larger than this take long and tell a rate well: a few of them are enough."""
MIN_LARGE, MAX_LARGE = 2, 10
LARGE_SECONDS: Final = 4.0
"""A message whose round trip would take longer, as the largest of the small ones tells, is not sent."""

_PROBE = Address("probe", 0, "probe", "")
_outboxes: dict[tuple[str, str], Outbox] = {}


def echo_back(frame: Frame) -> None:
    """Answer an ECHO frame. Its header names where to: the endpoint as realization, the address to send from as plan.

    Raises WireError when the sender cannot be reached.
    """
    endpoint, source = frame.header.realization, frame.header.plan
    if (endpoint, source) not in _outboxes:
        _outboxes[endpoint, source] = Outbox(endpoint, source)
    header = _PROBE.header(FrameKind.ECHOED, frame.header.session, position=frame.header.position)
    _outboxes[endpoint, source].send(encode(header, frame.payload))


def probe_path(command: m.ProbePath, inbox: Inbox, conditions: tuple[tuple[str, str], ...]) -> m.PathSamples:
    """Measure half round trips over each pair of addresses for each payload size, all taking turns, after a warm-up.

    Encoding, checksums, waking both processes and the copy into memory are part of the time: it is what a step will
    see. A pair that does not connect, or on which an echo stays away, comes back with its reason and without a
    sample. The largest sizes are sent in a few of the turns, and not where one alone would take too long.
    """
    payloads = [bytes(size) for size in sorted(command.payload_bytes)]
    ways = _connect(command.pairs, inbox)
    small = [payload for payload in payloads if len(payload) <= LARGE_BYTES]
    large = [payload for payload in payloads if len(payload) > LARGE_BYTES]
    number = 0

    def turn(sent: Sequence[bytes], first: int, *, warm: bool) -> None:
        nonlocal number
        for payload in sent:
            for index in range(len(ways)):
                way = ways[(index + first) % len(ways)]  # none is always the one after the same other
                if not way.failure and len(payload) not in way.left_out:
                    number += 1
                    time.sleep(command.pause_seconds)
                    way.send(payload, number, inbox, warm=warm)

    for index in range(WARM_UP_TURNS):
        turn(small, index, warm=True)
    for way in ways:
        way.leave_out(large)
    turn(large, 0, warm=True)
    num_turns, every = _schedule(ways, command)
    for index in range(num_turns):
        turn(small if index % every else payloads, index, warm=False)
    for way in ways:
        way.close()
    return m.PathSamples(pairs=tuple(way.result() for way in ways), num_warm_up=WARM_UP_TURNS, conditions=conditions)


def _schedule(ways: Iterable[_Way], command: m.ProbePath) -> tuple[int, int]:
    """Return how many turns fit into the seconds, and in each how-manieth of them the large sizes are sent too."""
    small = large = 0.0
    for way in ways:
        for size, seconds in way.warm.items() if not way.failure else ():
            each = command.pause_seconds + 2 * median(seconds)
            small, large = (small + each, large) if size <= LARGE_BYTES else (small, large + each)
    num_large = 0 if not large else max(MIN_LARGE, min(MAX_LARGE, math.floor(command.seconds / 4 / large)))
    left = command.seconds - num_large * large
    num_turns = command.max_turns if not small else max(MIN_TURNS, min(command.max_turns, math.floor(left / small)))
    return num_turns, math.ceil(num_turns / num_large) if num_large else num_turns + 1


def _connect(pairs: Sequence[m.PathEnds], inbox: Inbox) -> list[_Way]:
    """Connect all pairs at once, so that those that nobody answers cost their time together."""
    ways = [_Way(ends) for ends in pairs]
    begun = []
    for way in ways:
        if way.ends.source not in inbox.endpoints:
            reason = inbox.unbound.get(way.ends.source, "it was not told to")
            way.failure = f"this end does not listen at {way.ends.source}: {reason}"
            continue
        try:
            begun.append((way, begin_connection(way.ends.endpoint, way.ends.source)))
        except (OSError, WireError) as error:
            way.failure = _reason(error)
    deadline = time.monotonic() + CONNECT_SECONDS
    for way, connection in begun:
        if problem := finish_connection(connection, deadline - time.monotonic()):
            connection.close()
            way.failure = _reason(problem)
        else:
            way.outbox.adopt(connection, ECHO_SECONDS + LARGE_SECONDS)
    return ways


def _reason(error: OSError | WireError) -> str:
    if isinstance(error, WireError):
        return str(error)
    if error.errno == errno.ETIMEDOUT:
        return f"no answer within {CONNECT_SECONDS:g} s"
    return (error.strerror or str(error)).lower()


class _Way:
    """One pair of addresses under measurement."""

    def __init__(self, ends: m.PathEnds) -> None:
        self.ends = ends
        self.failure = ""
        self.left_out: dict[int, str] = {}
        """Sizes that are not sent, with the reason."""
        self.outbox = Outbox(ends.endpoint, ends.source)
        self._answer_from = parse_endpoint(ends.endpoint)[0]
        self.warm: dict[int, list[float]] = {}
        self._samples: dict[int, list[float]] = {}

    def send(self, payload: bytes, number: int, inbox: Inbox, *, warm: bool) -> None:
        """Send a message and take half the time until it is back; without it, the pair has failed."""
        address = _PROBE._replace(realization=inbox.endpoints[self.ends.source], plan=self._answer_from)
        header = address.header(FrameKind.ECHO, 0, position=number)
        patience = ECHO_SECONDS + (LARGE_SECONDS if len(payload) > LARGE_BYTES else 0.0)
        started = time.perf_counter()
        try:
            self.outbox.send(encode(header, payload))
            _await_echo(inbox, number, patience)
        except (WireError, MeasurementError) as error:
            self.failure = f"it connects, but {error}"
            self.close()
            return
        seconds = (time.perf_counter() - started) / 2
        (self.warm if warm else self._samples).setdefault(len(payload), []).append(seconds)

    def leave_out(self, payloads: Iterable[bytes]) -> None:
        """Leave out what would take too long at the rate that the largest warm-up message tells."""
        if self.failure or not self.warm:
            return
        size, seconds = max(self.warm.items())
        for payload in payloads:
            expected = 2 * median(seconds) * len(payload) / size
            if expected > LARGE_SECONDS:
                self.left_out[len(payload)] = f"{len(payload):,} B would take {expected:.0f} s there and back"

    def result(self) -> m.PairSamples:
        """Return what was seen; of a pair that failed nothing counts."""
        if self.failure:
            return m.PairSamples(ends=self.ends, failure=self.failure)
        sizes = sorted(self._samples)
        return m.PairSamples(
            ends=self.ends,
            payload_bytes=tuple(sizes),
            seconds=tuple(tuple(self._samples[size]) for size in sizes),
            left_out="; ".join(self.left_out.values()),
        )

    def close(self) -> None:
        """Close the connection."""
        self.outbox.close()


def _await_echo(inbox: Inbox, number: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for frame in inbox.receive(left):
            if frame.header.kind == FrameKind.ECHOED and frame.header.position == number:
                return
    raise MeasurementError(f"nothing came back within {seconds:g} s")
