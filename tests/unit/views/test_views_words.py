"""How documents are put into words, and how words are broken to a width."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.resources.types import declared, unknown
from inferswarm.views import labels
from inferswarm.views.typeset import TextStyle, drawable, paragraph, text_width, wrap_text
from tests.unit.views import sample_documents as sample

STYLE = TextStyle(9.0)


@pytest.mark.parametrize(
    ("unit_ids", "words"),
    [
        ((), "nothing"),
        (("head",), "head"),
        (("block.3",), "block 3"),
        (("block.3", "block.4"), "blocks 3–4"),
        (("block.3", "block.5"), "block 3 + block 5"),
        (("embedding", "block.0", "block.1", "head"), "embedding + blocks 0–1 + head"),
        (("a.0", "b.1", "b.2"), "a 0 + bs 1–2"),
        (("violet", "violet", "amber"), "violet + violet + amber"),
        (("x.1.0", "x.1.1"), "x.1s 0–1"),
    ],
)
def test_runs_of_units_become_ranges(unit_ids, words):
    assert labels.describe_units(unit_ids) == words


@pytest.mark.parametrize(
    ("rate", "words"),
    [(0.567, "0.57"), (9.87, "9.87"), (44.49, "44.5"), (999.6, "1,000"), (12345.6, "12,346")],
)
def test_rates_have_about_three_digits(rate, words):
    assert labels.format_rate(rate) == words


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (unknown("no driver"), "unknown"),
        (declared(0), "0 bit/s"),
        (declared(999), "999 bit/s"),
        (declared(100_000_000), "100 Mbit/s"),
        (declared(2_500_000_000), "2.5 Gbit/s"),
    ],
)
def test_link_rates_are_decimal_and_unknown_stays_unknown(fact, words):
    assert labels.bits_fact(fact) == words


def test_step_time_is_the_steps_addend_for_each_later_token():
    plan = sample.make_plan(sample.make_graph())
    steps = plan.workload.output_tokens - 1
    total = labels.term_seconds(plan, "stage-0", "step")
    assert total is not None
    assert labels.step_seconds(plan, "stage-0") == pytest.approx(total / steps)


def test_a_request_of_one_token_has_no_step_time():
    plan = sample.make_plan(sample.make_graph())
    single = msgspec.structs.replace(plan, workload=msgspec.structs.replace(plan.workload, output_tokens=1))
    assert labels.step_seconds(single, "stage-0") is None
    assert labels.feedback_seconds(single) is None


def test_what_was_not_predicted_is_none():
    plan = sample.make_plan(sample.make_graph())
    assert labels.term_seconds(plan, "stage-9", "step") is None
    assert labels.step_seconds(msgspec.structs.replace(plan, prediction=None), "stage-0") is None
    assert labels.optional_seconds(None) == "unknown"


@pytest.mark.parametrize(
    ("digest", "words"), [("sha256:" + "ab" * 32, "sha256:abababababab"), ("0123456789abcdef", "0123456789ab")]
)
def test_digests_are_shortened(digest, words):
    assert labels.short_digest(digest) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n c", "a b c"),
        ("木", "\N{REPLACEMENT CHARACTER}"),
        ("x\N{ZERO WIDTH SPACE}y\x00", "x\N{REPLACEMENT CHARACTER}y\N{REPLACEMENT CHARACTER}"),
        ("µ → Ω – …", "µ → Ω – …"),
    ],
)
def test_text_without_a_glyph_is_shown_as_missing(text, shown):
    assert drawable(text) == shown


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abcW .-_µ", max_size=80), st.integers(min_value=20, max_value=200))
def test_wrapped_lines_fit_and_lose_nothing(text, width):
    lines = wrap_text(text, STYLE, width)
    assert max(text_width(line, STYLE) for line in lines) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("max_lines", [1, 2, 3])
def test_cut_text_ends_in_an_ellipsis_within_the_width(max_lines):
    lines = wrap_text("some words that go on and on " * 5, STYLE, 80.0, max_lines)
    assert len(lines) == max_lines
    assert lines[-1].endswith(" …")
    assert max(text_width(line, STYLE) for line in lines) <= 80.0


def test_long_words_break_after_a_mark():
    assert wrap_text("a-node-with-a-long-name", STYLE, 75.0)[0].endswith("-")


def test_a_paragraph_is_as_tall_as_its_lines_and_the_space_before():
    item = paragraph("one two three four five six", STYLE, 60.0, space_before=4.0)
    assert item.height == pytest.approx(4.0 + len(item.lines) * 9.0 * 1.32)
    assert item.width == max(text_width(line, STYLE) for line in item.lines)
