"""The boxes of a resource graph's picture: one for each Node, with its Compute Units and Memory Resources inside."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.resources.types import MemoryResource, Node, ResourceGraph
from inferswarm.views.canvas import Canvas, Rect
from inferswarm.views.labels import describe_compute_unit, describe_memory_resource, describe_node
from inferswarm.views.palette import CARD_EDGE, MUTED, PANEL, RESERVED, TRACK
from inferswarm.views.typeset import Paragraph, TextStyle, paragraph, stack_height

PAD = 10.0
NODE_WIDTH = 226.0
BAR_HEIGHT = 7.0
_NAME = TextStyle(11.5, "#ffffff", "bold")
_ROLE = TextStyle(8.5, "#ffffff")
_ITEM = TextStyle(9.0, weight="bold")
_SMALL = TextStyle(8.2, MUTED)


class Chip(NamedTuple):
    """A Compute Unit or Memory Resource inside its Node's box; `shares` are parts of its bar."""

    id: str
    text: tuple[Paragraph, ...]
    shares: tuple[float, ...]

    @property
    def height(self) -> float:
        """Height in points."""
        return stack_height(self.text) + 0.9 * PAD + (BAR_HEIGHT + 4.0 if self.shares else 0.0)


class NodeBox(NamedTuple):
    """The measured contents of one Node's box."""

    node: Node
    header: tuple[Paragraph, ...]
    chips: tuple[Chip, ...]

    @property
    def header_height(self) -> float:
        """Height of the colored band in points."""
        return stack_height(self.header) + 1.2 * PAD

    @property
    def height(self) -> float:
        """Height in points."""
        return self.header_height + sum(chip.height + 6.0 for chip in self.chips) + PAD


def measure_node(graph: ResourceGraph, node: Node) -> NodeBox:
    """Put one Node and what it holds into words, broken to the width of its box."""
    width = NODE_WIDTH - 2 * PAD
    inner = width - 1.4 * PAD
    chips = [
        Chip(
            unit.id,
            (paragraph(describe_compute_unit(unit), _ITEM, inner), paragraph(unit.name, _SMALL, inner, max_lines=3)),
            (),
        )
        for unit in graph.compute_units
        if unit.node_id == node.id
    ]
    chips += [_memory_chip(memory, inner) for memory in graph.memory_resources if memory.node_id == node.id]
    header = (paragraph(node.name, _NAME, width), paragraph(describe_node(node), _ROLE, width))
    return NodeBox(node, header, tuple(chips))


def _memory_chip(memory: MemoryResource, width: float) -> Chip:
    capacity, reserved = memory.capacity_bytes.value, memory.reserved_bytes.value
    shares = (min(1.0, reserved / capacity),) if capacity and reserved is not None else (0.0,)
    limit = "no limit is enforced" if memory.enforcement == "none" else f"enforced by {memory.enforcement}"
    text = (paragraph(describe_memory_resource(memory), _ITEM, width), paragraph(limit, _SMALL, width))
    return Chip(memory.id, text, shares)


def draw_node(canvas: Canvas, box: NodeBox, place: Rect, color: str) -> None:
    """Draw one Node in its place, with a header in its color."""
    gid = f"label:{box.node.id}"
    outer = canvas.box(place, "#ffffff", CARD_EDGE, gid=f"box:{box.node.id}")
    canvas.band(place._replace(height=box.header_height), color, outer)
    canvas.paragraphs(place.left + PAD, place.top + 0.6 * PAD, box.header, gid)
    top = place.top + box.header_height + PAD
    for chip in box.chips:
        area = Rect(place.left + PAD, top, place.width - 2 * PAD, chip.height)
        canvas.box(area, PANEL, radius=4, gid=f"chip:{chip.id}")
        left = area.left + 0.7 * PAD
        bottom = canvas.paragraphs(left, top + 0.4 * PAD, chip.text, f"label:{box.node.id}")
        if chip.shares:
            bar = Rect(left, bottom + 2.0, area.width - 1.4 * PAD, BAR_HEIGHT)
            track = canvas.box(bar, TRACK, radius=3)
            canvas.band(bar._replace(width=bar.width * chip.shares[0]), RESERVED, track)
        top += chip.height + 6.0
