"""When the way to another machine counts as cut: its kernel answers nothing. Pure but for the asking.

A peer that takes nothing is not cut off: its kernel answers every probe of a closed window, however long its process
computes. That is why this looks at answers instead of setting `TCP_USER_TIMEOUT`, which ends connections to such a
peer too. Without a watch the system itself gives up after about a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import NamedTuple, Protocol

LOOK_SECONDS = 0.25
"""How often whoever sends looks at its connections."""

LEAST_REPEATS = 3
"""So much has to be repeated in vain: one probe or its answer may be lost, and Linux leaves the second of two within
half a second without an answer."""
REPEATS_IN_SILENCE = 5
"""So often at least something is repeated until a way counts as cut, where the system can be told."""
_SHORTEST_REPEAT_MS, _LONGEST_REPEAT_MS = 1000, 120_000
"""What Linux allows as the longest time between two repetitions; the second is what it takes by itself."""
_TCP_RTO_MAX_MS = 44
"""Linux' number (linux/tcp.h, since 6.15), which Python does not name."""

_TCP_INFO = struct.Struct("=2x2B52xI")
"""Of Linux' `struct tcp_info` (linux/tcp.h), which only ever grows at its end: `tcpi_retransmits`, `tcpi_probes`,
`tcpi_last_ack_recv`."""


class Connected(Protocol):
    """A connected socket, plain or asyncio's."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return an option of so many bytes."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        """Set an option."""


class Answering(NamedTuple):
    """What the system says of one connection."""

    repeats: int
    """How often what is sent, or a question whether the peer takes more, was repeated without an answer."""
    seconds: float
    """Since the last answer of the peer's system."""


def read_answering(connection: Connected) -> Answering | None:
    """Ask the system; None where it does not say, or the connection has ended."""
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(found) < _TCP_INFO.size:
        return None
    retransmits, probes, milliseconds = _TCP_INFO.unpack(found)
    return Answering(retransmits + probes, milliseconds / 1000)


def repeat_often(connection: Connected, silent_seconds: float) -> None:
    """Have the system repeat what is not answered often enough for a way to count as cut after so many seconds.

    By itself it asks a peer that takes nothing more and more rarely. Where it cannot be told, a cut that begins in
    that time is noticed later, by at most as long as three questions take: some minutes.
    """
    wanted = int(1000 * silent_seconds / REPEATS_IN_SILENCE)
    with contextlib.suppress(OSError):
        connection.setsockopt(
            socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, min(max(wanted, _SHORTEST_REPEAT_MS), _LONGEST_REPEAT_MS)
        )


class AnswerWatch:
    """For how long one connection has been without an answer, as far as somebody looked.

    The time begins when a look finds something repeated and no answer since the look before: not when nothing was
    sent, and not when a peer that takes nothing answered the last of its rare probes long ago.
    """

    def __init__(self, silent_seconds: float) -> None:
        """The way counts as cut after so many seconds."""
        self._silent_seconds = silent_seconds
        self._repeats = 0
        self._looked_at: float | None = None
        self._since: float | None = None

    def check(self, now: float, found: Answering | None) -> None:
        """Take one look. Raises TimeoutError when the way counts as cut."""
        if found is None:
            return
        answered_at = now - found.seconds
        if self._since is not None and (found.repeats == 0 or answered_at > self._since):
            self._since = None
        looked_at = now if self._looked_at is None else self._looked_at
        if self._since is None and found.repeats > self._repeats and answered_at < looked_at:
            self._since = now
        self._repeats, self._looked_at = found.repeats, now
        is_silent = self._since is not None and now - self._since >= self._silent_seconds
        if is_silent and found.repeats >= LEAST_REPEATS:
            reason = f"nothing that was sent was acknowledged for {found.seconds:.1f} s"
            raise TimeoutError(errno.ETIMEDOUT, reason)
