"""A model directory as Hugging Face lays it out: configuration, and weights in one safetensors file or several.

Takes a directory with `config.json` and `model.safetensors`, or `model.safetensors.index.json` and the files that
it names. Promises: strict JSON of limited size; every file that is named is there, every tensor is in the file where
the index places it and nowhere else; nothing outside the directory is opened because a file *says* so (symbolic
links are followed: a hub's cache is made of them); only headers of weights are read. Does not interpret the
configuration (a strategy does).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from inferswarm.artifacts.gguf_files import part_names
from inferswarm.artifacts.headers import open_file
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origin import read_whole
from inferswarm.artifacts.safetensors import SafetensorsHeader, read_safetensors
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ModelFile, ModelObject, TensorRecord
from inferswarm.documents import read_json
from inferswarm.errors import ArtifactError, DocumentError, ModelError, SpecError, UnsupportedModel

CONFIGURATION: Final = "config.json"
GENERATION: Final = "generation_config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
ADAPTER: Final = "adapter_config.json"
MAX_CONFIGURATION_BYTES: Final = 8 * 2**20
MAX_INDEX_BYTES: Final = 128 * 2**20
MAX_WEIGHT_FILES: Final = 4096

_SUFFIX: Final = ".safetensors"
_SUPPORTED: Final = f"{WEIGHTS}, or {INDEX} and the files that it names"
_PICKLED: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model.pt", "consolidated.00.pth")


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """What the files of a model directory say; the mappings cannot be changed at their top level."""

    path: Path
    configuration: Mapping[str, Any]
    generation: Mapping[str, Any] | None
    """`generation_config.json`, or None where there is none."""
    objects: tuple[UpstreamObject, ...]
    """The files of weights, as their origins describe them."""
    tensors: tuple[TensorRecord, ...]
    """By file, in the order of their bytes; names and types as the files have them."""
    bytes_read: int
    """Bytes that were read to know all this."""

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """Return the same by place and length; a tensor's `file` counts into it."""
        return tuple(ModelFile(uri=item.uri, length=item.length) for item in self.objects)

    def model_object(self) -> ModelObject:
        """Return the files as a requirement names them: places, lengths, tensors."""
        return ModelObject(files=self.files, tensors=self.tensors)


def open_directory(path: str | os.PathLike[str]) -> ModelDirectory:
    """Read the configuration and the headers of the weights of the model in a directory.

    A directory of kept headers (`artifacts.headers`) gives what the whole files would.

    Raises SpecError when the directory holds no model of this layout, saying what is there; UnsupportedModel for
    weights in another format, saying what to do; ModelError for a file that contradicts the format or the index;
    ArtifactError `SOURCE_OBJECT_UNAVAILABLE` for a file that is missing, a link to nothing, or unreadable.
    """
    path = Path(path)
    check_is_model(str(path), _list(path))
    configuration, configuration_bytes = read_object(path / CONFIGURATION, MAX_CONFIGURATION_BYTES)
    generation, generation_bytes = None, 0
    if is_there(path / GENERATION):
        generation, generation_bytes = read_object(path / GENERATION, MAX_CONFIGURATION_BYTES)
    placement, index_bytes = _placement(path)
    text_bytes = configuration_bytes + generation_bytes + index_bytes
    names = (WEIGHTS,) if placement is None else tuple(sorted(set(placement.values())))
    if missing := [name for name in names if not is_there(path / name)]:
        how_many = f"{len(missing)} of {len(names)} files of weights are missing"
        raise ArtifactError(SOURCE_UNAVAILABLE, str(path), f"{how_many}: {', '.join(missing[:4])}")
    headers = [_read_weights(path / name) for name in names]
    if placement is not None:
        _check_placement(path, placement, dict(zip(names, headers, strict=True)))
    if not any(header.tensors for header in headers):
        raise ModelError(str(path), "its files of weights hold no tensors")
    return ModelDirectory(
        path=path,
        configuration=MappingProxyType(configuration),
        generation=None if generation is None else MappingProxyType(generation),
        objects=tuple(header.described for header in headers),
        tensors=tuple(
            msgspec.structs.replace(tensor, file=index)
            for index, header in enumerate(headers)
            for tensor in header.tensors
        ),
        bytes_read=text_bytes + sum(header.bytes_read for header in headers),
    )


def find_model(path: str | os.PathLike[str]) -> Path:
    """Return what in a directory is the model: the directory itself, or the one GGUF model that it holds.

    A directory with safetensors is a model itself, whatever else is in it. Raises SpecError when it holds no model,
    or several GGUF models and nothing says which; UnsupportedModel for weights that are not read.
    """
    path = Path(path)
    names = _list(path)
    if CONFIGURATION in names and {WEIGHTS, INDEX} & names:
        check_is_model(str(path), names)
        return path
    models = gguf_models(names)
    if len(models) > 1:
        raise SpecError("model", str(path), f"the path of one of its GGUF files: {', '.join(models)}")
    if models:
        return path / models[0]
    check_is_model(str(path), names)
    return path


def gguf_models(names: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
    """Return the GGUF models among file names, sorted: each whole file, and the first part of each split model."""
    # Projectors of images (mmproj) are no language models; they lie beside the model that they belong to.
    found = [name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower()]
    return tuple(sorted({part_names(name)[0] for name in found}))


def _list(path: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in path.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError("model", str(path), f"a directory that can be read ({reason})") from error


def check_is_model(where: str, names: frozenset[str]) -> None:
    """Refuse a directory, by the names of its files, that holds no configuration with safetensors.

    Raises SpecError or UnsupportedModel saying what it holds instead; `where` names it.
    """
    if ADAPTER in names:
        # Also beside whole weights: whoever loads such a directory elsewhere gets the model with the adapter.
        raise UnsupportedModel(where, "the kind of model", f"an adapter ({ADAPTER})", "a whole model; merge it")
    if CONFIGURATION in names and {WEIGHTS, INDEX} & names:
        return
    if pickled := sorted(names & set(_PICKLED)):
        raise UnsupportedModel(
            where,
            "the format of the weights",
            f"{pickled[0]}, a pickle, which can run code when it is opened",
            f"{_SUPPORTED}; convert it: load it with transformers and call save_pretrained",
        )
    if models := gguf_models(names):
        raise SpecError("model", where, f"the path of its GGUF file: {', '.join(models)}")
    if CONFIGURATION not in names:
        raise SpecError("model", where, f"a directory with {CONFIGURATION} and {_SUPPORTED}, or with a GGUF file")
    others = sorted(name for name in names if name.endswith(_SUFFIX))
    raise SpecError("model", f"{where}, which holds {', '.join(others) or 'no weights'}", _SUPPORTED)


def is_there(path: Path) -> bool:
    """Return whether a file exists. A symbolic link to nothing is refused by name, not taken for an absence.

    Raises ArtifactError.
    """
    try:
        if path.exists():
            return True
        target = os.readlink(path) if path.is_symlink() else None
    except OSError as error:
        raise ArtifactError(SOURCE_UNAVAILABLE, str(path), f"cannot be looked up: {error.strerror}") from error
    if target is not None:
        raise ArtifactError(
            SOURCE_UNAVAILABLE, str(path), f"is a link to {target}, where nothing is (an interrupted download?)"
        )
    return False


def read_object(path: Path, limit_bytes: int, source: str | None = None) -> tuple[dict[str, Any], int]:
    """Return a JSON object and the bytes of its file; `source` names it in complaints, the path when None.

    Raises ModelError for what is not one, or longer than `limit_bytes`; ArtifactError when it cannot be read.
    """
    source = source or str(path)
    if not is_there(path):
        raise ArtifactError(SOURCE_UNAVAILABLE, source, "is not there")
    data = read_whole(path, limit_bytes)
    try:
        value = read_json(data.decode("utf-8"), source)
    except UnicodeDecodeError as error:
        raise ModelError(source, f"is not UTF-8: {error.reason} (at byte {error.start:,})") from error
    except DocumentError as error:
        raise ModelError(source, error.reason) from error
    if not isinstance(value, dict):
        raise ModelError(source, f"holds a JSON {type(value).__name__}, needed an object")
    return value, len(data)


def read_index(path: Path, source: str | None = None) -> tuple[dict[str, str], int]:
    """Return where an index file places each tensor, and the bytes of the file; `source` as for `read_object`.

    Raises ModelError when it is not an index, or places tensors elsewhere than in files of its directory.
    """
    source = source or str(path)
    index, num_bytes = read_object(path, MAX_INDEX_BYTES, source)
    placement = index.get("weight_map")
    if not isinstance(placement, dict) or not placement:
        raise ModelError(source, "weight_map is missing, empty or not an object")
    for tensor, name in placement.items():
        # A name, and nothing that leads elsewhere: an index is not to say which files of this computer are read.
        if not isinstance(name, str) or not name.endswith(_SUFFIX) or {"/", "\\", "\0"} & set(name):
            raise ModelError(source, f"weight_map places {tensor} in {name!r}, needed a name that ends in {_SUFFIX}")
    if len(names := set(placement.values())) > MAX_WEIGHT_FILES:
        raise ModelError(source, f"names {len(names):,} files; at most {MAX_WEIGHT_FILES:,}")
    return placement, num_bytes


def _placement(path: Path) -> tuple[dict[str, str] | None, int]:
    """Return the index's placement (None where one file holds all), and the bytes of the index."""
    if not is_there(path / INDEX):
        return None, 0
    placement, num_bytes = read_index(path / INDEX)
    if is_there(path / WEIGHTS) and set(placement.values()) != {WEIGHTS}:
        raise ModelError(str(path), f"holds {WEIGHTS} and an index of other files: one of the two is not the model")
    return placement, num_bytes


def _read_weights(path: Path) -> SafetensorsHeader:
    with open_file(path) as origin:
        return read_safetensors(origin)


def _check_placement(path: Path, placement: Mapping[str, str], headers: Mapping[str, SafetensorsHeader]) -> None:
    """Refuse any difference between the index and the files: a tensor missing, elsewhere, twice or not named."""
    for name, header in headers.items():
        for tensor in header.tensors:
            placed = placement.get(tensor.name)
            if placed != name:
                where = "does not name it" if placed is None else f"places it in {placed}"
                raise ModelError(str(path), f"{name} holds {tensor.name}, and {INDEX} {where}")
    held = {tensor.name for header in headers.values() for tensor in header.tensors}
    if missing := sorted(set(placement) - held):
        raise ModelError(
            str(path),
            f"{INDEX} places {missing[0]} in {placement[missing[0]]}, which does not hold it "
            f"({len(missing):,} such tensors)",
        )
