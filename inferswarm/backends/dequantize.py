"""From the bytes of GGUF blocks and of plain numbers to fp32 numbers, some rows at a time. Torch-free.

The arithmetic is the `gguf` package's own; what is added here is that rows of the wrong size, encodings that nobody
vouched for and numbers that are not finite are refused instead of becoming weights.
"""

from __future__ import annotations

import math
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from inferswarm.artifacts.gguf_types import ENCODING_BY_NAME, READABLE_ENCODINGS
from inferswarm.artifacts.taxonomy import MALFORMED
from inferswarm.artifacts.types import TensorRecord
from inferswarm.errors import ArtifactError, UnsupportedModel

Rows = npt.NDArray[np.float32]
"""A block of rows of one tensor, [rows, columns]."""

_KINDS: Final = {name: gguf.GGMLQuantizationType[name] for name in READABLE_ENCODINGS}


def num_rows(record: TensorRecord) -> int:
    """Return how many rows a tensor has; a vector is one row."""
    return math.prod(record.shape[:-1])


def row_bytes(record: TensorRecord, source: str) -> int:
    """Return how many bytes encode one row of a tensor.

    Raises UnsupportedModel, naming the tensor, for an encoding that cannot be turned into numbers; ArtifactError
    when the tensor's shape and the length of its range do not fit together.
    """
    if record.encoding not in _KINDS:
        raise UnsupportedModel(
            source, f"the encoding of {record.name}", record.encoding, ", ".join(READABLE_ENCODINGS)
        )
    encoding = ENCODING_BY_NAME[record.encoding]
    columns = record.shape[-1] if record.shape else 0
    size = columns // encoding.block_size * encoding.block_bytes
    if not columns or columns % encoding.block_size or size * num_rows(record) != record.range.length:
        raise ArtifactError(
            MALFORMED,
            record.name,
            f"the shape {record.shape} in {record.encoding} does not take {record.range.length:,} B",
        )
    return size


def decode_rows(record: TensorRecord, data: bytes | bytearray | memoryview) -> Rows:
    """Return the numbers that whole rows of `record` encode, as fp32 [rows, columns].

    Raises ArtifactError when one of them is a NaN or an infinity.
    """
    columns = record.shape[-1]
    raw = np.frombuffer(data, dtype=np.uint8)
    encoding = ENCODING_BY_NAME[record.encoding]
    raw = raw.reshape(-1, columns // encoding.block_size * encoding.block_bytes)
    # Infinite scales make NaNs on the way; they are refused below, so numpy need not warn of them.
    with np.errstate(invalid="ignore", over="ignore"):
        values: Rows = np.asarray(gguf.quants.dequantize(raw, _KINDS[record.encoding]), dtype=np.float32)
    if not np.isfinite(values).all():
        raise ArtifactError(MALFORMED, record.name, "encodes numbers that are not finite")
    return values
