"""Inline SVG for reports of runs: the samples of a series in their order, and intervals beside their thresholds.

No script, no library, no file: text that stands in the page, in colors that suit light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.campaigns.statistics import Estimate
from inferswarm.views.markup import Markup, element, joined
from inferswarm.views.palette import ALARM, FAINT, NODE_COLORS

WIDTH, HEIGHT = 560.0, 64.0
INTERVAL_WIDTH, INTERVAL_HEIGHT = 180.0, 18.0
MARGIN = 4.0
MOST_DOTS = 400
"""More samples than that are drawn as a column for each group: from its least to its greatest."""
_COLOR = NODE_COLORS[0]


def samples_picture(values: Sequence[float], warm_up: Sequence[bool], middle: float | None) -> Markup:
    """Draw samples from left to right in their order; warm-ups are hollow, the median is a line across."""
    if not values:
        return Markup("")
    low, high = min(values), max(values)

    def y(value: float) -> float:
        share = 0.5 if high == low else (value - low) / (high - low)
        return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    def x(index: float) -> float:
        return MARGIN + (index + 0.5) / len(values) * (WIDTH - 2 * MARGIN)

    parts = []
    if middle is not None:
        parts.append(_line(MARGIN, y(middle), WIDTH - MARGIN, y(middle), FAINT, 1.0))
    if len(values) <= MOST_DOTS:
        for index, (value, is_warm_up) in enumerate(zip(values, warm_up, strict=True)):
            parts.append(_dot(x(index), y(value), is_warm_up))
    else:
        step = -(-len(values) // MOST_DOTS)
        for start in range(0, len(values), step):
            group = values[start : start + step]
            place = x(start + (len(group) - 1) / 2)
            parts.append(_line(place, y(min(group)) + 0.5, place, y(max(group)) - 0.5, _COLOR, 1.2))
    return _svg(WIDTH, HEIGHT, "samples in the order in which they were taken", parts)


def interval_picture(estimate: Estimate, at_least: float | None, at_most: float | None) -> Markup:
    """Draw an interval with its estimate on a line, thresholds as bars across it; missing bounds are dashed ends."""
    known = [value for value in (*estimate[:3], at_least, at_most) if value is not None]
    low, high = min(known), max(known)
    span = (high - low) or abs(high) or 1.0
    low, high = low - 0.08 * span, high + 0.08 * span

    def x(value: float) -> float:
        return MARGIN + (value - low) / (high - low) * (INTERVAL_WIDTH - 2 * MARGIN)

    middle = INTERVAL_HEIGHT / 2
    left = MARGIN if estimate.low is None else x(estimate.low)
    right = INTERVAL_WIDTH - MARGIN if estimate.high is None else x(estimate.high)
    dashed = "3 2" if estimate.low is None or estimate.high is None else ""
    parts = [_line(left, middle, right, middle, _COLOR, 2.5, dashed), _dot(x(estimate.value), middle, False, 3.0)]
    for threshold in (at_least, at_most):
        if threshold is not None:
            parts.append(_line(x(threshold), 1.0, x(threshold), INTERVAL_HEIGHT - 1.0, ALARM, 1.5))
    return _svg(INTERVAL_WIDTH, INTERVAL_HEIGHT, "the interval, and thresholds as bars across it", parts)


def _svg(width: float, height: float, title: str, parts: Sequence[Markup]) -> Markup:
    size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
    return element("svg", element("title", title), joined(parts), role="img", **size)


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: float, dashes: str = "") -> Markup:
    ends = {name: f"{value:.2f}" for name, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2))}
    style = {"stroke": color, "stroke-width": f"{width:g}", **({"stroke-dasharray": dashes} if dashes else {})}
    return element("line", **ends, **style)


def _dot(x: float, y: float, is_hollow: bool, radius: float = 2.0) -> Markup:
    fill = "none" if is_hollow else _COLOR
    place = {"cx": f"{x:.2f}", "cy": f"{y:.2f}", "r": f"{radius:g}"}
    return element("circle", **place, fill=fill, stroke=_COLOR)
