"""How httpx gets its bytes here: over httpcore as ever, in longer reads.

httpcore asks a socket for 64 KiB at a time. On a fast link each read costs more in this interpreter than its bytes
do; with four times as many at once, acquiring took a fifth less CPU (2026-11-30, two virtual cores, loopback). What a
read gives is what has arrived, however little. No proxies: who has to go through one takes httpx's own transport.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import httpcore
import httpx

READ_BYTES: Final = 256 * 2**10
"""The most that one read takes; so much more memory has each connection."""


class WideTransport(httpx.BaseTransport):
    """Connections that are read in long pieces. Raises httpx's errors, as its own transport does."""

    def __init__(self, trust: ssl.SSLContext, max_keepalive: int) -> None:
        """`trust` holds the certificates that count; so many idle connections are kept."""
        self._pool = httpcore.ConnectionPool(
            ssl_context=trust,
            max_connections=None,
            max_keepalive_connections=max_keepalive,
            keepalive_expiry=httpx.Limits().keepalive_expiry,
            network_backend=_WideBackend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of its answer is read by whoever has it."""
        url = request.url
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _errors_of_httpx():
            answer = self._pool.handle_request(asked)
        stream = _Body(cast("Iterable[bytes]", answer.stream))
        return httpx.Response(answer.status, headers=answer.headers, stream=stream, extensions=answer.extensions)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx():
            yield from self._stream

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


class _WideBackend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._plain = httpcore.SyncBackend()

    def connect_tcp(self, *arguments: Any, **named: Any) -> httpcore.NetworkStream:
        return _WideStream(self._plain.connect_tcp(*arguments, **named))


class _WideStream(httpcore.NetworkStream):
    def __init__(self, plain: httpcore.NetworkStream) -> None:
        self._plain = plain

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._plain.read(max(max_bytes, READ_BYTES), timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._plain.write(buffer, timeout)

    def close(self) -> None:
        self._plain.close()

    def start_tls(self, *arguments: Any, **named: Any) -> httpcore.NetworkStream:
        return _WideStream(self._plain.start_tls(*arguments, **named))

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Raise httpx's error of the same name in the place of httpcore's."""
    try:
        yield
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error
