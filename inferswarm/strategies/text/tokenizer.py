"""Text to token ids and back; no torch, no transformers.

`TextCodec` is one model's tokenizer, whatever it was stored as: GGUF metadata, `tokenizer.json` or a SentencePiece
file. Promises: `decode(encode(text))` is `text` as the model's own normalizer leaves it (most have none) whenever
the vocabulary can express it; a text that it cannot express is refused rather than shortened; special tokens in a
text are ordinary characters unless the caller asks otherwise. An end token is never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from inferswarm.artifacts.gguf import MetadataValue
from inferswarm.errors import SpecError
from inferswarm.strategies.text.vocabulary import CONTROL, END_ROLES, TURN_ENDS, UNKNOWN, USER_DEFINED, Vocabulary


class Engine(Protocol):
    """What turns text into ids. Safe to use from several threads."""

    def encode(self, text: str, parse_special: bool, at_start: bool) -> list[int]:
        """Return the ids of a Unicode text; `parse_special` turns names of control tokens into those tokens.

        `at_start` is false for a text that goes on behind a control token. Raises SpecError for characters that the
        vocabulary cannot express.
        """


class TextCodec:
    """The tokenizer of one model. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, engine: Engine) -> None:
        self.vocabulary = vocabulary
        self._engine = engine
        self._special_ids = frozenset(vocabulary.ids_of(CONTROL, UNKNOWN).values())

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, MetadataValue], source: str) -> TextCodec:
        """Build the codec of the model behind a GGUF header.

        Raises UnsupportedModel naming a kind of tokenizer or an option that is not built, ModelError for missing
        or contradictory data.
        """
        from inferswarm.strategies.text.gguf_vocabulary import read_gguf_vocabulary

        return cls(*read_gguf_vocabulary(metadata, source))

    @property
    def source(self) -> str:
        """Return where the vocabulary came from."""
        return self.vocabulary.source

    @property
    def size(self) -> int:
        """Return the number of ids that the vocabulary covers."""
        return len(self.vocabulary.tokens)

    @property
    def strips_leading_space(self) -> bool:
        """Return whether one space at the start of a decoded text is not text (SentencePiece puts it there)."""
        return self.vocabulary.strips_leading_space

    @property
    def bos_id(self) -> int | None:
        """Return the token that begins a text, if the model names one."""
        return self.vocabulary.named_ids.get("bos")

    @property
    def eos_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer: those with that role, and the special tokens that end a turn.

        Where `<|return|>` and `<|call|>` end a turn, `<|end|>` only ends one of its messages.
        """
        named = {self.vocabulary.named_ids[name] for name in END_ROLES if name in self.vocabulary.named_ids}
        marked = self.vocabulary.ids_of(CONTROL, USER_DEFINED)
        ends = {marked[name] for name in TURN_ENDS if name in marked}
        if "<|return|>" in marked and "<|call|>" in marked:
            ends -= {marked.get("<|end|>")}
        return frozenset(named | ends)

    def token(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it. Raises SpecError for an id that is not there."""
        return self.vocabulary.tokens[self._checked(token_id)]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for. Raises SpecError for an id that is not there."""
        return self.vocabulary.bytes_of(self._checked(token_id))

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is a control token, which is not part of any text."""
        return self._checked(token_id) in self._special_ids

    def special_names(self) -> Mapping[str, int]:
        """Return the tokens that `is_special` by name: all that `parse_special` may find in a text."""
        return self.vocabulary.ids_of(CONTROL, UNKNOWN)

    def encode(
        self, text: str, *, parse_special: bool = False, add_bos: bool | None = None, at_start: bool = True
    ) -> tuple[int, ...]:
        """Return the ids of `text`.

        With `parse_special`, names of control tokens in the text become those tokens (a rendered chat needs that;
        what a user typed does not). `add_bos` says whether the beginning token goes first; by default as the model
        declares, unless the text itself already begins with it. `at_start` is false for a part of a text that comes
        behind a control token: some tokenizers put a space only before a whole text. Raises SpecError for a text that
        is not Unicode, for characters that the vocabulary cannot express, and for `add_bos` without such a token.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SpecError("text", text[error.start : error.end], "Unicode text without lone surrogates") from error
        ids = self._engine.encode(text, parse_special, at_start)
        if add_bos is None:
            add_bos = self.vocabulary.add_bos and ids[:1] != [self.bos_id]
        if add_bos:
            if self.bos_id is None:
                raise SpecError("add_bos", True, "a model that names its beginning token")
            ids.insert(0, self.bos_id)
        return tuple(ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`, taken as a whole answer; bytes that are not UTF-8 become U+FFFD.

        With `skip_special`, control tokens are left out. One leading space is left out where the codec
        `strips_leading_space`. Raises SpecError for an id that is not there.
        """
        parts = (self.token_bytes(index) for index in ids if not (skip_special and self.is_special(index)))
        data = b"".join(parts)
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.size:
            raise SpecError("token id", token_id, f"0 to {self.size - 1}")
        return token_id
