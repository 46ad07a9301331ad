"""Text for the terminal: aligned, at most 100 characters wide, and honest about what is unknown."""

from __future__ import annotations

import math

import msgspec
import pytest

from inferswarm.planner.plan import Interval
from inferswarm.views.text import (
    WIDTH,
    MeasuredRow,
    decision_text,
    format_table,
    graph_text,
    plan_text,
    prediction_versus_measured_text,
    summary_line,
)
from tests.unit.views import sample_documents as sample

LONG = "a-node-with-a-name-of-forty-characters-xx"


def line_with(text: str, word: str) -> list[str]:
    """Return the columns of the first line that begins with `word`."""
    return next(line.split() for line in text.splitlines() if line.startswith(word))


@pytest.mark.parametrize("names", [sample.NAMES, (LONG, LONG + "y", "cedar", "W" * 40)], ids=["short", "long"])
def test_no_line_is_wider_than_the_terminal(names):
    graph = sample.make_graph(names)
    decision = sample.make_decision(graph, 2, reason="too slow, " * 30)
    text = graph_text(graph) + plan_text(sample.make_plan(graph, len(names))) + decision_text(decision)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text == graph_text(graph) + plan_text(sample.make_plan(graph, len(names))) + decision_text(decision)
    for name in names:
        assert name in text.replace("\n", "") or all(part in text for part in (name[:20], name[-6:]))


def test_graph_text_lists_what_each_node_has():
    text = graph_text(sample.make_graph(hosts=("host-a", "host-b")))
    assert "amber           Node on host-a" in text
    assert "CPU · 2 threads · Xeon 8-core" in text
    assert "RAM 350 MB, 148 MB reserved, enforced by cgroup-v1" in text
    assert line_with(text, "birch  amber") == ["birch", "amber", "ethernet", "1", "Gbit/s"]


def test_plan_text_shows_memory_term_by_term_and_the_prediction():
    text = plan_text(sample.make_plan(sample.make_graph()))
    assert "first token after 672 ms (592 ms – 786 ms) · 44.5 tok/s (38.0 – 50.5)" in text
    assert "states 163 MB + mutable state 4.42 MB + scratch 2.56 MB; 380 MB less" in text
    assert "embedding + blocks 0–14" in text


def test_plan_text_says_what_does_not_fit_and_what_is_unknown():
    graph = sample.make_graph(capacities=(None,))
    text = plan_text(sample.make_plan(graph, 1, priced=False))
    assert "does not fit: states 269 MB" in text
    assert "281 MB of unknown" in text
    assert "no prediction: evidence is missing" in text


def test_decision_text_gives_every_reason():
    graph = sample.make_graph(sample.NAMES[:3])
    decision = msgspec.structs.replace(
        sample.make_decision(graph), overrides=("pinned to amber, birch",), missing_evidence=("path a → b",)
    )
    text = decision_text(decision)
    for reason in (*decision.overrides, *decision.missing_evidence, decision.search, decision.resources[2].reason):
        assert reason in text
    assert text.startswith("plan selected: ")
    assert decision_text(sample.make_decision(graph, 0)).startswith("no feasible plan: ")


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (
            MeasuredRow("x", "s", Interval(0.5, 1.0, 2.0), 1.1),
            ["1.00 s", "500 ms", "2.00 s", "1.10 s", "1.10", "yes"],
        ),
        (
            MeasuredRow("x", "s", Interval(0.5, 1.0, 2.0), 2.0),
            ["1.00 s", "500 ms", "2.00 s", "2.00 s", "2.00", "yes"],
        ),
        (MeasuredRow("x", "s", Interval(0.5, 1.0, 2.0), 2.1), ["1.00 s", "500 ms", "2.00 s", "2.10 s", "2.10", "no"]),
        (
            MeasuredRow("x", "tok/s", Interval(1, 2, 4), 3.0),
            ["2.00 tok/s", "1.00 tok/s", "4.00 tok/s", "3.00 tok/s", "1.50", "yes"],
        ),
        (
            MeasuredRow("x", "B", Interval(1e6, 2e6, 3e6), 2e6),
            ["2.00 MB", "1.00 MB", "3.00 MB", "2.00 MB", "1.00", "yes"],
        ),
        (MeasuredRow("x", "s", None, 1.0), ["unknown", "1.00 s", "unknown", "unknown"]),
        (
            MeasuredRow("x", "s", Interval(1, 1, 1), None),
            ["1.00 s", "1.00 s", "1.00 s", "unknown", "unknown", "unknown"],
        ),
        (
            MeasuredRow("x", "s", Interval(1, 1, 1), math.nan),
            ["1.00 s", "1.00 s", "1.00 s", "unknown", "unknown", "unknown"],
        ),
        (
            MeasuredRow("x", "s", Interval(1, 1, 1), math.inf),
            ["1.00 s", "1.00 s", "1.00 s", "unknown", "unknown", "unknown"],
        ),
        (MeasuredRow("x", "", Interval(0, 0, 0), 0.0), ["0.00", "0.00", "0.00", "0.00", "unknown", "yes"]),
    ],
)
def test_a_measurement_is_compared_with_its_bounds_and_unknown_is_never_within(row, cells):
    line = prediction_versus_measured_text([row]).splitlines()[-1]
    assert line.split() == ["x", *" ".join(cells).split()]


def test_table_wraps_the_last_column_first_and_keeps_numbers_whole():
    table = format_table(("name", "size", "why"), [("a", "12345", "because " * 20), ("b", "7", "")], frozenset({1}))
    lines = table.splitlines()
    assert lines[0] == "name   size  why"
    assert lines[2].startswith("a     12345  because")
    assert lines[3].startswith(" " * 13 + "because")
    assert lines[-1] == "b         7"
    assert max(map(len, lines)) <= WIDTH


def test_summary_counts_what_there_is():
    assert summary_line(sample.make_graph()) == "2 Nodes, 2 Compute Units, 2 Memory Resources, 2 links"
