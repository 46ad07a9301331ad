"""Writes gemma3_tokenizer.json: what other tokenizers make of the shared texts with Gemma 3's vocabulary.

`python -m tests.golden.make_gemma3_tokenizer FILE.gguf` in an environment with `sentencepiece`, `transformers` and
this package. SentencePiece gets a model file that is made of the GGUF file's pieces, scores and kinds; transformers
reads the GGUF file itself (about a minute). transformers knows no user-defined pieces: runs of blanks, which Gemma
has as such pieces, are merged pair by pair there; the texts where that shows are listed in `differs`.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from inferswarm.artifacts.gguf import MetadataValue, read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.strategies.text.vocabulary import SPACE_MARK
from tests.tokenizer_corpus import SHARED

GOLDEN = Path(__file__).with_name("gemma3_tokenizer.json")
BPE = 2


def varint(value: int) -> bytes:
    """Return a protocol buffer number."""
    low = value & 0x7F
    return bytes([low]) if value == low else bytes([low | 0x80]) + varint(value >> 7)


def field(number: int, value: bytes | int | float) -> bytes:
    """Return a protocol buffer field."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def model_file(metadata: dict[str, Any]) -> bytes:
    """Return a SentencePiece model of a GGUF file's vocabulary."""
    entries = zip(*(metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")), strict=True)
    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    pieces = b"".join(
        field(
            1,
            field(1, token.replace(" ", SPACE_MARK).encode())
            + field(2, float(score))
            + field(3, 2 if index == unknown else kind),
        )
        for index, (token, score, kind) in enumerate(entries)
    )
    trainer = field(3, BPE) + field(35, 1)
    ids = {40: "unknown", 41: "bos", 42: "eos", 43: "padding"}
    trainer += b"".join(field(number, metadata[f"tokenizer.ggml.{role}_token_id"]) for number, role in ids.items())
    normalizer = field(1, b"identity") + field(3, 0) + field(4, 0)
    return pieces + field(2, trainer) + field(3, normalizer)


def main() -> None:
    """Write the file beside this script."""
    import sentencepiece
    import transformers

    path = Path(sys.argv[1])
    with LocalFileOrigin(path) as origin:
        metadata: dict[str, MetadataValue] = dict(read_gguf(origin).metadata)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_file(metadata))
    ids = {about: processor.encode(text) for about, text in SHARED.items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").symlink_to(path.resolve())
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    theirs = {
        about: tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        for about, text in SHARED.items()
    }
    provenance = f"sentencepiece {sentencepiece.__version__} and transformers {transformers.__version__}"
    differs = sorted(about for about in ids if ids[about] != theirs[about])
    GOLDEN.write_text(json.dumps({"made_by": provenance, "differs": differs, "ids": ids}) + "\n")


if __name__ == "__main__":
    main()
