"""Decoding a quantized tensor as a transform: what identifies its result, and how its numbers are written.

Torch-free. A result is one tensor in the file's order of rows, its layout's 1 taken off, rounded to the
representation, before heads are reordered, weights joined, packed or copied: any cut of the model and any backend
begins there, and nothing that follows rounds again.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Final

import numpy as np

from inferswarm.artifacts.gguf_types import PLAIN_ENCODINGS
from inferswarm.artifacts.identity import Transform
from inferswarm.artifacts.transforms import describe_transform
from inferswarm.artifacts.types import StoredBlobs, TensorRecord
from inferswarm.backends.dequantize import Rows

DECODING: Final = "inferswarm.decode-rows"
DECODING_VERSION: Final = "1"
"""Of everything that decides a result's bits: `decode_rows`, what `FileTensors` makes of layouts, `encode_rows`.
Raise it when the same bytes become other numbers."""
KEPT: Final = ("fp32", "bf16")
"""The representations whose numbers can be kept."""


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


def decoding(
    record: TensorRecord, stored: StoredBlobs, representation: str, computed_with: Mapping[str, str]
) -> Transform | None:
    """Return what decoding a tensor in a representation is, with everything that must be equal where it is used.

    `computed_with` is what `surroundings` says. None for one that is not kept: its numbers are stored one by one, or
    the representation is not among `KEPT`.
    """
    if record.encoding in PLAIN_ENCODINGS or representation not in KEPT or not record.range.length:
        return None
    place = stored.holding(record.file, record.range)
    if place is None:
        return None
    blob = stored.blobs[place]
    first = record.range.start - blob.range.start
    conditions = {
        "bytes": f"{first}-{first + record.range.length}",  # a fused tensor is cut by rows
        "encoding": record.encoding,
        "layout": record.layout,
        "representation": representation,
        "shape": "x".join(map(str, record.shape)),
        **computed_with,
    }
    return describe_transform(DECODING, DECODING_VERSION, blob.sha256, conditions)


def surroundings() -> dict[str, str]:
    """Return what decides the bits of decoding besides the bytes and the procedure: who computes it, where.

    Its operations are single ones of IEEE 754 and should give the same everywhere; nobody has shown that they do.
    """
    return {
        "byte_order": "little",
        "gguf": importlib.metadata.version("gguf"),
        "machine": platform.machine(),
        "numpy": np.__version__,
    }
