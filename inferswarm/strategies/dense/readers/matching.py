"""From a file's tensors to canonical ones: every tensor of the description is found, and no other one is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from inferswarm.artifacts.gguf_types import PLAIN_ENCODINGS
from inferswarm.artifacts.types import PLAIN, ByteRange, TensorRecord
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.tensors import block_tensors, state_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How one format names and stores the tensors of one family."""

    table: Mapping[str, str]
    """Canonical name → the file's name, of the tensors outside blocks."""
    blocks: str
    """The beginning of a block's tensors, with `{}` for its index."""
    parts: Mapping[str, str]
    """The canonical end of a block's tensor → the file's; an end that is not listed is the same in both."""
    fused: Mapping[str, tuple[str, ...]]
    """The file's end of a fused tensor → the canonical ends of its rows, in their order."""
    layout: Callable[[str], str] = lambda end: PLAIN
    """The layout in which the file stores a tensor, by its canonical end (outside blocks: by its name)."""


def match_tensors(
    source: str,
    description: DecoderDescription,
    stored: Sequence[TensorRecord],
    naming: Naming,
    readable: tuple[str, ...],
    explained: Iterable[str] = (),
) -> tuple[TensorRecord, ...]:
    """Return the description's tensors by their canonical names, in the file's order.

    `explained` are tensors that the caller has dealt with. Raises UnsupportedModel naming a tensor that the
    description does not know or whose encoding is not `readable`, ModelError for one that is missing or has another
    shape.
    """
    files = {record.name: record for record in stored}
    wanted = _wanted(description, files, naming)
    known = {place.stored_name for place in wanted.values()} | set(explained)
    for name in files:
        if name not in known:
            raise UnsupportedModel(
                source, "tensor", name, f"the tensors of a {description.architecture} decoder as it is described"
            )
    found = []
    for name, place in wanted.items():
        if place.stored_name not in files:
            raise ModelError(source, f"the tensor {place.stored_name} is missing")
        record = files[place.stored_name]
        _check(source, record, (place.num_rows, *place.shape[1:]), readable)
        found.append(_cut(record, name, place, naming))
    return tuple(sorted(found, key=lambda record: (record.file, record.range)))


class _Place(NamedTuple):
    """Where a canonical tensor is: `shape`'s rows, from `first` on, of a stored tensor of `num_rows`."""

    stored_name: str
    shape: tuple[int, ...]
    first: int
    num_rows: int


def _wanted(description: DecoderDescription, files: Mapping[str, TensorRecord], naming: Naming) -> dict[str, _Place]:
    """Return canonical name → its place in the files."""
    blocks = [block_tensors(description, index) for index in range(description.num_blocks)]
    inside = {name for tensors in blocks for name in tensors}
    wanted: dict[str, _Place] = {}
    for tensors in state_tensors(description).values():
        for name, shape in tensors.items():
            if name not in inside:
                wanted[name] = _Place(naming.table[name], shape, 0, shape[0])
    for index, tensors in enumerate(blocks):
        prefix, begin = f"blk.{index}.", naming.blocks.format(index)
        shapes = {name.removeprefix(prefix): shape for name, shape in tensors.items()}
        for fused, ends in naming.fused.items():
            if begin + fused not in files or not set(ends) <= set(shapes):
                continue
            num_rows, first = sum(shapes[end][0] for end in ends), 0
            for end in ends:
                shape = shapes.pop(end)
                wanted[prefix + end] = _Place(begin + fused, shape, first, num_rows)
                first += shape[0]
        for end, shape in shapes.items():
            wanted[prefix + end] = _Place(begin + naming.parts.get(end, end), shape, 0, shape[0])
    return wanted


def _check(source: str, record: TensorRecord, shape: tuple[int, ...], readable: tuple[str, ...]) -> None:
    if record.shape != shape:
        raise ModelError(source, f"the tensor {record.name} has the shape {record.shape}, needed {shape}")
    allowed = readable if len(shape) > 1 else PLAIN_ENCODINGS
    if record.encoding not in allowed:
        raise UnsupportedModel(source, f"the encoding of {record.name}", record.encoding, ", ".join(allowed))


def _cut(record: TensorRecord, name: str, place: _Place, naming: Naming) -> TensorRecord:
    """Return the rows' record. Rows are whole bytes: encodings pack along them."""
    row_bytes, rest = divmod(record.range.length, place.num_rows)
    assert rest == 0, (record, place)
    start = record.range.start + place.first * row_bytes
    end = name.split(".", 2)[2] if name.startswith("blk.") else name
    return replace(
        record,
        name=name,
        shape=place.shape,
        range=ByteRange(start, start + place.shape[0] * row_bytes),
        stored_name=None if record.name == name else record.name,
        layout=naming.layout(end),
    )
