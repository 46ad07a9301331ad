"""Byte-level BPE: a text is cut into words, spelled in the byte alphabet, and its bytes are merged by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferswarm.errors import SpecError
from inferswarm.strategies.text.native import NativeFaults
from inferswarm.strategies.text.pretokenizers import PreTokenizer
from inferswarm.strategies.text.vocabulary import BYTE_OF, CONTROL, NORMAL, USER_DEFINED, Splitter, Vocabulary


class ByteLevelEngine:
    """Merges by rank, done by the `tokenizers` library. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[tuple[str, str]], rule: PreTokenizer) -> None:
        """Build it; `merges` in the order of their ranks, both parts and their sum being tokens."""
        from tokenizers import Tokenizer, models, normalizers

        self._source = vocabulary.source
        ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        with NativeFaults(vocabulary.source, "the merges cannot be used"):
            self._bpe: Any = Tokenizer(models.BPE(vocab=ids, merges=list(merges), ignore_merges=rule.whole_words))
        self._bpe.pre_tokenizer = rule.build()
        if rule.normal_form == "NFC":
            self._bpe.normalizer = normalizers.NFC()
        self._always = Splitter(vocabulary.ids_of(USER_DEFINED))
        self._with_special = Splitter(vocabulary.ids_of(USER_DEFINED, CONTROL))
        alphabet = vocabulary.ids_of(NORMAL).keys()
        self._inexpressible = bytes(byte for character, byte in BYTE_OF.items() if character not in alphabet)

    def encode(self, text: str, parse_special: bool, at_start: bool = True) -> list[int]:
        """Return the ids of a text; errors as `Engine.encode`."""
        ids: list[int] = []
        for piece, token_id in (self._with_special if parse_special else self._always).split(text):
            if token_id is None:
                self._check_expressible(piece)
                ids += self._bpe.encode(piece, add_special_tokens=False).ids
            else:
                ids.append(token_id)
        return ids

    def _check_expressible(self, piece: str) -> None:
        """Refuse bytes without a token: the BPE would leave them out without a word."""
        if not self._inexpressible:
            return
        data = piece.encode()
        if len(data.translate(None, self._inexpressible)) == len(data):
            return
        lost = next(character for character in piece if set(character.encode()) & set(self._inexpressible))
        raise SpecError("text", lost, f"characters that the vocabulary of {self._source} can express")
