"""Bytes, seconds and rates as people write them.

Bytes are decimal (MB = 10^6) unless the suffix says binary (MiB = 2^20), as storage and networks count.
"""

from __future__ import annotations

import math
import re

from inferswarm.errors import SpecError

_SUFFIXES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int, field: str = "bytes") -> int:
    """Return the number of bytes that `text` states.

    Raises SpecError, naming `field`, for anything but a non-negative finite quantity with a known suffix.

    >>> parse_bytes("400MB"), parse_bytes("1.5 GiB")
    (400000000, 1610612736)
    """
    if isinstance(text, bool):
        raise SpecError(field, text, "a size such as 400MB")
    if isinstance(text, int):
        if text < 0:
            raise SpecError(field, text, "a size of at least 0 B")
        return text
    match = _QUANTITY.fullmatch(text)
    if match is None or match.group(2).upper() not in _SUFFIXES:
        raise SpecError(field, text, "a size such as 400MB or 1.5GiB")
    count = float(match.group(1)) * _SUFFIXES[match.group(2).upper()]
    if not math.isfinite(count):
        raise SpecError(field, f"{text.strip()[:40]}…", "a finite size")
    return round(count)


def parse_rate(text: str, field: str = "rate") -> float:
    """Return the bytes per second that `text` states: a size, with or without `/s` behind it.

    Raises SpecError, naming `field`, as `parse_bytes`.

    >>> parse_rate("50MB/s"), parse_rate("1.5 MiB")
    (50000000.0, 1572864.0)
    """
    return float(parse_bytes(text.strip().removesuffix("/s"), field))


def format_bytes(count: float) -> str:
    """Write a number of bytes with three significant digits.

    >>> format_bytes(402_300_000), format_bytes(999)
    ('402 MB', '999 B')
    """
    if not math.isfinite(count):
        return "unknown"
    for suffix, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            value = count / size
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:.{digits}f} {suffix}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Write a duration in the unit that suits it.

    >>> format_seconds(0.0000421), format_seconds(0.231), format_seconds(72)
    ('42.1 µs', '231 ms', '72.0 s')
    """
    if not math.isfinite(seconds):
        return "unknown"
    for suffix, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size or suffix == "µs":
            value = seconds / size
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            if suffix == "s" and abs(value) >= 10:
                digits = 1
            return f"{value:.{digits}f} {suffix}"
    raise AssertionError("unreachable: the last unit takes everything")


def format_rate(bytes_per_second: float) -> str:
    """Write a data rate in bytes per second.

    >>> format_rate(12_400_000_000)
    '12.4 GB/s'
    """
    return f"{format_bytes(bytes_per_second)}/s"
