"""Decoding a quantized tensor as a transform: what identifies its result, wherever it is made or looked for.

Torch-free, and needs no numbers: a Coordinator tells which results a Node could use from what the Node says that
decoding depends on there.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Final

from inferswarm.artifacts.gguf_types import PLAIN_ENCODINGS
from inferswarm.artifacts.identity import Transform
from inferswarm.artifacts.transforms import describe_transform
from inferswarm.artifacts.types import StoredBlobs, TensorRecord

DECODING: Final = "inferswarm.decode-rows"
DECODING_VERSION: Final = "1"
"""Of everything that decides a result's bits: `decode_rows`, what `FileTensors` makes of layouts, `encode_rows`.
Raise it when the same bytes become other numbers."""
KEPT: Final = ("fp32", "bf16")
"""The representations whose numbers can be kept."""


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
        "numpy": importlib.metadata.version("numpy"),
    }
