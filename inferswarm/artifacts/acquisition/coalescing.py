"""Which ranges are asked for together. Pure: the same orders give the same requests, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from inferswarm.artifacts.types import ByteRange


class Piece(NamedTuple):
    """What of one order is still to be fetched: the order's number, and a place in the source's object."""

    number: int
    place: ByteRange
    is_continued: bool = False
    """Its beginning is kept, so that nothing before `place` is wanted."""


def coalesce(pieces: Iterable[Piece], request_bytes: int, gap_bytes: int = 0) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of one object in requests, each in the order of places.

    Neighbors go together while there are at most `gap_bytes` between them and the request stays within
    `request_bytes`; a longer piece is a request by itself. A continued piece begins a request, since what is before
    it is not wanted. Pieces that overlap go apart.
    """
    requests: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.place.start, piece.place.end, piece.number)):
        if requests and _fits(requests[-1], piece, request_bytes, gap_bytes):
            requests[-1].append(piece)
        else:
            requests.append([piece])
    return tuple(tuple(request) for request in requests)


def request_size(total_bytes: int, connections: int, most_bytes: int, least_bytes: int = 2**20) -> int:
    """Return how long requests should be at most: all connections have work, and none has a request for a crumb.

    Twice as many requests as connections even out what one of them takes longer. A single connection gains nothing
    by several.
    """
    if connections == 1:
        return most_bytes
    return max(least_bytes, min(most_bytes, -(-total_bytes // (2 * connections))))


def _fits(request: list[Piece], piece: Piece, request_bytes: int, gap_bytes: int) -> bool:
    gap = piece.place.start - request[-1].place.end
    return (
        not piece.is_continued and 0 <= gap <= gap_bytes and piece.place.end - request[0].place.start <= request_bytes
    )
