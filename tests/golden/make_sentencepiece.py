"""Writes sentencepiece.json: small SentencePiece models and what that library makes of the shared texts.

`python -m tests.golden.make_sentencepiece` in an environment with the package `sentencepiece`, which the tests
themselves do not need.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path
from typing import Any

from tests.tokenizer_corpus import SHARED

GOLDEN = Path(__file__).with_name("sentencepiece.json")
ROOT = Path(__file__).parents[2]
LOSSLESS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODELS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "split_digits": True, **LOSSLESS},
    "bpe without a prefix": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "user_defined_symbols": ["\n\n", "▁▁▁▁", "<|sep|>", "12"],
        **LOSSLESS,
    },
    "bpe across words": {
        "model_type": "bpe",
        "byte_fallback": True,
        "split_by_whitespace": False,
        "allow_whitespace_only_pieces": True,
        **LOSSLESS,
    },
    "unigram": {"model_type": "unigram", "byte_fallback": True, **LOSSLESS},
    "unigram normalized": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "nmt_nfkc"},
}


def make() -> dict[str, Any]:
    """Train every model on this repository's documents and encode every text."""
    import sentencepiece

    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "adr").glob("*.md"))[:8])
    corpus = [line[:2000] for line in text.splitlines() if line.strip()] + list(SHARED.values())
    found = {}
    for name, options in MODELS.items():
        file = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            model_writer=file,
            minloglevel=2,
            **{"vocab_size": 900, "character_coverage": 0.98, "num_threads": 1, "hard_vocab_limit": False, **options},
        )
        processor = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
        found[name] = {
            "model": base64.b64encode(zlib.compress(file.getvalue(), 9)).decode(),
            "ids": {key: processor.encode(text) for key, text in SHARED.items()},
            "decoded": {key: processor.decode(processor.encode(text)) for key, text in SHARED.items()},
        }
    return found


def main() -> None:
    """Write the file beside this script."""
    import sentencepiece

    provenance = f"tests/golden/make_sentencepiece.py with sentencepiece {sentencepiece.__version__}"
    GOLDEN.write_text(json.dumps({"made_by": provenance, "models": make()}, ensure_ascii=True, indent=None) + "\n")


if __name__ == "__main__":
    main()
