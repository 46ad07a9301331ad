"""Immutable documents: strict reading, canonical bytes, digests.

A *document* is a frozen msgspec struct. Reading one refuses duplicate keys, NaN and infinities, unknown
fields and wrong types; writing one gives the canonical bytes of RFC 8785, so that equal documents have equal
digests. Ordered data are tuples (a frozen struct does not freeze a dict). Integers of 2^53 and more do not
survive JSON elsewhere: nanosecond times and 64-bit seeds are strings of decimal digits (type `Digits`).
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import rfc8785

from inferswarm.errors import DocumentError

DocumentType = TypeVar("DocumentType")
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A digest as it is written everywhere: the algorithm's name, a colon, lowercase hexadecimal."""
Digits = Annotated[str, msgspec.Meta(pattern=r"^(0|-?[1-9][0-9]*)$")]
"""An integer that may not fit in 53 bits, as decimal digits."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all documents. Raises ValueError when a field holds a NaN or an infinity, at any depth."""

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite: msgspec would write them as `null` without a word."""
        for name in self.__struct_fields__:
            _refuse_non_finite(getattr(self, name), f"{type(self).__name__}.{name}")


def _refuse_non_finite(value: Any, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}; documents hold finite numbers only")
    elif isinstance(value, (tuple, list, frozenset)):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        raise ValueError(f"{path} is a dict; documents hold tuples, because a frozen struct does not freeze a dict")


def canonical_bytes(document: Any) -> bytes:
    """Return the RFC 8785 bytes of a document, or of plain JSON data.

    Raises DocumentError when the data cannot be represented (NaN, integers of 2^53 and more).
    """
    try:
        return rfc8785.dumps(msgspec.to_builtins(document))
    except (rfc8785.CanonicalizationError, TypeError) as error:
        raise DocumentError(type(document).__name__, f"has no canonical form: {error}") from error


def digest(document: Any) -> str:
    """Return `sha256:` and the hexadecimal digest of the document's canonical bytes."""
    return digest_bytes(canonical_bytes(document))


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return `sha256:` and the hexadecimal digest of exact bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_json(data: bytes | str, source: str) -> Any:
    """Parse JSON strictly: no duplicate keys, no NaN or Infinity, no number that only an infinity could hold.

    Raises DocumentError naming `source`.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise DocumentError(source, f"holds {name}, which is not a JSON number")

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in pairs:
            if key in fields:
                raise DocumentError(source, f"has the key {key!r} twice")
            fields[key] = value
        return fields

    def refuse_infinite(digits: str) -> float:
        if math.isinf(number := float(digits)):
            raise DocumentError(source, f"holds {digits[:40]}, which is too large for a number")
        return number

    try:
        return json.loads(
            data, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant, parse_float=refuse_infinite
        )
    # ValueError: what is not JSON, bytes that are not text, and integers of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, f"is not JSON: {error}") from error


def read_document(kind: type[DocumentType], data: bytes | str, source: str) -> DocumentType:
    """Read one document of type `kind` from JSON.

    Raises DocumentError naming `source` and the path of the offending field.
    """
    fields = read_json(data, source)
    try:
        return msgspec.convert(fields, kind, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise DocumentError(source, f"is not a {kind.__name__}: {error}") from error


def write_document(document: Any) -> str:
    """Return the document as indented JSON with a final newline, for files that people read.

    The digest is taken over the canonical bytes, never over this form.
    """
    return msgspec.json.format(canonical_bytes(document).decode(), indent=2) + "\n"
