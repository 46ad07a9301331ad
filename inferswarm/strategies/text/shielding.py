"""Keeps names of control tokens that a user wrote plain text, through a chat template and to the tokenizer.

A template's own `<|im_end|>` becomes the control token; the same characters inside a message must not, or whoever
writes a message could end his turn and speak as the system. After rendering the two look alike. So before rendering
each such name in a user's text is replaced by a private-use character that occurs nowhere else; the rendered prompt
is cut at the names that are left, which are the template's; then the names go back into the pieces they came from.

A name may also come about across a boundary: a message that ends with `<|im_` before something that begins with
`end|>`, or a key `|im_end|` that a template writes between `<` and `>`. So the beginning of a name at the end of a
user's text, the end of one at its start, and a text that is the middle of one are replaced too, unless they are one
plain word (which `role` always is: templates write `<|` + role + `|>`).

Not covered: a name that a template makes out of other characters of the user (by changing case, or by removing
characters from the middle of a text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from inferswarm.errors import SpecError
from inferswarm.strategies.text.vocabulary import Splitter

_STAND_INS: Final = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))
"""The private-use code points, those of four hexadecimal digits first."""
_WORD: Final = re.compile(r"\w+")


class _Names:
    """The names of a model's control tokens, and what of them can stand at the edge of a text."""

    def __init__(self, names: tuple[str, ...]) -> None:
        ordered = sorted({name for name in names if name}, key=lambda name: (-len(name), name))
        self.splitter = Splitter({name: index for index, name in enumerate(ordered)})
        self.joined = "\0".join(ordered)
        self.longest = len(ordered[0]) if ordered else 0
        cuts = [(name[:cut], name[cut:]) for name in ordered for cut in range(1, len(name))]
        self.beginnings = {beginning for beginning, _ in cuts if not _WORD.fullmatch(beginning)}
        self.endings = {ending for _, ending in cuts if not _WORD.fullmatch(ending)}

    def spots(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of what has to be replaced in a text, in order."""
        whole = list(self._whole(text))
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        if not whole and end - start < self.longest and text[start:end] in self.joined:
            if end > start and not _WORD.fullmatch(text[start:end]):
                yield start, end
            return
        head = min(whole[0][0] if whole else end, start + self.longest - 1)
        first = next((cut for cut in range(head, start, -1) if text[start:cut] in self.endings), None)
        if first is not None:
            yield start, first
        yield from whole
        tail = max(whole[-1][1] if whole else (first or start), end - self.longest + 1)
        last = next((cut for cut in range(tail, end) if text[cut:end] in self.beginnings), None)
        if last is not None:
            yield last, end

    def _whole(self, text: str) -> Iterator[tuple[int, int]]:
        at = 0
        for piece, found in self.splitter.split(text):
            if found is not None:
                yield at, at + len(piece)
            at += len(piece)


@lru_cache(maxsize=8)
def _prepared(names: tuple[str, ...]) -> _Names:
    return _Names(names)


class Shield:
    """Stand-ins for the names of control tokens in one conversation.

    `names` are the names of the control tokens; `avoid` is text, apart from the user's, that can reach the prompt
    (the template): no character of it becomes a stand-in.
    """

    def __init__(self, names: Iterable[str], avoid: str = "") -> None:
        self._names = _prepared(tuple(names))
        self._avoid = avoid
        self._restored: dict[str, str] = {}

    @property
    def hides(self) -> bool:
        """Return whether anything had to be replaced."""
        return bool(self._restored)

    def hide(self, data: Any) -> Any:
        """Return a copy of JSON-like data in which every text is shielded; call it once, with everything.

        Raises SpecError when the data use every private-use character there is.
        """
        texts = list(_texts(data))
        hidden = {text[start:end] for text in texts for start, end in self._names.spots(text)}
        stand_in = dict(zip(sorted(hidden), self._unused(texts), strict=False))
        if len(stand_in) < len(hidden):
            raise SpecError("messages", "all private-use characters", "some private-use characters that are not used")
        self._restored |= {character: found for found, character in stand_in.items()}
        return self._hidden(data, stand_in)

    def pieces(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Cut a rendered prompt: yield (text, True) where every name is plain text, (text, False) where none is.

        The former lie between two of the template's control tokens and are as long as that allows; the latter are
        everything else. No piece is empty.
        """
        run = ""
        for piece, found in self._names.splitter.split(rendered):
            restored = piece if found is not None else self.restore(piece)
            if restored == piece:
                run += piece
                continue
            if run:
                yield run, False
            yield restored, True
            run = ""
        if run:
            yield run, False

    def restore(self, text: str) -> str:
        """Put the names back, also where a template wrote them into JSON that escapes everything but ASCII."""
        for character, found in self._restored.items():
            text = text.replace(character, found).replace(_escaped(character), _escaped(found))
        return text

    def _unused(self, texts: list[str]) -> Iterator[str]:
        """Yield characters that occur nowhere, neither as they are nor escaped."""
        everything = "\0".join([*texts, self._names.joined, self._avoid])
        used, lowered = set(everything), everything.lower()
        for code_point in _STAND_INS:
            character = chr(code_point)
            if character not in used and _escaped(character) not in lowered:
                yield character

    def _hidden(self, data: Any, stand_in: Mapping[str, str]) -> Any:
        if isinstance(data, str):
            parts, done = [], 0
            for start, end in self._names.spots(data):
                parts += [data[done:start], stand_in[data[start:end]]]
                done = end
            return "".join([*parts, data[done:]])
        if isinstance(data, Mapping):
            return {self._hidden(key, stand_in): self._hidden(value, stand_in) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self._hidden(value, stand_in) for value in data]
        return data


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _texts(value)


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
