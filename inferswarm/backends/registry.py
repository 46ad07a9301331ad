"""Backends by name, loaded only when one is asked for. Importing this loads no backend and no torch."""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple, cast

import msgspec

from inferswarm.backends.base import StageAssignment, StageExecutor
from inferswarm.backends.sessions import check_payload
from inferswarm.errors import SpecError
from inferswarm.strategies.problem import VALUE_BYTES


class _Backend(NamedTuple):
    module: str
    executor: str
    libraries: tuple[str, ...]
    representations: tuple[str, ...] = tuple(VALUE_BYTES)
    keeps_states_apart: bool = False
    """Whether immutable states may lie in another Memory Resource than the one that it computes in."""
    uses_accelerators: bool = False
    """Whether it computes on accelerators; otherwise on CPUs alone."""


_BACKENDS = {
    "torch": _Backend(
        "inferswarm.backends.torch_backend.executor",
        "TorchExecutor",
        ("torch", "numpy", "gguf", "xxhash"),
        uses_accelerators=True,
    ),
    "reference": _Backend(
        "inferswarm.backends.reference", "ReferenceExecutor", ("torch", "numpy", "gguf", "xxhash"), ("fp32",)
    ),
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

    Raises SpecError for an unknown primitive, for libraries that are not installed, for a Compute Unit that it cannot
    compute on, for a representation that it does not have, and for payloads that do not hold that one's values.
    """
    name = assignment.primitive
    backend = _named(name)
    if not isinstance(assignment.payload_representation, msgspec.UnsetType):
        check_payload(assignment.participant, assignment.representation, assignment.payload_representation)
    if assignment.kind != "cpu" and not backend.uses_accelerators:
        raise SpecError("compute unit kind", assignment.kind, f"cpu, which is all that primitive {name} computes on")
    if missing := _missing(backend):
        raise SpecError("primitive", name, f"the libraries {', '.join(missing)}, which are not installed here")
    executor = getattr(importlib.import_module(backend.module), backend.executor)
    return cast(StageExecutor, executor(assignment))


def representations_of(primitive: str) -> tuple[str, ...]:
    """Return the representations that a backend computes in. Raises SpecError for an unknown primitive."""
    return _named(primitive).representations


def keeps_states_apart(primitive: str) -> bool:
    """Return whether a backend can hold immutable states in another Memory Resource than the one it computes in.

    Raises SpecError for an unknown primitive.
    """
    return _named(primitive).keeps_states_apart


def _named(primitive: str) -> _Backend:
    backend = _BACKENDS.get(primitive)
    if backend is None:
        raise SpecError("primitive", primitive, f"one of {list(_BACKENDS)}")
    return backend


def _missing(backend: _Backend) -> list[str]:
    return [library for library in backend.libraries if importlib.util.find_spec(library) is None]
