"""Text that arrives token by token is never broken and never taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import SpecError
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.text.detokenizer import Detokenizer

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


@pytest.fixture(scope="module")
def codec(smollm2_path):
    return DenseModel.open(smollm2_path).text


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


def test_an_id_that_is_not_there_is_refused(codec):
    with pytest.raises(SpecError, match="token id"):
        Detokenizer(codec).push(49_152)


def test_any_sequence_of_ids_streams_to_what_decoding_it_at_once_gives(codec):
    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, codec.size - 1)), max_size=30), st.booleans())
    def check(ids, skip):
        detokenizer = Detokenizer(codec, skip_special=skip)
        pieces = [detokenizer.push(token_id) for token_id in ids]
        assert "".join(pieces) + detokenizer.finish() == codec.decode(ids, skip_special=skip)

    check()
