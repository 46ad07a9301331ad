"""Drawings: nothing overlaps, nothing is cut off, and the same documents give the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from inferswarm.errors import SpecError
from inferswarm.planner.economics import PathCurve
from inferswarm.views.drawing import draw_graph, draw_plan, figure_png, figure_svg, plan_network, save_figure
from tests.unit.views import sample_documents as sample

LONG_NAMES = (
    "a-node-with-a-name-of-forty-characters-xx",
    "an_unbreakable_name_that_is_long_indeed_1",
    "W" * 40,
    "e$\\frac{x$mber",  # neither formula nor valid markup: a name
    "木-\N{GREEK CAPITAL LETTER OMEGA}-\t\N{ZERO WIDTH SPACE}fjord",
    "i" * 40,
)
LONG_REASON = (
    "its memory of 350 MB less 148 MB of measured base leaves 202 MB, and the smallest part that would shorten the "
    + "request-needs-more-than-that-" * 6
    + "; so it would add two paths of 42 µs. " * 8
)
DPIS = (72, 100, 150)


def boxes_of(figure: Figure, kind: str, dpi: int) -> dict[str, Bbox]:
    """Return the extents in points of the shapes with a gid of this kind."""
    figure.set_dpi(dpi)
    patches = figure.findobj(lambda artist: isinstance(artist, FancyBboxPatch) and kind in (artist.get_gid() or ""))
    return {
        patch.get_gid().partition(":")[2]: scaled(patch.get_path().get_extents(patch.get_transform()), dpi)
        for patch in patches
    }


def texts_of(figure: Figure, dpi: int) -> list[tuple[str, str, Bbox]]:
    """Return gid, text and extents in points of every text that is not empty."""
    figure.set_dpi(dpi)
    renderer = figure.canvas.get_renderer()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    return [(text.get_gid(), text.get_text(), scaled(text.get_window_extent(renderer), dpi)) for text in texts]


def scaled(box: Bbox, dpi: int) -> Bbox:
    return Bbox(box.get_points() * 72 / dpi)


def overlap(a: Bbox, b: Bbox, slack: float = 0.1) -> bool:
    return a.x0 < b.x1 - slack and b.x0 < a.x1 - slack and a.y0 < b.y1 - slack and b.y0 < a.y1 - slack


def inside(inner: Bbox, outer: Bbox, slack: float = 0.1) -> bool:
    return (
        inner.x0 >= outer.x0 - slack
        and inner.x1 <= outer.x1 + slack
        and inner.y0 >= outer.y0 - slack
        and inner.y1 <= outer.y1 + slack
    )


def assert_clean(figure: Figure) -> None:
    """Check every text and box of a drawing, as measured by the renderer at several resolutions."""
    paper = Bbox([[0, 0], figure.get_size_inches() * 72])
    for dpi in DPIS:
        boxes = boxes_of(figure, "box:", dpi)
        texts = texts_of(figure, dpi)
        assert texts
        outside = [text for _, text, box in texts if not inside(box, paper)]
        outside += [name for name, box in boxes.items() if not inside(box, paper)]
        assert outside == []
        assert [(a[1], b[1]) for a, b in combinations(texts, 2) if overlap(a[2], b[2])] == []
        assert [(a, b) for (a, x), (b, y) in combinations(boxes.items(), 2) if overlap(x, y)] == []
        for gid, text, box in texts:
            owner = gid.partition(":")[2]
            if owner in boxes:
                assert inside(box, boxes[owner]), f"{text!r} sticks out of {owner}"
            assert [name for name, other in boxes.items() if name != owner and overlap(box, other)] == []


def assert_lines_end_at_boxes(figure: Figure) -> None:
    """Check that no path or link runs through a box."""
    boxes = boxes_of(figure, "box:", 72)
    lines = figure.findobj(FancyArrowPatch)
    assert lines
    for line in lines:
        points = line.get_path().interpolated(60).transformed(line.get_transform()).vertices
        for name, box in boxes.items():
            hits = [p for p in points if box.x0 + 2 < p[0] < box.x1 - 2 and box.y0 + 2 < p[1] < box.y1 - 2]
            assert not hits, f"{line.get_gid()} runs through {name}"


def all_text(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.parametrize("names", [sample.NAMES, LONG_NAMES], ids=["short", "long"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_plan_drawings_are_clean(number, names):
    graph = sample.make_graph(names[:number])
    figure = draw_plan(sample.make_plan(graph, number), graph, problem=sample.make_problem())
    assert_clean(figure)
    if number > 1:
        assert_lines_end_at_boxes(figure)


@pytest.mark.parametrize("used", [0, 1, 2, 5])
def test_unused_nodes_with_long_reasons_are_clean(used):
    graph = sample.make_graph(LONG_NAMES)
    figure = draw_plan(sample.make_decision(graph, used, LONG_REASON), graph)
    assert_clean(figure)
    assert all_text(figure).count("its memory of 350 MB") == len(LONG_NAMES) - used


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "unmeasured"])
@pytest.mark.parametrize("names", [sample.NAMES, LONG_NAMES], ids=["short", "long"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
def test_graph_drawings_are_clean(number, names, measured):
    graph = sample.make_graph(names[:number])
    figure = draw_graph(graph, sample.make_paths(graph) if measured else ())
    assert_clean(figure)
    if number > 1:
        assert_lines_end_at_boxes(figure)


def test_graph_of_several_hosts_is_clean_and_keys_links_by_what_they_are():
    graph = sample.make_graph(sample.NAMES, hosts=("host-a", "host-b", "host-c"))
    figure = draw_graph(graph)
    assert_clean(figure)
    assert "ethernet · nominal 1 Gbit/s · not measured" in all_text(figure)
    assert "loopback · nominal unknown · not measured" in all_text(figure)


def test_a_graph_without_links_or_without_nodes_is_drawn():
    graph = sample.make_graph(sample.NAMES[:3])
    assert_clean(draw_graph(type(graph)(**{**{f: getattr(graph, f) for f in graph.__struct_fields__}, "links": ()})))
    empty = {"nodes": (), "compute_units": (), "memory_resources": (), "links": ()}
    assert_clean(draw_graph(type(graph)(swarm_id="empty", **empty)))


def test_directions_that_differ_are_two_lines():
    graph = sample.make_graph()
    paths = list(sample.make_paths(graph))
    slow = PathCurve(source=paths[1].source, target=paths[1].target, latency_seconds=0.9, seconds_per_byte=1e-6)
    same, different = draw_graph(graph, paths), draw_graph(graph, (paths[0], slow))
    assert len(same.findobj(FancyArrowPatch)) == 1
    assert len(different.findobj(FancyArrowPatch)) == 2
    assert "measured 900 ms, 1.00 MB/s" in all_text(different)
    assert_clean(different)


@pytest.mark.parametrize("number", [3, 4])
def test_directions_that_differ_are_clean_among_several_nodes(number):
    graph = sample.make_graph(sample.NAMES[:number])
    paths = tuple(
        PathCurve(source=path.source, target=path.target, latency_seconds=1e-5 * (index + 1), seconds_per_byte=0.0)
        for index, path in enumerate(sample.make_paths(graph))
    )
    figure = draw_graph(graph, paths)
    assert len(figure.findobj(FancyArrowPatch)) == number * (number - 1)
    assert_clean(figure)
    assert_lines_end_at_boxes(figure)


def test_plan_drawing_shows_what_the_plan_says():
    graph = sample.make_graph(sample.NAMES[:3])
    decision = sample.make_decision(graph, 2)
    words = all_text(draw_plan(decision, graph, problem=sample.make_problem()))
    for expected in (
        "2 participants · bf16 · 256 prompt + 128 output tokens",
        "first token after 672 ms (592 ms – 786 ms)",
        "stage-0 · CPU · 2 threads",
        "embedding + blocks 0–14",
        "blocks 15–29 + head",
        "170 MB at its peak, 232 MB to use",
        "148 MB reserved of 380 MB",
        "prompt 336 ms · step 11.2 ms",
        "1.15 kB a token",
        "5.50 ms a request",
        "next token · 4 B · 41.0 µs",
        "Not used cedar",
        decision.summary,
    ):
        assert expected in words


def test_unknowns_are_drawn_as_unknown():
    graph = sample.make_graph(capacities=(None,))
    words = all_text(draw_plan(sample.make_plan(graph, 2, priced=False), graph))
    assert "does not fit: needs 170 MB, has unknown" in words
    assert "no prediction: evidence is missing" in words
    assert "not priced" in words
    assert "RAM unknown · 148 MB reserved" in all_text(draw_graph(graph))


def test_a_decision_without_a_plan_says_so():
    graph = sample.make_graph()
    words = all_text(draw_plan(sample.make_decision(graph, 0), graph))
    assert "No feasible plan" in words
    assert "Not used" in words


def test_plan_and_graph_must_belong_together():
    graph, other = sample.make_graph(), sample.make_graph(sample.NAMES[:3])
    for subject in (sample.make_plan(graph), sample.make_decision(graph)):
        with pytest.raises(SpecError, match="graph"):
            draw_plan(subject, other)


def test_plan_and_problem_must_belong_together():
    graph, problem = sample.make_graph(), sample.make_problem()
    changed = type(problem)(**{**{f: getattr(problem, f) for f in problem.__struct_fields__}, "feedback_bytes": 8})
    with pytest.raises(SpecError, match="problem"):
        draw_plan(sample.make_plan(graph), graph, problem=changed)


def test_plan_network_is_the_route_and_the_way_back():
    graph = sample.make_graph(sample.NAMES[:3])
    network = plan_network(sample.make_plan(graph, 3), sample.make_problem())
    assert list(network.nodes) == ["stage-0", "stage-1", "stage-2"]
    assert [(a, b, data["kind"], data["payload_bytes"]) for a, b, data in network.edges(data=True)] == [
        ("stage-0", "stage-1", "path", sample.PAYLOAD_BYTES),
        ("stage-1", "stage-2", "path", sample.PAYLOAD_BYTES),
        ("stage-2", "stage-0", "feedback", 4),
    ]
    assert network.edges["stage-2", "stage-0"]["seconds"] == pytest.approx(41e-6)


def render_svgs() -> list[str]:
    graph = sample.make_graph(sample.NAMES[:3])
    figures = (draw_plan(sample.make_decision(graph), graph), draw_graph(graph, sample.make_paths(graph)))
    return [figure_svg(figure) for figure in figures]


def test_svg_is_the_same_in_another_process_and_needs_no_pyplot():
    code = (
        "import hashlib, sys\nfrom tests.unit.views.test_views_drawing import render_svgs\n"
        "digests = [hashlib.sha256(svg.encode()).hexdigest() for svg in render_svgs()]\n"
        "print(*digests, 'matplotlib.pyplot' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[3]
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    here = [hashlib.sha256(svg.encode()).hexdigest() for svg in render_svgs()]
    assert child.stdout.split() == [*here, "False"]


def test_the_settings_of_a_notebook_do_not_change_the_picture():
    plain = render_svgs()
    custom = {
        "font.family": "serif",
        "font.size": 30,
        "axes.facecolor": "black",
        "figure.facecolor": "black",
        "savefig.bbox": "tight",
        "savefig.facecolor": "red",
        "svg.fonttype": "none",
        "svg.hashsalt": "other",
    }
    with matplotlib.rc_context(custom):
        assert render_svgs() == plain


def test_saved_files_are_svg_and_png_at_150_dpi(tmp_path):
    graph = sample.make_graph()
    figure = draw_graph(graph)
    save_figure(figure, tmp_path / "graph.svg", tmp_path / "graph.png")
    png = (tmp_path / "graph.png").read_bytes()
    assert png == figure_png(figure)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    assert [width, height] == pytest.approx(list(figure.get_size_inches() * 150), abs=1)
    svg = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert svg == figure_svg(figure)
    assert "<dc:date>" not in svg
    assert "<text" not in svg  # glyphs are paths: no font is needed to read it


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError, match="missing"):
        save_figure(draw_graph(sample.make_graph()), tmp_path / "missing" / "a.svg", tmp_path / "a.png")
