"""Serves verified blobs of one Node's store to peers over HTTP, by ranges and under tickets.

Promises: not a byte without a ticket that authorizes exactly this artifact, participant, Node, source and generation
now; bytes are those of the digest that was asked for, proved by the store's policy; what was given and what was
refused is logged. Names are digests, so that a path leads nowhere else. What is asked for twice is given twice.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from inferswarm.artifacts.limiter import BandwidthLimiter
from inferswarm.artifacts.reconciling import ServedLine
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.store import ContentStore, VerifiedBlob
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE, UNAUTHORIZED
from inferswarm.artifacts.tickets import Expected, Ticket, TicketBooth, TicketRefusal
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError
from inferswarm.fabric import messages as m

BLOB_PATH = "/v1/artifacts/"
PARTICIPANT_HEADER, NODE_HEADER = "x-inferswarm-participant", "x-inferswarm-node"
"""Who asks. The ticket must have been issued to exactly them."""
MOST_LINES = 100_000
"""So many answers and refusals are remembered."""
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
_HEX = re.compile(r"[0-9a-f]{64}")


class BlobServer:
    """What one courier gives, and the log of it. Used from several threads."""

    def __init__(
        self,
        store: ContentStore,
        booth: TicketBooth,
        limiter: BandwidthLimiter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives seconds since 1970, which tickets expire by. Nothing is served before `at` is called."""
        self._store = store
        self._booth = booth
        self._limiter = limiter
        self._clock = clock
        self._source: Source | None = None
        self._generation = 0
        self._lines: deque[ServedLine] = deque(maxlen=MOST_LINES)
        self._refused: deque[m.Refused] = deque(maxlen=MOST_LINES)
        self._lock = threading.Lock()

    def at(self, source: Source) -> None:
        """Say who this is and where it answers."""
        self._source = source

    def freeze(self, generation: int) -> None:
        """Refuse tickets of generations before this one; it never goes back."""
        with self._lock:
            self._generation = max(self._generation, generation)

    def report(self) -> m.ServedReported:
        """Return what was given and what was refused so far."""
        with self._lock:
            return m.ServedReported(lines=tuple(self._lines), refused=tuple(self._refused))

    def app(self) -> Starlette:
        """Return the application that serves it."""
        return Starlette(routes=[Route(BLOB_PATH + "{name}", self._answer, methods=["GET", "HEAD"])])

    def _answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        if _HEX.fullmatch(name) is None or self._source is None:
            return PlainTextResponse("no digest in hexadecimal\n", 404)
        sha256 = f"sha256:{name}"
        judged = self._judge(request, sha256, self._source)
        if isinstance(judged, TicketRefusal):
            return self._refuse(sha256, judged.kind, judged.reason, 403)
        try:
            blob = self._store.open_verified(sha256)
        except ArtifactError as error:
            status = 404 if error.code == SOURCE_UNAVAILABLE else 410
            return self._refuse(sha256, error.code, error.reason, status)
        try:
            return self._give(request, blob, judged.generation)
        except BaseException:
            blob.close()
            raise

    def _judge(self, request: Request, sha256: str, source: Source) -> Ticket | TicketRefusal:
        scheme, _, ticket = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return TicketRefusal("malformed", "there is no ticket", UNAUTHORIZED)
        with self._lock:
            generation = self._generation
        return self._booth.judge(
            ticket,
            Expected(
                artifact=sha256,
                participant=request.headers.get(PARTICIPANT_HEADER, ""),
                node_id=request.headers.get(NODE_HEADER, ""),
                source=source,
                generation=generation,
                now=self._clock(),
            ),
        )

    def _refuse(self, sha256: str, kind: str, reason: str, status: int) -> Response:
        with self._lock:
            self._refused.append(m.Refused(artifact=sha256, kind=kind, reason=reason))
        return PlainTextResponse(f"{kind}: {reason}\n", status)

    def _give(self, request: Request, blob: VerifiedBlob, generation: int) -> Response:
        tag = f'"{blob.sha256}"'
        headers = {"accept-ranges": "bytes", "etag": tag, "content-type": "application/octet-stream"}
        if request.headers.get("if-match", tag) not in (tag, "*"):
            blob.close()
            return PlainTextResponse("another content\n", 412, headers)
        wanted, status = ByteRange(0, blob.length), 200
        stated = request.headers.get("range")
        if stated is not None and request.headers.get("if-range", tag) == tag:
            found = read_range(stated, blob.length)
            if found is None:
                blob.close()
                return Response(status_code=416, headers={**headers, "content-range": f"bytes */{blob.length}"})
            wanted, status = found, 206
            headers["content-range"] = f"bytes {wanted.start}-{wanted.end - 1}/{blob.length}"
        headers["content-length"] = str(wanted.length)
        if request.method == "HEAD":
            blob.close()
            return Response(status_code=status, headers=headers)
        taker = request.headers[NODE_HEADER]  # whom the ticket names
        pieces = self._pieces(blob, wanted, status, taker, generation)
        return StreamingResponse(pieces, status_code=status, headers=headers)

    def _pieces(
        self, blob: VerifiedBlob, wanted: ByteRange, status: int, taker: str, generation: int
    ) -> Iterator[bytes]:
        """Give a range in pieces as fast as may be, and log what left, also when nobody takes the rest."""
        assert self._source is not None, "an answer is given by somebody"
        given = 0
        try:
            with blob:
                for piece in blob.stream(wanted):
                    self._limiter.take(piece.nbytes)
                    given += piece.nbytes
                    yield bytes(piece)
        finally:
            line = ServedLine(
                source=self._source.id,
                object=blob.sha256,
                bytes=given,
                complete=given == wanted.length,
                taker=taker,
                is_look=status == 206 and wanted == ByteRange(0, 1) and blob.length > 1,
                generation=generation,
            )
            with self._lock:
                self._lines.append(line)


def read_range(text: str, length: int) -> ByteRange | None:
    """Return the one range that a header of HTTP asks for of so many bytes; None for several and for none of them.

    >>> read_range("bytes=2-5", 10), read_range("bytes=8-", 10), read_range("bytes=-3", 10)
    (ByteRange(start=2, end=6), ByteRange(start=8, end=10), None)
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    start = int(match[1])
    end = min(int(match[2]) + 1 if match[2] else length, length)
    return ByteRange(start, end) if start < end else None
