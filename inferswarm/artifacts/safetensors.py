"""Reading the header of a safetensors file, and nothing else of it: where each tensor's bytes are.

The format: eight bytes of length (little endian), that many bytes of JSON, then the tensors' bytes without holes.
Takes what the format allows and nothing beyond. Promises: one read for the length and one for the header, never a
tensor's bytes; whatever is wrong is a ModelError that names the key or the byte. Does not decode tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.base import Readable
from inferswarm.artifacts.types import ByteRange, ModelFile, ModelObject, TensorRecord
from inferswarm.documents import read_json
from inferswarm.errors import DocumentError, ModelError

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""
MAX_DIMENSIONS: Final = 16
MAX_DIMENSION: Final = 2**53 - 1

BITS: Final[dict[str, int]] = {
    name: bits
    for bits, names in (
        (64, ("F64", "I64", "U64", "C64")),
        (32, ("F32", "I32", "U32")),
        (16, ("F16", "BF16", "I16", "U16")),
        (8, ("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")),
        (6, ("F6_E2M3", "F6_E3M2")),
        (4, ("F4",)),
    )
    for name in names
}
"""Bits of one number in each of the format's types."""

_METADATA: Final = "__metadata__"
_FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a safetensors file says about itself."""

    source: str
    length: int
    described: UpstreamObject
    """The file as its origin describes it."""
    tensors: tuple[TensorRecord, ...]
    """In the order of their bytes; ranges count from the start of the file, `encoding` is the type's own name."""
    metadata: Mapping[str, str]
    bytes_read: int
    """Bytes that were read to know all this: the length and the header."""

    def model_object(self) -> ModelObject:
        """Return the file as a requirement names it: place, length, tensors."""
        return ModelObject(files=(ModelFile(uri=self.source, length=self.length),), tensors=self.tensors)


def read_safetensors(origin: Readable) -> SafetensorsHeader:
    """Read the header of the file behind `origin`.

    Raises ModelError naming the key or the byte that is wrong, ArtifactError when the file cannot be read.
    """
    source = origin.described.uri
    data_start, text = _read_text(origin, source)
    try:
        entries = read_json(text, source)
    except DocumentError as error:
        raise ModelError(source, f"the header {error.reason}") from error
    metadata = _metadata(entries.pop(_METADATA, {}), source)
    data_length = origin.length - data_start
    tensors = [_record(name, entry, data_start, data_length, source) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: tensor.range)
    _check_coverage(tensors, data_start, origin.length, source)
    return SafetensorsHeader(
        source=source,
        length=origin.length,
        described=origin.described,
        tensors=tuple(tensors),
        metadata=MappingProxyType(metadata),
        bytes_read=data_start,
    )


def _read_text(origin: Readable, source: str) -> tuple[int, str]:
    """Return where the data begin, and the header's JSON text."""
    if origin.length < LENGTH_BYTES:
        raise ModelError(source, f"has {origin.length} B; a safetensors file begins with {LENGTH_BYTES} B of length")
    length = int.from_bytes(origin.read(ByteRange(0, LENGTH_BYTES)), "little")
    left = origin.length - LENGTH_BYTES
    if length > MAX_HEADER_BYTES:
        raise ModelError(source, f"announces a header of {length:,} B (at byte 0); at most {MAX_HEADER_BYTES:,}")
    if length > left:
        raise ModelError(source, f"announces a header of {length:,} B (at byte 0); {left:,} B follow")
    data_start = LENGTH_BYTES + length
    header = origin.read(ByteRange(LENGTH_BYTES, data_start))
    if not header.startswith(b"{"):
        raise ModelError(source, f"the header begins with {header[:1]!r}, not with '{{' (at byte {LENGTH_BYTES})")
    try:
        return data_start, header.decode("utf-8")
    except UnicodeDecodeError as error:
        at = LENGTH_BYTES + error.start
        raise ModelError(source, f"the header is not UTF-8: {error.reason} (at byte {at:,})") from error


def _metadata(value: Any, source: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ModelError(source, f"{_METADATA} is {value!r}, needed an object of strings")
    for key, text in value.items():
        if not isinstance(text, str):
            raise ModelError(source, f"{_METADATA}.{key} is {text!r}, needed a string")
    return value


def _record(name: str, entry: Any, data_start: int, data_length: int, source: str) -> TensorRecord:
    """Turn an entry into a record whose range lies inside the file and has the size that its shape gives."""
    if not _is_text(name):
        raise ModelError(source, f"the tensor name {name!r} is empty or not text")
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise ModelError(source, f"tensor {name}: found {_shown(entry)}, needed exactly {sorted(_FIELDS)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ModelError(source, f"tensor {name}: dtype is {dtype!r}, needed one of {', '.join(BITS)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelError(
            source, f"tensor {name}: shape is {_shown(shape)}, needed at most {MAX_DIMENSIONS} sizes below 2^53"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ModelError(source, f"tensor {name}: data_offsets is {_shown(offsets)}, needed two offsets")
    start, end = offsets
    if not start <= end <= data_length:
        raise ModelError(
            source,
            f"tensor {name}: data_offsets {start:,} to {end:,} are not inside the {data_length:,} B of data "
            f"(which begin at byte {data_start:,})",
        )
    num_bits = math.prod(shape) * BITS[dtype]
    if num_bits != 8 * (end - start):
        raise ModelError(
            source,
            f"tensor {name}: {dtype} of shape {tuple(shape)} takes {-(-num_bits // 8):,} B; data_offsets hold "
            f"{end - start:,} B (at byte {data_start + start:,})",
        )
    return TensorRecord(
        name=name, encoding=dtype, shape=tuple(shape), range=ByteRange(data_start + start, data_start + end)
    )


def _check_coverage(tensors: list[TensorRecord], data_start: int, length: int, source: str) -> None:
    """Refuse overlaps and holes: the format forbids both, and bytes that nothing explains could be anything."""
    position, before = data_start, "the header"
    for tensor in tensors:
        if tensor.range.start != position:
            how = "overlaps" if tensor.range.start < position else "leaves a hole after"
            raise ModelError(source, f"tensor {tensor.name} {how} {before} (at byte {tensor.range.start:,})")
        position, before = tensor.range.end, tensor.name
    if position != length:
        raise ModelError(
            source, f"{length - position:,} B follow {before} and belong to no tensor (at byte {position:,})"
        )


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= MAX_DIMENSION for size in value)


def _is_text(name: str) -> bool:
    """Return whether a name is not empty and can be written as UTF-8: JSON can spell halves of characters."""
    return bool(name) and not any(0xD800 <= ord(character) <= 0xDFFF for character in name)


def _shown(value: Any) -> str:
    """Return a value as text, cut where it is long."""
    text = repr(sorted(value) if isinstance(value, dict) else value)
    return text if len(text) <= 80 else text[:77] + "..."
