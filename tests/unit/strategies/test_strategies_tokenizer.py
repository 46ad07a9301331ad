"""Text to ids and back: golden vectors of transformers, an independent BPE, and refusals."""

import itertools
import json
import sys
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.text.pretokenizers import PRE_TOKENIZERS
from inferswarm.strategies.text.source import open_text
from inferswarm.strategies.text.tokenizer import TextCodec
from tests.models import byte_characters, small_vocabulary

GOLDEN_FOLDER = Path(__file__).resolve().parents[2] / "golden"
GOLDEN = json.loads((GOLDEN_FOLDER / "smollm2_tokenizer.json").read_text())
PLAIN = [(case["text"], case["ids"]) for case in GOLDEN["cases"] + GOLDEN["isolated_numbers"]]
SPECIAL = [(case["text"], case["special_ids"]) for case in GOLDEN["cases"]]


def shorten(value):
    return ascii(value)[:40] if isinstance(value, str) else None


@pytest.fixture(scope="module")
def codec(smollm2_path):
    return open_text(smollm2_path).codec


@pytest.mark.parametrize(("text", "ids"), PLAIN, ids=shorten)
def test_plain_text_has_the_ids_of_the_golden_vectors(codec, text, ids):
    assert list(codec.encode(text)) == ids
    assert codec.decode(ids, skip_special=False) == text


@pytest.mark.parametrize(("text", "ids"), SPECIAL, ids=shorten)
def test_text_with_special_tokens_has_the_ids_of_the_golden_vectors(codec, text, ids):
    assert list(codec.encode(text, parse_special=True)) == ids
    assert codec.decode(ids, skip_special=False) == text


def test_special_tokens_are_ordinary_text_unless_asked_for(codec):
    text = "a<|im_end|>b"
    assert not any(codec.is_special(index) for index in codec.encode(text))
    assert [index for index in codec.encode(text, parse_special=True) if codec.is_special(index)] == [2]


def test_special_tokens_are_left_out_of_text_unless_asked_for(codec):
    ids = codec.encode("a<|im_end|>b", parse_special=True)
    assert codec.decode(ids) == "ab"
    assert codec.decode(ids, skip_special=False) == "a<|im_end|>b"


def test_the_ends_of_an_answer_are_known(codec):
    assert {codec.token(index) for index in codec.eos_ids} == {"<|im_end|>", "<|endoftext|>"}


@pytest.mark.parametrize("character", ["\x04", "\x1d", "\U00050000"])
def test_a_character_that_the_vocabulary_cannot_express_is_refused_and_named(codec, character):
    with pytest.raises(SpecError) as caught:
        codec.encode(f"fine {character} fine")
    assert (caught.value.field, caught.value.found) == ("text", character)


def test_every_token_that_is_a_byte_of_text_is_one_byte(codec):
    singles = {codec.token_bytes(index) for index in range(codec.size) if len(codec.token(index)) == 1}
    assert len(singles) == 256 - 21
    assert all(len(data) == 1 for data in singles)


def test_lone_surrogates_are_refused(codec):
    with pytest.raises(SpecError, match="surrogates"):
        codec.encode("a\ud800b")


@pytest.mark.parametrize("token_id", [-1, 49_152, 2**40])
def test_an_id_that_is_not_there_is_refused(codec, token_id):
    for use in (codec.token, codec.token_bytes, codec.is_special, lambda index: codec.decode([index])):
        with pytest.raises(SpecError, match="token id"):
            use(token_id)


def metadata(pre="smollm", size=400, **changes):
    tokens, types, merges = small_vocabulary(size)
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tuple(tokens),
        "token_type": tuple(types),
        "merges": tuple(merges),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (keys | changes).items() if value is not None}


GPT2 = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def independent_ids(text, pre):
    """BPE as it is defined: split, spell in the byte alphabet, then apply the earliest merge until none applies."""
    tokens, _, merges = small_vocabulary(400)
    order = {tuple(merge.split(" ")): index for index, merge in enumerate(merges)}
    pieces = [text] if pre == "gpt-2" else [piece for piece in regex.split(r"(\p{N})", text) if piece]
    ids = []
    for word in (match for piece in pieces for match in GPT2.findall(piece)):
        parts = [byte_characters()[byte] for byte in word.encode()]
        while known := [(order[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in order]:
            at = min(known)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [tokens.index(part) for part in parts]
    return ids


ALPHABET = st.one_of(
    st.sampled_from(list("etaoin 's tz019½٣\n\t é中🙂\u200d<|>")), st.characters(exclude_categories=["Cs"])
)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_any_text_is_tokenized_as_an_independent_bpe_does(pre):
    codec = TextCodec.from_metadata(metadata(pre), "test")

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(st.text(ALPHABET, max_size=40))
    def check(text):
        ids = codec.encode(text)
        # \x1c to \x1f are blanks to one Unicode table and not to the other; the real vocabularies lack them.
        if not set(text) & set("\x1c\x1d\x1e\x1f\x85"):
            assert list(ids) == independent_ids(text, pre)
        assert codec.decode(ids) == text

    check()


def test_the_beginning_token_goes_first_when_the_model_says_so():
    plain = TextCodec.from_metadata(metadata(), "test")
    begins = TextCodec.from_metadata(metadata(add_bos_token=True), "test")
    ids = plain.encode("hi")
    assert 1 not in ids
    assert begins.encode("hi") == (1, *ids)
    assert begins.encode("hi", add_bos=False) == ids
    assert plain.encode("hi", add_bos=True) == (1, *ids)
    assert plain.encode("") == ()


def test_the_beginning_token_is_not_doubled_when_the_text_begins_with_it():
    begins = TextCodec.from_metadata(metadata(add_bos_token=True), "test")
    assert begins.encode("<|im_start|>hi", parse_special=True).count(1) == 1


def test_a_beginning_token_that_the_model_lacks_cannot_be_asked_for():
    with pytest.raises(SpecError, match="add_bos"):
        TextCodec.from_metadata(metadata(bos_token_id=None), "test").encode("hi", add_bos=True)


def test_user_defined_tokens_are_always_tokens():
    tokens, types, _ = small_vocabulary(700)
    types[-1] = 4
    codec = TextCodec.from_metadata(metadata(size=700, token_type=tuple(types)), "test")
    assert codec.encode(f"a{tokens[-1]}b") == (*codec.encode("a"), 699, *codec.encode("b"))
    assert codec.decode([699]) == tokens[-1]


def test_the_longest_of_several_special_names_wins():
    tokens, types, _ = small_vocabulary(700)
    tokens[-2:], types[-2:] = ["<x>", "<x><y>"], [3, 3]
    codec = TextCodec.from_metadata(metadata(size=700, tokens=tuple(tokens), token_type=tuple(types)), "test")
    assert codec.encode("<x><y><x>", parse_special=True) == (699, 698)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model"),
        ({"model": "rwkv"}, "tokenizer.ggml.model"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"pre": "kimi-k2"}, "tokenizer.ggml.pre"),
        ({"pre": "qwen-next"}, "tokenizer.ggml.pre"),
        ({"pre": None}, "tokenizer.ggml.pre"),
        ({"add_eos_token": True}, "tokenizer.ggml.add_eos_token"),
        ({"add_space_prefix": True}, "tokenizer.ggml.add_space_prefix"),
        ({"remove_extra_whitespaces": True}, "tokenizer.ggml.remove_extra_whitespaces"),
        ({"precompiled_charsmap": (1, 2)}, "tokenizer.ggml.precompiled_charsmap"),
        ({"add_sep_token": True}, "tokenizer.ggml.add_sep_token"),
        ({"suppress_tokens": (1,)}, "tokenizer.ggml.suppress_tokens"),
        ({"token_type": (7,) + (1,) * 399}, "the type of token 0"),
    ],
)
def test_a_tokenizer_that_is_not_built_is_refused_by_name(changes, field):
    with pytest.raises(UnsupportedModel) as caught:
        TextCodec.from_metadata(metadata(**changes), "test")
    assert caught.value.field == field


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("dbrx", False), ("gpt-2", False)])
def test_a_word_that_is_a_token_goes_before_its_merges_only_where_the_family_says_so(pre, whole):
    tokens, types, _ = small_vocabulary(700)
    tokens[-1], types[-1] = "quux", 1
    codec = TextCodec.from_metadata(metadata(pre, 700, tokens=tuple(tokens), token_type=tuple(types)), "test")
    assert (codec.encode("quux", add_bos=False) == (699,)) is whole
    assert codec.decode(codec.encode("quux", add_bos=False)) == "quux"


@pytest.mark.parametrize(
    ("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("dbrx", False), ("qwen2", False)]
)
def test_the_beginning_token_goes_first_where_the_family_does_so_and_the_file_is_silent(pre, begins):
    assert (1 in TextCodec.from_metadata(metadata(pre), "test").encode("hi")) is begins
    assert 1 not in TextCodec.from_metadata(metadata(pre, add_bos_token=False), "test").encode("hi")
    assert 1 in TextCodec.from_metadata(metadata(pre, add_bos_token=True), "test").encode("hi")


def test_every_known_pre_tokenizer_can_be_built():
    for pre in PRE_TOKENIZERS:
        codec = TextCodec.from_metadata(metadata(pre), "test")
        assert codec.decode(codec.encode("It's 12345 naïve\n\n  tests")) == "It's 12345 naïve\n\n  tests"


def test_an_unknown_pre_tokenizer_is_refused_with_the_list_of_known_ones():
    with pytest.raises(UnsupportedModel) as caught:
        TextCodec.from_metadata(metadata("wonder-bpe"), "test")
    assert caught.value.found == "wonder-bpe"
    assert all(name in str(caught.value) for name in PRE_TOKENIZERS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": ()}, "tokens is missing or empty"),
        ({"token_type": (1, 1)}, "400 tokens and 2 token types"),
        ({"tokens": ("a",) * 400}, "more than once"),
        ({"tokens": (1,) * 400}, "not str"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ("a",)}, "merge 0, 'a'"),
        ({"merges": ("t h", "zz y")}, "merge 1, 'zz y'"),
        ({"eos_token_id": 400}, "eos_token_id is 400"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"bos_token_id": None, "add_bos_token": True}, "add_bos_token"),
        ({"tokens": ("", *small_vocabulary(400)[0][1:])}, "token 0 is empty"),
        ({"token_type": (3,) * 400}, "no token is of the kind normal"),
    ],
)
def test_contradictory_vocabularies_are_errors(changes, words):
    with pytest.raises(ModelError, match=words):
        TextCodec.from_metadata(metadata(**changes), "test")


@pytest.mark.slow
def test_the_golden_vectors_are_what_transformers_says_now(smollm2_path):
    sys.path.insert(0, str(GOLDEN_FOLDER))
    try:
        import make_smollm2_tokenizer
    finally:
        sys.path.remove(str(GOLDEN_FOLDER))
    fresh = json.loads(json.dumps(make_smollm2_tokenizer.make(smollm2_path)))
    assert fresh == {name: GOLDEN[name] for name in ("cases", "isolated_numbers", "chats")}
