"""How byte-level tokenizers cut a text into words before they merge bytes: a table by the names that GGUF uses.

A word is never merged with its neighbor, so a wrong expression silently gives other ids than the model was trained
on. A name that is not in the table is therefore refused, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family cuts a text.

    `cuts` are applied one after the other, each to every piece that the ones before left: an expression makes each
    of its matches a piece of its own; `DIGITS` does so with every numeral, `NUMBERS` with every run of numerals,
    `PUNCTUATION` with every run of punctuation, and `GPT2` with the words of GPT-2. What comes after `GPT2` sees
    bytes in the byte-level alphabet.
    """

    cuts: tuple[str, ...]
    normal_form: str | None = None
    """The Unicode normal form that a text is brought into first; only NFC occurs."""
    whole_words: bool = False
    """A word that is itself a token becomes that token, whatever the merges say."""
    adds_bos: bool = False
    """The beginning token goes first unless the file says otherwise."""

    def build(self) -> Any:
        """Return it as a `tokenizers` pre-tokenizer, which also spells bytes in the byte-level alphabet."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = []
        for cut in self.cuts:
            if cut == GPT2:
                steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
            elif cut == DIGITS:
                steps.append(pre_tokenizers.Digits(individual_digits=True))
            elif cut == NUMBERS:
                steps.append(pre_tokenizers.Digits(individual_digits=False))
            elif cut == PUNCTUATION:
                steps.append(pre_tokenizers.Punctuation(behavior="contiguous"))
            else:
                steps.append(pre_tokenizers.Split(Regex(cut), behavior="isolated"))
        if GPT2 not in self.cuts:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


GPT2: Final = "<gpt-2 words>"
DIGITS: Final = "<digits>"
NUMBERS: Final = "<numbers>"
PUNCTUATION: Final = "<punctuation>"

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_BLANKS}"
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_GPT4O = rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_BLANKS}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SYMBOLS_SLASH}|{_BLANKS}"
_SEED = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"""| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"""
)
_HAN = "\u4e00-\u9fa5"
_DEEPSEEK_HAN = f"[{_HAN}\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3_HAN = f"[{_HAN}\u3040-\u309f\u30a0-\u30ff]+"
# Written as escapes: several of these letters bound a range that their canonical equivalents are outside of.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_LETTERS = rf"\s?[{_CASED_LETTERS}]+"
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_GPT2_WORDS = PreTokenizer((GPT2,))
_DIGITS_GPT2 = PreTokenizer((DIGITS, GPT2))
_LLAMA3_RULE = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN2_RULE = PreTokenizer((_QWEN2,))
_GPT4O_RULE = PreTokenizer((_GPT4O,))
_DEEPSEEK3_RULE = PreTokenizer((r"\p{N}{1,3}", _DEEPSEEK3_HAN, _DEEPSEEK3))
_BAILING_RULE = PreTokenizer((_BAILING,))
_BLOOM_RULE = PreTokenizer((_BLOOM,))

PRE_TOKENIZERS: Final = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "phi-2", "jais", "trillion", "granite-docling", "exaone4"), _GPT2_WORDS),
        **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "modern-bert"), _GPT2_WORDS),
        **dict.fromkeys(("mpt", "olmo"), PreTokenizer((GPT2,), normal_form="NFC")),
        **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
        "command-r": PreTokenizer((DIGITS, GPT2), normal_form="NFC"),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"), _LLAMA3_RULE),
        **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _LLAMA3_RULE),
        **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
        **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), whole_words=True)),
        "qwen2": PreTokenizer((_QWEN2,), normal_form="NFC"),
        "qwen35": PreTokenizer((_QWEN35,), normal_form="NFC"),
        **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "kormo"), _QWEN2_RULE),
        **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_RULE),
        "tekken": PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
        "seed-coder": PreTokenizer((_SEED,)),
        **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_RULE),
        **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3_RULE),
        "deepseek-llm": PreTokenizer(
            (r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_PUNCTUATION, r"\s+$", _DEEPSEEK_HAN, r"\p{N}+")
        ),
        "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, r"\p{N}")),
        "falcon": PreTokenizer((PUNCTUATION, GPT2, NUMBERS, r"[0-9][0-9][0-9]")),
        "default": PreTokenizer((PUNCTUATION, GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _BLOOM_RULE),
        "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    }
)
"""Every pre-tokenizer that is known, by the name under which GGUF files ask for it."""
