"""What the header fields of an HTTP answer say of an object: its version, its length, which bytes follow. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

_ETAG: Final = re.compile(r'(?P<weak>W/)?"(?P<opaque>[^"]*)"')
_COMPRESSED: Final = re.compile(r"(--?gzip|-br)$")
"""What servers append to the ETag of an object that they would compress (Apache: -gzip and -br, Jetty: --gzip)."""
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+)|\*)/(?P<total>\d+|\*)")


class Validators(NamedTuple):
    """What tells this version of an object from another; each None where the answer does not say."""

    etag: str | None
    """As it was stated, without what compression appends to it."""
    modified: str | None
    """`Last-Modified`, as it was stated."""
    condition: str | None = None
    """The value of `If-Range` for further requests; None when none may be sent (weak or changed ETags)."""

    @property
    def version(self) -> str | None:
        """Return the version as `UpstreamObject` states it, or None."""
        if self.etag is not None:
            return f"etag:{self.etag}"
        return None if self.modified is None else f"modified:{self.modified}"

    @property
    def is_weak(self) -> bool:
        """Return whether the ETag promises equal meaning only, not equal bytes."""
        return self.etag is not None and self.etag.startswith("W/")

    def difference(self, answer: Validators) -> str | None:
        """Return in words how another answer is not about the same version, None when it is.

        What was stated before and is not stated in the answer is a difference.
        """
        if self.etag is not None and answer.etag != self.etag:
            return f"its ETag is {answer.etag or 'absent'}, it was {self.etag}"
        dates_count = self.etag is None or (self.is_weak and answer.modified is not None)
        if dates_count and self.modified is not None and answer.modified != self.modified:
            return f"its Last-Modified is {answer.modified or 'absent'}, it was {self.modified}"
        return None


def read_validators(headers: Mapping[str, str]) -> Validators:
    """Return what an answer says of the object's version. `headers` is asked in lowercase.

    >>> read_validators({"etag": '"5f-gzip"'})
    Validators(etag='"5f"', modified=None, condition=None)
    """
    modified = headers.get("last-modified", "").strip() or None
    stated = headers.get("etag", "").strip()
    match = _ETAG.fullmatch(stated)
    if match is None:
        return Validators(None, modified)
    opaque = _COMPRESSED.sub("", match["opaque"])
    etag = f'{match["weak"] or ""}"{opaque}"'
    return Validators(etag, modified, None if match["weak"] or etag != stated else stated)


class ContentRange(NamedTuple):
    """Which bytes an answer holds (`start` included, `end` excluded; None for none), and of how many."""

    start: int | None
    end: int | None
    total: int | None


def read_content_range(text: str | None) -> ContentRange | None:
    """Return what `Content-Range` says, or None for a field that is missing or says something else.

    >>> read_content_range("bytes 0-9/100")
    ContentRange(start=0, end=10, total=100)
    """
    match = _CONTENT_RANGE.fullmatch((text or "").strip())
    if match is None:
        return None
    total = None if match["total"] == "*" else int(match["total"])
    if match["first"] is None:
        return ContentRange(None, None, total)
    return ContentRange(int(match["first"]), int(match["last"]) + 1, total)


def read_length(text: str | None) -> int | None:
    """Return what `Content-Length` says, or None where it is missing or no number."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def read_retry_after(text: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that `Retry-After` asks to wait, stated as seconds or as a date; None where it says neither.

    >>> read_retry_after("7")
    7.0
    """
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Return whether the body is something else than the object's bytes (compressed)."""
    return headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")
