"""What a reader makes of a model's header, whatever format it came in."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.artifacts.types import TensorRecord
from inferswarm.strategies.dense.description import DecoderDescription


class Understood(NamedTuple):
    """A model as the rest of the package sees it."""

    description: DecoderDescription
    tensors: tuple[TensorRecord, ...]
    """By their canonical names; those of a fused tensor cut by rows."""
    notes: tuple[str, ...]
    """What was seen and changes nothing, or acts otherwise than one may expect; one sentence each."""
    bytes_read: int = 0
    """Bytes read beyond the header (factors of rotary positions that a file stores as tensors)."""
