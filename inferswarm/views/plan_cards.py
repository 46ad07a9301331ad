"""The boxes of a plan's picture: one for each participant, and a grey card for each Compute Unit without a part."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inferswarm.planner.plan import Decision, ExecutionPlan, Placement
from inferswarm.resources.types import ComputeUnit, ResourceGraph
from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.canvas import Canvas, Rect
from inferswarm.views.labels import (
    count,
    describe_compute_unit,
    describe_units,
    optional_bytes,
    step_seconds,
    term_seconds,
)
from inferswarm.views.palette import ALARM, CARD_EDGE, MUTED, PANEL, RESERVED, TRACK
from inferswarm.views.typeset import Paragraph, TextStyle, paragraph, stack_height

PAD = 11.0
CARD_WIDTH = 222.0
BAR_HEIGHT = 9.0
_NAME = TextStyle(11.5, "#ffffff", "bold")
_ROLE = TextStyle(8.5, "#ffffff")
_UNITS = TextStyle(10.0, weight="bold")
_BODY = TextStyle(8.8)
_SMALL = TextStyle(8.2, MUTED)
_ALARM = TextStyle(8.2, ALARM, "bold")
_IDLE_NAME = TextStyle(10.0, MUTED, "bold")
_MAX_REASON_LINES = 12


class Card(NamedTuple):
    """The measured contents of one participant's box."""

    placement: Placement
    color: str
    header: tuple[Paragraph, ...]
    units: tuple[Paragraph, ...]
    footer: tuple[Paragraph, ...]

    @property
    def header_height(self) -> float:
        """Height of the colored band in points."""
        return stack_height(self.header) + 1.4 * PAD

    @property
    def height(self) -> float:
        """Height of the box in points."""
        return self.header_height + stack_height(self.units) + BAR_HEIGHT + stack_height(self.footer) + 2.6 * PAD


class Idle(NamedTuple):
    """A Compute Unit without a part, and why."""

    compute_unit: ComputeUnit
    node_name: str
    reason: str


def measure_card(plan: ExecutionPlan, placement: Placement, graph: ResourceGraph, colors: dict[str, str]) -> Card:
    """Put one participant into words, broken to the width of its box."""
    width = CARD_WIDTH - 2 * PAD
    unit = next((unit for unit in graph.compute_units if unit.id == placement.compute_unit_id), None)
    kind = count(placement.threads, "thread") if unit is None else describe_compute_unit(unit)
    account = placement.memory
    memory: tuple[Paragraph, ...]
    if account.fits:
        memory = (
            paragraph(
                f"{format_bytes(account.needed_bytes)} at its peak, {optional_bytes(account.available_bytes)} to use",
                _BODY,
                width,
            ),
        )
    else:
        needed, available = format_bytes(account.needed_bytes), optional_bytes(account.available_bytes)
        memory = (paragraph(f"does not fit: needs {needed}, has {available}", _ALARM, width),)
    envelope = f"{optional_bytes(account.reserved_bytes)} reserved of {optional_bytes(account.capacity_bytes)}"
    prompt, step = term_seconds(plan, placement.participant, "first-pass"), step_seconds(plan, placement.participant)
    times = [f"prompt {format_seconds(prompt)}"] if prompt is not None else []
    times += [f"step {format_seconds(step)}"] if step is not None else []
    timing = (paragraph(" · ".join(times) or "not priced", _BODY, width, 5.0),)
    own = placement.representation
    role = f"{placement.participant} · {kind}" + ("" if isinstance(own, msgspec.UnsetType) else f" · in {own}")
    elsewhere = placement.states_memory_id
    if not isinstance(elsewhere, msgspec.UnsetType):
        memory = (*memory, paragraph(f"its states are in {elsewhere}", _SMALL, width))
    return Card(
        placement,
        colors[placement.node_id],
        (paragraph(placement.node_name, _NAME, width), paragraph(role, _ROLE, width)),
        (paragraph(describe_units(placement.unit_ids), _UNITS, width),),
        (*memory, paragraph(envelope, _SMALL, width), *timing),
    )


def draw_card(canvas: Canvas, card: Card, box: Rect) -> None:
    """Draw one participant in its box, whose height is at least the card's."""
    gid = f"label:{card.placement.participant}"
    outer = canvas.box(box, "#ffffff", CARD_EDGE, gid=f"box:{card.placement.participant}")
    canvas.band(box._replace(height=card.header_height), card.color, outer)
    left = box.left + PAD
    canvas.paragraphs(left, box.top + 0.7 * PAD, card.header, gid)
    top = canvas.paragraphs(left, box.top + card.header_height + 0.8 * PAD, card.units, gid) + 5.0
    _draw_memory_bar(canvas, card, Rect(left, top, box.width - 2 * PAD, BAR_HEIGHT))
    canvas.paragraphs(left, top + BAR_HEIGHT + 4.0, card.footer, gid)


def _draw_memory_bar(canvas: Canvas, card: Card, bar: Rect) -> None:
    """Draw reservation and peak as parts of the envelope; an unknown capacity leaves the bar empty."""
    account = card.placement.memory
    track = canvas.box(bar, TRACK, radius=3)
    if not account.capacity_bytes or account.reserved_bytes is None:
        return
    reserved = min(1.0, account.reserved_bytes / account.capacity_bytes)
    needed = min(1.0 - reserved, account.needed_bytes / account.capacity_bytes)
    canvas.band(bar._replace(width=bar.width * reserved), RESERVED, track)
    color = card.color if account.fits else ALARM
    canvas.band(Rect(bar.left + bar.width * reserved, bar.top, bar.width * needed, bar.height), color, track)


def idle_units(plan: ExecutionPlan | None, decision: Decision | None, graph: ResourceGraph) -> list[Idle]:
    """Return the Compute Units without a part, in the graph's order, each with the decision's reason."""
    used = set() if plan is None else {placement.compute_unit_id for placement in plan.placements}
    reasons = {} if decision is None else {item.compute_unit_id: item.reason for item in decision.resources}
    names = {node.id: node.name for node in graph.nodes}
    return [
        Idle(unit, names.get(unit.node_id, unit.node_id), reasons.get(unit.id, "has no part in this plan"))
        for unit in graph.compute_units
        if unit.id not in used
    ]


def idle_text(item: Idle, width: float) -> tuple[Paragraph, ...]:
    """Put a Compute Unit without a part into words for a card of `width` points."""
    width -= 2 * PAD
    return (
        paragraph(item.node_name, _IDLE_NAME, width),
        paragraph(describe_compute_unit(item.compute_unit), _SMALL, width),
        paragraph(item.reason, _SMALL, width, 2.0, max_lines=_MAX_REASON_LINES),
    )


def idle_height(text: tuple[Paragraph, ...]) -> float:
    """Return the height of a card with this text in points."""
    return stack_height(text) + 1.6 * PAD


def draw_idle(canvas: Canvas, item: Idle, text: tuple[Paragraph, ...], box: Rect) -> None:
    """Draw the card of a Compute Unit without a part."""
    canvas.box(box, PANEL, CARD_EDGE, gid=f"box:{item.compute_unit.id}")
    canvas.paragraphs(box.left + PAD, box.top + 0.7 * PAD, text, f"label:{item.compute_unit.id}")
