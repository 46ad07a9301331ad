"""The tokenizer of a GGUF file's metadata: its vocabulary checked, and the engine that it asks for.

Takes `tokenizer.ggml.model` `gpt2` (byte-level BPE), `llama` (SentencePiece merges) and `t5` (SentencePiece
unigram). A key that could change a text and is not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from inferswarm.artifacts.gguf import MetadataValue
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.text.bytelevel import ByteLevelEngine
from inferswarm.strategies.text.normalizing import TextOptions
from inferswarm.strategies.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from inferswarm.strategies.text.sentencepiece import MergeEngine, UnigramEngine
from inferswarm.strategies.text.tokenizer import Engine
from inferswarm.strategies.text.vocabulary import (
    BYTE,
    CONTROL,
    KINDS,
    NORMAL,
    Vocabulary,
    byte_of_name,
    with_turn_marks,
)

_PREFIX = "tokenizer.ggml."
_MODELS: Final = ("gpt2", "llama", "t5")
_USED = {"model", "pre", "tokens", "token_type", "add_bos_token"}
_BYTE_LEVEL_USED = {"merges"}
_SENTENCEPIECE_USED = {"scores", "add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap"}
_UNREAD = {"scores", "token_type_count", "merges"}
"""Keys that are not consulted where they are not used: they only describe how a vocabulary came about."""
_MUST_BE_FALSE = {"add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"}
"""Options that would change a text or end a prompt."""
_LLAMA_ROLES = {"bos": 1, "eos": 2}
"""Ids that `llama` vocabularies have where the file names none."""

Element = TypeVar("Element", str, int, float)


def read_gguf_vocabulary(metadata: Mapping[str, MetadataValue], source: str) -> tuple[Vocabulary, Engine]:
    """Read the vocabulary out of a GGUF file's metadata and build its engine.

    Raises UnsupportedModel naming a kind of tokenizer, a pre-tokenizer or an option that is not built, ModelError
    for missing or contradictory data.
    """
    model = metadata.get(f"{_PREFIX}model")
    if model not in _MODELS:
        known = "gpt2 (byte-level BPE), llama (SentencePiece BPE), t5 (SentencePiece unigram)"
        raise UnsupportedModel(source, f"{_PREFIX}model", model, known)
    if model == "gpt2":
        return _byte_level(metadata, source)
    return _sentencepiece(metadata, source, merges=model == "llama")


def _byte_level(metadata: Mapping[str, MetadataValue], source: str) -> tuple[Vocabulary, Engine]:
    named_ids = _check_options(metadata, _USED | _BYTE_LEVEL_USED, source)
    tokens, kinds = _tokens(metadata, named_ids, source)
    rule = _rule(metadata, source)
    vocabulary = Vocabulary(
        source=source,
        tokens=tokens,
        kinds=kinds,
        spelling="byte-level",
        named_ids=named_ids,
        add_bos=_add_bos(metadata, named_ids, rule.adds_bos, source),
    )
    return vocabulary, ByteLevelEngine(vocabulary, _merges(metadata, tokens, source), rule)


def _sentencepiece(metadata: Mapping[str, MetadataValue], source: str, *, merges: bool) -> tuple[Vocabulary, Engine]:
    named_ids = _check_options(metadata, _USED | _SENTENCEPIECE_USED, source)
    tokens, kinds = _tokens(metadata, named_ids, source)
    if merges:
        for role, index in _LLAMA_ROLES.items():
            if index < len(kinds) and kinds[index] == CONTROL:
                named_ids.setdefault(role, index)
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == BYTE:
            try:
                byte_of_name(token)
            except ValueError as error:
                raise ModelError(source, f"token {index} is of the kind byte, and {error}") from error
    scores = _array(metadata, "scores", float, source)
    if len(scores) != len(tokens):
        raise ModelError(source, f"there are {len(tokens):,} tokens and {len(scores):,} scores")
    options = TextOptions(
        add_space_prefix=_flag(metadata, "add_space_prefix", True, source),
        remove_extra_spaces=_flag(metadata, "remove_extra_whitespaces", False, source),
        charsmap=_charsmap(metadata, source),
    )
    vocabulary = Vocabulary(
        source=source,
        tokens=tokens,
        kinds=kinds,
        spelling="sentencepiece",
        named_ids=named_ids,
        add_bos=_add_bos(metadata, named_ids, merges, source),
        strips_leading_space=options.add_space_prefix,
    )
    return vocabulary, (MergeEngine if merges else UnigramEngine)(vocabulary, scores, options)


def _rule(metadata: Mapping[str, MetadataValue], source: str) -> PreTokenizer:
    pre = metadata.get(f"{_PREFIX}pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise UnsupportedModel(source, f"{_PREFIX}pre", pre, ", ".join(PRE_TOKENIZERS))
    return PRE_TOKENIZERS[pre]


def _tokens(
    metadata: Mapping[str, MetadataValue], named_ids: Mapping[str, int], source: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Read tokens and kinds, and check them against each other and against the named ids."""
    tokens = _array(metadata, "tokens", str, source)
    kinds = _array(metadata, "token_type", int, source)
    if len(kinds) != len(tokens):
        raise ModelError(source, f"there are {len(tokens):,} tokens and {len(kinds):,} token types")
    if num_doubled := len(tokens) - len(set(tokens)):
        raise ModelError(source, f"{num_doubled:,} tokens are in the vocabulary more than once")
    if not set(kinds) <= set(KINDS):
        index = next(index for index, kind in enumerate(kinds) if kind not in KINDS)
        raise UnsupportedModel(
            source, f"the type of token {index}", kinds[index], "normal, unknown, control, user-defined, unused, byte"
        )
    if "" in tokens:
        raise ModelError(source, f"token {tokens.index('')} is empty")
    if NORMAL not in kinds:
        raise ModelError(source, "no token is of the kind normal")
    for name, index in named_ids.items():
        if index >= len(tokens):
            raise ModelError(source, f"{_PREFIX}{name}_token_id is {index:,}; there are {len(tokens):,} tokens")
    return tokens, with_turn_marks(tokens, kinds, named_ids)


def _check_options(metadata: Mapping[str, MetadataValue], used: set[str], source: str) -> dict[str, int]:
    """Refuse options that are not built; return the named ids."""
    named_ids = {}
    for key, value in metadata.items():
        name = key.removeprefix(_PREFIX)
        if name == key or name in used or name in _UNREAD:
            continue
        if name in _MUST_BE_FALSE:
            if value is not False:
                raise UnsupportedModel(source, key, value, "False")
        elif name.endswith("_token_id"):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError(source, f"{key} is {value!r}, needed a token's id")
            named_ids[name.removesuffix("_token_id")] = value
        else:
            shown = value if not isinstance(value, tuple) else f"{len(value)} values"
            raise UnsupportedModel(source, key, shown, "files without this key")
    return named_ids


def _flag(metadata: Mapping[str, MetadataValue], name: str, default: bool, source: str) -> bool:
    value = metadata.get(f"{_PREFIX}{name}", default)
    if not isinstance(value, bool):
        raise ModelError(source, f"{_PREFIX}{name} is {value!r}, needed true or false")
    return value


def _add_bos(metadata: Mapping[str, MetadataValue], named_ids: Mapping[str, int], default: bool, source: str) -> bool:
    """Return whether the beginning token goes first: as the file says, or as the kind of tokenizer does."""
    add_bos = _flag(metadata, "add_bos_token", default and "bos" in named_ids, source)
    if add_bos and "bos" not in named_ids:
        raise ModelError(source, f"{_PREFIX}add_bos_token is true and there is no bos_token_id")
    return add_bos


def _array(metadata: Mapping[str, MetadataValue], name: str, kind: type[Element], source: str) -> tuple[Element, ...]:
    value: Any = metadata.get(f"{_PREFIX}{name}")
    if not isinstance(value, tuple) or not value:
        raise ModelError(source, f"{_PREFIX}{name} is missing or empty")
    if set(map(type, value)) != {kind}:
        raise ModelError(source, f"{_PREFIX}{name} holds something that is not {kind.__name__}")
    return value


def _charsmap(metadata: Mapping[str, MetadataValue], source: str) -> bytes:
    """Return the table of replacements; files store its bytes as signed or unsigned numbers."""
    key = f"{_PREFIX}precompiled_charsmap"
    if key not in metadata:
        return b""
    return bytes(value & 0xFF for value in _array(metadata, "precompiled_charsmap", int, source))


def _merges(metadata: Mapping[str, MetadataValue], tokens: tuple[str, ...], source: str) -> list[tuple[str, str]]:
    """Read the merges; both parts and what they make must be tokens."""
    known = set(tokens)
    merges = []
    for index, merge in enumerate(_array(metadata, "merges", str, source)):
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise ModelError(source, f"merge {index}, {merge!r}, does not make a token out of two tokens")
        merges.append((left, right))
    return merges
