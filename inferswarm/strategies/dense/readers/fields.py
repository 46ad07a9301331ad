"""Typed access to a header's fields: every complaint names the field, and a field that nobody read is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from inferswarm.errors import ModelError, UnsupportedModel

SMALLEST: Final = 1e-30
LARGEST: Final = 1e30
"""Positive numbers outside of these are no model's: what is computed from the others stays finite."""

_MISSING: Final = object()


def shortest_float32(value: float) -> float:
    """Return the shortest decimal that is stored as the same 32-bit float: 1e-06 for 9.999999974752427e-07.

    A value that no 32-bit float holds exactly is returned as it is.
    """
    try:
        stored = struct.pack("<f", value)
    except OverflowError:
        return value
    if struct.unpack("<f", stored)[0] != value:
        return value
    for digits in range(1, 9):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == stored:
            return candidate
    return value


class Fields:
    """The fields of one header, or of one section of it.

    A field whose value is null counts as absent. Reading marks a field; `refuse_unread` refuses the others.
    """

    def __init__(
        self,
        source: str,
        values: Mapping[str, Any],
        *,
        prefix: str = "",
        floats_only: bool = False,
        what: str = "field",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Give access to `values`, whose fields complaints name with `prefix` before them.

        `floats_only`: a number stored as a whole number is refused where a float is needed, and floats are
        shortened (`shortest_float32`): the header has types. `defaults` stand for fields that are not there at all.
        """
        self.source = source
        self.what = what
        self._values = values
        self._prefix = prefix
        self._floats_only = floats_only
        self._defaults = defaults or {}
        self._read: set[str] = set()

    def name(self, key: str) -> str:
        """Return the field's full name."""
        return f"{self._prefix}{key}"

    def has(self, key: str) -> bool:
        """Return whether the field, or its default, is there and not null. Does not mark it."""
        return self._value(key) is not None

    def states(self, key: str) -> bool:
        """Return whether the header itself has the field, and it is not null. Does not mark it."""
        return self._values.get(key) is not None

    def holds(self, key: str) -> bool:
        """Return whether the header itself has the field, be it null. Does not mark it."""
        return key in self._values

    def _value(self, key: str) -> Any:
        return self._values[key] if key in self._values else self._defaults.get(key)

    def mark(self, key: str) -> None:
        """Mark a field as understood."""
        self._read.add(key)

    def raw(self, key: str) -> Any:
        """Return a field's value whatever it is, None when absent, and mark it."""
        self._read.add(key)
        return self._value(key)

    def _get(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise ModelError(self.source, f"the {self.what} {self.name(key)} is missing")
        return default

    def _fail(self, key: str, needed: str) -> ModelError:
        return ModelError(self.source, f"{self.name(key)} is {self._values.get(key)!r}, needed {needed}")

    def text(self, key: str, default: Any = _MISSING) -> str:
        """Return a text. Raises ModelError."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._fail(key, "text")
        return value

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        """Return a truth value. Raises ModelError."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._fail(key, "true or false")
        return value

    def size(self, key: str, default: Any = _MISSING, least: int = 1) -> int:
        """Return a whole number from `least` on. Raises ModelError; UnsupportedModel for a value per block."""
        value = self._get(key, default)
        if isinstance(value, (tuple, list)):
            raise UnsupportedModel(
                self.source, self.name(key), f"one value per block ({len(value)} values)", "one whole number"
            )
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self._fail(key, f"a whole number from {least} to 2^31")
        return value

    def number(self, key: str, default: Any = _MISSING, least: float = 0.0) -> float:
        """Return a number from `least` on, zero or within the limits above. Raises ModelError."""
        value = self._get(key, default)
        if not _is_number(value, whole=not self._floats_only) or value < least or (value and value < SMALLEST):
            raise self._fail(key, f"a finite {'float' if self._floats_only else 'number'} from {least:g} on")
        return shortest_float32(float(value)) if self._floats_only else float(value)

    def positive(self, key: str, default: Any = _MISSING) -> float:
        """Return a positive finite number. Raises ModelError."""
        value = self.number(key, default)
        if value <= 0:
            raise self._fail(key, "a positive finite float")
        return value

    def optional(self, key: str, default: float | None = None) -> float | None:
        """Return a positive number, or None where the field is absent without a default, or zero."""
        if not self.has(key) and default is None:
            self.mark(key)
            return None
        return self.number(key, default) or None

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return a list of `count` positive numbers. Raises ModelError."""
        value = self._get(key, _MISSING)
        needed = f"{count} positive numbers"
        if not isinstance(value, (list, tuple)) or len(value) != count:
            raise self._fail(key, needed)
        if not all(_is_number(item, whole=True) and item >= SMALLEST for item in value):
            raise self._fail(key, needed)
        return tuple(float(item) for item in value)

    def section(self, key: str) -> Fields:
        """Return the fields of a nested object. Raises ModelError."""
        value = self._get(key, _MISSING)
        if not isinstance(value, Mapping):
            raise self._fail(key, "an object")
        return Fields(self.source, value, prefix=f"{self.name(key)}.", floats_only=self._floats_only, what=self.what)

    def refuse_remainder(self, key: str, value: int, divisor_key: str, divisor: int) -> None:
        """Raise ModelError when `value`, that of a field, is no multiple of the value of another one."""
        if value % divisor:
            raise ModelError(
                self.source, f"{self.name(key)} is {value}, not a multiple of {self.name(divisor_key)}, {divisor}"
            )

    def check(self, key: str, allowed: Iterable[Any], supported: str | None = None) -> Any:
        """Return the field's value, which must be one of `allowed`, of the same type; an absent one is None.

        Raises UnsupportedModel naming the field.
        """
        value, choices = self.raw(key), tuple(allowed)
        if value is not None and not any(type(value) is type(choice) and value == choice for choice in choices):
            shown = " or ".join(repr(choice) for choice in choices)
            raise UnsupportedModel(self.source, self.name(key), _shown(value), supported or shown)
        return value

    def refuse_unread(self, inert: Iterable[str], harmless: Mapping[str, tuple[Any, ...]], supported: str) -> None:
        """Refuse every field that was not read, is not `inert`, and has not a `harmless` value.

        `inert` are names, or beginnings of names that end in a dot. Raises UnsupportedModel naming the field.
        """
        names = tuple(inert)
        prefixes = tuple(name for name in names if name.endswith("."))
        for key, value in self._values.items():
            if key in self._read or value is None or key in names or key.startswith(prefixes):
                continue
            if key in harmless:
                self.check(key, harmless[key])
            else:
                raise UnsupportedModel(self.source, self.name(key), _shown(value), supported)


def _is_number(value: Any, *, whole: bool) -> bool:
    """Return whether `value` is a finite number, or a whole one where `whole`, of at most `LARGEST`."""
    kinds = (float, int) if whole else (float,)
    # NaN compares false with everything.
    return isinstance(value, kinds) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _shown(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values"
    return "an object" if isinstance(value, Mapping) else value
