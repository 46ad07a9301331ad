"""`tokenizer.json`, the file of the `tokenizers` library: encoding by that library, and every token's bytes.

Takes models of the kinds BPE and unigram whose decoder is byte-level or writes spaces as U+2581. The file's own
normalizer and pre-tokenizer are used as they are. A decoder, a post-processor or an option that would make ids or
bytes other than what this module says is refused by name.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferswarm.artifacts.origin import read_whole
from inferswarm.errors import ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.text.native import NativeFaults
from inferswarm.strategies.text.vocabulary import (
    BYTE,
    BYTE_OF,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Spelling,
    Vocabulary,
    byte_of_name,
    with_turn_marks,
)

MAX_FILE_BYTES: Final = 256 * 2**20
"""A file that is longer is refused; the largest in use take about 35 MiB."""
_UNK_ID = re.compile(rb'(?<!\\)"unk_id"\s*:\s*(\d+)')


class TokenizerJsonEngine:
    """Encodes with the library. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary, unknown_id: int | None) -> None:
        self._tokenizer = tokenizer
        self._source = vocabulary.source
        self._unknown_id = unknown_id
        self._unknown_name = "" if unknown_id is None else vocabulary.tokens[unknown_id]
        self._lock = threading.Lock()
        self._pre_tokenizers = _by_place(tokenizer.pre_tokenizer)
        alphabet = set(vocabulary.tokens)
        known = vocabulary.spelling != "byte-level" or unknown_id is not None
        self._inexpressible = b"" if known else bytes(BYTE_OF[char] for char in BYTE_OF if char not in alphabet)

    def encode(self, text: str, parse_special: bool, at_start: bool = True) -> list[int]:
        """Return the ids of a text; errors as `Engine.encode`."""
        self._check_expressible(text)
        with self._lock:
            self._tokenizer.encode_special_tokens = not parse_special
            if self._pre_tokenizers is not None:
                self._tokenizer.pre_tokenizer = self._pre_tokenizers[at_start]
            found = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = found.ids
        if self._unknown_id is not None and self._unknown_id in ids:
            for index, (start, end) in zip(ids, found.offsets, strict=True):
                if index == self._unknown_id and text[start:end].strip() != self._unknown_name:
                    self._refuse(text[start:end])
        return ids

    def _check_expressible(self, text: str) -> None:
        """Refuse bytes without a token: the BPE would leave them out without a word."""
        if not self._inexpressible:
            return
        normalizer = self._tokenizer.normalizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        lost = set(normal.encode()) & set(self._inexpressible)
        if lost:
            self._refuse(next(character for character in normal if set(character.encode()) & lost))

    def _refuse(self, lost: str) -> None:
        raise SpecError("text", lost, f"characters that the vocabulary of {self._source} can express")


def _by_place(pre_tokenizer: Any) -> tuple[Any, Any] | None:
    """Return the pre-tokenizer for the parts of a text behind a control token, and that for its start.

    None when they are the same: only Metaspace's `first` puts a space before a whole text and before nothing else.
    """
    if pre_tokenizer is None:
        return None
    state = pre_tokenizer.__getstate__()
    never = state.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"')
    if never == state:
        return None
    behind = copy.deepcopy(pre_tokenizer)
    behind.__setstate__(never)
    return behind, pre_tokenizer


@dataclass(frozen=True, slots=True)
class TokenizerJson:
    """A tokenizer file that was understood, before a model's settings say which tokens have which role."""

    source: str
    tokenizer: Any
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    spelling: Spelling
    strips_leading_space: bool
    unknown_id: int | None
    first_token: str | None
    """The token that the file's post-processor puts before a text."""

    def build(
        self, named_ids: Mapping[str, int], *, add_bos: bool, ends: Collection[int] = ()
    ) -> tuple[Vocabulary, TokenizerJsonEngine]:
        """Return the vocabulary and its engine; `ends` are ids that end an answer besides those with such a role."""
        kinds = with_turn_marks(self.tokens, self.kinds, named_ids, ends)
        added = self.tokenizer.get_added_tokens_decoder()
        for index in (index for index, kind in enumerate(kinds) if kind != self.kinds[index]):
            added[index].special = True
            self.tokenizer.add_special_tokens([added[index]])
        vocabulary = Vocabulary(
            source=self.source,
            tokens=self.tokens,
            kinds=kinds,
            spelling=self.spelling,
            named_ids=named_ids,
            add_bos=add_bos,
            strips_leading_space=self.strips_leading_space,
        )
        return vocabulary, TokenizerJsonEngine(self.tokenizer, vocabulary, self.unknown_id)


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """Read a tokenizer file.

    Raises UnsupportedModel naming a model, decoder, post-processor or option that is not built, ModelError for a
    file that the library cannot use, ArtifactError for one that cannot be read.
    """
    from tokenizers import Tokenizer

    source = str(path)
    data = read_whole(path, MAX_FILE_BYTES)
    with NativeFaults(source, "not a tokenizer"):
        tokenizer: Any = Tokenizer.from_buffer(data)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    decoder = _steps(tokenizer.decoder, "decoders")
    spelling, strips = _spelling(decoder, source)
    unknown_id = _check_model(tokenizer, data, spelling, source)
    tokens, kinds = _tokens(tokenizer, spelling, unknown_id, source)
    return TokenizerJson(
        source=source,
        tokenizer=tokenizer,
        tokens=tokens,
        kinds=kinds,
        spelling=spelling,
        strips_leading_space=strips,
        unknown_id=unknown_id,
        first_token=_first_token(_steps(tokenizer.post_processor, "processors"), source),
    )


def _steps(component: Any, sequence_field: str) -> list[dict[str, Any]]:
    """Return the settings of a component, or of each of its parts when it is a sequence."""
    if component is None:
        return []
    state: dict[str, Any] = json.loads(component.__getstate__())
    if state["type"] == "Sequence":
        steps: list[dict[str, Any]] = state[sequence_field]
        return steps
    return [state]


def _spelling(steps: list[dict[str, Any]], source: str) -> tuple[Spelling, bool]:
    """Return how tokens write their bytes, and whether a decoded text loses a leading space."""
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return "byte-level", False
    strips = False
    marks = False
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and (step["pattern"], step["content"]) == ({"String": SPACE_MARK}, " "):
            marks = True
        elif kind == "Metaspace" and step["replacement"] == SPACE_MARK:
            marks = True
            strips = step["prepend_scheme"] != "never"
        elif kind == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0):
            strips = True
        elif kind not in ("ByteFallback", "Fuse"):
            marks = False
            break
    if not marks:
        raise UnsupportedModel(source, "decoder", names, "ByteLevel, Metaspace, or Replace U+2581 with ByteFallback")
    return "sentencepiece", strips


def _check_model(tokenizer: Any, data: bytes, spelling: Spelling, source: str) -> int | None:
    """Refuse kinds of model and options that are not built; return the id of the unknown token."""
    model = tokenizer.model
    kind = type(model).__name__
    if kind not in ("BPE", "Unigram"):
        raise UnsupportedModel(source, "model type", kind, "BPE, Unigram")
    if kind == "Unigram":
        match = _UNK_ID.search(data)
        if match is None:
            raise UnsupportedModel(source, "unk_id", None, "unigram models with an unknown token")
        return int(match[1])
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(model, option):
            raise UnsupportedModel(source, option, getattr(model, option), "none")
    unknown: int | None = None
    if model.unk_token is not None:
        unknown = tokenizer.token_to_id(model.unk_token)
        if unknown is None:
            raise ModelError(source, f"the unknown token {model.unk_token!r} is not in the vocabulary")
    if spelling == "sentencepiece" and unknown is None and not _falls_back(tokenizer):
        raise UnsupportedModel(source, "unk_token", None, "an unknown token, or byte_fallback with all 256 bytes")
    return unknown


def _falls_back(tokenizer: Any) -> bool:
    names = (f"<0x{byte:02X}>" for byte in range(256))
    return bool(tokenizer.model.byte_fallback) and all(tokenizer.token_to_id(name) is not None for name in names)


def _tokens(
    tokenizer: Any, spelling: Spelling, unknown_id: int | None, source: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return all tokens and their kinds by id; an id without a token is an unused one without text."""
    plain: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder()
    size = max([*plain.values(), *added, -1]) + 1
    if not 0 < size <= 2 * (len(plain) + len(added)):
        raise ModelError(source, f"{len(plain) + len(added):,} tokens have ids up to {size - 1:,}")
    tokens = [""] * size
    kinds = [UNUSED] * size
    for token, index in plain.items():
        tokens[index], kinds[index] = token, NORMAL
    if spelling == "sentencepiece":
        for byte in range(256):
            index = plain.get(f"<0x{byte:02X}>", -1)
            if index >= 0:
                assert byte_of_name(tokens[index]) == byte
                kinds[index] = BYTE
    if unknown_id is not None:
        kinds[unknown_id] = UNKNOWN
    for index, token in added.items():
        tokens[index], kinds[index] = token.content, CONTROL if token.special else USER_DEFINED
    return tuple(tokens), tuple(kinds)


def _first_token(steps: list[dict[str, Any]], source: str) -> str | None:
    """Return the token that the post-processor puts before a text; refuse those that do more."""
    first: str | None = None
    for step in steps:
        if step["type"] == "ByteLevel":
            continue
        if step["type"] != "TemplateProcessing":
            raise UnsupportedModel(source, "post_processor", step["type"], "ByteLevel, TemplateProcessing")
        parts = [part["SpecialToken"]["id"] if "SpecialToken" in part else None for part in step["single"]]
        if parts[-1:] != [None] or len(parts) > 2 or parts[:-1] == [None]:
            raise UnsupportedModel(source, "post_processor", parts, "at most one token, before the text")
        if len(parts) == 2:
            begins = step["special_tokens"][parts[0]]["tokens"]
            if len(begins) != 1:
                raise UnsupportedModel(source, "post_processor", begins, "at most one token, before the text")
            (first,) = begins
    return first
