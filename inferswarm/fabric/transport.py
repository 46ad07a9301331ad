"""How frames travel: one TCP connection for each sender and receiver, no thread between a stage and its socket.

On the wire a frame is its header's and its payload's length (four bytes each, little-endian), its checksum (eight
bytes), header, payload. `TCP_NODELAY` is set: a frame leaves when it is written. ADR 9 says why this is not ZeroMQ,
which carries the control messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence

from inferswarm.errors import EngineError, WireError
from inferswarm.fabric.frames import MAX_FRAME_BYTES, Frame, decode

CONNECT_TIMEOUT_SECONDS = 5.0
MAX_HEADER_BYTES = 64 * 2**10
"""A longer header is refused before anything is allocated for it."""

_PREFIX = struct.Struct("<II8s")
Parts = Sequence[bytes | memoryview]


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Return address and port of `tcp://ADDRESS:PORT`. Raises WireError for anything else."""
    scheme, _, rest = endpoint.partition("://")
    address, _, port = rest.rpartition(":")
    if scheme != "tcp" or not address or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise WireError("MALFORMED_ENDPOINT", f"{endpoint!r} is not tcp://ADDRESS:PORT")
    return address, int(port)


def pack(parts: Parts) -> list[bytes | memoryview]:
    """Return the buffers of one frame as they go on the wire."""
    head, payload, checksum = parts
    return [_PREFIX.pack(len(head), len(payload), bytes(checksum)), head, payload]


def _lengths(prefix: bytes | memoryview) -> tuple[int, int, bytes]:
    head, payload, checksum = _PREFIX.unpack(prefix)
    if head > MAX_HEADER_BYTES or payload > MAX_FRAME_BYTES:
        raise WireError("FRAME_TOO_LONG", f"a header of {head:,} B with a payload of {payload:,} B is announced")
    return head, payload, checksum


class Outbox:
    """Sends frames to one inbox, connecting when the first one is sent. For one thread."""

    def __init__(self, endpoint: str) -> None:
        """Raises WireError for a malformed endpoint; nothing is connected yet."""
        self._address = parse_endpoint(endpoint)
        self._socket: socket.socket | None = None

    def send(self, parts: Parts) -> None:
        """Send one frame; waits as long as the peer is busy, because slow is not dead.

        Raises WireError when the peer cannot be reached or its connection breaks. Whether a peer that takes nothing
        is stuck is for its agent to know.
        """
        try:
            connection = self._socket or self._connect()
            buffers = pack(parts)
            sent = connection.sendmsg(buffers)
            if sent < sum(map(len, buffers)):
                connection.sendall(memoryview(b"".join(buffers))[sent:])
        except OSError as error:
            self.close()
            address, port = self._address
            raise WireError("PEER_NOT_RECEIVING", f"{address}:{port}: {error or type(error).__name__}") from error

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, CONNECT_TIMEOUT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._socket = connection
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
    """Receives frames of any number of senders on one port. For one thread; `fileno` is for pollers."""

    def __init__(self, address: str, port: int = 0) -> None:
        """Listen. Port 0 takes a free one. Raises EngineError when the address or the port cannot be had."""
        try:
            self._listener = socket.create_server((address, port), backlog=64)
        except OSError as error:
            raise EngineError(f"tcp://{address}:{port}", f"cannot listen there: {error}") from error
        self._listener.setblocking(False)
        bound = self._listener.getsockname()
        self.endpoint = f"tcp://{bound[0]}:{bound[1]}"
        self.refusals: deque[WireError] = deque(maxlen=1000)
        """What was received and refused: whoever counts takes it from here."""
        self._poll = select.epoll()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}

    def fileno(self) -> int:
        """Return a descriptor that is readable when something may be received."""
        return self._poll.fileno()

    def receive(self, timeout_seconds: float | None = 0.0) -> list[Frame]:
        """Return the frames that have arrived, in order for each sender; wait so long for the first (None: for ever).

        A frame that fails its checks goes to `refusals`; a sender whose lengths make no sense is disconnected.
        """
        frames: list[Frame] = []
        for descriptor, _ in self._poll.poll(-1 if timeout_seconds is None else timeout_seconds):
            if descriptor == self._listener.fileno():
                self._accept()
            else:
                self._read(descriptor, frames)
        return frames

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                connection, _ = self._listener.accept()
                self._connections[connection.fileno()] = _Connection(connection)
                self._poll.register(connection.fileno(), select.EPOLLIN)

    def _read(self, descriptor: int, frames: list[Frame]) -> None:
        connection = self._connections[descriptor]
        try:
            while True:
                parts = connection.read()
                if parts is None:
                    continue
                try:
                    frames.append(decode(parts))
                except WireError as error:
                    self.refusals.append(error)
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
        """Close the port and all connections."""
        for descriptor in list(self._connections):
            self._forget(descriptor)
        self._poll.close()
        self._listener.close()


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
