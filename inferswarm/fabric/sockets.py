"""Binding ZeroMQ sockets for control messages: a clear error instead of a raw one."""

from __future__ import annotations

from typing import Any

import zmq

from inferswarm.errors import EngineError


def bind(socket: zmq.Socket[Any], address: str, port: int) -> str:
    """Bind a socket to a TCP address; port 0 takes a free one. Returns the endpoint.

    Raises EngineError when the address or the port cannot be had.
    """
    wanted = f"tcp://{address}:{port or '*'}"
    try:
        socket.bind(wanted)
    except zmq.ZMQError as error:
        socket.close()
        raise EngineError(wanted, f"cannot listen there: {error}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
