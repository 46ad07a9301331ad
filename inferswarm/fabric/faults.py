"""Errors that cross a process boundary: the same type with the same fields arrives on the other side."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from inferswarm import errors
from inferswarm.errors import FabricError, InferSwarmError


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error as data: the class's name, its text, and its constructor's arguments (JSON scalars)."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class RemoteFault(FabricError):
    """An error of a kind that this side does not know, or whose fields did not survive the way."""


_KINDS: dict[str, type[InferSwarmError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, InferSwarmError)
}


def to_fault(error: InferSwarmError) -> Fault:
    """Turn an error into data. Fields that are not plain values travel as their text."""
    kind = type(error)
    fields: dict[str, Any] = {}
    if kind.__init__ is not Exception.__init__:
        for name in list(inspect.signature(kind.__init__).parameters)[1:]:
            value = getattr(error, name, None)
            fields[name] = value if isinstance(value, str | int | float | bool | None) else repr(value)
    return Fault(kind.__name__, str(error), fields)


def to_error(fault: Fault) -> InferSwarmError:
    """Rebuild the error that a fault describes, with the text that it had."""
    kind = _KINDS.get(fault.kind)
    if kind is None:
        return RemoteFault(f"{fault.kind}: {fault.message}")
    error = kind.__new__(kind)
    Exception.__init__(error, fault.message)
    for name, value in fault.fields.items():
        setattr(error, name, value)
    return error
