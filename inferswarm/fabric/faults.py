"""Errors that cross a process boundary: the same type with the same fields arrives on the other side."""

from __future__ import annotations

from typing import Any

import msgspec

from inferswarm import errors
from inferswarm.errors import FabricError, InfeasiblePlan, InferSwarmError, Violation


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error as data: the class's name, its text, and its attributes (plain values)."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class RemoteFault(FabricError):
    """An error of a kind that this side does not know, or whose fields did not survive the way."""


_KINDS: dict[str, type[InferSwarmError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, InferSwarmError)
}


def to_fault(error: InferSwarmError) -> Fault:
    """Turn an error into data. Attributes that are not plain values travel as their text."""
    fields = {name: _plain(value) for name, value in vars(error).items() if not name.startswith("_")}
    return Fault(type(error).__name__, str(error), fields)


def _plain(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return repr(value)  # no msgpack integer
    if isinstance(value, tuple) and value and all(isinstance(item, Violation) for item in value):
        return [list(item) for item in value]
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def to_error(fault: Fault) -> InferSwarmError:
    """Rebuild the error that a fault describes, with the text that it had."""
    kind = _KINDS.get(fault.kind)
    if kind is None:
        return RemoteFault(f"{fault.kind}: {fault.message}")
    error = kind.__new__(kind)
    Exception.__init__(error, fault.message)
    for name, value in fault.fields.items():
        setattr(error, name, value)
    if isinstance(error, InfeasiblePlan):
        error.violations = tuple(Violation(*item) for item in error.violations if isinstance(item, list))
        error.missing = tuple(error.missing)
    return error
