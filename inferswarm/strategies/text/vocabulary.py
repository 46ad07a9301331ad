"""The vocabulary of a byte-level model as GGUF metadata hold it: tokens, their kinds, merges, and named ids.

Byte-level vocabularies write every byte as one printable character; this module knows that alphabet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from inferswarm.artifacts.gguf import MetadataValue
from inferswarm.errors import ModelError, UnsupportedModel

NORMAL: Final = 1
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
_KINDS = (NORMAL, CONTROL, USER_DEFINED, UNUSED)
_PREFIX = "tokenizer.ggml."
_USED = {"model", "pre", "tokens", "token_type", "merges", "add_bos_token"}
_UNREAD = {"scores", "token_type_count"}
"""Keys that a byte-level BPE does not consult."""
_MUST_BE_FALSE = {"add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"}
"""Options that would change a text or end a prompt."""

Element = TypeVar("Element", str, int)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A checked byte-level vocabulary. Ids are positions in `tokens`."""

    source: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    named_ids: Mapping[str, int]
    """`bos`, `eos`, `eot` …: the ids that the file gives a role."""
    add_bos: bool
    """The model expects its beginning token before a text."""

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; a special token stands for its own name in UTF-8."""
        token = self.tokens[token_id]
        if self.kinds[token_id] != NORMAL:
            return token.encode()
        return bytes(BYTE_OF[character] for character in token)


def read_vocabulary(metadata: Mapping[str, MetadataValue], source: str) -> Vocabulary:
    """Read the vocabulary out of a GGUF file's metadata.

    Raises UnsupportedModel naming a kind of tokenizer or an option that is not built, ModelError for missing or
    contradictory data.
    """
    model = metadata.get(f"{_PREFIX}model")
    if model != "gpt2":
        raise UnsupportedModel(source, f"{_PREFIX}model", model, "gpt2 (byte-level BPE)")
    named_ids = _check_options(metadata, source)
    tokens = _array(metadata, "tokens", str, source)
    kinds = _array(metadata, "token_type", int, source)
    if len(kinds) != len(tokens):
        raise ModelError(source, f"there are {len(tokens):,} tokens and {len(kinds):,} token types")
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ModelError(source, f"{len(tokens) - len(ids):,} tokens are in the vocabulary more than once")
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind not in _KINDS:
            raise UnsupportedModel(
                source, f"the type of token {index}", kind, "normal, control, user-defined, unused"
            )
        if not token or (kind == NORMAL and not BYTE_OF.keys() >= set(token)):
            raise ModelError(source, f"token {index}, {token!r}, is not written in the byte-level alphabet")
    for name, index in named_ids.items():
        if index >= len(tokens):
            raise ModelError(source, f"{_PREFIX}{name}_token_id is {index:,}; there are {len(tokens):,} tokens")
    pre = metadata.get(f"{_PREFIX}pre")
    if not isinstance(pre, str):
        raise UnsupportedModel(source, f"{_PREFIX}pre", pre, "a file that names its pre-tokenizer")
    add_bos = metadata.get(f"{_PREFIX}add_bos_token", False)
    if not isinstance(add_bos, bool) or (add_bos and "bos" not in named_ids):
        raise ModelError(source, f"{_PREFIX}add_bos_token is {add_bos!r} and bos_token_id {named_ids.get('bos')}")
    return Vocabulary(
        source=source,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        merges=_merges(metadata, ids, source),
        named_ids=named_ids,
        add_bos=add_bos,
    )


def _byte_alphabet() -> dict[str, int]:
    """Return character → byte: printable Latin-1 stands for itself, the other bytes for code points from 256 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF: Final[Mapping[str, int]] = _byte_alphabet()
"""The byte that each character of the byte-level alphabet stands for."""


def _check_options(metadata: Mapping[str, MetadataValue], source: str) -> dict[str, int]:
    """Refuse options that are not built; return the named ids."""
    named_ids = {}
    for key, value in metadata.items():
        name = key.removeprefix(_PREFIX)
        if name == key or name in _USED or name in _UNREAD:
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


def _array(metadata: Mapping[str, MetadataValue], name: str, kind: type[Element], source: str) -> tuple[Element, ...]:
    value = metadata.get(f"{_PREFIX}{name}")
    if not isinstance(value, tuple) or not value:
        raise ModelError(source, f"{_PREFIX}{name} is missing or empty")
    elements = tuple(element for element in value if type(element) is kind)
    if len(elements) != len(value):
        raise ModelError(source, f"{_PREFIX}{name} holds something that is not {kind.__name__}")
    return elements


def _merges(
    metadata: Mapping[str, MetadataValue], ids: Mapping[str, int], source: str
) -> tuple[tuple[str, str], ...]:
    """Read the merges; both parts and what they make must be tokens."""
    merges = []
    for index, merge in enumerate(_array(metadata, "merges", str, source)):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelError(source, f"merge {index}, {merge!r}, does not make a token out of two tokens")
        merges.append((left, right))
    return tuple(merges)
