"""Text that arrives token by token: never a broken character, never one that is taken back."""

from __future__ import annotations

import codecs

from inferswarm.strategies.text.tokenizer import TextCodec


class Detokenizer:
    """Turns a growing sequence of ids into growing text.

    A token may end inside a character; its bytes are held back until the character is complete. The pieces that
    `push` and `finish` return, joined, are exactly `codec.decode(ids)`.
    """

    def __init__(self, codec: TextCodec, *, skip_special: bool = True) -> None:
        self._codec = codec
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is complete now (often one word, sometimes nothing).

        Raises SpecError for an id that is not there.
        """
        if self._skip_special and self._codec.is_special(token_id):
            return ""
        return self._decoder.decode(self._codec.token_bytes(token_id))

    def finish(self) -> str:
        """Return what is left: U+FFFD when the answer ends inside a character, otherwise nothing."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
