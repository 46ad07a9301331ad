"""Frames of the data path: a small header, the payload, and a checksum over both.

A frame has three parts: msgpack header, raw payload bytes, eight bytes of xxh3-64 over header and payload. The
header names protocol, scope, epoch, realization, plan and session, so that a late frame of a retired epoch is
recognized wherever it arrives. Checked on loopback too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
import xxhash

from inferswarm.errors import WireError

PROTOCOL = 2
MAX_FRAME_BYTES = 256 * 2**20
"""A longer payload is refused before anything is done with it."""
ROUTE_SESSION = 0
"""In place of a session's number, which begin at 1: what concerns every session of a route."""


class FrameKind(IntEnum):
    """What a frame asks for or reports."""

    OPEN = 1
    """Towards the stages, in route order: reserve mutable state for a session."""
    OPENED = 2
    """Last stage to Coordinator: every stage has opened the session."""
    INPUT = 3
    """To the first stage: token ids at positions [position, position + count)."""
    BOUNDARY = 4
    """To a later stage: the boundary tensor of those positions."""
    RESULT = 5
    """Last stage to Coordinator: the token at `position`."""
    CREDIT = 6
    """Coordinator to first stage: everything up to `position` is committed."""
    CLOSE = 7
    """Towards the stages, in route order: free the session; each stage appends its report."""
    CLOSED = 8
    """Last stage to Coordinator: every stage's report."""
    FAULT = 9
    """A stage to Coordinator: a typed error of a session, or of the whole route (`ROUTE_SESSION`)."""
    ECHO = 10
    """Probe: send the payload back."""
    ECHOED = 11
    """Probe: here it is."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What a frame is about. `sent_ns` is the sender's monotonic clock (comparable on one machine only)."""

    protocol: int
    scope: str
    epoch: int
    realization: str
    plan: str
    """The first twelve hexadecimal digits of the plan's digest."""
    session: int
    position: int
    count: int
    kind: int
    sample: bool
    sent_ns: int


class Frame(NamedTuple):
    """A frame that has been received and checked."""

    header: Header
    payload: memoryview


class Address(NamedTuple):
    """What all frames of one epoch on one realization have in common."""

    scope: str
    epoch: int
    realization: str
    plan: str

    def header(
        self,
        kind: FrameKind,
        session: int,
        *,
        position: int = 0,
        count: int = 0,
        sample: bool = False,
        sent_ns: int = 0,
    ) -> Header:
        """Make the header of one frame."""
        return Header(PROTOCOL, *self, session, position, count, int(kind), sample, sent_ns)

    def mismatch(self, header: Header) -> str | None:
        """Return the refusal code of a frame that does not belong here, or None."""
        if header.scope != self.scope:
            return "WRONG_SCOPE"
        if header.epoch != self.epoch:
            return "RETIRED_OR_SUPERSEDED_EPOCH"
        if header.realization != self.realization:
            return "WRONG_REALIZATION"
        if header.plan != self.plan:
            return "PLAN_DIGEST_MISMATCH"
        return None


def plan_prefix(plan_digest: str) -> str:
    """Return the part of a plan's digest that frames carry."""
    return plan_digest.removeprefix("sha256:")[:12]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def _checksum(head: bytes, payload: bytes | memoryview) -> bytes:
    state = xxhash.xxh3_64(head)
    state.update(payload)
    return state.digest()


def encode(header: Header, payload: bytes | memoryview = b"") -> tuple[bytes, bytes | memoryview, bytes]:
    """Return the three parts of a frame."""
    head = _encoder.encode(header)
    return head, payload, _checksum(head, payload)


def decode(parts: Sequence[bytes | memoryview]) -> Frame:
    """Check the parts of a frame and return it.

    Raises WireError with code MALFORMED_FRAME, FRAME_TOO_LONG, CHECKSUM_MISMATCH or PROTOCOL_MISMATCH.
    """
    if len(parts) != 3:
        raise WireError("MALFORMED_FRAME", f"{len(parts)} parts instead of 3")
    head, payload, checksum = bytes(parts[0]), memoryview(parts[1]), bytes(parts[2])
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError("FRAME_TOO_LONG", f"{len(payload):,} B")
    if _checksum(head, payload) != checksum:
        raise WireError("CHECKSUM_MISMATCH", f"over {len(head) + len(payload):,} B")
    try:
        header = _decoder.decode(head)
    except (msgspec.DecodeError, ValueError) as error:
        raise WireError("MALFORMED_FRAME", str(error)) from error
    if header.protocol != PROTOCOL:
        raise WireError("PROTOCOL_MISMATCH", f"frame speaks {header.protocol}, this side {PROTOCOL}")
    return Frame(header, payload)


def frame_bytes(parts: Sequence[bytes | memoryview]) -> int:
    """Return how many bytes a frame puts on the link, without the transport's own framing."""
    return sum(len(part) for part in parts)
