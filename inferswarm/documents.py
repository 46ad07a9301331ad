"""Immutable documents: strict reading, canonical bytes, digests.

A *document* is a frozen msgspec struct. Reading one refuses duplicate keys, NaN and infinities, unknown
fields and wrong types; writing one gives the canonical bytes of RFC 8785, so that equal documents have equal
digests. Ordered data are tuples (a frozen struct does not freeze a dict). Integers of 2^53 and more do not
survive JSON elsewhere: nanosecond times and 64-bit seeds are strings of decimal digits (type `Digits`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import rfc8785

from inferswarm.errors import DocumentError

DocumentType = TypeVar("DocumentType")
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
"""A digest as it is written everywhere: the algorithm's name, a colon, lowercase hexadecimal."""
Digits = Annotated[str, msgspec.Meta(pattern=r"^(0|-?[1-9][0-9]*)\Z")]
"""An integer that may not fit in 53 bits, as decimal digits."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all documents. Raises ValueError when a field holds a NaN or an infinity, at any depth."""

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite: msgspec would write them as `null` without a word."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not _is_plain(value):
                _refuse_non_finite(value, f"{type(self).__name__}.{name}")


_NEVER_NUMBERS = frozenset({str, int, bool, type(None)})


def _is_plain(value: Any) -> bool:
    """Return whether nothing in a value can be refused, without a word why: a graph has a hundred thousand fields."""
    kind = value.__class__
    if kind in _NEVER_NUMBERS or isinstance(value, Document):  # which was checked when it was made
        return True
    if kind is float:
        return math.isfinite(value)
    return kind is tuple and all(map(_is_plain, value))


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
        return _canonical_text(msgspec.to_builtins(document)).encode()
    except (rfc8785.CanonicalizationError, TypeError) as error:
        raise DocumentError(type(document).__name__, f"has no canonical form: {error}") from error


def _canonical_text(document: Any) -> str:
    """Nest what rfc8785 writes: it writes every text and number, and says the order of the members.

    Documents repeat the same names, texts and numbers by the hundred thousand, and writing one anew is what takes
    long.
    """
    written: list[str] = []
    add = written.append

    def write(value: Any) -> None:
        kind = value.__class__
        if kind in _KEPT_KINDS:
            add(_written_scalar(value))
        elif kind is dict and value:
            separator = "{"
            for name, start in _written_names(tuple(value)):
                add(separator)
                add(start)
                item = value[name]
                if item.__class__ in _KEPT_KINDS:
                    add(_written_scalar(item))
                else:
                    write(item)
                separator = ","
            add("}")
        elif (kind is list or kind is tuple) and value:
            separator = "["
            for item in value:
                add(separator)
                write(item)
                separator = ","
            add("]")
        else:
            add(rfc8785.dumps(value).decode())  # what is empty, and what it refuses

    write(document)
    return "".join(written)


_KEPT_KINDS = frozenset({str, float, int, bool, type(None)})


@functools.lru_cache(maxsize=65_536, typed=True)  # typed: 1, 1.0 and True are equal, and written differently
def _written_scalar(value: str | float | bool | None) -> str:
    return rfc8785.dumps(value).decode()


@functools.lru_cache(maxsize=4096)
def _written_names(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the names in canonical order, each with what is written before its value."""
    ordered = json.loads(rfc8785.dumps(dict.fromkeys(names)))
    return tuple((name, f"{rfc8785.dumps(name).decode()}:") for name in ordered)


def digest(document: Any) -> str:
    """Return `sha256:` and the hexadecimal digest of the document's canonical bytes."""
    return digest_bytes(canonical_bytes(document))


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return `sha256:` and the hexadecimal digest of exact bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_json(data: bytes | str, source: str) -> Any:
    """Parse JSON strictly: no duplicate keys, no NaN or Infinity, no number that only an infinity could hold.

    Bytes are UTF-8 without a byte order mark: one text has one form. Raises DocumentError naming `source`.
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
        text = data if isinstance(data, str) else data.decode()  # json.loads would take UTF-16 and UTF-32 too
        return json.loads(
            text, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant, parse_float=refuse_infinite
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
