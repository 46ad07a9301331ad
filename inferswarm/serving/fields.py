"""A JSON object's fields, taken out one by one. What nobody took is refused by name, so nothing is ignored silently.

A field that is null counts as absent, as everywhere in OpenAI's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from inferswarm.serving.problems import bad_request


class Fields:
    """The fields of one object; `place` is where it stands in the request, empty for the request itself."""

    def __init__(self, document: object, place: str = "") -> None:
        """Raises Refusal for what is no object."""
        self._place = place
        if not isinstance(document, Mapping):
            raise bad_request(place or None, f"{place or 'the request'} must be a JSON object", "invalid_type")
        self._left: dict[str, object] = {str(name): value for name, value in document.items() if value is not None}

    def name(self, field: str) -> str:
        """Return a field's full name."""
        return f"{self._place}.{field}" if self._place else field

    def refuse(self, field: str, found: object, needed: str, code: str = "invalid_value") -> NoReturn:
        """Raise the Refusal that names a field, what it was and what it should have been."""
        name = self.name(field)
        shown = repr(found)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise bad_request(name, f"{name}: found {shown}, needed {needed}", code)

    def take(self, field: str) -> object | None:
        """Return a field whatever it is; None when it is absent."""
        return self._left.pop(field, None)

    def require(self, field: str) -> object:
        """Return a field that must be there. Raises Refusal."""
        if (value := self.take(field)) is None:
            name = self.name(field)
            raise bad_request(name, f"{name} is missing", "missing_required_parameter")
        return value

    def flag(self, field: str) -> bool:
        """Return a truth value, false when absent. Raises Refusal."""
        value = self.take(field)
        if value is not None and not isinstance(value, bool):
            self.refuse(field, value, "true or false", "invalid_type")
        return bool(value)

    def number(self, field: str, default: float, low: float, high: float, *, above_low: bool = False) -> float:
        """Return a number of `low` to `high` (with `above_low`: more than `low`). Raises Refusal."""
        value = self.take(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(field, value, "a number", "invalid_type")
        if not (low < value if above_low else low <= value) or not value <= high:
            needed = f"a number above {low:g}" if above_low else f"a number of at least {low:g}"
            self.refuse(field, value, needed if high == float("inf") else f"{needed} and at most {high:g}")
        return float(value)

    def whole(self, field: str, low: int, high: int) -> int | None:
        """Return a whole number of `low` to `high`; None when absent. Raises Refusal."""
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(field, value, "a whole number", "invalid_type")
        if not low <= value <= high:
            self.refuse(field, value, f"{low} to {high}")
        return value

    def only(self, field: str, neutral: Sequence[object], why: str) -> None:
        """Accept a field only with a value that changes nothing. Raises Refusal."""
        value = self.take(field)
        if value is not None and not any(type(value) is type(item) and value == item for item in neutral):
            self.refuse(field, value, why, "unsupported_value")

    def ignore(self, *fields: str) -> None:
        """Drop fields that change no answer."""
        for field in fields:
            self.take(field)

    def finish(self, known: Mapping[str, str]) -> None:
        """Refuse the first field that is left; `known` are those that others have, each with why it is not here."""
        for field in self._left:
            name = self.name(field)
            if field in known:
                raise bad_request(name, f"{name} is not supported: {known[field]}", "unsupported_parameter")
            raise bad_request(name, f"{name} is no field that this server knows", "unknown_parameter")
