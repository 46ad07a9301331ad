"""Reading the header of a GGUF file, and nothing else of it: metadata, and where each tensor's bytes are.

Takes little-endian GGUF of versions 2 and 3. Promises: the file is read from its start in growing pieces until the
header ends; nothing is allocated because a file *says* that something is large; whatever is wrong is a ModelError
that names what and where, before any tensor's bytes are touched. Does not interpret metadata (a strategy does) and
does not decode tensors (a backend does).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn

from inferswarm.artifacts.gguf_types import ARRAY, BOOL, ENCODINGS, SCALARS, STRING
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.base import Readable
from inferswarm.artifacts.types import ByteRange, ModelFile, ModelObject, TensorRecord
from inferswarm.errors import ModelError, UnsupportedModel

MAGIC: Final = b"GGUF"
DEFAULT_ALIGNMENT: Final = 32
MAX_HEADER_BYTES: Final = 256 * 2**20
"""A header that is longer is refused; the largest vocabularies take about 20 MiB."""
MAX_ARRAY_ELEMENTS: Final = 2**24
"""Elements of all metadata arrays of a file together; each becomes an object in memory."""
_MAX_ARRAY_DEPTH = 4
_MAX_TENSOR_NAME_BYTES = 64
_MAX_DIMENSIONS = 4
_FIRST_PIECE_BYTES = 64 * 2**10
_LARGEST_PIECE_BYTES = 4 * 2**20

Scalar = bool | int | float | str
MetadataValue = Scalar | tuple["MetadataValue", ...]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file, or a split model, says; `metadata` cannot be changed, arrays in it are tuples."""

    source: str
    length: int
    """Bytes of all files."""
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorRecord, ...]
    """In the order of the header; ranges count from the start of the file, shapes are row-major."""
    alignment: int
    data_start: int
    """Where the tensors' data begin; everything before it is the header. In a split model, of the first part."""
    objects: tuple[UpstreamObject, ...]
    """The file, or all parts of a split model, as their origins describe them, in order."""
    bytes_read: int
    """Bytes that were read to know all this."""

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """Return the same by place and length; a tensor's `file` counts into it."""
        return tuple(ModelFile(uri=item.uri, length=item.length) for item in self.objects)

    def model_object(self) -> ModelObject:
        """Return the files as a requirement names them: places, lengths, tensors."""
        return ModelObject(files=self.files, tensors=self.tensors)


def read_gguf(origin: Readable) -> GgufHeader:
    """Read the header of the file behind `origin`.

    Raises ModelError naming what is wrong and at which byte, UnsupportedModel for versions and byte orders that
    are not read, ArtifactError when the file cannot be read.
    """
    cursor = _Cursor(origin)
    magic = cursor.take(4, "the magic")
    if magic != MAGIC:
        cursor.fail(f"begins with {magic!r}, not with {MAGIC!r}: this is not a GGUF file", at=0)
    version = cursor.unsigned(4, "the version")
    _check_version(version, cursor.source)
    num_tensors = cursor.unsigned(8, "the number of tensors")
    num_keys = cursor.unsigned(8, "the number of metadata keys")
    cursor.check_count(num_keys, 8 + 4 + 1, "metadata keys")
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_keys):
        at = cursor.position
        key = cursor.string("a metadata key")
        if not key or key in metadata:
            cursor.fail(f"the metadata key {key!r} appears twice" if key else "a metadata key is empty", at=at)
        metadata[key] = _read_value(cursor, cursor.unsigned(4, f"the type of {key}"), key, 0)
    alignment = _alignment(metadata, cursor)
    cursor.check_count(num_tensors, 8 + 4 + 8 + 4 + 8, "tensors")
    entries = [_read_tensor_entry(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = tuple(_locate(entry, data_start, alignment, cursor) for entry in entries)
    _check_disjoint(tensors, cursor)
    return GgufHeader(
        source=cursor.source,
        length=origin.length,
        version=version,
        metadata=MappingProxyType(metadata),
        tensors=tensors,
        alignment=alignment,
        data_start=data_start,
        objects=(origin.described,),
        bytes_read=len(cursor.buffer),
    )


class _Cursor:
    """A position in the header, over the part of the file that has been read so far."""

    def __init__(self, origin: Readable) -> None:
        self.origin = origin
        self.source = origin.described.uri
        self.buffer = bytearray()
        self.position = 0
        self.num_array_elements = 0

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise ModelError(self.source, f"{reason} (at byte {self.position if at is None else at:,})")

    def need(self, size: int, what: str) -> None:
        """Make the next `size` bytes available in the buffer."""
        end = self.position + size
        if end <= len(self.buffer):
            return
        if end > self.origin.length:
            self.fail(f"{what} needs {size:,} B and the file ends at {self.origin.length:,}")
        if end > MAX_HEADER_BYTES:
            self.fail(f"{what} would make the header longer than {MAX_HEADER_BYTES:,} B")
        start = len(self.buffer)
        piece = min(max(_FIRST_PIECE_BYTES, start), _LARGEST_PIECE_BYTES)
        self.buffer += self.origin.read(ByteRange(start, min(max(end, start + piece), self.origin.length)))

    def take(self, size: int, what: str) -> bytes:
        self.need(size, what)
        data = bytes(self.buffer[self.position : self.position + size])
        self.position += size
        return data

    def unsigned(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "little")

    def string(self, what: str) -> str:
        length = self.unsigned(8, f"the length of {what}")
        at = self.position
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8: {error.reason}", at=at + error.start)

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        """Read `count` strings; the loop of the header's bulk, so it works on the buffer itself."""
        unpack = struct.Struct("<Q").unpack_from
        found = []
        for index in range(count):
            self.need(8, what)
            (length,) = unpack(self.buffer, self.position)
            start = self.position + 8
            if start + length > len(self.buffer):
                self.position = start
                self.need(length, f"{what}[{index}]")
            self.position = start + length
            try:
                found.append(self.buffer[start : self.position].decode("utf-8"))
            except UnicodeDecodeError as error:
                self.fail(f"{what}[{index}] is not UTF-8: {error.reason}", at=start + error.start)
        return tuple(found)

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count whose elements cannot all be in the rest of the file."""
        left = self.origin.length - self.position
        if count * least_bytes > left:
            self.fail(f"{count:,} {what} are announced; the {left:,} B that are left cannot hold them")


def _check_version(version: int, source: str) -> None:
    if version in (2, 3):
        return
    supported = "versions 2 and 3, little endian"
    if version == 1:
        raise UnsupportedModel(source, "GGUF version", 1, supported)
    if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3):
        raise UnsupportedModel(source, "GGUF byte order", "big endian", supported)
    raise UnsupportedModel(source, "GGUF version", version, supported)


def _read_value(cursor: _Cursor, code: int, key: str, depth: int) -> MetadataValue:
    if code == STRING:
        return cursor.string(key)
    if code == ARRAY:
        return _read_array(cursor, key, depth)
    return _read_scalars(cursor, code, 1, key)[0]


def _read_array(cursor: _Cursor, key: str, depth: int) -> tuple[MetadataValue, ...]:
    if depth >= _MAX_ARRAY_DEPTH:
        cursor.fail(f"{key} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
    code = cursor.unsigned(4, f"the element type of {key}")
    count = cursor.unsigned(8, f"the number of elements of {key}")
    cursor.num_array_elements += count
    if cursor.num_array_elements > MAX_ARRAY_ELEMENTS:
        cursor.fail(f"{key} announces {count:,} elements; all arrays together may have {MAX_ARRAY_ELEMENTS:,}")
    if code == STRING:
        cursor.check_count(count, 8, f"strings of {key}")
        return cursor.strings(count, key)
    if code == ARRAY:
        cursor.check_count(count, 12, f"arrays of {key}")
        return tuple(_read_array(cursor, key, depth + 1) for _ in range(count))
    return _read_scalars(cursor, code, count, key)


def _read_scalars(cursor: _Cursor, code: int, count: int, key: str) -> tuple[Scalar, ...]:
    if code not in SCALARS:
        cursor.fail(f"{key} has the unknown value type {code}")
    name, layout = SCALARS[code]
    size = int(layout[-1]) * count
    at = cursor.position
    import numpy as np  # here: agents and stages know these types and read no header

    values = np.frombuffer(cursor.take(size, f"{key} ({name})"), dtype=layout)
    if code == BOOL:
        if values.size and int(values.max()) > 1:
            cursor.fail(f"{key} is a bool that is neither 0 nor 1", at=at)
        values = values.astype(np.bool_)
    return tuple(values.tolist())


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as its header entry states it, before its place is checked. Its dimensions are row-major."""

    name: str
    shape: tuple[int, ...]
    code: int
    offset: int
    at: int


def _read_tensor_entry(cursor: _Cursor) -> _Entry:
    at = cursor.position
    name = cursor.string("a tensor's name")
    if not name or len(name.encode()) > _MAX_TENSOR_NAME_BYTES:
        cursor.fail(f"a tensor's name has {len(name.encode()):,} B, needed 1 to {_MAX_TENSOR_NAME_BYTES}", at=at)
    num_dimensions = cursor.unsigned(4, f"the number of dimensions of {name}")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        cursor.fail(f"tensor {name} has {num_dimensions:,} dimensions, needed 1 to {_MAX_DIMENSIONS}", at=at)
    fastest_first = [cursor.unsigned(8, f"a dimension of {name}") for _ in range(num_dimensions)]
    code = cursor.unsigned(4, f"the encoding of {name}")
    offset = cursor.unsigned(8, f"the offset of {name}")
    return _Entry(name, tuple(reversed(fastest_first)), code, offset, at)


def _locate(entry: _Entry, data_start: int, alignment: int, cursor: _Cursor) -> TensorRecord:
    """Turn an entry into a record whose range lies inside the file."""
    name = f"tensor {entry.name}"
    if entry.code not in ENCODINGS:
        cursor.fail(f"{name} has the unknown encoding {entry.code}", at=entry.at)
    encoding = ENCODINGS[entry.code]
    if min(entry.shape) < 1:
        cursor.fail(f"{name} has the empty shape {entry.shape}", at=entry.at)
    if entry.shape[-1] % encoding.block_size:
        cursor.fail(
            f"{name} has rows of {entry.shape[-1]:,} numbers, which {encoding.name} cannot pack in blocks of "
            f"{encoding.block_size}",
            at=entry.at,
        )
    if entry.offset % alignment:
        cursor.fail(f"{name} starts at offset {entry.offset:,}, not a multiple of {alignment}", at=entry.at)
    num_bytes = encoding.block_bytes
    for size in (*entry.shape[:-1], entry.shape[-1] // encoding.block_size):
        num_bytes *= size
    start = data_start + entry.offset
    if start + num_bytes > cursor.origin.length:
        cursor.fail(
            f"{name} of shape {entry.shape} in {encoding.name} needs bytes {start:,} to {start + num_bytes:,}; "
            f"the file ends at {cursor.origin.length:,}",
            at=entry.at,
        )
    return TensorRecord(
        name=entry.name, encoding=encoding.name, shape=entry.shape, range=ByteRange(start, start + num_bytes)
    )


def _check_disjoint(tensors: tuple[TensorRecord, ...], cursor: _Cursor) -> None:
    if len({tensor.name for tensor in tensors}) != len(tensors):
        seen: set[str] = set()
        for tensor in tensors:
            if tensor.name in seen:
                cursor.fail(f"tensor {tensor.name} appears twice")
            seen.add(tensor.name)
    placed = sorted(tensors, key=lambda tensor: tensor.range)
    for before, after in itertools.pairwise(placed):
        if after.range.start < before.range.end:
            cursor.fail(f"tensors {before.name} and {after.name} overlap", at=after.range.start)


def _alignment(metadata: Mapping[str, MetadataValue], cursor: _Cursor) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value & (value - 1):
        cursor.fail(f"general.alignment is {value!r}, needed a power of two")
    return value
