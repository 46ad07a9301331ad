"""Where boxes go: chains that turn around at the end of a row, grids, and rings. Pure geometry in points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from inferswarm.views.canvas import Point, Rect

MAX_IN_ONE_ROW = 4


def chain_rows(number: int) -> tuple[tuple[int, ...], ...]:
    """Return, row by row, the column of each member of a chain of `number` boxes.

    Up to four boxes are one row. More are an even number of rows that run to the right and back by turns, each
    beginning in the column where the last one ended: the end of the chain comes back to the side it began on.

    >>> chain_rows(3), chain_rows(5)
    (((0, 1, 2),), ((0, 1, 2), (2, 1)))
    """
    if number <= MAX_IN_ONE_ROW:
        return (tuple(range(number)),)
    num_rows = 2 * math.ceil(number / (2 * MAX_IN_ONE_ROW))
    rows: list[tuple[int, ...]] = []
    column = 0
    for row in range(num_rows):
        length = number // num_rows + (1 if row < number % num_rows else 0)
        step = 1 if row % 2 == 0 else -1
        columns = tuple(column + step * index for index in range(length))
        rows.append(columns)
        column = columns[-1]
    return tuple(rows)


def chain_boxes(sizes: Sequence[float], width: float, gap: Point, origin: Point) -> tuple[Rect, ...]:
    """Place a chain of boxes of one `width` with the heights `sizes`, from `origin` (upper left corner).

    `gap` is the space between columns and between rows. Boxes of one row are as tall as the tallest.
    """
    boxes: list[Rect] = []
    top = origin[1]
    for columns in chain_rows(len(sizes)):
        height = max(sizes[len(boxes) : len(boxes) + len(columns)])
        boxes.extend(Rect(origin[0] + column * (width + gap[0]), top, width, height) for column in columns)
        top += height + gap[1]
    return tuple(boxes)


def grid_boxes(
    sizes: Sequence[float], total_width: float, gap: float, origin: Point, least: float
) -> tuple[Rect, ...]:
    """Place boxes with the heights `sizes` in rows that fill `total_width`, each box at least `least` wide.

    Boxes are as wide as `grid_width` says, and boxes of one row are as tall as the tallest.
    """
    columns = _grid_columns(len(sizes), total_width, gap, least)
    width = grid_width(len(sizes), total_width, gap, least)
    boxes: list[Rect] = []
    top = origin[1]
    for first in range(0, len(sizes), columns):
        row = sizes[first : first + columns]
        boxes.extend(Rect(origin[0] + index * (width + gap), top, width, max(row)) for index in range(len(row)))
        top += max(row) + gap
    return tuple(boxes)


def grid_width(number: int, total_width: float, gap: float, least: float) -> float:
    """Return the width that `grid_boxes` gives each of `number` boxes."""
    columns = _grid_columns(number, total_width, gap, least)
    return (total_width - gap * (columns - 1)) / columns


def _grid_columns(number: int, total_width: float, gap: float, least: float) -> int:
    return max(1, min(number, int((total_width + gap) // (least + gap))))


def ring_boxes(
    sizes: Sequence[tuple[float, float]], gap: Point, linked: Iterable[tuple[int, int]], clearance: float = 10.0
) -> tuple[Rect, ...]:
    """Place boxes of the given widths and heights on an ellipse, the first at the left (at the top for three).

    The ellipse is as small as it can be with boxes at least `gap` apart (horizontally or vertically), and with every
    straight line between the middles of two `linked` boxes at least `clearance` away from all other boxes. Positions
    are such that the upper left corner of all boxes together is (0, 0).
    """
    number = len(sizes)
    pairs = tuple(linked)
    start = -math.pi / 2 if number == 3 else math.pi
    angles = [start + 2 * math.pi * index / number for index in range(number)]
    widest, tallest = max(width for width, _ in sizes), max(height for _, height in sizes)
    radius_x, radius_y = (widest + gap[0]) / 2, (tallest + gap[1]) / 2
    if number == 1:
        radius_x = radius_y = 0.0
    while True:
        boxes = tuple(
            Rect(radius_x * math.cos(angle) - width / 2, radius_y * math.sin(angle) - height / 2, width, height)
            for angle, (width, height) in zip(angles, sizes, strict=True)
        )
        if _apart(boxes, gap) and not any(
            crosses(boxes[a].center, boxes[b].center, other, clearance)
            for a, b in pairs
            for index, other in enumerate(boxes)
            if index not in (a, b)
        ):
            break
        radius_x, radius_y = radius_x * 1.04, radius_y * 1.04
    left, top = min(box.left for box in boxes), min(box.top for box in boxes)
    return tuple(Rect(box.left - left, box.top - top, box.width, box.height) for box in boxes)


def _apart(boxes: Sequence[Rect], gap: Point) -> bool:
    """Whether every two boxes have the gap between them in one of the two directions."""

    def separate(a: Rect, b: Rect) -> bool:
        horizontal = max(a.left, b.left) - min(a.right, b.right)
        vertical = max(a.top, b.top) - min(a.bottom, b.bottom)
        return horizontal >= gap[0] - 1e-6 or vertical >= gap[1] - 1e-6

    return all(separate(box, other) for index, box in enumerate(boxes) for other in boxes[:index])


def crosses(start: Point, end: Point, box: Rect, clearance: float = 0.0) -> bool:
    """Whether the straight line between two points comes closer to `box` than `clearance`."""
    low, high = 0.0, 1.0
    edges = ((box.left - clearance, box.right + clearance), (box.top - clearance, box.bottom + clearance))
    for axis in (0, 1):
        delta = end[axis] - start[axis]
        least, most = edges[axis]
        if abs(delta) < 1e-9:
            if not least < start[axis] < most:
                return False
            continue
        near, far = sorted(((least - start[axis]) / delta, (most - start[axis]) / delta))
        low, high = max(low, near), min(high, far)
        if low >= high:
            return False
    return True


def leaving_point(box: Rect, start: Point, toward: Point) -> Point:
    """Return where the straight line from `start`, inside `box`, to `toward` leaves the box."""
    delta_x, delta_y = toward[0] - start[0], toward[1] - start[1]
    shares = [1.0]
    if delta_x:
        shares.append(((box.right if delta_x > 0 else box.left) - start[0]) / delta_x)
    if delta_y:
        shares.append(((box.bottom if delta_y > 0 else box.top) - start[1]) / delta_y)
    share = min(shares)
    return start[0] + delta_x * share, start[1] + delta_y * share


def label_place(
    line: tuple[Point, Point], size: Point, taken: Sequence[Rect], lines: Sequence[tuple[Point, Point]]
) -> Rect:
    """Find a place for a label of `size` on its line, as near to the middle as it can be.

    It is free of what is `taken` by at least 3 points, and off the other `lines` where that can be; when nothing on
    the line is free, it is the middle.
    """
    start, end = line
    shares = [0.5 + sign * step / 40 for step in range(18) for sign in (1, -1)]
    candidates = [
        Rect(
            start[0] + share * (end[0] - start[0]) - size[0] / 2,
            start[1] + share * (end[1] - start[1]) - size[1] / 2,
            *size,
        )
        for share in shares
    ]
    free = [place for place in candidates if not any(place.overlaps(other, 3.0) for other in taken)]
    clear = [place for place in free if not any(crosses(a, b, place, 4.0) for a, b in lines)]
    return (clear or free or candidates)[0]
