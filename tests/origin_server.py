"""A real HTTP server of a folder's files, with ranges, that logs every request and misbehaves where it is told to.

    with serve_origin(folder) as server:
        server.inject("model.gguf", Fault(drop_after=1000, times=1))
        ...
        assert server.bytes_sent("model.gguf") == 1000

The log is what went over the socket: a byte that a server did not send cannot have been received.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from inferswarm.artifacts.types import ByteRange

_PIECE_BYTES = 64 * 2**10
_LARGE_BYTES = 4 * 2**20
"""Reading and hashing a file of this length for every request would take longer than answering it."""


@dataclass(frozen=True)
class Request:
    """One request and what was answered."""

    method: str
    path: str
    """Without the query, decoded, without the leading slash."""
    query: str
    range: ByteRange | None
    """The bytes that were asked for, None without `Range`."""
    status: int
    bytes_sent: int
    """Bytes of the body that were written; after a broken connection, those before it."""
    headers: tuple[tuple[str, str], ...]
    """The request's own, names in lowercase."""

    def header(self, name: str) -> str | None:
        """Return a header field of the request."""
        return dict(self.headers).get(name.lower())


@dataclass(frozen=True)
class Fault:
    """How a path misbehaves. Several may be combined; what is not set is as it should be."""

    times: int | None = None
    """For so many requests, then as it should be; None: for all."""
    after: int = 0
    """As it should be for so many requests first."""
    etag: str = "strong"
    """`strong`, `weak`, `none`, `gzip` (`-gzip` appended) or `alternating` (another one with every answer)."""
    modified: bool = True
    """Whether `Last-Modified` is stated."""
    ignores_range: bool = False
    """Answers 200 with everything, as if nothing had been said of ranges."""
    content_range: str | None = None
    """This `Content-Range` instead of the right one; empty: none."""
    encoding: str | None = None
    """States this `Content-Encoding`."""
    short_by: int = 0
    """Ends the body (in chunks, without a length) so many bytes early."""
    long_by: int = 0
    """Appends so many bytes to the body (in chunks)."""
    flip_at: int | None = None
    """The byte of the object whose lowest bit is flipped."""
    truncate: int | None = None
    """Serves only so many first bytes of the object, and says that this is all."""
    announce: int | None = None
    """This `Content-Length` instead of the right one; the connection is closed behind the body."""
    without_length: bool = False
    """States no length and closes the connection at the end."""
    status: int | None = None
    """This status and no body."""
    retry_after: str | None = None
    bytes_per_second: float | None = None
    drop_after: int | None = None
    """Cuts the connection after so many bytes of the body."""
    silent_seconds: float = 0.0
    """Says nothing for so long before the answer."""
    contents: bytes | None = None
    """Other contents under the same name."""
    redirect: str | None = None
    """Redirects there with 302."""


class OriginServer:
    """A running server; `serve_origin` makes one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        """`http://127.0.0.1:PORT`, or `https`."""
        self._lock = threading.Condition()
        self._under_way = 0
        self._log: list[Request] = []
        self._faults: dict[str, list[tuple[Fault, list[int]]]] = {}
        self._answers = 0

    def url(self, path: str = "") -> str:
        """Return the address of a file or a folder below the served one."""
        return f"{self.address}/{quote(path)}"

    def inject(self, path: str, *faults: Fault) -> None:
        """Let a path misbehave; of several faults the first whose turn it is counts. None: it behaves again."""
        with self._lock:
            self._faults[path] = [(fault, [0]) for fault in faults]

    @property
    def log(self) -> list[Request]:
        """Every request that was answered, in the order in which answers ended.

        Waits for answers that are under way, at most a second: a client may have all of an answer before the server
        has logged it.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._under_way, timeout=1)
            return list(self._log)

    def clear(self) -> None:
        """Forget the log, with the answers that are under way."""
        with self._lock:
            self._lock.wait_for(lambda: not self._under_way, timeout=1)
            self._log.clear()

    def requests(self, path: str) -> list[Request]:
        """Return the requests for one path."""
        return [request for request in self.log if request.path == path]

    def bytes_sent(self, path: str | None = None) -> int:
        """Return the bytes of all bodies that were sent, or of those for one path."""
        return sum(request.bytes_sent for request in self.log if path in (None, request.path))

    def fault_of(self, path: str) -> Fault:
        """Return how to answer the next request for a path, and count it."""
        with self._lock:
            self._answers += 1
            self._under_way += 1
            for fault, seen in self._faults.get(path, ()):
                seen[0] += 1
                turn = seen[0] - fault.after
                if turn > 0 and (fault.times is None or turn <= fault.times):
                    return fault
        return Fault()

    def record(self, request: Request) -> None:
        """Add to the log."""
        with self._lock:
            self._log.append(request)
            self._under_way -= 1
            self._lock.notify_all()

    def etag(self, contents: bytes, kind: str) -> str | None:
        """Return the ETag of contents."""
        opaque = _opaque_of_large(contents) if len(contents) >= _LARGE_BYTES else _opaque(contents)
        named = {
            "strong": f'"{opaque}"',
            "weak": f'W/"{opaque}"',
            "gzip": f'"{opaque}-gzip"',
            "alternating": f'"{opaque}-{self._answers}"',
        }
        return named.get(kind)


@contextlib.contextmanager
def serve_origin(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[OriginServer]:
    """Serve the files of a folder on the loopback interface until the end of the block, with `tls` by https alone."""
    served = OriginServer(folder)
    server = _Server(("127.0.0.1", 0), _handler(served))
    if tls is not None:
        # The handshake belongs to the connection's own thread: who refuses it holds up nobody.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    scheme = "http" if tls is None else "https"
    served.address = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a connection that is kept open must not hold up the end of a test

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients of tests leave in the middle of answers."""


def _handler(served: OriginServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer's head and body are two writes; together with delayed acknowledgements they would wait 40 ms.
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: `OriginServer.log` is the log."""

        def answer(self) -> None:
            name, _, query = self.path.partition("?")
            path = unquote(name).lstrip("/")
            asked = _read_range(self.headers.get("Range"))
            request = Request(
                method=self.command,
                path=path,
                query=query,
                range=None if asked is None else ByteRange(asked[0], max(asked[0], asked[1])),
                status=0,
                bytes_sent=0,
                headers=tuple((key.lower(), value) for key, value in self.headers.items()),
            )
            fault = served.fault_of(path)
            status, sent = 0, 0
            try:
                time.sleep(fault.silent_seconds)
                status, fields, body = self.decide(path, asked, fault)
                for piece in self.send(status, fields, body, fault):
                    sent += piece
            except OSError:
                self.close_connection = True
            finally:
                served.record(replace(request, status=status, bytes_sent=sent))

        def decide(self, path: str, asked: tuple[int, int] | None, fault: Fault) -> tuple[int, dict[str, str], bytes]:
            """Return status, header fields and body of an answer."""
            if fault.redirect is not None:
                return 302, {"Location": fault.redirect}, b""
            if fault.status is not None:
                fields = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
                return fault.status, fields, b""
            file = served.folder / path
            if fault.contents is None and not file.is_file():
                return 404, {}, b""
            data = _read(file) if fault.contents is None else fault.contents
            fields = self.describe(file, data, fault)
            if fault.flip_at is not None:
                data = data[: fault.flip_at] + bytes([data[fault.flip_at] ^ 1]) + data[fault.flip_at + 1 :]
            if fault.truncate is not None:
                data = data[: fault.truncate]
            condition = self.headers.get("If-Range")
            if asked is None or fault.ignores_range or (condition is not None and condition != fields.get("ETag")):
                return 200, fields, data
            start, end = asked[0], min(asked[1], len(data))
            if start >= len(data):
                return 416, {**fields, "Content-Range": f"bytes */{len(data)}"}, b""
            stated = f"bytes {start}-{end - 1}/{len(data)}" if fault.content_range is None else fault.content_range
            if stated:
                fields["Content-Range"] = stated
            return 206, fields, data[start:end]

        def describe(self, file: Path, data: bytes, fault: Fault) -> dict[str, str]:
            fields = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
            if (etag := served.etag(data, fault.etag)) is not None:
                fields["ETag"] = etag
            if fault.modified:
                changed = file.stat().st_mtime if fault.contents is None else 0.0
                fields["Last-Modified"] = formatdate(changed, usegmt=True)
            if fault.encoding is not None:
                fields["Content-Encoding"] = fault.encoding
            return fields

        def send(self, status: int, fields: dict[str, str], body: bytes, fault: Fault) -> Iterator[int]:
            """Send an answer and give the bytes of its body as they are written."""
            chunked = bool(fault.short_by or fault.long_by)
            if self.command == "HEAD":
                fields, body, chunked = {**fields, "Content-Length": str(len(body))}, b"", False
            elif chunked:
                fields = {**fields, "Transfer-Encoding": "chunked"}
            elif fault.without_length:
                fields = {**fields, "Connection": "close"}
            else:
                length = len(body) if fault.announce is None else fault.announce
                fields = {**fields, "Content-Length": str(length)}
            self.send_response(status)
            for key, value in fields.items():
                self.send_header(key, value)
            self.end_headers()
            body = body[: max(0, len(body) - fault.short_by)] + bytes(fault.long_by)
            if fault.drop_after is not None:
                body = body[: fault.drop_after]
            for start in range(0, len(body), self.piece_bytes(fault)):
                piece = body[start : start + self.piece_bytes(fault)]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                yield len(piece)
                if fault.bytes_per_second is not None:
                    self.wfile.flush()
                    time.sleep(len(piece) / fault.bytes_per_second)
            if fault.drop_after is not None:
                self.cut()
            elif chunked:
                self.wfile.write(b"0\r\n\r\n")
            if fault.announce is not None or fault.without_length:
                self.close_connection = True

        def piece_bytes(self, fault: Fault) -> int:
            """Return how much is written at once: at a low speed, what twentieths of a second take."""
            return _PIECE_BYTES if fault.bytes_per_second is None else max(1, int(fault.bytes_per_second / 20))

        def cut(self) -> None:
            """End the connection in the middle of an answer, once what was written has left."""
            self.wfile.flush()
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


def _read(file: Path) -> bytes:
    """Return a file's contents; a large one is read once, as long as nobody writes it."""
    status = file.stat()
    if status.st_size < _LARGE_BYTES:
        return file.read_bytes()
    return _read_large(file, status.st_ino, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read_large(file: Path, inode: int, mtime_ns: int, length: int) -> bytes:
    return file.read_bytes()


def _opaque(contents: bytes) -> str:
    return hashlib.sha1(contents).hexdigest()[:16]


@functools.lru_cache(maxsize=8)
def _opaque_of_large(contents: bytes) -> str:
    return _opaque(contents)


def _read_range(text: str | None) -> tuple[int, int] | None:
    """Return the first range of a `Range` field, its end excluded; without an end that is very far away."""
    if text is None or not text.startswith("bytes="):
        return None
    first, _, last = text.removeprefix("bytes=").split(",")[0].partition("-")
    return int(first), int(last) + 1 if last else 2**62
