"""Serving the application on a socket until somebody asks for the end. A process boundary.

Nothing that a request or an answer says is logged: of a fault the log has its type and where it happened.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType

import uvicorn

from inferswarm.errors import EngineError, SpecError
from inferswarm.serving.app import make_app
from inferswarm.serving.service import Serving

SEND_BUFFER_BYTES = 128 * 1024
"""What the kernel keeps for a client that does not read; more than that waits where it is bounded by time."""
CLOSE_SECONDS = 3
"""How long answers under way may take to tell their clients that the server stops."""
_Logged = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class PlacesOnly(logging.Formatter):
    """Formats a fault as its type and the places that it passed, without its text, which may quote a request."""

    def formatException(self, ei: _Logged) -> str:  # noqa: N802 (logging's name)
        """Return the frames and the type."""
        kind, _, trace = ei
        frames = "".join(f"  {item.filename}:{item.lineno} in {item.name}\n" for item in traceback.extract_tb(trace))
        return f"{frames}{kind.__name__ if kind is not None else 'no fault'}"


_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"places": {"()": PlacesOnly, "fmt": "inferswarm serve: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "places"}},
    "loggers": {
        name: {"handlers": ["stderr"], "level": "WARNING", "propagate": False}
        for name in ("uvicorn", "uvicorn.error", "asyncio")
    },
}


def is_loopback(address: str) -> bool:
    """Return whether an address is one of this machine's loopback interface. Raises SpecError for no address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError as error:
        raise SpecError("listen", address, "an IP address, such as 127.0.0.1 or 0.0.0.0") from error


def bind(address: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet; port 0 takes a free one.

    Raises SpecError for what is no address or port, EngineError for one that cannot be taken.
    """
    if not 0 <= port <= 65535:
        raise SpecError("port", port, "0 to 65535")
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise EngineError("endpoint", f"{address} port {port} cannot be taken: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket."""
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class _Server(uvicorn.Server):
    """Ends answers under way truthfully when it is stopped, and does not pass the signal on."""

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        await super().shutdown(sockets)


class Endpoint:
    """One served application. `run` serves in the calling thread; `stop` may be called from any."""

    def __init__(self, listener: socket.socket, open_serving: Callable[[], Serving]) -> None:
        """Serve on `listener`; `open_serving` is called in the event loop."""
        self._listener = listener
        self._open_serving = open_serving
        self._serving: Serving | None = None
        app = make_app(self._open, loopback=is_loopback(listener.getsockname()[0]))
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_config=_LOGGING,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server = _Server(config, self._stop_answers)

    def _open(self) -> Serving:
        self._serving = self._open_serving()
        return self._serving

    def _stop_answers(self) -> None:
        if self._serving is not None:
            self._serving.stop()

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until stopped or interrupted. `on_ready` is called once, when requests would be answered."""
        asyncio.run(self._run(on_ready))

    async def _run(self, on_ready: Callable[[], None]) -> None:
        announce = asyncio.create_task(self._announce(on_ready))
        try:
            await self._server.serve([self._listener])
        finally:
            announce.cancel()
            await asyncio.wait({announce})

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        while self._serving is None:
            await asyncio.sleep(0.01)
        await self._serving.readiness.became_ready.wait()
        on_ready()

    def stop(self) -> None:
        """Ask for the end."""
        self._server.should_exit = True
