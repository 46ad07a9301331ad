"""Stop strings: the first to complete ends the answer, however the text is cut into pieces."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import SpecError
from inferswarm.strategies.text.stop import StopMatcher, StopResult


def cut(text, sizes):
    """Cut `text` into pieces of these sizes, then the rest; pieces may be empty."""
    pieces, done = [], 0
    for size in sizes:
        pieces.append(text[done : done + size])
        done += size
    return [*pieces, text[done:]]


def run(stops, pieces):
    matcher = StopMatcher(tuple(stops))
    given_out = [matcher.push(piece).text for piece in pieces]
    return "".join(given_out) + matcher.finish(), matcher.matched


def oracle(stops, text):
    """Try every end, then every stop string by length: text before the first match, and the match."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "matched"),
    [
        (["END"], ["a END b"], "a ", "END"),
        (["END"], ["a E", "N", "D b"], "a ", "END"),
        (["a"], ["abc"], "", "a"),
        (["\n\n"], ["x\n", "y\n", "\nz"], "x\ny", "\n\n"),
        (["abcd", "bc"], ["abcd"], "a", "bc"),
        (["c", "abc", "bc"], ["xabc"], "x", "abc"),
        (["aab"], ["aaab"], "a", "aab"),
        (["abab"], ["abaabab"], "aba", "abab"),
        (["é\u0301"], ["né", "\u0301e"], "n", "é\u0301"),
        (["👩\u200d👧"], ["👨👩", "\u200d", "👧👦"], "👨", "👩\u200d👧"),
        (["END"], ["the EN"], "the EN", None),
        ([], ["any", "thing"], "anything", None),
        (["x", "x"], ["axb"], "a", "x"),
    ],
)
def test_the_first_stop_string_to_complete_ends_the_text(stops, pieces, text, matched):
    assert run(stops, pieces) == (text, matched)


def test_only_what_may_become_a_stop_string_is_held_back():
    matcher = StopMatcher(("</s>", "\n\nUser"))
    assert matcher.push("one <") == StopResult("one ", None)
    assert matcher.push("b") == StopResult("<b", None)
    assert matcher.push("\n\n\nUs") == StopResult("\n", None)
    assert matcher.finish() == "\n\nUs"
    assert matcher.finish() == ""


def test_everything_after_a_match_is_swallowed():
    matcher = StopMatcher(("stop",))
    assert matcher.push("a stop b") == StopResult("a ", "stop")
    assert matcher.push("more") == StopResult("", "stop")
    assert (matcher.finish(), matcher.matched) == ("", "stop")


def test_an_empty_stop_string_is_refused():
    with pytest.raises(SpecError, match=r"stop\[1\]"):
        StopMatcher(("a", ""))


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.text("ab\né", min_size=1, max_size=5), max_size=4),
    st.text("ab\né", max_size=30),
    st.lists(st.integers(0, 4), max_size=20),
)
def test_any_cutting_gives_what_trying_every_position_gives(stops, text, sizes):
    assert run(stops, cut(text, sizes)) == oracle(stops, text)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4), st.text("ab", max_size=20))
def test_what_is_held_is_the_longest_ending_that_may_become_a_stop_string(stops, text):
    matcher = StopMatcher(tuple(stops))
    passed_on = "".join(matcher.push(character).text for character in text)
    if matcher.matched is None:
        endings = [text[start:] for start in range(len(text) + 1)]
        held = next(ending for ending in endings if any(stop.startswith(ending) for stop in stops))
        assert passed_on + held == text


def test_a_long_text_is_not_scanned_again_and_again():
    matcher = StopMatcher(("a" * 2_000 + "b",))
    started = time.process_time()
    assert matcher.push("a" * 400_000).text == "a" * 398_000
    assert time.process_time() - started < 3  # scanning back over each character would take minutes
