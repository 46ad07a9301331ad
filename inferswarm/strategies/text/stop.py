"""Stop strings: where an answer ends, in text that arrives in pieces of any size."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from inferswarm.errors import SpecError


class StopResult(NamedTuple):
    """What one `push` gave: `text` that can no longer become a stop string, and the stop string that was found."""

    text: str
    matched: str | None


class StopMatcher:
    """Finds the first of several stop strings in a growing text, and passes on the text before it.

    The stop string that *completes* first wins; of those that complete at the same character, the longest (so the one
    that starts first). Text is compared code point by code point, without Unicode normalization. Neither a stop
    string nor anything after it is passed on. Only a suffix that may still become a stop string is held back, and
    text that was passed on is never part of a match: how the text was cut into pieces changes nothing in the joined
    text or in the match. Work per character is constant on average, however long the text.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Take the stop strings, possibly none. Raises SpecError for an empty one, which would match everywhere."""
        for index, stop in enumerate(stops):
            if not stop:
                raise SpecError(f"stop[{index}]", stop, "a text that is not empty")
        # A trie of the stop strings; a state is a prefix of one. The root is 0.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._shorter = self._suffix_states()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """Return the stop string that was found, if any."""
        return self._matched

    def push(self, text: str) -> StopResult:
        """Take the next piece of text; return what is certain now. After a match everything is swallowed."""
        if self._matched is not None:
            return StopResult("", self._matched)
        buffer = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            self._state = self._advance(character)
            self._matched = self._found[self._state]
            if self._matched is not None:
                self._held = ""
                return StopResult(buffer[: position - len(self._matched)], self._matched)
        certain = len(buffer) - self._depth[self._state]
        self._held = buffer[certain:]
        return StopResult(buffer[:certain], None)

    def finish(self) -> str:
        """Return what was held back: the text has ended, so it is no stop string. A match stays as it is."""
        rest, self._held, self._state = self._held, "", 0
        return rest

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = following
        self._found[state] = stop

    def _suffix_states(self) -> list[int]:
        """Return, for each state, that of its longest proper suffix which is a state too (Aho and Corasick, 1975).

        A state takes over the stop string of its suffix, unless it has its own, which is longer.
        """
        shorter = [0] * len(self._next)
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            if self._found[state] is None:
                self._found[state] = self._found[shorter[state]]
            for character, following in self._next[state].items():
                candidate = shorter[state]
                while candidate and character not in self._next[candidate]:
                    candidate = shorter[candidate]
                shorter[following] = self._next[candidate].get(character, 0)
                waiting.append(following)
        return shorter

    def _advance(self, character: str) -> int:
        state = self._state
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)
