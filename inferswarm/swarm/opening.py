"""Finding out who can compute a model: the described decoder's own blocks, or a host library."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Final

from inferswarm.artifacts.gguf_types import PLAIN_ENCODINGS
from inferswarm.artifacts.origins.opening import is_remote
from inferswarm.backends.registry import available_backends
from inferswarm.errors import ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.catalog import HUB_PREFIX, model_name, resolve_headers, resolve_model
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.hosted.model import HostedModel
from inferswarm.strategies.model import ChainModel

TORCH: Final = "torch"
TRANSFORMERS: Final = "transformers"
BACKENDS: Final = (TORCH, TRANSFORMERS)
WHOLE: Final = "whole"
HEADERS: Final = "headers"
FETCHES: Final = (WHOLE, HEADERS)
"""What is fetched of a remote model when it is opened: all of it, or headers and texts."""


def check_backend(backend: str | None) -> None:
    """Raise SpecError for a backend that no model is opened for. None stands for the first that can compute it."""
    if backend not in (None, *BACKENDS):
        raise SpecError("backend", backend, f"one of {', '.join(BACKENDS)}, or none for the first that can")


def wants_headers(name_or_path: str | os.PathLike[str], fetch: str | None = None) -> bool:
    """Return whether a name is that of a remote model of which headers and texts are fetched, and no weights.

    By default that is so for every address but `hf://`. Raises SpecError for a `fetch` that is none of FETCHES, and
    for one that such a model does not have.
    """
    if fetch not in (None, *FETCHES):
        raise SpecError("fetch", fetch, f"one of {', '.join(FETCHES)}, or none for what is usual")
    if not isinstance(name_or_path, str) or not is_remote(name_or_path):
        if fetch == HEADERS:
            raise SpecError("fetch", fetch, f"none for {name_or_path}: nothing is fetched of files of this computer")
        return False
    if name_or_path.startswith(HUB_PREFIX):
        return fetch == HEADERS
    if fetch == WHOLE:
        raise SpecError("fetch", fetch, f"{HEADERS} for an address; each stage acquires the bytes that it needs")
    return True


def open_model(
    name_or_path: str | os.PathLike[str], backend: str | None = None, fetch: str | None = None
) -> ChainModel:
    """Open a model for a backend, or for the first of `torch` and `transformers` that can compute it.

    Only headers are read; what `fetch` says of remote models stands at `wants_headers`. Raises SpecError for another
    backend, a backend that is not installed and a model that is not there; ModelError or UnsupportedModel when nobody
    can compute it, with what each one said.
    """
    check_backend(backend)
    if wants_headers(name_or_path, fetch):
        name_or_path = resolve_headers(str(name_or_path)).path
    if backend == TRANSFORMERS:
        return _open_hosted(name_or_path)[0]
    try:
        return DenseModel.open(name_or_path)
    except ModelError as refusal:
        if backend is not None:
            raise
        path = resolve_model(name_or_path)
        if not path.is_dir():
            raise refusal.with_more("the transformers backend takes directories of Hugging Face only") from None
        if reason := _unavailable():
            raise refusal.with_more(f"the transformers backend could be tried, but {reason}") from None
        try:
            opened, ignored = _open_hosted(name_or_path)
        except ModelError as other:
            raise other.with_more(f"nor is it a described decoder: {refusal}") from refusal
        if isinstance(refusal, UnsupportedModel) and refusal.field in ignored:
            raise refusal.with_more(
                "the transformers backend ignores this field, and does so when asked for"
            ) from None
        return replace(opened, notes=(f"no described decoder: {refusal}", *opened.notes))


def _open_hosted(name_or_path: str | os.PathLike[str]) -> tuple[HostedModel, tuple[str, ...]]:
    """Return the model as the host describes it, and the fields of its configuration that the host ignores."""
    if reason := _unavailable():
        raise SpecError("backend", TRANSFORMERS, f"an installed one; {reason}")
    path = resolve_model(name_or_path).absolute()
    if not path.is_dir():
        supported = "a directory as Hugging Face lays it out, for the transformers backend"
        raise UnsupportedModel(str(path), "the model's format", "a file", supported)
    from inferswarm.backends.transformers_backend.describing import describe_hosted  # loads transformers
    from inferswarm.backends.transformers_backend.skeleton import ignored_fields

    description, model_object = describe_hosted(path)
    for tensor in model_object.tensors:
        if tensor.encoding not in PLAIN_ENCODINGS:  # now, not when a stage reads it
            readable = ", ".join(PLAIN_ENCODINGS)
            raise UnsupportedModel(str(path), f"the encoding of {tensor.name}", tensor.encoding, readable)
    opened = HostedModel(
        name=model_name(name_or_path, path), path=path, object=model_object, description=description, notes=()
    )
    ignored = ignored_fields(json.loads(description.configuration))
    if not ignored:
        return opened, ()
    note = f"transformers does not know these fields, and ignores them: {', '.join(ignored)}"
    return replace(opened, notes=(note,)), ignored


def _unavailable() -> str | None:
    """Return why the transformers backend cannot be used here, None when it can."""
    status = next(status for status in available_backends() if status.name == TRANSFORMERS)
    return None if status.available else status.reason
