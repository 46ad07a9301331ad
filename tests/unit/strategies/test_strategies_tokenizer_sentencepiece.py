"""SentencePiece without its library: golden ids of that library, its file format, and the same models as GGUF."""

import base64
import dataclasses
import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.text.sentencepiece_file import read_sentencepiece
from inferswarm.strategies.text.tokenizer import TextCodec
from tests.tokenizer_corpus import SHARED

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "sentencepiece.json").read_text())["models"]
MERGING = [name for name in GOLDEN if name.startswith("bpe")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    found = {}
    for name, golden in GOLDEN.items():
        path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
        path.write_bytes(zlib.decompress(base64.b64decode(golden["model"])))
        found[name] = read_sentencepiece(path)
    return found


@pytest.fixture(scope="module")
def codecs(files):
    return {name: TextCodec(*file.build()) for name, file in files.items()}


def metadata(file, **changes):
    """Write what a SentencePiece file says as GGUF metadata."""
    keys = {
        "model": "llama" if file.merges_by_score else "t5",
        "pre": "default",
        "tokens": tuple(file.pieces),
        "scores": tuple(file.scores),
        "token_type": tuple(file.kinds),
        "bos_token_id": file.named_ids["bos"],
        "eos_token_id": file.named_ids["eos"],
        "unknown_token_id": file.named_ids["unknown"],
        "add_bos_token": False,
        "add_space_prefix": file.add_dummy_prefix,
        "remove_extra_whitespaces": file.remove_extra_spaces,
        "precompiled_charsmap": tuple(file.charsmap) or None,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (keys | changes).items() if value is not None}


@pytest.mark.parametrize("about", SHARED)
@pytest.mark.parametrize("name", GOLDEN)
def test_ids_and_text_are_those_of_the_library(codecs, name, about):
    codec, golden = codecs[name], GOLDEN[name]
    ids = golden["ids"][about]
    assert list(codec.encode(SHARED[about])) == ids
    assert codec.decode(ids) == golden["decoded"][about]


@pytest.mark.parametrize("name", GOLDEN)
def test_gguf_metadata_make_the_same_tokenizer_as_the_file(files, codecs, name):
    from_gguf = TextCodec.from_metadata(metadata(files[name]), "test")
    assert from_gguf.vocabulary == dataclasses.replace(codecs[name].vocabulary, source="test")
    for text in SHARED.values():
        assert from_gguf.encode(text) == codecs[name].encode(text)


@pytest.mark.parametrize("name", MERGING)
def test_the_bytes_of_the_tokens_joined_are_the_text(codecs, name):
    codec = codecs[name]
    for text in SHARED.values():
        data = b"".join(map(codec.token_bytes, codec.encode(text)))
        if codec.strips_leading_space and text:
            assert data[:1] == b" "
            data = data[1:]
        assert data.decode() == text.replace("▁", " ")


@pytest.mark.parametrize("name", [name for name in GOLDEN if name != "unigram normalized"])
def test_any_text_comes_back_from_its_ids(codecs, name):
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.text(st.one_of(st.sampled_from(list("the and  .\n12é中🙂")), st.characters(exclude_categories=["Cs"]))))
    def check(text):
        assert codecs[name].decode(codecs[name].encode(text)) == text.replace("▁", " ")

    check()


def test_long_words_are_merged_like_short_ones(codecs):
    """Words beyond those that are remembered, and words that are met twice, go the same way."""
    codec = codecs["bpe"]
    word = "antidisestablishmentarianism" * 20
    assert codec.encode(word) == codec.encode(word)
    joined = codec.encode(f"{word} of {word}")
    assert joined == (*codec.encode(word), *codec.encode("of"), *codec.encode(word))


def test_a_space_goes_before_each_text_that_follows_a_special_token(codecs):
    codec = codecs["bpe"]
    ids = codec.encode("<s>hello</s>world", parse_special=True)
    assert ids == (codec.bos_id, *codec.encode("hello"), *sorted(codec.eos_ids), *codec.encode("world"))
    assert codec.decode(ids) == "hello world"


def test_names_of_special_tokens_are_text_unless_asked_for(codecs):
    for codec in codecs.values():
        assert not any(codec.is_special(index) for index in codec.encode("<s>a</s><unk>"))
        assert codec.is_special(codec.encode("<s>a", parse_special=True)[0])


def without_bytes(file):
    kinds = tuple(5 if kind == 6 else kind for kind in file.kinds)
    return metadata(file, token_type=kinds)


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_a_character_without_a_piece_is_refused_where_there_are_no_byte_tokens(files, name):
    codec = TextCodec.from_metadata(without_bytes(files[name]), "test")
    assert codec.decode(codec.encode("the text")) == "the text"
    with pytest.raises(SpecError) as caught:
        codec.encode("the \U00012345 text")
    assert (caught.value.field, caught.value.found) == ("text", "\U00012345")


def tiny(scored, **changes):
    """Return a merging codec of the given pieces and scores, after the unknown token, `<s>` and `</s>`."""
    kinds = changes.pop("kinds", (1,) * len(scored))
    keys = {
        "model": "llama",
        "tokens": ("<unk>", "<s>", "</s>", *scored),
        "scores": (0.0, 0.0, 0.0, *scored.values()),
        "token_type": (2, 3, 3, *kinds),
        "add_space_prefix": False,
        "add_bos_token": False,
    }
    return TextCodec.from_metadata({f"tokenizer.ggml.{k}": v for k, v in (keys | changes).items()}, "test")


@pytest.mark.parametrize(
    ("scored", "text", "pieces"),
    [
        ({"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0}, "abc", ["a", "bc"]),
        ({"a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "bc": -2.0}, "abc", ["ab", "c"]),
        ({"a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "bc": -1.0}, "abc", ["ab", "c"]),
        ({"a": -9.0, "aa": -1.0}, "aaaaa", ["aa", "aa", "a"]),
        ({"a": -9.0, "b": -9.0, "ab": -1.0, "abab": -2.0}, "ababab", ["abab", "ab"]),
    ],
)
def test_the_best_pair_is_merged_first_and_the_leftmost_of_equals(scored, text, pieces):
    codec = tiny(scored)
    assert [codec.token(index) for index in codec.encode(text)] == pieces


def test_an_unused_piece_gives_way_to_what_it_was_made_of():
    scored = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "abc": -2.0}
    codec = tiny(scored, kinds=(1, 1, 1, 5, 1))
    assert [codec.token(index) for index in codec.encode("abc")] == ["abc"]
    assert [codec.token(index) for index in codec.encode("ab")] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"add_eos_token": True}, "tokenizer.ggml.add_eos_token"),
        ({"merges": ("a b",), "wonder": 1}, "tokenizer.ggml.wonder"),
    ],
)
def test_options_that_are_not_built_are_refused_by_name(files, changes, field):
    with pytest.raises(UnsupportedModel) as caught:
        TextCodec.from_metadata(metadata(files["bpe"], **changes), "test")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": (0.0,)}, "scores"),
        ({"scores": None}, "scores is missing"),
        ({"add_space_prefix": 1}, "add_space_prefix"),
        ({"precompiled_charsmap": (1, 2)}, "table of replacements"),
        ({"precompiled_charsmap": (4, 0, 0, 0, 255, 255, 255, 255, 0)}, "leads outside"),
    ],
)
def test_contradictory_metadata_are_errors(files, changes, words):
    with pytest.raises(ModelError, match=words):
        TextCodec.from_metadata(metadata(files["bpe"], **changes), "test").encode("text")


def field(number, value):
    """Return one protocol buffer field: bytes with their length, or a small number."""
    if isinstance(value, bytes):
        return bytes([number << 3 | 2]) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def varint(value):
    low = value & 0x7F
    return bytes([low]) if value == low else bytes([low | 0x80]) + varint(value >> 7)


PIECE = field(1, field(1, b"a"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no pieces"),
        (b"GGUF", "unknown field"),
        (PIECE[:-1], "ends inside a field"),
        (PIECE + b"\x80", "ends inside a number"),
        (field(1, field(1, b"\xff")), "not UTF-8"),
        (field(1, 5), "wire type"),
        (PIECE + field(2, field(3, 2)) + PIECE, "more than once"),
        (field(1, field(1, b"")), "empty"),
        (field(1, field(1, b"a") + field(3, 3)), "no piece is of the kind normal"),
        (PIECE + field(1, field(1, b"<0xZZ>") + field(3, 6)), "does not name a byte"),
        (field(1, field(1, b"a") + b"\x15\x00\x00\xc0\x7f"), "not a number"),
        (PIECE + field(2, field(3, 3)), "model type"),
        (PIECE + field(2, field(24, 1)), "treat_whitespace_as_suffix"),
        (PIECE + field(3, field(5, 0)), "escape_whitespaces"),
        (PIECE + field(5, field(2, b"table")), "denormalizer_spec"),
    ],
)
def test_a_file_that_is_no_usable_model_is_an_error(tmp_path, data, words):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words):
        read_sentencepiece(path).build()
