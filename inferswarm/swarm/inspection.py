"""Looking at a model without starting anything: what each backend makes of it, and what it would take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from inferswarm.artifacts.directory import open_directory
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.types import ModelFile, TensorRecord
from inferswarm.errors import InferSwarmError, ModelError, SpecError
from inferswarm.strategies.catalog import model_name, resolve_headers, resolve_model
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.inspection import (
    FetchedBytes,
    Inspection,
    Refusal,
    TextFacts,
    count_encodings,
    describe_text,
    size_units,
    sum_kept_bytes,
)
from inferswarm.strategies.model import ChainModel
from inferswarm.strategies.text.source import open_text
from inferswarm.swarm.opening import BACKENDS, TORCH, TRANSFORMERS, check_backend, open_model, wants_headers


def inspect_model(
    name_or_path: str | os.PathLike[str], backend: str | None = None, fetch: str | None = None
) -> Inspection:
    """Read a model's headers and say what was understood and what was refused; `fetch` as for `open_model`.

    Without a `backend` the first that can compute the model is described, and those before it are among the refusals.
    Raises SpecError, ModelError or ArtifactError only when there is nothing to look at: no such model, or files that
    are not what they seem.
    """
    check_backend(backend)
    given, fetched = name_or_path, None
    if wants_headers(name_or_path, fetch):
        name_or_path, fetched = _fetch(str(name_or_path))
    path = resolve_model(name_or_path).absolute()
    seen = _look(path)
    opened, refusals = _open_first(name_or_path, path, BACKENDS if backend is None else (backend,))
    text = _text_facts(lambda: describe_text(open_text(path) if opened is None else opened.text), refusals)
    problem = None if opened is None else opened.problem()
    if fetched is not None and isinstance(opened, DenseModel):  # whose factors of positions may lie behind the header
        fetched = replace(fetched, received=fetched.received + opened.bytes_read - seen.bytes_read)
    return Inspection(
        name=model_name(name_or_path, path),
        path=str(path) if fetched is None else str(given),
        files=seen.files,
        architecture=seen.architecture,
        encodings=count_encodings(seen.tensors),
        backend=None if problem is None else problem.implementations[0].primitive,
        description=None if opened is None else opened.description,
        units=()
        if opened is None or problem is None
        else size_units(opened.description, opened.object.tensors, problem),
        kept_bytes_per_position=() if problem is None else sum_kept_bytes(problem),
        text=text,
        notes=() if opened is None else opened.notes,
        refusals=tuple(refusals),
        fetched=fetched,
    )


def _fetch(uri: str) -> tuple[Path, FetchedBytes]:
    """Bring a remote model's headers here; say where they are kept, and what was received."""
    found = resolve_headers(uri)
    return found.path, FetchedBytes(received=found.bytes_fetched, of=found.bytes_total)


class _Seen(NamedTuple):
    """Files, tensors and the architecture as the files have them, understood or not."""

    files: tuple[ModelFile, ...]
    tensors: tuple[TensorRecord, ...]
    architecture: str
    bytes_read: int


def _look(path: Path) -> _Seen:
    if not path.is_dir():
        header = open_gguf(path)
        named = str(header.metadata.get("general.architecture", "not named"))
        return _Seen(header.files, header.tensors, named, header.bytes_read)
    directory = open_directory(path)
    names = directory.configuration.get("architectures") or [directory.configuration.get("model_type", "not named")]
    architecture = ", ".join(map(str, names)) if isinstance(names, list) else str(names)
    return _Seen(directory.files, directory.tensors, architecture, directory.bytes_read)


def _open_first(
    name_or_path: str | os.PathLike[str], path: Path, backends: tuple[str, ...]
) -> tuple[ChainModel | None, list[Refusal]]:
    refusals: list[Refusal] = []
    for backend in backends:
        if backend == TRANSFORMERS and backends != (TRANSFORMERS,) and not path.is_dir():
            refusals.append(
                Refusal(by=backend, reason="it takes directories as Hugging Face lays them out, no files")
            )
            continue
        try:
            return open_model(name_or_path, backend), refusals
        except (ModelError, SpecError) as error:
            refusals.append(Refusal(by="described decoder" if backend == TORCH else backend, reason=str(error)))
    return None, refusals


def _text_facts(describe: Callable[[], TextFacts], refusals: list[Refusal]) -> TextFacts | None:
    try:
        return describe()
    except InferSwarmError as error:
        refusals.append(Refusal(by="text", reason=str(error)))
        return None
