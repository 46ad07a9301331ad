"""The vocabulary of a model, however it was stored: tokens, their kinds, and the bytes that each stands for.

Two alphabets are in use. Byte-level vocabularies write every byte as one printable character. SentencePiece
vocabularies write text as it is, a space as U+2581, and single bytes as `<0x0A>`. This module knows both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
BYTE: Final = 6
KINDS: Final = (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
"""What a token may be, numbered as GGUF and SentencePiece files number it."""
SPACE_MARK: Final = "\u2581"
"""How SentencePiece writes a space."""
END_ROLES: Final = ("eos", "eot", "eom")
"""Roles of tokens that end an answer."""
TURN_ENDS: Final = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "[EOT]",
)
"""Names of special tokens that end a turn in every model that has them."""
_TURN_BEGINNINGS: Final = (
    "<|im_start|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "<|turn>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|START_OF_TURN_TOKEN|>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
_BYTE_NAME = re.compile(r"<0x([0-9A-F]{2})>")

ROLE_OF: Final[Mapping[str, str]] = MappingProxyType(
    {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
)
"""What settings and templates call a token with a role → the role in `Vocabulary.named_ids`."""

Spelling = Literal["byte-level", "sentencepiece", "plain"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A checked vocabulary. Ids are positions in `tokens`."""

    source: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    spelling: Spelling
    """How a normal token writes its bytes."""
    named_ids: Mapping[str, int]
    """`bos`, `eos`, `eot`, `unknown`, `padding` …: the ids that the model gives a role."""
    add_bos: bool
    """The model expects its beginning token before a text."""
    strips_leading_space: bool = False
    """A space is put before a text when it is encoded, so that a decoded text's leading space is not text."""

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; a special token stands for its own name in UTF-8."""
        token = self.tokens[token_id]
        kind = self.kinds[token_id]
        if kind == BYTE:
            return bytes([byte_of_name(token)])
        if self.spelling == "sentencepiece" and kind in (NORMAL, USER_DEFINED):
            return token.replace(SPACE_MARK, " ").encode()
        if self.spelling == "byte-level" and kind == NORMAL and BYTE_OF.keys() >= set(token):
            return bytes(BYTE_OF[character] for character in token)
        return token.encode()

    def ids_of(self, *kinds: int) -> dict[str, int]:
        """Return the tokens of certain kinds by name."""
        return {self.tokens[index]: index for index, kind in enumerate(self.kinds) if kind in kinds}


def with_turn_marks(
    tokens: Sequence[str], kinds: Sequence[int], named_ids: Mapping[str, int], ends: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the kinds with user-defined tokens that begin or end a turn as control tokens.

    Some files keep `<|im_end|>` and its like as user-defined tokens, which are text: an answer would show them, and a
    message that holds the name would end its own turn. `ends` are ids that end an answer besides those with such a
    role.
    """
    marks = {*TURN_ENDS, *_TURN_BEGINNINGS}
    ids = {*ends, *(named_ids[role] for role in END_ROLES if role in named_ids)}
    return tuple(
        CONTROL if kind == USER_DEFINED and (index in ids or tokens[index] in marks) else kind
        for index, kind in enumerate(kinds)
    )


class Splitter:
    """Cuts a text at the names of certain tokens, the longest name first where several begin."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        lengths: dict[str, set[int]] = {}
        for name in self._ids:
            lengths.setdefault(name[0], set()).add(len(name))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        characters = "".join(map(re.escape, self._lengths))
        self._begins = re.compile(f"[{characters}]") if characters else None

    def split(self, text: str) -> Iterable[tuple[str, int | None]]:
        """Yield (piece of text, None) and (name, its token id), in order, without empty pieces."""
        done = at = 0
        while self._begins is not None and (match := self._begins.search(text, at)):
            at = match.start()
            for length in self._lengths[match.group()]:
                name = text[at : at + length]
                if name in self._ids:
                    if at > done:
                        yield text[done:at], None
                    yield name, self._ids[name]
                    done = at = at + len(name)
                    break
            else:
                at += 1
        if done < len(text):
            yield text[done:], None


def byte_of_name(name: str) -> int:
    """Return the byte that a name such as `<0x0A>` stands for. Raises ValueError for any other name."""
    match = _BYTE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} does not name a byte as <0x00> to <0xFF>")
    return int(match[1], 16)


def _byte_alphabet() -> dict[str, int]:
    """Return character → byte: printable Latin-1 stands for itself, the other bytes for code points from 256 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF: Final[Mapping[str, int]] = _byte_alphabet()
"""The byte that each character of the byte-level alphabet stands for."""
