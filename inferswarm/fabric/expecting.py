"""Answers of the kind that was asked for: a peer that answers otherwise speaks another protocol, or is broken."""

from __future__ import annotations

from typing import TypeVar

from inferswarm.errors import FabricError

Kind = TypeVar("Kind")


def expect(kind: type[Kind], answer: object, what: str) -> Kind:
    """Return an answer that must be of one kind; `what` names it for people. Raises FabricError for another one."""
    if not isinstance(answer, kind):
        raise FabricError(f"expected {what}, got {type(answer).__name__}")
    return answer
