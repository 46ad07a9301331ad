"""A small mirror of a model hub on the loopback interface: enough of its HTTP interface for a client to fetch models.

It serves repositories held in memory: file listings by revision, file metadata and contents with ranges, and it can
be told to fail: to hide a repository, to break a transfer off, to answer with an error status.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass
class Repository:
    """The files of one repository at each commit, and what its branches and tags point to."""

    commits: dict[str, dict[str, bytes]]
    revisions: dict[str, str]
    status: int = 200
    """200, or the status with which every request about it is refused."""
    error_code: str = ""


@dataclass
class Mirror:
    """What is served, what was asked, and which transfers are to fail."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request, in order."""
    authorizations: set[str | None] = field(default_factory=set)
    """What requests said of who asks."""
    elsewhere: str | None = None
    """Where files are fetched from instead: the mirror redirects there, to the file's name."""
    cut_once: set[str] = field(default_factory=set)
    """Names of files whose next transfer ends half way."""
    lying: set[str] = field(default_factory=set)
    """Names of files that are served shorter than their metadata say."""
    status: int = 200
    """200, or the status of every answer."""
    endpoint: str = ""

    def publish(self, name: str, files: dict[str, bytes], revision: str = "main") -> str:
        """Add a commit to a repository and let the revision point to it; return the commit."""
        commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        repository = self.repositories.setdefault(name, Repository({}, {}))
        repository.commits[commit] = files
        repository.revisions[revision] = commit
        return commit

    def fetched(self) -> list[str]:
        """Return the names of the files whose contents were asked for, in order."""
        return [
            path.split("/resolve/")[1].split("/", 1)[1]
            for method, path in self.requests
            if "/resolve/" in path and method == "GET"
        ]


@contextmanager
def serve(mirror: Mirror) -> Iterator[Mirror]:
    """Serve a mirror until the end of the block; its `endpoint` says where."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(mirror))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    mirror.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: `Mirror.requests` is the log."""

        def answer(self, with_body: bool) -> None:
            path = unquote(self.path.split("?")[0])
            mirror.requests.append((self.command, path))
            mirror.authorizations.add(self.headers.get("Authorization"))
            if mirror.status != 200:
                self.refuse(mirror.status)
                return
            owner, name, *rest = path.removeprefix("/api/models").strip("/").split("/")
            repository = mirror.repositories.get(f"{owner}/{name}")
            if repository is None:
                self.refuse(401, "RepoNotFound")
                return
            if repository.status != 200:
                self.refuse(repository.status, repository.error_code)
                return
            if path.startswith("/api/models/"):
                self.describe(f"{owner}/{name}", repository, "/".join(rest[1:]) or "main")
            else:
                self.send_file(repository, rest[1], "/".join(rest[2:]), with_body)

        def describe(self, name: str, repository: Repository, revision: str) -> None:
            commit = repository.revisions.get(revision, revision)
            if commit not in repository.commits:
                self.refuse(404, "RevisionNotFound")
                return
            siblings = [{"rfilename": file} for file in repository.commits[commit]]
            body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
            self.send({"Content-Type": "application/json"}, body)

        def send_file(self, repository: Repository, revision: str, file: str, with_body: bool) -> None:
            commit = repository.revisions.get(revision, revision)
            if commit not in repository.commits:
                self.refuse(404, "RevisionNotFound")
                return
            if file not in repository.commits[commit]:
                self.refuse(404, "EntryNotFound")
                return
            data = repository.commits[commit][file]
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit}
            if with_body and file in mirror.lying:
                data = data[:-1]
            if mirror.elsewhere is not None:
                self.send({"Location": f"{mirror.elsewhere}/{file}"}, b"", 302)
                return
            first, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            partial = (start, end) != (0, len(data))
            if partial:
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            cut = with_body and file in mirror.cut_once
            mirror.cut_once.discard(file) if cut else None
            self.send(headers, data[start:end], 206 if partial else 200, with_body, cut)

        def send(
            self, headers: dict[str, str], body: bytes, status: int = 200, with_body: bool = True, cut: bool = False
        ) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body[: len(body) // 2] if cut else body)

        def refuse(self, status: int, code: str = "") -> None:
            self.send({"X-Error-Code": code} if code else {}, b"", status)

    return Handler
