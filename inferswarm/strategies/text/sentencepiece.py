"""SentencePiece without its library: merges driven by scores (`MergeEngine`) and unigram pieces (`UnigramEngine`).

Both cut a text at the names of user-defined tokens, put a space before each piece of text where the model wants one,
write spaces as U+2581, and spell what no piece covers byte by byte. Where a vocabulary has no byte tokens, a
character that no piece covers is refused instead of becoming the unknown token.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections.abc import Mapping, Sequence

from inferswarm.errors import SpecError
from inferswarm.strategies.text.normalizing import TextOptions
from inferswarm.strategies.text.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNUSED,
    USER_DEFINED,
    Splitter,
    Vocabulary,
    byte_of_name,
)

_MAX_CACHED_WORDS = 2**16
_MAX_CACHED_LENGTH = 64
_UNKNOWN_PENALTY = 10.0
"""How much less probable than the rarest piece a character without one is."""
_UNCOVERED = -1


class _PieceEngine:
    """What both kinds share. Subclasses turn escaped text into ids."""

    def __init__(self, vocabulary: Vocabulary, options: TextOptions) -> None:
        self._source = vocabulary.source
        self._prefix = SPACE_MARK if options.add_space_prefix else ""
        self._normalize = options.build(vocabulary.source)
        user_defined = _escaped(vocabulary.ids_of(USER_DEFINED))
        self._always = Splitter(user_defined)
        self._with_special = Splitter(user_defined | _escaped(vocabulary.ids_of(CONTROL)))
        self._byte_ids = {byte_of_name(name): index for name, index in vocabulary.ids_of(BYTE).items()}

    def encode(self, text: str, parse_special: bool, at_start: bool = True) -> list[int]:
        """Return the ids of a text; errors as `Engine.encode`."""
        ids: list[int] = []
        after_token = True
        splitter = self._with_special if parse_special else self._always
        for piece, token_id in splitter.split(text.replace(" ", SPACE_MARK)):
            if token_id is not None:
                ids.append(token_id)
                after_token = True
                continue
            if self._normalize is not None:
                piece = self._normalize(piece.replace(SPACE_MARK, " ")).replace(" ", SPACE_MARK)
            if piece:
                ids += self._encode_escaped(self._prefix + piece if after_token else piece)
                after_token = False
        return ids

    def _encode_escaped(self, text: str) -> list[int]:
        raise NotImplementedError

    def _spell(self, text: str) -> list[int]:
        """Return byte tokens for what no piece covers."""
        try:
            return [self._byte_ids[byte] for byte in text.encode()]
        except KeyError:
            raise SpecError(
                "text",
                text.replace(SPACE_MARK, " "),
                f"characters that the vocabulary of {self._source} can express",
            ) from None


class MergeEngine(_PieceEngine):
    """Of all neighbors whose sum is a piece, the sum with the highest score is merged first, the leftmost of equals.

    Words that were met are remembered. Safe to use from several threads.
    """

    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float], options: TextOptions) -> None:
        """Build it; `scores` by id."""
        super().__init__(vocabulary, options)
        self._ids = vocabulary.ids_of(NORMAL, USER_DEFINED, UNUSED)
        self._scores = scores
        self._unused = frozenset(vocabulary.ids_of(UNUSED).values())
        self._words = _word_expression(self._ids)
        self._known: dict[str, tuple[int, ...]] = {}

    def _encode_escaped(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words.split(text):
            found = self._known.get(word)
            if found is None:
                found = tuple(self._merge(word))
                if len(word) <= _MAX_CACHED_LENGTH:
                    if len(self._known) >= _MAX_CACHED_WORDS:
                        self._known = {}
                    self._known[word] = found
            ids += found
        return ids

    def _merge(self, word: str) -> list[int]:
        """Return the ids of a word: the merges, in the order of their scores."""
        symbols = list(word)
        before = list(range(-1, len(symbols) - 1))
        after = [*range(1, len(symbols)), -1]
        queue: list[tuple[float, int, int, str]] = []
        made_of: dict[str, tuple[str, str]] = {}

        def consider(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            merged = symbols[left] + symbols[right]
            index = self._ids.get(merged)
            if index is not None:
                heapq.heappush(queue, (-self._scores[index], left, right, merged))
                if index in self._unused:
                    made_of[merged] = symbols[left], symbols[right]

        for right in range(1, len(symbols)):
            consider(right - 1, right)
        while queue:
            _, left, right, merged = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != len(merged):
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        ids: list[int] = []
        for symbol in symbols:
            if symbol:
                self._append(symbol, made_of, ids)
        return ids

    def _append(self, symbol: str, made_of: Mapping[str, tuple[str, str]], ids: list[int]) -> None:
        """Append a symbol's id; an unused piece gives way to what it was made of."""
        index = self._ids.get(symbol)
        if index is None:
            ids += self._spell(symbol)
        elif index in self._unused and symbol in made_of:
            for part in made_of[symbol]:
                self._append(part, made_of, ids)
        else:
            ids.append(index)


class UnigramEngine(_PieceEngine):
    """The most probable sequence of pieces; of equals the one whose last piece begins first.

    Sums are rounded to single precision, as in SentencePiece, because they decide between near-equals. Safe to use
    from several threads.
    """

    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float], options: TextOptions) -> None:
        """Build it; `scores` (log probabilities) by id."""
        super().__init__(vocabulary, options)
        pieces = vocabulary.ids_of(NORMAL)
        self._pieces = {piece: (scores[index], index) for piece, index in pieces.items()}
        (self._unknown_score,) = array("f", [min(scores[index] for index in pieces.values()) - _UNKNOWN_PENALTY])
        longest: dict[str, int] = {}
        for piece in pieces:
            longest[piece[0]] = max(longest.get(piece[0], 0), len(piece))
        self._longest = longest

    def _encode_escaped(self, text: str) -> list[int]:
        best = array("f", [0.0]) * (len(text) + 1)
        starts = [-1] * (len(text) + 1)
        found = [_UNCOVERED] * (len(text) + 1)
        candidate = array("f", [0.0])
        for start, character in enumerate(text):
            here = best[start]
            single = False
            for end in range(start + 1, min(start + self._longest.get(character, 0), len(text)) + 1):
                piece = self._pieces.get(text[start:end])
                if piece is None:
                    continue
                single = single or end == start + 1
                candidate[0] = piece[0] + here
                if starts[end] < 0 or candidate[0] > best[end]:
                    best[end], starts[end], found[end] = candidate[0], start, piece[1]
            if not single:
                candidate[0] = self._unknown_score + here
                if starts[start + 1] < 0 or candidate[0] > best[start + 1]:
                    best[start + 1], starts[start + 1], found[start + 1] = candidate[0], start, _UNCOVERED
        path: list[tuple[int, int, int]] = []
        end = len(text)
        while end:
            path.append((starts[end], end, found[end]))
            end = starts[end]
        ids: list[int] = []
        for start, end, index in reversed(path):
            if index == _UNCOVERED:
                ids += self._spell(text[start:end])
            else:
                ids.append(index)
        return ids


def _escaped(ids: Mapping[str, int]) -> dict[str, int]:
    return {name.replace(" ", SPACE_MARK): index for name, index in ids.items()}


def _word_expression(pieces: Mapping[str, int]) -> re.Pattern[str]:
    """Return an expression for the places before a space that no piece reaches across.

    Merging never crosses such a place, so the words between them can be merged, and remembered, one by one.
    """
    reaching = {
        piece[at - 1]
        for piece in pieces
        if SPACE_MARK in piece[1:]
        for at in range(1, len(piece))
        if piece[at] == SPACE_MARK
    }
    inside = "".join(map(re.escape, sorted(reaching | {SPACE_MARK})))
    return re.compile(f"(?<=[^{inside}])(?={SPACE_MARK})")
