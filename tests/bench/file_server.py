"""A folder's files over HTTP by ranges, and over bare TCP, from a process of its own: what benchmarks fetch from.

    python -m tests.bench.file_server FOLDER [BYTES_PER_SECOND]

prints two ports: of HTTP, and of TCP, where a line with a file's name is answered with its bytes. A rate bounds all
that is sent together, in pieces of 64 KiB: the stand-in for a slower link out of this machine. Bodies leave by
sendfile, so that the server costs as little of the machine as a server can. Each line on its standard input is
answered with the bytes of files that it has sent so far.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from inferswarm.artifacts.limiter import BandwidthLimiter

_LIMITED_PIECE_BYTES = 64 * 2**10
_PIECE_BYTES = 2**20


class Ports(NamedTuple):
    """Where a file server listens on the loopback interface, and its process."""

    http: int
    tcp: int
    process: subprocess.Popen[str]

    def url(self, name: str) -> str:
        """Return the address of a file."""
        return f"http://127.0.0.1:{self.http}/{name}"

    def sent(self) -> int:
        """Return the bytes of files that left so far, heads of answers not among them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("sent\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextlib.contextmanager
def serve_files(folder: Path, bytes_per_second: float | None = None) -> Iterator[Ports]:
    """Run a file server until the end of the block."""
    command = [sys.executable, "-m", "tests.bench.file_server", str(folder)]
    command += [] if bytes_per_second is None else [repr(bytes_per_second)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        http, tcp = map(int, server.stdout.readline().split())
        yield Ports(http, tcp, server)
    finally:
        server.kill()
        server.wait()


class _Sender:
    """Sends pieces of files, at a rate."""

    def __init__(self, folder: Path, limiter: BandwidthLimiter) -> None:
        self._folder = folder
        self._limiter = limiter
        self._lock = threading.Lock()
        self.sent = 0

    def find(self, name: str) -> Path | None:
        path = self._folder / name
        return path if path.is_file() and path.resolve().is_relative_to(self._folder.resolve()) else None

    def send(self, path: Path, start: int, end: int, connection: int) -> None:
        piece = _PIECE_BYTES if self._limiter.bytes_per_second is None else _LIMITED_PIECE_BYTES
        with path.open("rb") as file:
            while start < end:
                count = min(piece, end - start)
                self._limiter.take(count)
                while count:
                    sent = os.sendfile(connection, file.fileno(), start, count)
                    with self._lock:
                        self.sent += sent
                    start, count = start + sent, count - sent


def _http(sender: _Sender) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            path = sender.find(self.path.lstrip("/"))
            if path is None:
                self.send_error(404)
                return
            length = path.stat().st_size
            start, end, status = 0, length, 200
            if (asked := self.headers.get("Range")) is not None:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end, status = int(first), min(int(last) + 1 if last else length, length), 206
            tag = hashlib.sha1(f"{path.name} {length} {path.stat().st_mtime_ns}".encode()).hexdigest()
            self.send_response(status)
            self.send_header("ETag", f'"{tag}"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(end - start))
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{length}")
            self.end_headers()
            self.wfile.flush()
            try:
                sender.send(path, start, end, self.connection.fileno())
            except OSError:
                self.close_connection = True

    return Handler


def _tcp(sender: _Sender) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = sender.find(self.rfile.readline().decode().strip())
            if path is not None:
                with contextlib.suppress(OSError):
                    sender.send(path, 0, path.stat().st_size, self.connection.fileno())

    return Handler


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who has enough leaves in the middle of an answer."""


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True


def main() -> None:
    """Serve until the standard input ends."""
    limiter = BandwidthLimiter(float(sys.argv[2]) if len(sys.argv) > 2 else None)
    sender = _Sender(Path(sys.argv[1]), limiter)
    servers = _Http(("127.0.0.1", 0), _http(sender)), _Tcp(("127.0.0.1", 0), _tcp(sender))
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(*(server.server_address[1] for server in servers), flush=True)
    for _ in sys.stdin:
        print(sender.sent, flush=True)


if __name__ == "__main__":
    main()
