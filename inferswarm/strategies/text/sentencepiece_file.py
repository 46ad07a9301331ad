"""SentencePiece's own file, `tokenizer.model`: a protocol buffer, read by its wire format and nothing more.

Takes models of the kinds BPE and unigram. Promises: every field that could change how a text is cut is either used
or refused by name; a truncated or malformed file is a ModelError that says where.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from inferswarm.artifacts.origin import read_whole
from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.text.normalizing import TextOptions
from inferswarm.strategies.text.sentencepiece import MergeEngine, UnigramEngine
from inferswarm.strategies.text.tokenizer import Engine
from inferswarm.strategies.text.vocabulary import BYTE, KINDS, NORMAL, Vocabulary, byte_of_name, with_turn_marks

MAX_FILE_BYTES: Final = 64 * 2**20
"""A file that is longer is refused; the largest in use take about 5 MiB."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {_UNIGRAM: "unigram", _BPE: "BPE", 3: "word", 4: "char"}
_TRAINER_IDS = {40: "unknown", 41: "bos", 42: "eos", 43: "padding"}
_DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2, "padding": -1}


@dataclass(slots=True)
class SentencePieceFile:
    """What such a file says, as far as it bears on text."""

    source: str
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_type: int = _UNIGRAM
    named_ids: dict[str, int] = field(default_factory=lambda: dict(_DEFAULT_IDS))
    treats_space_as_suffix: bool = False
    add_dummy_prefix: bool = True
    remove_extra_spaces: bool = True
    escape_spaces: bool = True
    charsmap: bytes = b""

    @property
    def merges_by_score(self) -> bool:
        """Return whether the model is of the kind BPE."""
        return self.model_type == _BPE

    def build(self, *, add_bos: bool = False, ends: Collection[int] = ()) -> tuple[Vocabulary, Engine]:
        """Return the vocabulary and its engine; `ends` are ids that end an answer besides the file's own.

        Raises UnsupportedModel for kinds and options that are not built, ModelError for contradictory data.
        """
        if self.model_type not in (_UNIGRAM, _BPE):
            kind = _MODEL_TYPES.get(self.model_type, self.model_type)
            raise UnsupportedModel(self.source, "the SentencePiece model type", kind, "BPE or unigram")
        for name, value, needed in (
            ("treat_whitespace_as_suffix", self.treats_space_as_suffix, False),
            ("escape_whitespaces", self.escape_spaces, True),
        ):
            if value is not needed:
                raise UnsupportedModel(self.source, name, value, str(needed))
        self._check_pieces()
        vocabulary = Vocabulary(
            source=self.source,
            tokens=tuple(self.pieces),
            kinds=with_turn_marks(self.pieces, self.kinds, self.named_ids, ends),
            spelling="sentencepiece",
            named_ids={role: index for role, index in self.named_ids.items() if 0 <= index < len(self.pieces)},
            add_bos=add_bos,
            strips_leading_space=self.add_dummy_prefix,
        )
        options = TextOptions(
            add_space_prefix=self.add_dummy_prefix,
            remove_extra_spaces=self.remove_extra_spaces,
            charsmap=self.charsmap,
        )
        engine = MergeEngine if self.model_type == _BPE else UnigramEngine
        return vocabulary, engine(vocabulary, self.scores, options)

    def _check_pieces(self) -> None:
        if NORMAL not in self.kinds:
            raise ModelError(self.source, "no piece is of the kind normal")
        if "" in self.pieces:
            raise ModelError(self.source, f"piece {self.pieces.index('')} is empty")
        if num_doubled := len(self.pieces) - len(set(self.pieces)):
            raise ModelError(self.source, f"{num_doubled:,} pieces are in the file more than once")
        for index, (piece, kind) in enumerate(zip(self.pieces, self.kinds, strict=True)):
            if kind not in KINDS:
                raise UnsupportedModel(self.source, f"the type of piece {index}", kind, "types 1 to 6")
            if kind == BYTE:
                try:
                    byte_of_name(piece)
                except ValueError as error:
                    raise ModelError(self.source, f"piece {index} is of the kind byte, and {error}") from error


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Read a SentencePiece model file.

    Raises ModelError for anything that is not one, UnsupportedModel for a denormalizer, ArtifactError for a file that
    cannot be read.
    """
    source = str(path)
    found = SentencePieceFile(source)
    for number, kind, value in _fields(read_whole(path, MAX_FILE_BYTES), source, "the model"):
        if number == _PIECES:
            _read_piece(_message(kind, value, source, "a piece"), found)
        elif number == _TRAINER:
            _read_trainer(_message(kind, value, source, "the trainer's settings"), found)
        elif number == _NORMALIZER:
            _read_normalizer(_message(kind, value, source, "the normalizer's settings"), found)
        elif number == _DENORMALIZER:
            for inner, _, setting in _fields(_message(kind, value, source, "the denormalizer"), source, "it"):
                if inner == 2 and setting:
                    raise UnsupportedModel(source, "denormalizer_spec", "a table", "files without one")
    if not found.pieces:
        raise ModelError(source, "no pieces: this is not a SentencePiece model")
    return found


def _read_piece(data: bytes, found: SentencePieceFile) -> None:
    piece, score, kind = b"", 0.0, NORMAL
    for number, wire, value in _fields(data, found.source, f"piece {len(found.pieces)}"):
        if number == 1:
            piece = _message(wire, value, found.source, "a piece's text")
        elif number == 2 and wire == _FIXED32 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    try:
        found.pieces.append(piece.decode())
    except UnicodeDecodeError as error:
        raise ModelError(found.source, f"piece {len(found.pieces)} is not UTF-8") from error
    if math.isnan(score):
        raise ModelError(found.source, f"the score of piece {len(found.pieces) - 1} is not a number")
    found.scores.append(score)
    found.kinds.append(kind)


def _read_trainer(data: bytes, found: SentencePieceFile) -> None:
    for number, _, value in _fields(data, found.source, "the trainer's settings"):
        if not isinstance(value, int):
            continue
        if number == 3:
            found.model_type = value
        elif number == 24:
            found.treats_space_as_suffix = bool(value)
        elif number in _TRAINER_IDS:
            found.named_ids[_TRAINER_IDS[number]] = value if value < 2**31 else -1


def _read_normalizer(data: bytes, found: SentencePieceFile) -> None:
    for number, _, value in _fields(data, found.source, "the normalizer's settings"):
        if number == 2 and isinstance(value, bytes):
            found.charsmap = value
        elif number == 3:
            found.add_dummy_prefix = bool(value)
        elif number == 4:
            found.remove_extra_spaces = bool(value)
        elif number == 5:
            found.escape_spaces = bool(value)


def _message(kind: int, value: int | bytes, source: str, what: str) -> bytes:
    if kind != _BYTES or not isinstance(value, bytes):
        raise ModelError(source, f"{what} has the wrong wire type: this is not a SentencePiece model")
    return value


def _fields(data: bytes, source: str, what: str) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, wire type, value) of one message; numbers as int, everything else as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        result = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ModelError(source, f"{what} ends inside a number (at byte {at:,} of it)")
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            yield number, kind, varint()
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32) or number == 0:
            raise ModelError(source, f"{what} has an unknown field (at byte {at:,} of it)")
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind) or varint()
        if at + length > len(data):
            raise ModelError(source, f"{what} ends inside a field (at byte {at:,} of it)")
        yield number, kind, data[at : at + length]
        at += length
