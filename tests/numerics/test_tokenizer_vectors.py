"""Our tokenizers on the vocabularies of well-known models: the ids that each model's own tokenizer makes.

The vectors are fetched apart (`tests.vectors`); without them these tests fail and say how to get them.
"""

import dataclasses
import unicodedata

import pytest

from inferswarm.errors import UnsupportedModel
from inferswarm.strategies.text import gguf_vocabulary
from inferswarm.strategies.text.pretokenizers import PRE_TOKENIZERS
from inferswarm.strategies.text.source import open_text
from tests.tokenizer_corpus import SHARED
from tests.vectors import COMMAND, FOLDER, read_vectors

pytestmark = pytest.mark.slow

SUPPORTED = {
    "command-r": 46,
    "deepseek-coder": 46,
    "deepseek-llm": 46,
    "falcon": 46,
    "gpt-2": 46,
    "llama-bpe": 46,
    "llama-spm": 46,
    "mpt": 46,
    "phi-3": 46,
    "qwen2": 46,
    "qwen35": 50,
    "refact": 46,
    "starcoder": 46,
}
"""Vectors by vocabulary."""
REFUSED = {
    "aquila": "tokenizer.ggml.pre",
    "gpt-neox": "tokenizer.ggml.pre",
    "bert-bge": "tokenizer.ggml.model",
    "gemma-4": "tokenizer.ggml.model",
    "nomic-bert-moe": "tokenizer.ggml.add_eos_token",
}
"""What each of the others asks for that is not there."""
WITHOUT_VECTORS = {"baichuan"}
NO_WAY_BACK = {("falcon", "control characters"), ("phi-3", "looks special")}
"""Falcon has no token for some control characters; Phi-3 puts a space after `</s>`, always a token there."""


def path_of(name):
    path = FOLDER / f"{name}.gguf"
    if not path.exists():
        pytest.fail(f"{path} is missing; `{COMMAND}` fetches the vocabularies")
    return path


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_vector_has_the_ids_of_the_models_own_tokenizer(name, monkeypatch):
    codec = open_text(path_of(name)).codec
    # The vectors of qwen35 were made without the model's own normal form, which is in effect here.
    plain = {pre: dataclasses.replace(rule, normal_form=None) for pre, rule in PRE_TOKENIZERS.items()}
    monkeypatch.setattr(gguf_vocabulary, "PRE_TOKENIZERS", plain)
    as_it_is = open_text(path_of(name)).codec
    num_vectors = 0
    for text, ids in read_vectors(path_of(name)):
        composed = unicodedata.is_normalized("NFC", text)
        assert (codec if composed else as_it_is).encode(text, add_bos=False) == ids, text
        assert codec.decode(ids, skip_special=False) == text
        num_vectors += 1
    assert num_vectors == SUPPORTED[name]


@pytest.mark.parametrize("name", [*SUPPORTED, *WITHOUT_VECTORS])
def test_every_shared_text_comes_back_from_its_ids(name):
    codec = open_text(path_of(name)).codec
    for about, text in SHARED.items():
        if (name, about) not in NO_WAY_BACK:
            expected = text.replace("▁", back_space(codec))
            back = codec.decode(codec.encode(text, add_bos=False), skip_special=False)
            assert unicodedata.normalize("NFC", back) == unicodedata.normalize("NFC", expected)


def back_space(codec):
    """SentencePiece writes a space as U+2581 and cannot tell the two apart."""
    return " " if codec.strips_leading_space else "▁"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_built_is_refused_by_name(name):
    with pytest.raises(UnsupportedModel) as caught:
        open_text(path_of(name))
    assert caught.value.field == REFUSED[name]


def test_every_vocabulary_that_was_fetched_is_accounted_for():
    path_of("gpt-2")
    found = {path.stem for path in FOLDER.glob("*.gguf")}
    assert found == SUPPORTED.keys() | REFUSED.keys() | WITHOUT_VECTORS
