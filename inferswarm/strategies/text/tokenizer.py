"""Text to token ids and back, built from a GGUF file's own metadata; no torch, no transformers.

Takes byte-level BPE vocabularies whose pre-tokenizer is one of `PRE_TOKENIZERS`. Promises: `decode(encode(text))` is
`text` whenever the vocabulary can express it; a text that it cannot express is refused rather than shortened;
special tokens in a text are ordinary characters unless the caller asks otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from inferswarm.artifacts.gguf import MetadataValue
from inferswarm.errors import SpecError, UnsupportedModel
from inferswarm.strategies.text.vocabulary import BYTE_OF, CONTROL, USER_DEFINED, Vocabulary, read_vocabulary

PRE_TOKENIZERS: Final = ("gpt-2", "smollm")
"""`gpt-2` splits by the GPT-2 expression; `smollm` isolates every number first."""
_END_NAMES: Final = ("eos", "eot", "eom")
_END_TOKENS: Final = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>")


class TextCodec:
    """The tokenizer of one model. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build the codec. Raises UnsupportedModel for a pre-tokenizer that is not built."""
        self.vocabulary = vocabulary
        self._bpe = _build_bpe(vocabulary)
        marked = {kind: _ids_of_kind(vocabulary, kind) for kind in (CONTROL, USER_DEFINED)}
        self._special_ids = frozenset(marked[CONTROL].values())
        self._always = _Splitter(marked[USER_DEFINED])
        self._with_special = _Splitter(marked[USER_DEFINED] | marked[CONTROL])
        alphabet = set(vocabulary.tokens)
        self._inexpressible = bytes(byte for character, byte in BYTE_OF.items() if character not in alphabet)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, MetadataValue], source: str) -> TextCodec:
        """Build the codec of the model behind a GGUF header.

        Raises UnsupportedModel naming a kind of tokenizer or an option that is not built, ModelError for missing
        or contradictory data.
        """
        return cls(read_vocabulary(metadata, source))

    @property
    def size(self) -> int:
        """Return the number of tokens that have text."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """Return the token that begins a text, if the model names one."""
        return self.vocabulary.named_ids.get("bos")

    @property
    def eos_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer: those with that role, and the special tokens that end a turn."""
        named = {self.vocabulary.named_ids[name] for name in _END_NAMES if name in self.vocabulary.named_ids}
        return frozenset(
            named | {index for index in self._special_ids if self.vocabulary.tokens[index] in _END_TOKENS}
        )

    def token(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it. Raises SpecError for an id that is not there."""
        return self.vocabulary.tokens[self._checked(token_id)]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for. Raises SpecError for an id that is not there."""
        return self.vocabulary.bytes_of(self._checked(token_id))

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is a control token, which is not part of any text."""
        return self._checked(token_id) in self._special_ids

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool | None = None) -> tuple[int, ...]:
        """Return the ids of `text`.

        With `parse_special`, names of control tokens in the text become those tokens (a rendered chat needs that;
        what a user typed does not). `add_bos` says whether the beginning token goes first; by default as the model
        declares, unless the text itself already begins with it. Raises SpecError for a text that is not Unicode,
        for characters that the vocabulary cannot express, and for `add_bos` without such a token.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SpecError("text", text[error.start : error.end], "Unicode text without lone surrogates") from error
        splitter = self._with_special if parse_special else self._always
        ids: list[int] = []
        for piece, token_id in splitter.split(text):
            if token_id is None:
                self._check_expressible(piece)
                ids += self._bpe.encode(piece, add_special_tokens=False).ids
            else:
                ids.append(token_id)
        if add_bos is None:
            add_bos = self.vocabulary.add_bos and ids[:1] != [self.bos_id]
        if add_bos:
            if self.bos_id is None:
                raise SpecError("add_bos", True, "a model that names its beginning token")
            ids.insert(0, self.bos_id)
        return tuple(ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        With `skip_special`, control tokens are left out. Raises SpecError for an id that is not there.
        """
        parts = (self.token_bytes(index) for index in ids if not (skip_special and self.is_special(index)))
        return b"".join(parts).decode("utf-8", errors="replace")

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.size:
            raise SpecError("token id", token_id, f"0 to {self.size - 1}")
        return token_id

    def _check_expressible(self, piece: str) -> None:
        """Refuse bytes without a token: the BPE would leave them out without a word."""
        data = piece.encode()
        if len(data.translate(None, self._inexpressible)) == len(data):
            return
        lost = next(character for character in piece if set(character.encode()) & set(self._inexpressible))
        raise SpecError("text", lost, f"characters that the vocabulary of {self.vocabulary.source} can express")


class _Splitter:
    """Cuts a text at the names of certain tokens, the longest name first where several begin."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        names = sorted(self._ids, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join(re.escape(name) for name in names)) if names else None

    def split(self, text: str) -> Iterable[tuple[str, int | None]]:
        """Yield (piece of text, None) and (name, its token id), in order, without empty pieces."""
        done = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() > done:
                yield text[done : match.start()], None
            yield match.group(), self._ids[match.group()]
            done = match.end()
        if done < len(text):
            yield text[done:], None


def _ids_of_kind(vocabulary: Vocabulary, kind: int) -> dict[str, int]:
    return {vocabulary.tokens[index]: index for index, found in enumerate(vocabulary.kinds) if found == kind}


def _build_bpe(vocabulary: Vocabulary) -> Any:
    """Return a `tokenizers.Tokenizer` for plain text: no special tokens, nothing added."""
    if vocabulary.pre not in PRE_TOKENIZERS:
        raise UnsupportedModel(vocabulary.source, "tokenizer.ggml.pre", vocabulary.pre, " or ".join(PRE_TOKENIZERS))
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if vocabulary.pre == "smollm":
        numbers = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([numbers, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    return tokenizer
