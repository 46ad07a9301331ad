"""Text that arrives token by token is never broken and never taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import SpecError
from inferswarm.strategies.text.detokenizer import Detokenizer
from inferswarm.strategies.text.source import open_text
from inferswarm.strategies.text.tokenizer import TextCodec

REPLACEMENT = "\ufffd"
TEXTS = [
    "plain words",
    "naïve café — “x”",
    "👨‍👩‍👧‍👦 family 🇫🇷",
    "日本語のテキスト",
    "مرحبا بالعالم",
    "\U00020000 and \U0001d54f",
    "",
]
PIECES = ["▁", "▁▁", "a", "▁a", "é", "▁日本", "b▁", "x y"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="module")
def codec(smollm2_path):
    return open_text(smollm2_path).codec


@pytest.fixture(scope="module")
def piece_codec():
    """A small SentencePiece vocabulary: three control tokens, pieces with spaces in them, every byte."""
    tokens = ["<unk>", "<s>", "</s>", *PIECES, *BYTES]
    return TextCodec.from_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tuple(tokens),
            "tokenizer.ggml.scores": tuple(-float(index) for index in range(len(tokens))),
            "tokenizer.ggml.token_type": (2, 3, 3) + (1,) * len(PIECES) + (6,) * len(BYTES),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
        },
        "test",
    )


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_characters_and_join_to_the_text(codec, text):
    detokenizer, joined = Detokenizer(codec), ""
    for token_id in codec.encode(text):
        piece = detokenizer.push(token_id)
        assert REPLACEMENT not in piece
        joined += piece
        assert text.startswith(joined)
    assert detokenizer.finish() == ""
    assert joined == text


def test_a_token_inside_a_character_gives_nothing_yet(codec):
    ids = codec.encode("\U00020000")
    assert len(ids) > 1
    detokenizer = Detokenizer(codec)
    assert [detokenizer.push(token_id) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.push(ids[-1]) == "\U00020000"


def test_an_answer_that_ends_inside_a_character_ends_with_the_replacement(codec):
    ids = codec.encode("a\U00020000")
    detokenizer = Detokenizer(codec)
    joined = "".join(detokenizer.push(token_id) for token_id in ids[:-1])
    assert joined == "a"
    assert detokenizer.finish() == REPLACEMENT
    assert detokenizer.finish() == ""


def test_special_tokens_are_left_out_unless_asked_for(codec):
    ids = codec.encode("a<|im_end|>", parse_special=True)
    for skip, text in ((True, "a"), (False, "a<|im_end|>")):
        detokenizer = Detokenizer(codec, skip_special=skip)
        assert "".join(detokenizer.push(token_id) for token_id in ids) == text


def test_a_row_of_a_padded_vocabulary_shows_nothing(codec):
    detokenizer = Detokenizer(codec)
    pieces = [detokenizer.push(token_id) for token_id in (*codec.encode("a"), codec.size, *codec.encode("b"))]
    assert pieces == ["a", "", "b"]


def test_an_id_that_is_not_there_is_refused(codec):
    with pytest.raises(SpecError, match="token id"):
        Detokenizer(codec).push(-1)


def streamed(codec, ids, **options):
    detokenizer = Detokenizer(codec, **options)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    return "".join(pieces) + detokenizer.finish()


def ids_of(codec):
    return st.lists(st.one_of(st.integers(0, min(300, codec.size - 1)), st.integers(0, codec.size - 1)), max_size=30)


@pytest.mark.parametrize("kind", ["codec", "piece_codec"])
def test_any_sequence_of_ids_streams_to_what_decoding_it_at_once_gives(kind, request):
    codec = request.getfixturevalue(kind)

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(ids_of(codec), st.booleans())
    def check(ids, skip):
        assert streamed(codec, ids, skip_special=skip, at_start=True) == codec.decode(ids, skip_special=skip)

    check()


def test_the_space_before_a_continuation_is_text(piece_codec):
    names = {piece_codec.token(index): index for index in range(piece_codec.size)}
    prompt, answer = [names["▁a"]], [names["▁a"], names["é"]]
    assert piece_codec.decode(prompt) + streamed(piece_codec, answer) == piece_codec.decode(prompt + answer) == "a aé"
    assert streamed(piece_codec, answer, at_start=True) == piece_codec.decode(answer) == "aé"


def test_only_one_space_at_the_very_start_is_left_out(piece_codec):
    names = {piece_codec.token(index): index for index in range(piece_codec.size)}
    assert streamed(piece_codec, [names["</s>"], names["▁▁"], names["▁a"]], at_start=True) == "  a"
    assert streamed(piece_codec, [names["<0x20>"], names["▁a"]], at_start=True) == " a"
    assert streamed(piece_codec, [names["a"], names["▁a"]], at_start=True) == "a a"


def test_a_control_token_inside_a_character_neither_shows_nor_breaks_it(piece_codec):
    names = {piece_codec.token(index): index for index in range(piece_codec.size)}
    detokenizer = Detokenizer(piece_codec)
    inside = [names["<0xE2>"], names["</s>"], names["<0x82>"], names["<s>"]]
    assert [detokenizer.push(token_id) for token_id in inside] == [""] * 4
    assert detokenizer.push(names["<0xAC>"]) == "€"


def test_a_combining_character_is_not_waited_for(codec):
    detokenizer = Detokenizer(codec)
    assert "".join(detokenizer.push(token_id) for token_id in codec.encode("e")) == "e"
    assert "".join(detokenizer.push(token_id) for token_id in codec.encode("\u0301")) == "\u0301"
