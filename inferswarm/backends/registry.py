"""Backends by name, loaded only when one is asked for. Importing this loads no backend and no torch."""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple, cast

from inferswarm.backends.base import StageAssignment, StageExecutor
from inferswarm.errors import SpecError


class _Backend(NamedTuple):
    module: str
    executor: str
    libraries: tuple[str, ...]


_BACKENDS = {
    "torch": _Backend(
        "inferswarm.backends.torch_backend.executor", "TorchExecutor", ("torch", "numpy", "gguf", "xxhash")
    ),
    "reference": _Backend("inferswarm.backends.reference", "ReferenceExecutor", ("torch", "numpy", "gguf", "xxhash")),
    "transformers": _Backend(
        "inferswarm.backends.transformers_backend.executor",
        "TransformersExecutor",
        ("torch", "numpy", "gguf", "xxhash", "transformers"),
    ),
    "null": _Backend("inferswarm.backends.null", "NullExecutor", ()),
}


class BackendStatus(NamedTuple):
    """One backend, whether it could be loaded here, and why not."""

    name: str
    available: bool
    reason: str


def available_backends() -> tuple[BackendStatus, ...]:
    """Say of each backend whether the libraries that it needs are installed, without loading any of them."""
    statuses = []
    for name, backend in _BACKENDS.items():
        missing = _missing(backend)
        reason = f"not installed: {', '.join(missing)}" if missing else ""
        statuses.append(BackendStatus(name, not missing, reason))
    return tuple(statuses)


def make_executor(assignment: StageAssignment) -> StageExecutor:
    """Load the backend that the assignment's primitive names and return its executor, not yet materialized.

    Raises SpecError for an unknown primitive, for libraries that are not installed, and for a representation that
    the backend does not have.
    """
    name = assignment.primitive
    backend = _BACKENDS.get(name)
    if backend is None:
        raise SpecError("primitive", name, f"one of {list(_BACKENDS)}")
    if missing := _missing(backend):
        raise SpecError("primitive", name, f"the libraries {', '.join(missing)}, which are not installed here")
    executor = getattr(importlib.import_module(backend.module), backend.executor)
    return cast(StageExecutor, executor(assignment))


def _missing(backend: _Backend) -> list[str]:
    return [library for library in backend.libraries if importlib.util.find_spec(library) is None]
