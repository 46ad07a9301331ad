"""The picture of a resource graph: Nodes with what they hold, and the links between them.

Each Node is a box with its Compute Units and Memory Resources inside. Links of two directions that say the same are
one line with a head at each end. Up to three lines carry their text; more carry a number, and a key below says what
each is. Nodes of one host, when all are, stand in a dashed frame, because such Nodes fail together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferswarm.planner.economics import PathCurve
from inferswarm.resources.types import Link, Node, ResourceGraph
from inferswarm.units import format_rate, format_seconds
from inferswarm.views.canvas import Canvas, Point, Rect
from inferswarm.views.graph_cards import NODE_WIDTH, draw_node, measure_node
from inferswarm.views.labels import (
    bits_fact,
    count,
)
from inferswarm.views.layout import label_place, leaving_point, ring_boxes
from inferswarm.views.palette import CARD_EDGE, FAINT, MUTED, RESERVED, node_colors
from inferswarm.views.typeset import Paragraph, TextStyle, paragraph, stack_height, text_width, wrap_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 24.0
LEAST_WIDTH = 520.0
MAX_LABELED_LINES = 3
_TITLE = TextStyle(13.5, weight="bold")
_SUBTITLE = TextStyle(9.5, MUTED)
_LINK = TextStyle(8.4, "#2d3748")
_NUMBER = TextStyle(8.4, "#2d3748", "bold")
_FRAME = TextStyle(8.6, MUTED)


class _Wire(NamedTuple):
    """A line between two Nodes (their places on the ring) and what is said of it."""

    source: int
    target: int
    both_ways: bool
    lines: tuple[str, ...]


def draw_graph(graph: ResourceGraph, paths: Sequence[PathCurve] = (), title: str | None = None) -> Figure:
    """Draw a resource graph; `paths` are measured paths, shown with the links that they go over.

    `title` stands in for the count of Nodes, where the graph is made for the picture and does not hold all of them.
    """
    nodes = _by_host(graph)
    boxes = [measure_node(graph, node) for node in nodes]
    wires = _wires(graph, nodes, paths)
    numbered = len(wires) > (MAX_LABELED_LINES if len(nodes) != 3 or _one_for_each_pair(wires) else 0)
    tags = [(str(index + 1),) if numbered else wire.lines for index, wire in enumerate(wires)]
    widest = max((text_width(line, _LINK) for tag in tags for line in tag), default=0.0)
    gap = (max(80.0, widest + 58.0), 64.0)
    places = (
        ring_boxes([(NODE_WIDTH, box.height) for box in boxes], gap, [(wire.source, wire.target) for wire in wires])
        if boxes
        else ()
    )
    one_host = len(boxes) > 1 and len({box.node.host_id for box in boxes}) == 1
    inset = 16.0 if one_host else 0.0
    frame_label = _FRAME.line_height + 10.0 if one_host else 0.0
    ring_width = max((place.right for place in places), default=0.0) + 2 * inset
    ring_height = max((place.bottom for place in places), default=0.0) + 2 * inset + frame_label

    width = max(LEAST_WIDTH, ring_width)
    head = (
        paragraph(_title(graph) if title is None else title, _TITLE, width),
        paragraph(f"Swarm {graph.swarm_id}", _SUBTITLE, width, 2.0),
    )
    top = MARGIN + stack_height(head) + 14.0
    key = _measure_key(wires, width) if numbered else ()
    key_top = top + ring_height + 16.0
    canvas = Canvas(width + 2 * MARGIN, top + ring_height + (stack_height(key) + 16.0 if key else 0.0) + MARGIN)
    canvas.paragraphs(MARGIN, MARGIN - 4.0, head, "label:title")

    left = MARGIN + ((width - ring_width) / 2 if len(boxes) > 1 else 0.0)
    placed = [
        place._replace(left=place.left + left + inset, top=place.top + top + inset + frame_label) for place in places
    ]
    if one_host:
        canvas.box(Rect(left, top, ring_width, ring_height), "none", RESERVED, 8.0, "frame:host", dashed=True)
        text = "one host: these Nodes fail together and share its memory bandwidth"
        canvas.text(left + 12.0, top + 6.0, text, _FRAME, "left", "label:host")
    _draw_wires(canvas, wires, tags, placed)
    colors = node_colors(graph)
    for box, place in zip(boxes, placed, strict=True):
        draw_node(canvas, box, place, colors[box.node.id])
    canvas.paragraphs(MARGIN, key_top, key, "label:key")
    return canvas.figure


def _title(graph: ResourceGraph) -> str:
    hosts = len({node.host_id for node in graph.nodes})
    return f"{count(len(graph.nodes), 'Node')} on {count(hosts, 'host')}"


def _by_host(graph: ResourceGraph) -> list[Node]:
    """Return the Nodes with those of one host next to each other, hosts in the order of their first Node."""
    hosts = list(dict.fromkeys(node.host_id for node in graph.nodes))
    return sorted(graph.nodes, key=lambda node: hosts.index(node.host_id))


def _wires(graph: ResourceGraph, nodes: list[Node], paths: Sequence[PathCurve]) -> tuple[_Wire, ...]:
    """Merge the links of each pair of Nodes that say the same in both directions."""
    import networkx

    place = {node.id: index for index, node in enumerate(nodes)}
    curves = {(path.source, path.target): path for path in paths}
    network = networkx.MultiDiGraph()
    network.add_nodes_from(place)
    for link in graph.links:
        if link.source in place and link.target in place and link.source != link.target:
            network.add_edge(link.source, link.target, text=_link_text(link, curves.get((link.source, link.target))))
    wires: dict[tuple[int, int, tuple[str, ...]], bool] = {}
    for source, target, text in network.edges(data="text"):
        back = (place[target], place[source], text)
        if back in wires:
            wires[back] = True
        else:
            wires.setdefault((place[source], place[target], text), False)
    return tuple(_Wire(source, target, both, text) for (source, target, text), both in wires.items())


def _one_for_each_pair(wires: tuple[_Wire, ...]) -> bool:
    """Whether no two lines run between the same two Nodes."""
    return len({frozenset((wire.source, wire.target)) for wire in wires}) == len(wires)


def _link_text(link: Link, path: PathCurve | None) -> tuple[str, ...]:
    kind = link.kind if link.available else f"{link.kind}, not available"
    if path is None:
        measured = "not measured"
    else:
        rate = f", {format_rate(1 / path.seconds_per_byte)}" if path.seconds_per_byte > 0 else ""
        measured = f"measured {format_seconds(path.latency_seconds)}{rate}"
    return (kind, f"nominal {bits_fact(link.nominal_bits_per_second)}", measured)


def _measure_key(wires: tuple[_Wire, ...], width: float) -> tuple[Paragraph, ...]:
    """Say what the numbered lines are, one entry a line; entries that say the same share one."""
    by_text: dict[tuple[str, ...], list[int]] = {}
    for index, wire in enumerate(wires):
        by_text.setdefault(wire.lines, []).append(index + 1)
    return tuple(
        Paragraph(wrap_text(f"{_ranges(numbers)}:  {' · '.join(text)}", _LINK, width), _LINK, 1.0)
        for text, numbers in by_text.items()
    )


def _ranges(numbers: list[int]) -> str:
    """Write ascending numbers with runs as ranges: 1–3, 5."""
    parts: list[str] = []
    first = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number == last + 1:
            last = last + 1
            continue
        parts.append(str(first) if first == last else f"{first}–{last}")
        if number is not None:
            first = last = number
    return ", ".join(parts)


def _draw_wires(canvas: Canvas, wires: tuple[_Wire, ...], tags: list[tuple[str, ...]], boxes: list[Rect]) -> None:
    style = _NUMBER if max(map(len, tags), default=0) == 1 else _LINK
    tallest = max(map(len, tags), default=0) * style.line_height + 4.0
    lines = [_line(wires, index, boxes, tallest + 6.0) for index in range(len(wires))]
    taken: list[Rect] = []
    for index, (wire, tag, line) in enumerate(zip(wires, tags, lines, strict=True)):
        canvas.line(line, FAINT, f"line:{index}", arrow=not wire.both_ways, line_width=1.2)
        size = (max(text_width(text, style) for text in tag) + 8.0, len(tag) * style.line_height + 4.0)
        taken.append(label_place(line, size, [*boxes, *taken], [other for other in lines if other is not line]))
    for index, (place, tag) in enumerate(zip(taken, tags, strict=True)):
        canvas.box(place, "#ffffff", "none" if len(tag) > 1 else CARD_EDGE, radius=4, line_width=0.8)
        for number, text in enumerate(tag):
            y = place.top + 2.0 + number * style.line_height
            canvas.text(place.center[0], y, text, style, "center", f"label:link-{index}")


def _line(wires: tuple[_Wire, ...], index: int, boxes: list[Rect], spread: float) -> tuple[Point, Point]:
    """Return the ends of a line; lines of one pair of Nodes run side by side, `spread` apart."""
    wire = wires[index]
    low, high = sorted((wire.source, wire.target))
    same = [number for number, other in enumerate(wires) if {other.source, other.target} == {low, high}]
    shift = spread * (same.index(index) - (len(same) - 1) / 2)
    start, end = boxes[low].center, boxes[high].center
    length = math.dist(start, end)
    aside = (shift * (start[1] - end[1]) / length, shift * (end[0] - start[0]) / length)
    start, end = (start[0] + aside[0], start[1] + aside[1]), (end[0] + aside[0], end[1] + aside[1])
    ends = leaving_point(boxes[low], start, end), leaving_point(boxes[high], end, start)
    return ends if wire.source == low else (ends[1], ends[0])
