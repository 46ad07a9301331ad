"""One HTTP client for many origins: how long anything may take, how often it is tried, whom credentials reach.

Promises: redirects are followed, and credentials go to the origin that they are for and to nobody else; nothing
is asked from an `http` address because an `https` one says so; whatever is tried again waits longer each time, obeys
`Retry-After`, and ends at a deadline.
"""

from __future__ import annotations

import contextlib
import functools
import random
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NoReturn
from urllib.request import getproxies

import httpx

from inferswarm.artifacts.origins.http_answers import read_length
from inferswarm.artifacts.origins.http_transport import WideTransport
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError, SpecError

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MOST_IDLE: Final = 16
"""So many connections are kept for the next request."""
_DISMISSED_BYTES: Final = 64 * 2**10
"""An unwanted body up to this length is read to its end, which keeps the connection; a longer one ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How patient a client is."""

    connect_seconds: float = 10.0
    """The longest wait for a connection."""
    silence_seconds: float = 30.0
    """The longest wait for the next bytes of an answer."""
    attempts: int = 5
    """How often something is tried in a row without receiving a byte."""
    first_wait_seconds: float = 0.5
    """The wait before the second attempt; each further one is twice as long. Up to half of it is left to chance."""
    longest_wait_seconds: float = 30.0
    deadline_seconds: float = 120.0
    """What any operation may take, whatever happens, beside the time for its bytes at `least_bytes_per_second`."""
    least_bytes_per_second: float = 64 * 2**10
    max_redirects: int = 8


@dataclass(frozen=True, slots=True)
class Credentials:
    """Header fields that say who asks, for the origin of the first address alone. Never shown."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    advice: str = "no credentials are sent to such an address; it has to be readable by anybody, or signed"
    """What to say when access is refused: what could be set."""


class TryAgain(Exception):
    """An attempt failed in a way that may pass: why, and how long the other side asks to wait."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_seconds = wait_seconds


class Attempts:
    """The time and the tries of one operation on `subject` that is to receive `num_bytes`."""

    def __init__(self, settings: HttpSettings, num_bytes: int, subject: str, stop: threading.Event) -> None:
        self._settings, self._subject, self._stop = settings, subject, stop
        self._allowed = settings.deadline_seconds + num_bytes / settings.least_bytes_per_second
        self._deadline = time.monotonic() + self._allowed
        self._failures = 0

    def progressed(self) -> None:
        """Note that bytes came. Raises ArtifactError when the deadline has passed all the same."""
        self._failures = 0
        if time.monotonic() > self._deadline:
            self._refuse(f"was not read within {self._allowed:,.0f} s")

    def wait(self, failure: TryAgain) -> None:
        """Wait before the next attempt. Raises ArtifactError, with the failure, when there shall be none."""
        self._failures += 1
        if self._failures >= self._settings.attempts:
            self._refuse(f"{failure.reason}, {self._failures} times in a row", failure)
        longest = min(
            self._settings.first_wait_seconds * 2 ** (self._failures - 1), self._settings.longest_wait_seconds
        )
        # Chance spreads those who were refused together.
        seconds = max(longest * random.uniform(0.5, 1.0), failure.wait_seconds or 0.0)
        left = self._deadline - time.monotonic()
        if seconds > left:
            asked = f" and asks to wait {failure.wait_seconds:,.0f} s" if failure.wait_seconds else ""
            self._refuse(
                f"{failure.reason}{asked}; of {self._allowed:,.0f} s, {max(left, 0.0):,.0f} s are left", failure
            )
        self._stop.wait(seconds)

    def _refuse(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        raise ArtifactError(SOURCE_UNAVAILABLE, self._subject, reason) from cause


class HttpClient:
    """Connections that several origins and threads share. A context manager."""

    def __init__(self, settings: HttpSettings | None = None) -> None:
        self.settings = settings or HttpSettings()
        timeout = httpx.Timeout(
            self.settings.silence_seconds, connect=self.settings.connect_seconds, pool=self.settings.silence_seconds
        )
        # No limit of connections: each reader has one, and whoever starts readers bounds their number.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_MOST_IDLE)
        # Proxies of the environment, and who goes around them, httpx alone understands.
        transport = None if getproxies() else WideTransport(_trust(), _MOST_IDLE)
        self._client = httpx.Client(
            verify=_trust(), timeout=timeout, limits=limits, follow_redirects=False, transport=transport
        )

    @contextlib.contextmanager
    def answer(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, subject: str
    ) -> Iterator[httpx.Response]:
        """Ask for `url` with GET, follow redirects, and give the answer with its body unread.

        Raises TryAgain for what may pass; ArtifactError `SOURCE_OBJECT_UNAVAILABLE` for certificates that do not
        hold and redirects that are not followed; SpecError for an address that is none.
        """
        try:
            response = self._follow(url, headers, credentials, subject)
            try:
                yield response
            finally:
                dismiss(response)
        except httpx.TransportError as error:
            if _is_certificate(error):
                raise ArtifactError(SOURCE_UNAVAILABLE, subject, f"its certificate does not hold: {error}") from error
            raise TryAgain(_transport_text(error, self.settings)) from error

    def _follow(self, url: str, headers: Mapping[str, str], credentials: Credentials, subject: str) -> httpx.Response:
        address, secrets = _address(url, subject), dict(credentials.headers)
        for _ in range(self.settings.max_redirects + 1):
            if self._client.is_closed:
                raise ArtifactError(SOURCE_UNAVAILABLE, subject, "the client that reads it is closed")
            request = self._client.build_request("GET", address, headers={**headers, **secrets})
            response = self._client.send(request, stream=True)
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or location is None:
                return response
            dismiss(response)
            target = redirect_target(address, location, subject)
            if (target.scheme, target.host, target.port) != (address.scheme, address.host, address.port):
                secrets = {}
            address = target
        raise ArtifactError(SOURCE_UNAVAILABLE, subject, f"redirects more than {self.settings.max_redirects} times")

    def close(self) -> None:
        """Close all connections; what is being read fails."""
        self._client.close()

    def __enter__(self) -> HttpClient:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()


def dismiss(response: httpx.Response) -> None:
    """End an answer whose body is not wanted.

    A short one that holds no bytes of an object is read, so that the connection can be used again.
    """
    length = read_length(response.headers.get("content-length"))
    untouched = not response.is_closed and not response.is_stream_consumed
    if untouched and not response.is_success and length is not None and length <= _DISMISSED_BYTES:
        with contextlib.suppress(httpx.TransportError):
            for _ in response.iter_raw():
                pass
    response.close()


def without_query(url: str) -> str:
    """Return an address as errors show it: a query may hold a signature.

    >>> without_query("https://example.org/m.gguf?signature=secret")
    'https://example.org/m.gguf?…'
    """
    base, mark, _ = url.partition("?")
    return f"{base}?…" if mark else base


def _address(url: str, subject: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SpecError("URL", subject, f"an address of the form http(s)://…: {error}") from error
    if address.userinfo:
        raise SpecError(
            "URL",
            f"{address.scheme}://…@{address.host}",
            "an address without a name and a password: documents keep it",
        )
    if address.scheme not in ("http", "https") or not address.host:
        raise SpecError("URL", subject, "an address of the form http(s)://…")
    return address


def redirect_target(address: httpx.URL, location: str, subject: str) -> httpx.URL:
    """Return where a redirect leads. Raises ArtifactError for a place that is not to be asked."""
    try:
        target = address.join(location)
    except httpx.InvalidURL as error:
        raise ArtifactError(SOURCE_UNAVAILABLE, subject, "redirects to an address that is none") from error
    allowed = ("https",) if address.scheme == "https" else ("http", "https")
    if target.scheme not in allowed or not target.host or target.userinfo:
        where = f"{target.scheme}://{target.host}"
        raise ArtifactError(SOURCE_UNAVAILABLE, subject, f"redirects to {where}; needed {' or '.join(allowed)}")
    return target


@functools.cache
def _trust() -> ssl.SSLContext:
    """Return the certificates that are trusted, read once: reading them takes as long as some 20 requests."""
    return httpx.create_ssl_context()


def _is_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _transport_text(error: httpx.TransportError, settings: HttpSettings) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return f"could not be connected to within {settings.connect_seconds:g} s"
    if isinstance(error, httpx.TimeoutException):
        return f"sent nothing for {settings.silence_seconds:g} s"
    words = next(iter(str(error).splitlines()), "") or type(error).__name__
    return f"could not be connected to: {words}" if isinstance(error, httpx.ConnectError) else f"broke off: {words}"
