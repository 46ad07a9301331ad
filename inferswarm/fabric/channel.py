"""Messages over a connected stream socket: four bytes of length, then one msgpack body.

Used between an agent and its stage over an inherited socket pair: no port, no file, and end-of-file is news.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from inferswarm.errors import WireError

Incoming = TypeVar("Incoming")
_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 * 2**20
"""A longer message is refused: nothing that belongs here is that long."""


def frame(message: object) -> bytes:
    """Encode one message. Raises WireError when it is too long to be received."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise WireError("MESSAGE_TOO_LONG", f"{len(body):,} B; at most {MAX_MESSAGE_BYTES:,} B")
    return _LENGTH.pack(len(body)) + body


def _length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE_BYTES:
        raise WireError("MESSAGE_TOO_LONG", f"{length:,} B announced; at most {MAX_MESSAGE_BYTES:,} B")
    return int(length)


class Channel(Generic[Incoming]):
    """The blocking end, held by a stage. Sending is safe from several threads; receiving is for one."""

    def __init__(self, connection: socket.socket, incoming: type[Incoming]) -> None:
        """Take over a connected socket; `incoming` is the (tagged union) type of what the peer sends."""
        self._socket = connection
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, for pollers."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send one message. Raises OSError when the peer has gone."""
        with self._lock:
            self._socket.sendall(frame(message))

    def receive(self) -> Incoming | None:
        """Wait for one message; None at end-of-file. Raises WireError for anything that is not a message."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        body = self._read(_length(head))
        if body is None:
            return None
        return decode(self._decoder, body)

    def _read(self, length: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            part = self._socket.recv(min(length - len(parts), 2**20))
            if not part:
                return None
            parts += part
        return bytes(parts)


def decode(decoder: msgspec.msgpack.Decoder[Incoming], body: bytes) -> Incoming:
    """Decode one body. Raises WireError for bytes that are not a message of the decoder's type."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise WireError("MALFORMED_MESSAGE", str(error)) from error


async def receive_async(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Incoming]) -> Incoming | None:
    """Wait for one message on an asyncio stream; None at end-of-file, also in the middle of a message."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        body = await reader.readexactly(_length(head))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return decode(decoder, body)
