"""Ranges of an object behind an HTTP address: exactly the bytes that are asked for, of one version, or an error.

Promises: an answer is used only when it states the range that was asked for, out of an object of the length and the
version that were opened, and its body is the bytes themselves; a stream that breaks goes on at the byte that was
reached; a server that ignores ranges is refused before a body is read that is not wanted. Needs a server that states
lengths, and ranges for anything but whole objects. What it does not do: verify contents.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, NoReturn

import httpx
import msgspec

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.base import PIECE_BYTES
from inferswarm.artifacts.origins.checking import AbsentObject, check_expected, check_inside
from inferswarm.artifacts.origins.counting import CountedReads
from inferswarm.artifacts.origins.http_answers import (
    Validators,
    is_encoded,
    read_content_range,
    read_length,
    read_retry_after,
    read_validators,
)
from inferswarm.artifacts.origins.http_client import Attempts, Credentials, HttpClient, TryAgain, without_query
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, SOURCE_UNAVAILABLE, UNAUTHORIZED
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError

_OK, _PARTIAL = 200, 206
_REFUSED: Final = (401, 403)
_ABSENT: Final = (404, 410)
_CHANGED = 412
_NOT_SATISFIABLE = 416
_PASSING: Final = (408, 429)
"""Answers that may be another one later, beside those of a server in trouble (500 and above)."""
_FIRST_BYTE: Final = ByteRange(0, 1)
"""What opening asks for: the least that shows whether ranges work. It is counted as received."""


class HttpOrigin(CountedReads):
    """One object behind an `http` or `https` address. Usable from several threads; a context manager.

    Opening asks once, unless the length is known. Raises ArtifactError: `SOURCE_UNAUTHORIZED` saying what could be
    set, `SOURCE_OBJECT_UNAVAILABLE` for what is not there, does not state its length, or cannot be reached,
    `PROVENANCE_IDENTITY_MISMATCH` for another object than `expected`; SpecError for an address that is none.
    """

    def __init__(
        self,
        url: str,
        expected: UpstreamObject | None = None,
        *,
        client: HttpClient | None = None,
        credentials: Credentials | None = None,
        uri: str | None = None,
        version: str | None = None,
        known_length: int | None = None,
    ) -> None:
        """Open the object at `url`.

        `client` is shared with other origins; without one this origin has its own. `uri` and `version` are what the
        object is described as where the address is not its name (`hf://…`, `commit:…`). With `known_length` opening
        asks nobody, and no version is compared: for objects whose content is proved by its digest.
        """
        super().__init__()
        self._url, self._credentials = url, credentials or Credentials()
        self._subject = without_query(uri or url)
        self._closing = threading.Event()
        self._uses_condition = True
        self._client, self._owns_client = client or HttpClient(), client is None
        try:
            if known_length is None:
                self._length, self._validators, self._has_ranges = self._open()
            else:
                self._length, self._validators, self._has_ranges = known_length, read_validators({}), True
            stated = version or self._validators.version
            self._described = UpstreamObject(
                uri=uri or url, length=self._length, version=stated if stated is not None else msgspec.UNSET
            )
            check_expected(self._described, expected, self._subject)
        except BaseException:
            self.close()
            raise

    @property
    def described(self) -> UpstreamObject:
        """Return what was opened; its version is UNSET when the server states neither ETag nor Last-Modified."""
        return self._described

    @property
    def length(self) -> int:
        """Return the bytes of the object."""
        return self._length

    @property
    def has_ranges(self) -> bool:
        """Return whether the server answers with ranges; without them only the whole object can be read."""
        return self._has_ranges

    def read(self, wanted: ByteRange) -> bytes:
        """Return the bytes of a range. Raises as `stream`."""
        check_inside(wanted, self._length, self._subject)
        buffer = bytearray(wanted.length)
        position = 0
        for piece in self.stream(wanted):
            buffer[position : position + len(piece)] = piece
            position += len(piece)
        return bytes(buffer)

    def stream(self, wanted: ByteRange) -> Iterator[memoryview]:
        """Give the bytes of a range in pieces as they arrive, of at most 1 MiB.

        What breaks off is asked for again from the byte that was reached. Raises ArtifactError:
        `MALFORMED_ARTIFACT_RECORD` for a range outside the object, `PROVENANCE_IDENTITY_MISMATCH` when the object is
        another one than was opened, `SOURCE_UNAUTHORIZED`, and `SOURCE_OBJECT_UNAVAILABLE` for everything else.
        """
        check_inside(wanted, self._length, self._subject)
        attempts = Attempts(self._client.settings, wanted.length, self._subject, self._closing)
        position = wanted.start
        while position < wanted.end:
            try:
                for piece in self._ask(ByteRange(position, wanted.end)):
                    position += len(piece)
                    attempts.progressed()
                    yield piece
                if position < wanted.end:
                    raise TryAgain(f"ended {wanted.end - position:,} B before the end of the range")
            except TryAgain as failure:
                attempts.wait(failure)
        self._record(wanted)

    def close(self) -> None:
        """Close it: reads that are under way end with an error; the counts stay readable."""
        self._closing.set()
        if self._owns_client:
            self._client.close()

    # -- opening --

    def _open(self) -> tuple[int, Validators, bool]:
        """Return length, validators, and whether ranges work."""
        attempts = Attempts(self._client.settings, _FIRST_BYTE.length, self._subject, self._closing)
        while True:
            try:
                with self._client.answer(
                    self._url, self._headers(_FIRST_BYTE, None), self._credentials, self._subject
                ) as response:
                    return self._learn(response)
            except TryAgain as failure:
                attempts.wait(failure)

    def _learn(self, response: httpx.Response) -> tuple[int, Validators, bool]:
        headers, status = response.headers, response.status_code
        found = read_content_range(headers.get("content-range"))
        if status == _NOT_SATISFIABLE and found is not None and found.total == 0:
            return 0, read_validators(headers), True
        if status in _ABSENT:
            raise AbsentObject(self._subject, f"answered {status}: nothing is there")
        if status not in (_OK, _PARTIAL):
            self._refuse(response)
        self._check_plain(response)
        if status == _OK:
            length = read_length(headers.get("content-length"))
            if length is None:
                self._unavailable("answered 200 and does not state its length")
            return length, read_validators(headers), False
        stated = headers.get("content-range", "no range")
        if found is None or (found.start, found.end) != (_FIRST_BYTE.start, _FIRST_BYTE.end) or found.total is None:
            self._unavailable(f"answered 206 with {stated!r}, needed 'bytes 0-0/' and the length")
        if sum(len(piece) for piece in self._body(response, _FIRST_BYTE.length)) < _FIRST_BYTE.length:
            raise TryAgain("sent an empty body")
        return found.total, read_validators(headers), True

    # -- reading --

    def _ask(self, wanted: ByteRange) -> Iterator[memoryview]:
        """Ask once for a range and give what comes of it. Raises TryAgain, or ArtifactError for good."""
        if self._closing.is_set():
            self._unavailable("the origin is closed")
        is_whole = wanted == ByteRange(0, self._length)
        if not self._has_ranges and not is_whole:
            self._refuse_ignored(wanted)
        condition = self._validators.condition if self._uses_condition else None
        headers = self._headers(wanted, condition)
        with self._client.answer(self._url, headers, self._credentials, self._subject) as response:
            status = response.status_code
            if status not in (_OK, _PARTIAL):
                self._refuse(response)
            self._check_plain(response)
            # Before anything else: a changed object is answered with 200 where If-Range was understood.
            if (difference := self._validators.difference(read_validators(response.headers))) is not None:
                self._changed(difference)
            if status == _OK and not is_whole:
                if condition is not None:
                    # Some servers compare If-Range with another form of the ETag than they state.
                    self._uses_condition = False
                    raise TryAgain("answered If-Range, with the version that it names, with everything")
                self._refuse_ignored(wanted)
            self._check_range(response, wanted)
            yield from self._body(response, wanted.length)

    def _headers(self, wanted: ByteRange, condition: str | None) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={wanted.start}-{wanted.end - 1}"}
        return headers if condition is None else {**headers, "If-Range": condition}

    def _check_range(self, response: httpx.Response, wanted: ByteRange) -> None:
        """Refuse an answer that is about other bytes than those of `wanted`, before its body is read."""
        headers = response.headers
        if response.status_code == _PARTIAL:
            stated = headers.get("content-range", "no range")
            found = read_content_range(headers.get("content-range"))
            if found is not None and found.total is not None and found.total != self._length:
                self._changed(f"it has {found.total:,} B, it had {self._length:,} B")
            if found is None or (found.start, found.end) != (wanted.start, wanted.end) or found.total is None:
                needed = f"bytes {wanted.start}-{wanted.end - 1}/{self._length}"
                self._unavailable(f"answered 206 with {stated!r}, needed {needed!r}")
        length = read_length(headers.get("content-length"))
        if length is not None and length != wanted.length:
            if response.status_code == _OK:
                self._changed(f"it has {length:,} B, it had {self._length:,} B")
            self._unavailable(f"announces {length:,} B for a range of {wanted.length:,} B")

    def _check_plain(self, response: httpx.Response) -> None:
        if is_encoded(response.headers):
            encoding = response.headers["content-encoding"]
            self._unavailable(f"sends its bytes in the encoding {encoding!r} although none was accepted")

    def _body(self, response: httpx.Response, length: int) -> Iterator[memoryview]:
        """Give the body as it arrives, every byte counted; it may end early. Refuses one that is too long."""
        left = length
        for data in response.iter_raw():
            self._count(len(data))
            if len(data) > left:
                self._unavailable(f"sends more than the {length:,} B of the range")
            left -= len(data)
            view = memoryview(data)
            for start in range(0, len(data), PIECE_BYTES):
                if self._closing.is_set():
                    self._unavailable("the origin was closed while it was read")
                yield view[start : start + PIECE_BYTES]

    # -- refusing --

    def _refuse(self, response: httpx.Response) -> NoReturn:
        """Raise what an answer without the wanted bytes means."""
        status = response.status_code
        if status in _PASSING or status >= 500:
            raise TryAgain(f"answered {status}", read_retry_after(response.headers.get("retry-after")))
        if status in _REFUSED:
            raise ArtifactError(UNAUTHORIZED, self._subject, f"answered {status}: {self._credentials.advice}")
        if status in _ABSENT:
            self._unavailable(f"answered {status}: it is not there any more")
        if status == _CHANGED:
            self._changed("the server says so")
        found = read_content_range(response.headers.get("content-range"))
        if status == _NOT_SATISFIABLE and found is not None and found.total is not None:
            self._changed(f"it has {found.total:,} B")
        self._unavailable(f"answered {status}, needed 206")

    def _refuse_ignored(self, wanted: ByteRange) -> NoReturn:
        self._unavailable(
            f"ignores ranges: it answers bytes {wanted.start:,} to {wanted.end:,} with all {self._length:,} B; "
            "needed a server that supports Range"
        )

    def _changed(self, how: str) -> NoReturn:
        raise ArtifactError(IDENTITY_MISMATCH, self._subject, f"changed since it was described: {how}")

    def _unavailable(self, reason: str) -> NoReturn:
        raise ArtifactError(SOURCE_UNAVAILABLE, self._subject, reason)
