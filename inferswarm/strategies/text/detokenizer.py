"""Text that arrives token by token: never a broken character, never one that is taken back.

What is held back is exactly the bytes of an incomplete UTF-8 character. Code points that a following one may join on
the screen (combining accents, emoji joined by U+200D) are not held: each is valid text by itself, joining the pieces
gives the same string, and the end of such a sequence is only known once the next one begins, so holding would delay
every character and could never be complete.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer asks of a codec: `TextCodec` is one."""

    @property
    def size(self) -> int:
        """How many ids have text or a name."""
        ...

    @property
    def strips_leading_space(self) -> bool:
        """Whether one space at the very beginning of a decoded sequence is not text (SentencePiece)."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for. Raises SpecError for an id that is not there."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is a control token. Raises SpecError for an id that is not there."""
        ...


class Detokenizer:
    """Turns a growing sequence of ids into growing text.

    A token may end inside a character; its bytes are held back until the character is complete, also when control
    tokens, which give no text, stand between its bytes. Bytes that are not UTF-8 become U+FFFD, as `codec.decode`
    writes them. The pieces that `push` and `finish` return, joined, are the decoded bytes of the ids.

    `at_start` says that the ids are a whole sequence: then the space that SentencePiece writes before a sequence's
    first word is left out, and the joined pieces are exactly `codec.decode(ids)`. An answer is a continuation, so a
    space before its first word is the space between it and the prompt, and stays: prompt + pieces is the whole text.
    """

    def __init__(self, codec: TokenBytes, *, skip_special: bool = True, at_start: bool = False) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._strip_space = at_start and codec.strips_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is complete now (often one word, sometimes nothing).

        Ids from the codec's `size` on stand for nothing: models pad their vocabularies beyond their tokenizers, and
        such a row can be drawn. Raises SpecError for a negative id.
        """
        if token_id >= self._codec.size:
            return ""
        if self._skip_special and self._codec.is_special(token_id):
            return ""
        return self._stripped(self._decoder.decode(self._codec.token_bytes(token_id)))

    def finish(self) -> str:
        """Return what is left: U+FFFD when the answer ends inside a character, otherwise nothing.

        Where stop strings are looked for, this is text like any other and goes through the `StopMatcher` first.
        """
        rest = self._stripped(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return rest

    def _stripped(self, text: str) -> str:
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
