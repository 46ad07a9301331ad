"""Cuts real connections the way a network does: packets that arrive are dropped, and nobody is told."""

from __future__ import annotations

import ctypes
import socket
import struct

SO_ATTACH_FILTER = 26
"""Linux' number, which Python does not name."""
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter (`struct sock_filter`) of one instruction: keep 0 bytes of whatever comes."""


def drop_what_arrives(connection: socket.socket) -> None:
    """Have the kernel drop every packet that comes for this end, before TCP sees it: nothing is acknowledged."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING)
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
