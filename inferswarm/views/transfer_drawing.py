"""The picture of transfers: for each realization that moved bytes, how much had come from each source, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.canvas import Canvas, Point, Rect
from inferswarm.views.palette import CARD_EDGE, MUTED, NODE_COLORS, PANEL
from inferswarm.views.typeset import TextStyle, paragraph, text_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 24.0
WIDTH = 620.0
PANEL_HEIGHT = 120.0
LEGEND_HEIGHT = 22.0
MOST_PANELS = 8
_TITLE = TextStyle(13.5, weight="bold")
_PANEL = TextStyle(9.5, weight="bold")
_LABEL = TextStyle(8.4, MUTED)


class Arrival(NamedTuple):
    """Bytes that had come from a source, some seconds after the first ones."""

    seconds: float
    source: str
    bytes: int


class Timeline(NamedTuple):
    """One realization: what it is called, and its arrivals in their order."""

    title: str
    arrivals: tuple[Arrival, ...]


def draw_transfers(timelines: Sequence[Timeline]) -> Figure:
    """Draw timelines below each other, the last ones where there are many; each source has one color."""
    shown = [item for item in timelines if item.arrivals][-MOST_PANELS:]
    sources = sorted({arrival.source for item in shown for arrival in item.arrivals})
    colors = {source: NODE_COLORS[index % len(NODE_COLORS)] for index, source in enumerate(sources)}
    head = (paragraph("Model bytes by source, as they came" if shown else "No model bytes moved", _TITLE, WIDTH),)
    each = PANEL_HEIGHT + 2 * LEGEND_HEIGHT
    top = MARGIN + 24.0
    canvas = Canvas(WIDTH + 2 * MARGIN, top + each * len(shown) + LEGEND_HEIGHT + MARGIN)
    canvas.paragraphs(MARGIN, MARGIN - 4.0, head, "label:title")
    for index, item in enumerate(shown):
        _panel(canvas, item, top + index * each, colors, index)
    left = MARGIN
    for source, color in colors.items():
        place = top + each * len(shown)
        canvas.box(Rect(left, place + 3.0, 9.0, 9.0), color, radius=2.0, gid=f"key:{source}")
        canvas.text(left + 14.0, place, source, _LABEL, "left", f"label:key:{source}")
        left += 14.0 + text_width(source, _LABEL) + 18.0
    return canvas.figure


def _panel(canvas: Canvas, item: Timeline, top: float, colors: dict[str, str], number: int) -> None:
    seconds = max(arrival.seconds for arrival in item.arrivals) or 1.0
    totals: dict[str, int] = {}
    for arrival in item.arrivals:
        totals[arrival.source] = totals.get(arrival.source, 0) + arrival.bytes
    highest = max(*totals.values(), 1)
    frame = Rect(MARGIN, top + LEGEND_HEIGHT, WIDTH, PANEL_HEIGHT)
    canvas.text(MARGIN, top, item.title, _PANEL, "left", f"label:{number}")
    canvas.text(
        frame.right, top + 2.0, f"up to {format_bytes(highest)} each", _LABEL, "right", f"label:{number}:high"
    )
    canvas.box(frame, PANEL, CARD_EDGE, 4.0, f"panel:{number}")
    canvas.text(frame.right, frame.bottom + 2.0, format_seconds(seconds), _LABEL, "right", f"label:{number}:end")
    for source, color in colors.items():
        if source in totals:
            points = _steps(item.arrivals, source, frame, seconds, highest)
            canvas.line(points, color, f"line:{number}:{source}", arrow=False, line_width=1.8)


def _steps(arrivals: Sequence[Arrival], source: str, frame: Rect, seconds: float, highest: int) -> tuple[Point, ...]:
    """Return the sum of a source's bytes over time as points: it goes right while nothing comes, then up."""
    total = 0
    points: list[Point] = [(frame.left, frame.bottom)]
    for arrival in arrivals:
        if arrival.source == source:
            x = frame.left + frame.width * arrival.seconds / seconds
            points.append((x, points[-1][1]))
            total += arrival.bytes
            points.append((x, frame.bottom - frame.height * total / highest))
    points.append((frame.right, points[-1][1]))
    return tuple(points)
