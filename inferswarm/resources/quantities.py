"""Quantities as people write them in a topology: a number and a unit, always both, so that none can be misread.

Decimal prefixes are powers of 1000, binary ones (`Ki`, `Mi`, `Gi`, `Ti`) powers of 1024; case matters, because `m` is
a thousandth and `M` a million, `b` would be a bit and `B` is a byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from inferswarm.errors import SpecError

READ_BANDWIDTH: Final = "read-bandwidth"
"""What records, and figures that somebody declares, call the bytes per second that are read from a memory."""
READ_BANDWIDTH_PROTOCOL: Final = "read-bandwidth/1"
"""How `bandwidth` measures it: each thread takes the maximum of its own part of an array past the caches."""

_WRITTEN = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([A-Za-zµ/]+)")
_LARGEST_WHOLE = 2**53 - 1
"""What JSON elsewhere still holds exactly."""
_DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZES: Final = {f"{prefix}B": float(scale) for prefix, scale in {**_DECIMAL, **_BINARY}.items()}
_SIZE_RATES: Final = {f"{name}/s": scale for name, scale in _SIZES.items()}
_BIT_RATES: Final = {f"{prefix}bit/s": float(scale) for prefix, scale in _DECIMAL.items()}
_ARITHMETIC: Final = {f"{prefix}FLOP/s": float(scale) for prefix, scale in _DECIMAL.items()}
_DURATIONS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def size_bytes(text: str, field: str) -> int:
    """Return the bytes of a size such as `32 GiB`. Raises SpecError naming `field` for anything else.

    >>> size_bytes("1.5 GiB", "capacity"), size_bytes("400MB", "capacity")
    (1610612736, 400000000)
    """
    return _whole(_parse(text, field, _SIZES, "a size such as 32 GiB"), text, field)


def bits_per_second(text: str, field: str) -> int:
    """Return the bits per second of a rate such as `1 Gbit/s`, more than 0. Raises SpecError for anything else."""
    value = _parse(text, field, _BIT_RATES, "a rate such as 1 Gbit/s")
    return _whole(_positive(value, text, field), text, field)


def bytes_per_second(text: str, field: str) -> float:
    """Return the bytes per second of a rate such as `25.6 GB/s`, more than 0. Raises SpecError for anything else."""
    return _positive(_parse(text, field, _SIZE_RATES, "a rate such as 25.6 GB/s"), text, field)


def flops_per_second(text: str, field: str) -> float:
    """Return the operations per second of `35 TFLOP/s`, more than 0. Raises SpecError for anything else."""
    return _positive(_parse(text, field, _ARITHMETIC, "a rate such as 35 TFLOP/s"), text, field)


def seconds(text: str, field: str) -> float:
    """Return the seconds of a duration such as `250 us`, 0 allowed. Raises SpecError for anything else.

    >>> seconds("0.25 ms", "latency")
    0.00025
    """
    return _parse(text, field, _DURATIONS, "a duration such as 250 us")


def _parse(text: str, field: str, units: Mapping[str, float], example: str) -> float:
    match = _WRITTEN.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise SpecError(field, text, f"{example}; units: {', '.join(units)}")
    # Through a rounded quotient where the scale is below one, so that 250 us is the nearest number to 0.00025.
    scale, number = units[match[2]], float(match[1])
    value = number * scale if scale >= 1 else number / round(1 / scale)
    assert math.isfinite(value)  # 18 digits times 10^15
    return value


def _positive(value: float, text: str, field: str) -> float:
    if value <= 0:
        raise SpecError(field, text, "more than 0")
    return value


def _whole(value: float, text: str, field: str) -> int:
    if value > _LARGEST_WHOLE:
        raise SpecError(field, text, f"at most {_LARGEST_WHOLE:,}")
    return round(value)
