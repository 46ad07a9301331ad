"""Gemma 3's real vocabulary of 262,144 pieces: golden ids of SentencePiece and transformers, and what it costs."""

import json
import time
from pathlib import Path

import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.strategies.catalog import resolve_model
from inferswarm.strategies.text.source import ModelText
from tests.tokenizer_corpus import SHARED

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "gemma3_tokenizer.json").read_text())


@pytest.fixture(scope="module")
def metadata():
    with LocalFileOrigin(resolve_model("gemma-3-270m")) as origin:
        return read_gguf(origin).metadata


@pytest.fixture(scope="module")
def text(metadata):
    return ModelText.from_gguf(metadata, "gemma-3-270m")


def test_ids_are_those_of_sentencepiece(text):
    """`differs` says where transformers, which made the other half of the golden file, has other ids."""
    for about, value in SHARED.items():
        assert list(text.codec.encode(value, add_bos=False)) == GOLDEN["ids"][about], about
    assert GOLDEN["differs"] == ["long spaces"]


def test_the_bytes_of_the_tokens_joined_are_the_text(text):
    for value in SHARED.values():
        ids = text.codec.encode(value, add_bos=False)
        assert b"".join(map(text.codec.token_bytes, ids)).decode() == value.replace("▁", " ")
        assert text.codec.decode(ids) == value.replace("▁", " ")


def test_the_beginning_goes_first_and_the_ends_are_known(text):
    assert text.codec.encode("hi")[0] == text.codec.bos_id
    assert {text.codec.token(index) for index in text.stop_ids} == {"<eos>", "<end_of_turn>"}
    assert not text.codec.strips_leading_space


def test_building_the_tokenizer_is_fast(metadata):
    began = time.process_time()
    ModelText.from_gguf(metadata, "gemma-3-270m")
    assert time.process_time() - began < 1.5
