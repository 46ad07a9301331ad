"""What SentencePiece does to a text before it cuts it into pieces: replacements, and spaces that go.

The replacements (most often NFKC and some more) come as one table compiled into the model: a double-array trie of
UTF-8 byte strings, and the strings that replace them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from inferswarm.errors import ModelError

_SPACES = re.compile(" +")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What happens to a text before it is cut into pieces."""

    add_space_prefix: bool
    """A space goes before a text, and before each text that follows a special or user-defined token."""
    remove_extra_spaces: bool = False
    """Spaces at both ends go, and runs of spaces become one."""
    charsmap: bytes = b""
    """A compiled table of replacements as SentencePiece stores it; empty: none."""

    def build(self, source: str) -> Callable[[str], str] | None:
        """Return the function that normalizes a text, None when texts stay as they are.

        Raises ModelError for a table that cannot be used.
        """
        replace = Replacements(self.charsmap, source).apply if self.charsmap else None
        if not self.remove_extra_spaces:
            return replace
        return lambda text: _SPACES.sub(" ", text if replace is None else replace(text)).strip(" ")


class Replacements:
    """A compiled table: at each place of a text the longest string that is in it is replaced."""

    def __init__(self, table: bytes, source: str) -> None:
        """Take the table apart. Raises ModelError when it is not one."""
        size = int.from_bytes(table[:4], "little")
        if len(table) < 4 or size % 4 or not 4 <= size < len(table) - 4:
            raise ModelError(source, f"a table of replacements of {len(table):,} B cannot hold a trie of {size:,} B")
        self._source = source
        self._units = struct.unpack_from(f"<{size // 4}I", table, 4)
        self._replacements = table[4 + size :]

    def apply(self, text: str) -> str:
        """Return the text with its replacements. Raises ModelError for a table that leads outside of itself."""
        data = text.encode()
        parts: list[bytes] = []
        at = 0
        try:
            while at < len(data):
                length, replacement = self._longest(data, at)
                if not length:
                    length = _character_length(data[at])
                    replacement = data[at : at + length]
                parts.append(replacement)
                at += length
        except (IndexError, ValueError) as error:
            raise ModelError(self._source, "the table of replacements leads outside of itself") from error
        return b"".join(parts).decode(errors="replace")

    def _longest(self, data: bytes, at: int) -> tuple[int, bytes]:
        """Return the longest match at a place: its length in bytes (0: none) and what replaces it."""
        units = self._units
        node = _offset(units[0])
        length = start = 0
        for index in range(at, len(data)):
            node ^= data[index]
            unit = units[node]
            if unit & 0x800000FF != data[index]:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                length, start = index + 1 - at, units[node] & 0x7FFFFFFF
        if not length:
            return 0, b""
        return length, self._replacements[start : self._replacements.index(0, start)]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _character_length(first_byte: int) -> int:
    """Return how many bytes a UTF-8 character has that begins with `first_byte`."""
    return 1 + (first_byte >= 0xC0) + (first_byte >= 0xE0) + (first_byte >= 0xF0)
