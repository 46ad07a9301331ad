"""An HTTP origin of a folder's files, in a process of its own, that logs every answer: what arms acquire from.

    python -m inferswarm.arms.origin_server FOLDER LOG

prints its port, and serves until its standard input ends. Ranges, strong versions (the sha256 of the contents) and
connections that stay open are served; nothing outside of the folder is. The log has one line of JSON for each answer,
written when its last byte has left or the connection broke: the bytes are those of the body that were sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import unquote

PIECE_BYTES = 2**20
"""Sent at once."""


class Asked(NamedTuple):
    """What a request wants of a file: the bytes [start, end), and the status that says so."""

    status: int
    start: int
    end: int


def read_range(field: str | None, length: int) -> Asked:
    """Return what a `Range` field asks of a file of this length: all of it without one, or with one that is odd."""
    whole = Asked(200, 0, length)
    if field is None or not field.startswith("bytes=") or "," in field:
        return whole
    first, _, last = field.removeprefix("bytes=").partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()):
        return whole
    start, end = int(first), min(length, int(last) + 1 if last else length)
    return Asked(416, 0, 0) if start >= length or end <= start else Asked(206, start, end)


class Shelf:
    """The served folder, the versions of its files, and the log."""

    def __init__(self, folder: Path, log: IO[str]) -> None:
        self._folder = folder.resolve()
        self._log = log
        self._lock = threading.Lock()
        self._versions: dict[Path, str] = {}

    def find(self, name: str) -> Path | None:
        """Return a file of the folder by its path there; None for anything else. Links inside it are followed."""
        if ".." in Path(name).parts or Path(name).is_absolute():
            return None
        path = self._folder / name
        return path if path.is_file() else None

    def version(self, path: Path) -> str:
        """Return the strong ETag of a file: of its contents when it was first asked for."""
        with self._lock:
            if path not in self._versions:
                with path.open("rb") as file:
                    self._versions[path] = f'"{hashlib.file_digest(file, "sha256").hexdigest()}"'
            return self._versions[path]

    def record(self, method: str, name: str, asked: Asked, sent: int) -> None:
        """Add a line to the log."""
        line = {"method": method, "path": name, "start": asked.start, "end": asked.end}
        with self._lock:
            self._log.write(json.dumps({**line, "status": asked.status, "sent": sent}) + "\n")
            self._log.flush()


def _handler(shelf: Shelf) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: the log is the shelf's."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            name = unquote(self.path.partition("?")[0]).lstrip("/")
            path = shelf.find(name)
            if path is None:
                self.send_error(404)
                return
            status = path.stat()
            version, condition = shelf.version(path), self.headers.get("If-Range")
            wanted = self.headers.get("Range") if condition in (None, version) else None
            asked, sent = read_range(wanted, status.st_size), 0
            try:
                self._head(asked, status, version)
                sent = self._body(path, asked) if with_body else 0
            except OSError:
                self.close_connection = True
            finally:
                shelf.record(self.command, name, asked, sent)

        def _head(self, asked: Asked, status: os.stat_result, version: str) -> None:
            self.send_response(asked.status)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", version)
            self.send_header("Last-Modified", formatdate(status.st_mtime, usegmt=True))
            self.send_header("Content-Length", str(asked.end - asked.start))
            if asked.status != 200:
                place = "*" if asked.status == 416 else f"{asked.start}-{asked.end - 1}"
                self.send_header("Content-Range", f"bytes {place}/{status.st_size}")
            self.end_headers()
            self.wfile.flush()

        def _body(self, path: Path, asked: Asked) -> int:
            sent = 0
            with path.open("rb") as file, contextlib.suppress(OSError):
                while asked.start + sent < asked.end:
                    left = asked.end - asked.start - sent
                    count = os.sendfile(
                        self.connection.fileno(), file.fileno(), asked.start + sent, min(PIECE_BYTES, left)
                    )
                    sent += count
            self.close_connection = self.close_connection or sent < asked.end - asked.start
            return sent

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who has enough leaves in the middle of an answer."""


def main(arguments: list[str]) -> None:
    """Serve FOLDER and log to LOG until the standard input ends."""
    folder, log = map(Path, arguments)
    with log.open("a", encoding="utf-8") as file, _Server(("127.0.0.1", 0), _handler(Shelf(folder, file))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
