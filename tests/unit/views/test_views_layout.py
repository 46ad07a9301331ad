"""Geometry of the drawings: chains that turn, grids that fill, rings whose lines run free."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.views.canvas import Rect
from inferswarm.views.layout import (
    chain_boxes,
    chain_rows,
    crosses,
    grid_boxes,
    grid_width,
    label_place,
    leaving_point,
    ring_boxes,
)


@pytest.mark.parametrize(
    ("number", "rows"),
    [
        (1, ((0,),)),
        (4, ((0, 1, 2, 3),)),
        (5, ((0, 1, 2), (2, 1))),
        (6, ((0, 1, 2), (2, 1, 0))),
        (9, ((0, 1, 2), (2, 1), (1, 2), (2, 1))),
    ],
)
def test_long_chains_turn_around(number, rows):
    assert chain_rows(number) == rows


@pytest.mark.parametrize("number", range(1, 41))
def test_neighbors_in_a_chain_are_neighbors_on_paper(number):
    places = [(row, column) for row, columns in enumerate(chain_rows(number)) for column in columns]
    assert len(set(places)) == len(places) == number
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in pairwise(places))
    rows = len(chain_rows(number))
    assert rows == 1 or rows % 2 == 0


def test_chain_boxes_of_a_row_are_as_tall_as_the_tallest():
    boxes = chain_boxes([10, 30, 20, 10, 50], 100, (40, 15), (5, 7))
    assert [box.height for box in boxes] == [30, 30, 30, 50, 50]
    assert boxes[0] == Rect(5, 7, 100, 30)
    assert boxes[3] == Rect(5 + 2 * 140, 7 + 30 + 15, 100, 50)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(min_value=5, max_value=90), min_size=1, max_size=12), st.floats(min_value=100, max_value=900)
)
def test_grid_boxes_fill_the_width_and_do_not_overlap(sizes, width):
    boxes = grid_boxes(sizes, width, 12.0, (3.0, 4.0), 100.0)
    assert all(box.height >= size for box, size in zip(boxes, sizes, strict=True))
    assert all(box.left >= 3.0 and box.right <= 3.0 + width + 1e-6 for box in boxes)
    assert boxes[0].width == pytest.approx(grid_width(len(sizes), width, 12.0, 100.0))
    assert not any(a.overlaps(b, 11.9) for a, b in combinations(boxes, 2))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(50, 250), st.floats(40, 200)), min_size=1, max_size=7))
def test_ring_boxes_keep_their_distance_and_lines_run_free(sizes):
    pairs = list(combinations(range(len(sizes)), 2))
    boxes = ring_boxes(sizes, (60.0, 40.0), pairs)
    assert [(box.width, box.height) for box in boxes] == sizes
    assert min(box.left for box in boxes) == pytest.approx(0)
    assert min(box.top for box in boxes) == pytest.approx(0)
    assert not any(a.overlaps(b, 39.9) for a, b in combinations(boxes, 2))
    for a, b in pairs:
        for index, other in enumerate(boxes):
            assert index in (a, b) or not crosses(boxes[a].center, boxes[b].center, other, 5.0)


@pytest.mark.parametrize(
    ("start", "end", "clearance", "crossed"),
    [
        ((-5, 5), (15, 5), 0, True),
        ((-5, 11), (15, 11), 0, False),
        ((-5, 11), (15, 11), 2, True),
        ((-5, 5), (-1, 5), 0, False),
        ((5, -5), (5, 15), 0, True),
        ((-5, 15), (25, 12), 0, False),
        ((3, 3), (4, 4), 0, True),
        ((-10, 5), (5, 20.1), 0, False),
    ],
)
def test_lines_that_cross_a_box_are_recognized(start, end, clearance, crossed):
    assert crosses(start, end, Rect(0, 0, 10, 10), clearance) is crossed
    assert crosses(end, start, Rect(0, 0, 10, 10), clearance) is crossed


@pytest.mark.parametrize(
    ("start", "toward", "point"),
    [
        ((5, 5), (25, 5), (10, 5)),
        ((5, 5), (5, -15), (5, 0)),
        ((5, 5), (25, 25), (10, 10)),
        ((2, 5), (-8, 15), (0, 7)),
        ((5, 5), (6, 6), (6, 6)),
    ],
)
def test_a_line_leaves_its_box_at_the_edge(start, toward, point):
    assert leaving_point(Rect(0, 0, 10, 10), start, toward) == pytest.approx(point)


LINE = ((0.0, 0.0), (400.0, 0.0))


@pytest.mark.parametrize(
    ("taken", "lines", "middle"),
    [
        ((), (), 200.0),
        ((Rect(190, -10, 20, 20),), (), 230.0),
        ((), (((200.0, -50.0), (200.0, 50.0)),), 220.0),
        ((Rect(190, -10, 60, 20),), (), 170.0),
        ((Rect(-9, -10, 420, 20),), (), 200.0),
        ((Rect(190, -10, 20, 20),), (((0.0, 0.0), (400.0, 1.0)),), 230.0),
    ],
    ids=["middle", "off a label", "off a line", "shorter way", "nothing free", "lines yield to labels"],
)
def test_a_label_is_as_near_to_the_middle_as_it_can_be(taken, lines, middle):
    assert label_place(LINE, (20.0, 14.0), taken, lines).center == pytest.approx((middle, 0.0))
