"""How frames travel: one TCP connection for each sender and receiver, no thread between a stage and its socket.

On the wire a frame is its header's and its payload's length (four bytes each, little-endian), its checksum (eight
bytes), header, payload. `TCP_NODELAY` is set: a frame leaves when it is written. ADR 9 says why this is not ZeroMQ,
which carries the control messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inferswarm.errors import EngineError, WireError
from inferswarm.fabric.connection_watch import LOOK_SECONDS, AnswerWatch, read_answering, repeat_often
from inferswarm.fabric.frames import MAX_FRAME_BYTES, Frame, decode
from inferswarm.fabric.stage_liveness import SILENT_SECONDS

CONNECT_TIMEOUT_SECONDS = 5.0
MAX_HEADER_BYTES = 64 * 2**10
"""A longer header is refused before anything is allocated for it."""

_PREFIX = struct.Struct("<II8s")
Parts = Sequence[bytes | memoryview]


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Return address and port of `tcp://ADDRESS:PORT`; the brackets of an IPv6 address are left out.

    Raises WireError for anything else.
    """
    scheme, _, rest = endpoint.partition("://")
    address, _, port = rest.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        address = ""
    if scheme != "tcp" or not address or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise WireError("MALFORMED_ENDPOINT", f"{endpoint!r} is not tcp://ADDRESS:PORT")
    return address, int(port)


def make_endpoint(address: str, port: int) -> str:
    """Return `tcp://ADDRESS:PORT`, an IPv6 address in brackets."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def begin_connection(endpoint: str, source: str = "") -> socket.socket:
    """Begin to connect, from the address `source` when one is given, and return at once; writable means connected.

    Raises WireError for a malformed endpoint, OSError when it fails already.
    """
    family, place = _resolve(*parse_endpoint(endpoint))
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        if source:
            connection.bind(_resolve(source, 0, family)[1])
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.connect(place)
    except OSError:
        connection.close()
        raise
    return connection


def finish_connection(connection: socket.socket, timeout_seconds: float) -> OSError | None:
    """Wait until a begun connection stands, and return None, or the error that it ended with."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLOUT)
    if not poll.poll(max(0.0, timeout_seconds) * 1000):
        return TimeoutError(errno.ETIMEDOUT, "timed out")
    status = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return OSError(status, os.strerror(status)) if status else None


def _resolve(address: str, port: int, family: int = 0) -> tuple[int, Any]:
    """Return the family and the socket address; one with a zone keeps it."""
    found = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)
    return found[0][0], found[0][4]


def pack(parts: Parts) -> list[bytes | memoryview]:
    """Return the buffers of one frame as they go on the wire."""
    head, payload, checksum = parts
    return [_PREFIX.pack(len(head), len(payload), bytes(checksum)), head, payload]


def _lengths(prefix: bytes | memoryview) -> tuple[int, int, bytes]:
    head, payload, checksum = _PREFIX.unpack(prefix)
    if head > MAX_HEADER_BYTES or payload > MAX_FRAME_BYTES:
        raise WireError("FRAME_TOO_LONG", f"a header of {head:,} B with a payload of {payload:,} B is announced")
    return head, payload, checksum


class Attention(NamedTuple):
    """What a sender looks after while its peer takes nothing: `attend` is called whenever `fileno` is readable."""

    fileno: int
    attend: Callable[[], None]


class Outbox:
    """Sends frames to one inbox, connecting when the first one is sent. For one thread."""

    def __init__(
        self,
        endpoint: str,
        source: str = "",
        attention: Attention | None = None,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """Connect from the address `source`, when one is given; nothing is connected yet.

        What `attention` calls may close this outbox, which ends a send that waits. A peer whose system acknowledges
        nothing for `silent_seconds` counts as cut off. Raises WireError for a malformed endpoint.
        """
        self._attention = attention
        self._silent_seconds = silent_seconds
        self._watch = AnswerWatch(silent_seconds)
        self._endpoint = endpoint
        self._address = parse_endpoint(endpoint)
        self._source = source
        self._socket: socket.socket | None = None

    def send(self, parts: Parts) -> None:
        """Send one frame; waits as long as the peer is busy, because slow is not dead.

        Raises WireError when the peer cannot be reached or its connection breaks. Whether a peer that takes nothing
        is stuck is for its agent to know.
        """
        try:
            connection = self._socket or self._connect()
            buffers = pack(parts)
            if self._attention is None:
                sent = connection.sendmsg(buffers)
                if sent < sum(map(len, buffers)):
                    connection.sendall(memoryview(b"".join(buffers))[sent:])
            else:
                self._send_attentively(connection, buffers, self._attention)
        except OSError as error:
            raise self._broken(error) from error

    def check(self) -> None:
        """Look whether the connection still stands, if there is one.

        Raises WireError when the peer has closed it, which it also does after a frame that it refused for its
        checksum, and when the way there counts as cut. The connection is closed then.
        """
        if self._socket is None:
            return
        try:
            self._check(self._socket)
        except OSError as error:
            raise self._broken(error) from error

    def _check(self, connection: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            if not connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        self._watch.check(time.monotonic(), read_answering(connection))

    def _broken(self, error: OSError) -> WireError:
        self.close()
        address, port = self._address
        return WireError("PEER_NOT_RECEIVING", f"{address}:{port}: {error or type(error).__name__}")

    def _send_attentively(
        self, connection: socket.socket, buffers: list[bytes | memoryview], attention: Attention
    ) -> None:
        connection.setblocking(False)
        left = sum(map(len, buffers))
        with contextlib.suppress(BlockingIOError):
            left -= connection.sendmsg(buffers)
        if not left:
            return
        rest = memoryview(b"".join(buffers))[-left:]
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLOUT)
        poll.register(attention.fileno, select.POLLIN)
        while rest:
            ready = dict(poll.poll(LOOK_SECONDS * 1000))
            if attention.fileno in ready:
                attention.attend()
                if self._socket is not connection:
                    raise ConnectionAbortedError(errno.ECONNABORTED, "given up while it waited")
            elif not ready:
                self._check(connection)
            else:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[connection.send(rest) :]

    def adopt(self, connection: socket.socket, timeout_seconds: float | None = None) -> None:
        """Use a connection that stands already; sending may take so long (None: for ever)."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(timeout_seconds)
        repeat_often(connection, self._silent_seconds)
        self._socket = connection
        self._watch = AnswerWatch(self._silent_seconds)

    def _connect(self) -> socket.socket:
        if not self._source:
            connection = socket.create_connection(self._address, CONNECT_TIMEOUT_SECONDS)
        else:
            connection = begin_connection(self._endpoint, self._source)
            if error := finish_connection(connection, CONNECT_TIMEOUT_SECONDS):
                connection.close()
                raise error
        self.adopt(connection)
        return connection

    def close(self) -> None:
        """Close the connection; what was sent still arrives."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Connection:
    """The receiving end of one sender: bytes become frames."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._prefix = bytearray()
        self._body: memoryview | None = None
        self._filled = 0
        self._shape = (0, 0, b"")

    def read(self) -> tuple[bytes, memoryview, bytes] | None:
        """Return the parts of the next frame when it is complete, None when more must arrive.

        Raises WireError for lengths that cannot be, ConnectionError when the sender has gone.
        """
        if self._body is None:
            if not self._read_prefix():
                return None
            head, payload, _ = self._shape
            self._body = memoryview(bytearray(head + payload))
            self._filled = 0
        while self._filled < len(self._body):
            received = self.socket.recv_into(self._body[self._filled :])
            if received == 0:
                raise ConnectionResetError("ended in the middle of a frame")
            self._filled += received
        head, _, checksum = self._shape
        body, self._body = self._body, None
        self._prefix.clear()
        return bytes(body[:head]), body[head:], checksum

    def _read_prefix(self) -> bool:
        missing = _PREFIX.size - len(self._prefix)
        received = self.socket.recv(missing)
        if not received:
            raise ConnectionResetError("ended")
        self._prefix += received
        if len(self._prefix) < _PREFIX.size:
            return False
        self._shape = _lengths(bytes(self._prefix))
        return True


class Inbox:
    """Receives frames of any number of senders. For one thread; `fileno` is for pollers."""

    def __init__(self, address: str, port: int = 0, more: Sequence[str] = ()) -> None:
        """Listen at an address, and at `more` of them as far as they can be had.

        Port 0 takes a free one, at each address its own. Raises EngineError when the first address or its port cannot
        be had.
        """
        try:
            self._listeners = [_listen(address, port)]
        except OSError as error:
            raise EngineError(make_endpoint(address, port), f"cannot listen there: {error}") from error
        self.unbound: dict[str, str] = {}
        """Why nothing listens at an address of `more`."""
        endpoints = {address: _endpoint_of(self._listeners[0], address)}
        for other in more:
            if other in endpoints:
                continue
            try:
                self._listeners.append(_listen(other, 0))
            except OSError as error:
                self.unbound[other] = error.strerror or str(error)
            else:
                endpoints[other] = _endpoint_of(self._listeners[-1], other)
        self.endpoint = endpoints[address]
        self.endpoints = endpoints
        """Where frames may be sent to, by address."""
        self.refusals: deque[WireError] = deque(maxlen=1000)
        """What was received and refused: whoever counts takes it from here."""
        self._poll = select.epoll()
        self._accepting = {listener.fileno(): listener for listener in self._listeners}
        for descriptor in self._accepting:
            self._poll.register(descriptor, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}

    def fileno(self) -> int:
        """Return a descriptor that is readable when something may be received."""
        return self._poll.fileno()

    def receive(self, timeout_seconds: float | None = 0.0) -> list[Frame]:
        """Return the frames that have arrived, in order for each sender; wait so long for the first (None: for ever).

        A frame that fails its checks goes to `refusals`, and its sender is disconnected: what it sends is incomplete
        from there on, and whoever looks at the other end of the connection learns of it.
        """
        frames: list[Frame] = []
        for descriptor, _ in self._poll.poll(-1 if timeout_seconds is None else timeout_seconds):
            if (listener := self._accepting.get(descriptor)) is not None:
                self._accept(listener)
            else:
                self._read(descriptor, frames)
        return frames

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                connection, _ = listener.accept()
                self._connections[connection.fileno()] = _Connection(connection)
                self._poll.register(connection.fileno(), select.EPOLLIN)

    def _read(self, descriptor: int, frames: list[Frame]) -> None:
        connection = self._connections[descriptor]
        try:
            while True:
                parts = connection.read()
                if parts is not None:
                    frames.append(decode(parts))
        except BlockingIOError:
            return
        except WireError as error:
            self.refusals.append(error)
            self._forget(descriptor)
        except OSError:
            self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._connections.pop(descriptor).socket.close()

    def close(self) -> None:
        """Close all ports and connections."""
        for descriptor in list(self._connections):
            self._forget(descriptor)
        self._poll.close()
        for listener in self._listeners:
            listener.close()


def _listen(address: str, port: int) -> socket.socket:
    family, place = _resolve(address, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)
        listener.listen(64)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _endpoint_of(listener: socket.socket, address: str) -> str:
    """Return where a listener is reached; a zone in its address stays."""
    bound = listener.getsockname()
    return make_endpoint(address if "%" in address else bound[0], bound[1])


async def receive_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes] | None:
    """Return the parts of the next frame on an asyncio stream; None when the sender has gone.

    Raises WireError for lengths that cannot be.
    """
    try:
        head, payload, checksum = _lengths(await reader.readexactly(_PREFIX.size))
        body = await reader.readexactly(head + payload)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return body[:head], body[head:], checksum


async def watch_stream(
    peer: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    silent_seconds: float,
    on_broken: Callable[[WireError], object],
) -> None:
    """Look at the connection to a peer, over which nothing comes, until it is closed at this end.

    `on_broken` hears when the peer closed it or the way there counts as cut, as for an `Outbox`.
    """
    watch = AnswerWatch(silent_seconds)
    connection = writer.get_extra_info("socket")
    repeat_often(connection, silent_seconds)
    try:
        while not writer.is_closing():
            watch.check(time.monotonic(), read_answering(connection))
            with contextlib.suppress(TimeoutError):
                received = await asyncio.wait_for(reader.read(1), LOOK_SECONDS)
                if not received and not writer.is_closing():
                    raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
    except OSError as error:
        on_broken(WireError("PEER_NOT_RECEIVING", f"{peer}: {error or type(error).__name__}"))
