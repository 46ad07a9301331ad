"""Ours == transformers' on the shared texts: small tokenizers of every kind, trained here, read both ways.

Each byte-level tokenizer is stored twice: as `tokenizer.json` with the pre-tokenizer that the family publishes, which
transformers reads, and as GGUF metadata that only name it, which we read.
"""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from inferswarm.strategies.text.pretokenizers import PRE_TOKENIZERS
from inferswarm.strategies.text.source import ModelText
from inferswarm.strategies.text.tokenizer import TextCodec
from tests.tokenizer_corpus import SHARED

CORPUS = [
    *SHARED.values(),
    *(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_strategies_*.py"))[:3]),
]
SPECIAL = ("<|begin|>", "<|im_start|>", "<|im_end|>")
KEPT = ("<think>", "    ")
"""Added tokens that are not special: always tokens, and part of the text."""


def isolate(expression):
    """Return one published step that makes the matches of an expression pieces of their own."""
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def split(*expressions):
    """Return published steps: each expression isolates its matches; then bytes are spelled."""
    return [*map(isolate, expressions), BYTE_LEVEL | {"use_regex": False}]


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
NUMBERS = {"type": "Digits", "individual_digits": False}
PUBLISHED = {
    "gpt-2": [BYTE_LEVEL],
    "mpt": [BYTE_LEVEL],
    "smollm": [DIGITS, BYTE_LEVEL],
    "starcoder": [DIGITS, BYTE_LEVEL],
    "command-r": [DIGITS, BYTE_LEVEL],
    "falcon": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        BYTE_LEVEL,
        NUMBERS,
        isolate("[0-9][0-9][0-9]"),
    ],
    "llama-bpe": split(LLAMA_3),
    "dbrx": split(LLAMA_3),
    "qwen2": split(QWEN_2),
    "deepseek-r1-qwen": split(QWEN_2),
    "qwen35": split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "gpt-4o": split(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll"
        r"|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve"
        r"|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "tekken": split(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "deepseek-coder": split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": split(
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
"""The pre-tokenizers that families publish in their own `tokenizer.json`, by the name that GGUF files use."""
NORMALIZED = ("mpt", "command-r", "qwen2", "qwen35")
WHOLE_WORDS = ("llama-bpe", "tekken")


def train(pre):
    """Train a small byte-level tokenizer whose pre-tokenizer is the published one."""
    state = json.loads(Tokenizer(models.BPE(ignore_merges=pre in WHOLE_WORDS)).to_str())
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": PUBLISHED[pre]}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.ByteLevel()
    if pre in NORMALIZED:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return add_tokens(tokenizer)


def add_tokens(tokenizer):
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in KEPT])
    return tokenizer


def gguf_metadata(tokenizer, pre):
    """Write a byte-level tokenizer as GGUF metadata."""
    state = json.loads(tokenizer.to_str())
    added = {entry["id"]: 3 if entry["special"] else 4 for entry in state["added_tokens"]}
    names = {index: name for name, index in tokenizer.get_vocab().items()}
    tokens = tuple(names[index] for index in range(len(names)))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": tuple(added.get(index, 1) for index in range(len(tokens))),
        "tokenizer.ggml.merges": tuple(" ".join(merge) for merge in state["model"]["merges"]),
        "tokenizer.ggml.bos_token_id": tokens.index(SPECIAL[0]),
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.fixture(scope="module", params=PUBLISHED)
def pair(request):
    """Return (ours from GGUF metadata, transformers' from tokenizer.json)."""
    tokenizer = train(request.param)
    ours = TextCodec.from_metadata(gguf_metadata(tokenizer, request.param), "test")
    return ours, PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def plain_ids(theirs, text):
    return theirs.encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.mark.parametrize("pre", PUBLISHED)
def test_words_are_those_that_the_family_publishes(pre):
    """Ids alone may hide another cut: it shows only where a merge would have crossed it."""
    state = json.loads(Tokenizer(models.BPE()).to_str())
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": PUBLISHED[pre]}
    published = Tokenizer.from_str(json.dumps(state)).pre_tokenizer
    ours = PRE_TOKENIZERS[pre].build()
    for about, text in SHARED.items():
        assert ours.pre_tokenize_str(text) == published.pre_tokenize_str(text), about


def test_byte_level_ids_of_plain_text_are_those_of_transformers(pair):
    ours, theirs = pair
    for about, text in SHARED.items():
        assert list(ours.encode(text)) == plain_ids(theirs, text), about


def test_byte_level_ids_with_special_tokens_are_those_of_transformers(pair):
    ours, theirs = pair
    for about, text in SHARED.items():
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|><think>\n\n"
        assert list(ours.encode(chat, parse_special=True)) == theirs.encode(chat, add_special_tokens=False), about


def test_byte_level_text_is_that_of_transformers(pair):
    ours, theirs = pair
    for text in SHARED.values():
        ids = ours.encode(f"<|im_start|>{text}<think>", parse_special=True)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def replace_style():
    """Gemma's kind: spaces become U+2581, merges run over the whole text, unknown bytes are spelled."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def prepend_style():
    """Llama 2's kind: as Gemma's, with a space put before every text and taken off again."""
    tokenizer = replace_style()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def metaspace_style():
    """Mistral's later kind: one space before the first text only."""
    tokenizer = replace_style()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def byte_level_style():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram_style():
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0)], unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return tokenizer


def trainer_of(build):
    special = ["<unk>", "<s>", "</s>"]
    if build is unigram_style:
        return trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False)
    if build is byte_level_style:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return trainers.BpeTrainer(
            vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    special += [f"<0x{byte:02X}>" for byte in range(256)]
    return trainers.BpeTrainer(vocab_size=900, special_tokens=special, limit_alphabet=100, show_progress=False)


STYLES = (byte_level_style, replace_style, prepend_style, metaspace_style, unigram_style)


@pytest.fixture(scope="module", params=STYLES, ids=lambda build: build.__name__)
def directory(request, tmp_path_factory):
    """Write a model directory's text files and return (its path, how it is built)."""
    build = request.param
    tokenizer = build()
    tokenizer.train_from_iterator([text[:400] for text in CORPUS], trainer_of(build))
    state = json.loads(tokenizer.to_str())
    # Byte tokens are pieces, not special tokens; the trainer knows no other way to put them in.
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = add_tokens(Tokenizer.from_str(json.dumps(state)))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    path = tmp_path_factory.mktemp("model")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)
    return path, build


@pytest.fixture(scope="module")
def both(directory):
    path, build = directory
    return ModelText.from_directory(path).codec, PreTrainedTokenizerFast.from_pretrained(path), build


def texts_of(build):
    """The unigram model trained here has no byte tokens: it is asked only for what it can express."""
    if build is unigram_style:
        return [SHARED[about] for about in ("empty", "spaces", "digits", "punctuation", "sentence", "json", "case")]
    return list(SHARED.values())


def test_directory_ids_are_those_of_transformers(both):
    ours, theirs, build = both
    for text in texts_of(build):
        assert list(ours.encode(text, add_bos=False)) == plain_ids(theirs, text)
        assert list(ours.encode(text)) == theirs.encode(text, split_special_tokens=True)
        chat = f"<|im_start|>{text}<|im_end|><think>"
        assert list(ours.encode(chat, parse_special=True)) == theirs.encode(chat)


def test_directory_text_is_that_of_transformers(both):
    ours, theirs, build = both
    for text in texts_of(build):
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_the_bytes_of_a_directorys_tokens_joined_are_the_text(both):
    ours, theirs, build = both
    for text in texts_of(build):
        ids = ours.encode(text, add_bos=False)
        data = b"".join(map(ours.token_bytes, ids))
        stripped = data.removeprefix(b" ") if ours.strips_leading_space else data
        assert stripped.decode() == theirs.decode(ids, clean_up_tokenization_spaces=False)


def test_one_leading_space_is_not_text_exactly_where_one_was_put(both):
    ours, _, build = both
    assert ours.strips_leading_space is (build in (prepend_style, metaspace_style, unigram_style))
