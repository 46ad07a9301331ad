"""Decoding a quantized tensor as a transform: how the numbers of its result are written and read.

Torch-free. A result is one tensor in the file's order of rows, its layout's 1 taken off, rounded to the
representation, before heads are reordered, weights joined, packed or copied: any cut of the model and any backend
begins there, and nothing that follows rounds again.
"""

from __future__ import annotations

import numpy as np

from inferswarm.backends.dequantize import Rows


def encode_rows(rows: Rows, representation: str) -> memoryview:
    """Return rows of fp32 as little-endian bytes of a representation, bf16 rounded to nearest, ties to even.

    The rows must be finite.
    """
    bits = np.ascontiguousarray(rows, dtype="<f4").view("<u4")
    if representation == "bf16":
        # Half of the last place that stays, less one where that place is even: what is cut off then carries or not.
        bits = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype("<u2")
    return bits.reshape(-1).view(np.uint8).data


def decode_result(data: bytearray, columns: int, representation: str) -> Rows:
    """Return the numbers of whole rows of a result, as fp32 [rows, columns], exactly as they were kept."""
    if representation == "bf16":
        values = (np.frombuffer(data, dtype="<u2").astype("<u4") << np.uint32(16)).view("<f4")
    else:
        values = np.frombuffer(data, dtype="<f4")
    return values.reshape(-1, columns).astype(np.float32, copy=False)
