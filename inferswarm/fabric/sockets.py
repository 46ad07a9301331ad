"""ZeroMQ sockets with the bounds that the fabric needs: short queues, no lingering, no silent blocking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from inferswarm.errors import EngineError, WireError
from inferswarm.fabric.frames import MAX_FRAME_BYTES

QUEUE_FRAMES = 256
"""Frames that may wait for a peer before sending blocks."""
SEND_TIMEOUT_SECONDS = 10.0
"""A peer that takes no frame for so long is reported as gone."""


def bind_inbox(context: zmq.Context[zmq.Socket[bytes]], address: str, port: int = 0) -> tuple[zmq.Socket[bytes], str]:
    """Bind a PULL socket and return it with its endpoint. Port 0 takes a free one.

    Raises EngineError when the address or the port cannot be had.
    """
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, QUEUE_FRAMES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)  # a longer part is dropped before it is allocated
    socket.setsockopt(zmq.LINGER, 0)
    return socket, bind(socket, address, port)


def bind(socket: zmq.Socket[Any], address: str, port: int) -> str:
    """Bind any socket to a TCP address; returns the endpoint. Raises EngineError when it cannot be had."""
    wanted = f"tcp://{address}:{port or '*'}"
    try:
        socket.bind(wanted)
    except zmq.ZMQError as error:
        socket.close()
        raise EngineError(wanted, f"cannot listen there: {error}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def connect_outbox(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """Connect a PUSH socket to an inbox."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, QUEUE_FRAMES)
    socket.setsockopt(zmq.SNDTIMEO, int(SEND_TIMEOUT_SECONDS * 1000))
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    return socket


def send(socket: zmq.Socket[bytes], parts: Sequence[bytes | memoryview]) -> None:
    """Send a frame. Raises WireError when the peer took nothing for SEND_TIMEOUT_SECONDS."""
    try:
        socket.send_multipart(parts)
    except zmq.Again as error:
        raise WireError("PEER_NOT_RECEIVING", f"no frame was taken for {SEND_TIMEOUT_SECONDS:.0f} s") from error
