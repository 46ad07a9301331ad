"""A GGUF model from its files: one, or the numbered parts into which a large one was split.

A split model's parts are named `<name>-00001-of-00003.gguf` and say in their metadata which part they are
(`split.no`, from 0), of how many (`split.count`) and how many tensors all have (`split.tensors.count`). The first
part holds the model's metadata; it may hold nothing else. Promises: the result reads like the header of one file
(metadata without the `split.` keys, tensors that know their file); every part is there, is what its name says, and
belongs to the same model; only headers are read.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from inferswarm.artifacts.gguf import GgufHeader, MetadataValue, read_gguf
from inferswarm.artifacts.headers import open_file
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import TensorRecord
from inferswarm.errors import ArtifactError, ModelError

MAX_PARTS: Final = 1024

_NUMBER, _COUNT, _NUM_TENSORS = "split.no", "split.count", "split.tensors.count"
_SPLIT_KEYS: Final = frozenset({_NUMBER, _COUNT, _NUM_TENSORS})
_OWN_KEYS: Final = _SPLIT_KEYS | {"general.alignment"}
"""What each part says about itself; everything else is said of the model."""
_PART_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.IGNORECASE)


class PartName(NamedTuple):
    """What the name of a split model's part says: the model's own name, which part (from 0), of how many."""

    stem: str
    part: int
    num_parts: int


def parse_part_name(name: str) -> PartName | None:
    """Return what a file name says about a split model, or None for a name of another form.

    >>> parse_part_name("large-00002-of-00003.gguf")
    PartName(stem='large', part=1, num_parts=3)
    """
    match = _PART_NAME.fullmatch(name)
    return PartName(match["stem"], int(match["number"]) - 1, int(match["count"])) if match else None


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts of the model that a part's name belongs to; the name itself for a whole file."""
    named = parse_part_name(name)
    if named is None or not 0 <= named.part < named.num_parts <= MAX_PARTS:
        return (name,)
    tail = name[-len(".gguf") :]
    return tuple(f"{named.stem}-{index + 1:05d}-of-{named.num_parts:05d}{tail}" for index in range(named.num_parts))


def open_gguf(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header of a GGUF file, and of the other parts when it is one part of a split model (any of them).

    A path to the kept header of a remote file (`artifacts.headers`) gives what the whole file would.

    Raises ModelError naming the part and what is wrong with it, UnsupportedModel as `read_gguf`, ArtifactError
    `SOURCE_OBJECT_UNAVAILABLE` naming the parts that are missing or cannot be read.
    """
    path = Path(path)
    first = _read(path)
    count = _stated(first, _COUNT) if _COUNT in first.metadata else 0
    named = parse_part_name(path.name)
    if count <= 1:
        if named is not None and named.num_parts > 1:
            stated = first.metadata.get(_COUNT, "absent")
            raise ModelError(
                str(path), f"is named as part {named.part + 1} of {named.num_parts}; {_COUNT} is {stated}"
            )
        return dataclasses.replace(first, metadata=_without_split(first.metadata))
    if count > MAX_PARTS:
        raise ModelError(str(path), f"{_COUNT} is {count:,}; at most {MAX_PARTS:,} parts are read")
    if named is None:
        raise ModelError(
            str(path),
            f"is one of {count} parts ({_COUNT}), which are found by name; "
            f"needed a name that ends in -00001-of-{count:05d}.gguf",
        )
    if named.num_parts != count or not 0 <= named.part < count:
        raise ModelError(str(path), f"is named as part {named.part + 1} of {named.num_parts}; {_COUNT} is {count}")
    paths = [path.with_name(name) for name in part_names(path.name)]
    if missing := [part.name for part in paths if not part.exists()]:
        raise ArtifactError(
            SOURCE_UNAVAILABLE, str(path), f"{len(missing)} of {count} parts are missing: {_listed(missing)}"
        )
    return _join([first if part == path else _read(part) for part in paths])


def _read(path: Path) -> GgufHeader:
    with open_file(path) as origin:
        return read_gguf(origin)


def _join(parts: Sequence[GgufHeader]) -> GgufHeader:
    """Check that the parts are those of one model, and return them as one header."""
    model = parts[0]
    for index, part in enumerate(parts):
        if part.version != model.version:
            raise ModelError(part.source, f"has GGUF version {part.version}, the first part {model.version}")
        if (number := _stated(part, _NUMBER)) != index:
            raise ModelError(part.source, f"{_NUMBER} is {number}, its name says {index}")
        if (count := _stated(part, _COUNT)) != len(parts):
            raise ModelError(part.source, f"{_COUNT} is {count}, there are {len(parts)}")
        for key, value in part.metadata.items():
            if key not in _OWN_KEYS and model.metadata.get(key) != value:
                raise ModelError(part.source, f"{key} is not as in the first part: this part is of another model")
    tensors: dict[str, TensorRecord] = {}
    for index, part in enumerate(parts):
        for tensor in part.tensors:
            if tensor.name in tensors:
                where = parts[tensors[tensor.name].file].source
                raise ModelError(part.source, f"holds {tensor.name}, which {Path(where).name} holds too")
            tensors[tensor.name] = msgspec.structs.replace(tensor, file=index)
    for part in parts:
        if (announced := _stated(part, _NUM_TENSORS)) != len(tensors):
            raise ModelError(part.source, f"{_NUM_TENSORS} is {announced:,}; the parts hold {len(tensors):,}")
    return dataclasses.replace(
        model,
        length=sum(part.length for part in parts),
        metadata=_without_split(model.metadata),
        tensors=tuple(tensors.values()),
        objects=tuple(item for part in parts for item in part.objects),
        bytes_read=sum(part.bytes_read for part in parts),
    )


def _without_split(metadata: Mapping[str, MetadataValue]) -> Mapping[str, MetadataValue]:
    return MappingProxyType({key: value for key, value in metadata.items() if key not in _SPLIT_KEYS})


def _stated(header: GgufHeader, key: str) -> int:
    value = header.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        found = "absent" if value is None else repr(value)
        raise ModelError(header.source, f"{key} is {found}; a part of a split model states a whole number")
    return value


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
