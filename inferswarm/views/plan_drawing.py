"""The picture of a plan: who computes what, what goes over which path, and who is not needed and why.

Participants are boxes in the order of the route, with the path's payload and time on the arrows between them and
the way back of each new token. Compute Units without a part are grey cards below, each with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.planner.problem import PlanningProblem, bytes_in
from inferswarm.resources.types import ResourceGraph
from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.canvas import Canvas, Point, Rect
from inferswarm.views.labels import (
    describe_outcome,
    describe_plan,
    describe_prediction,
    feedback_seconds,
    term_seconds,
)
from inferswarm.views.layout import chain_boxes, chain_rows, grid_boxes, grid_width
from inferswarm.views.palette import FAINT, LINE, MUTED, node_colors
from inferswarm.views.plan_cards import (
    CARD_WIDTH,
    Card,
    draw_card,
    draw_idle,
    idle_height,
    idle_text,
    idle_units,
    measure_card,
)
from inferswarm.views.typeset import Paragraph, TextStyle, paragraph, stack_height

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 24.0
LEAST_WIDTH = 560.0
IDLE_GAP = 12.0
_TITLE = TextStyle(13.5, weight="bold")
_SUBTITLE = TextStyle(9.5, MUTED)
_SECTION = TextStyle(9.5, MUTED, "bold")
_ARROW = TextStyle(8.6, "#2d3748")


def plan_network(plan: ExecutionPlan, problem: PlanningProblem | None = None) -> Any:
    """Return the plan's route as a networkx.DiGraph: participants, paths, and the way back of each token.

    Nodes carry `placement`; edges carry `kind` ("path" or "feedback"), `payload_bytes` for each token (None without
    `problem`) and `seconds`: of a path over the whole request, of the way back for one token (None when not
    predicted). Raises SpecError when the plan was made for another problem.
    """
    import networkx

    if problem is not None and digest(problem) != plan.problem_digest:
        raise SpecError("problem", digest(problem), f"the plan's own problem, {plan.problem_digest}")
    network = networkx.DiGraph()
    in_what = plan.payload_representation
    travels = plan.representation if isinstance(in_what, msgspec.UnsetType) else in_what
    for placement in plan.placements:
        network.add_node(placement.participant, placement=placement)
    for before, after in zip(plan.placements, plan.placements[1:], strict=False):
        payload = None
        if problem is not None:
            sizes = problem.boundaries[before.end_unit - 1].payload_bytes_per_position
            payload = bytes_in(sizes, travels)
        seconds = term_seconds(plan, f"{before.participant} → {after.participant}", "path")
        network.add_edge(before.participant, after.participant, kind="path", payload_bytes=payload, seconds=seconds)
    if len(plan.placements) > 1:
        network.add_edge(
            plan.placements[-1].participant,
            plan.placements[0].participant,
            kind="feedback",
            payload_bytes=None if problem is None else problem.feedback_bytes,
            seconds=feedback_seconds(plan),
        )
    return network


def draw_plan(
    subject: ExecutionPlan | Decision, graph: ResourceGraph, *, problem: PlanningProblem | None = None
) -> Figure:
    """Draw a plan, or a decision with its plan and the reasons for what is not used.

    `problem` supplies the payloads on the arrows. Raises SpecError when the plan was made for another graph or
    problem.
    """
    decision = subject if isinstance(subject, Decision) else None
    plan = subject.plan if isinstance(subject, Decision) else subject
    graph_digest = subject.inputs.graph if isinstance(subject, Decision) else subject.graph_digest
    if graph_digest != digest(graph):
        raise SpecError("graph", digest(graph), f"the plan's own graph, {graph_digest}")
    colors = node_colors(graph)
    cards = [] if plan is None else [measure_card(plan, placement, graph, colors) for placement in plan.placements]
    network = None if plan is None else plan_network(plan, problem)
    labels = {} if network is None else {edge: _edge_label(network.edges[edge]) for edge in network.edges}

    route = _RouteLayout(cards, labels)
    width = max(LEAST_WIDTH, route.width)
    head = _make_head(plan, decision, width)
    idle = idle_units(plan, decision, graph)
    route_top = MARGIN + stack_height(head) + 18.0
    idle_top = route_top + route.height + (16.0 if cards else 0.0)
    card_width = grid_width(len(idle), width, IDLE_GAP, CARD_WIDTH) if idle else 0.0
    texts = [idle_text(item, card_width) for item in idle]
    first = (MARGIN, idle_top + _SECTION.line_height + 6.0)
    idle_boxes = grid_boxes([idle_height(text) for text in texts], width, IDLE_GAP, first, CARD_WIDTH)
    bottom = max([idle_top - 16.0, *(box.bottom for box in idle_boxes)])

    canvas = Canvas(width + 2 * MARGIN, bottom + MARGIN)
    canvas.paragraphs(MARGIN, MARGIN - 4.0, head, "label:title")
    if network is not None:
        route.draw(canvas, (MARGIN, route_top), labels, network)
    if idle:
        canvas.text(MARGIN, idle_top, "Not used", _SECTION, "left", "label:section")
    for item, text, box in zip(idle, texts, idle_boxes, strict=True):
        draw_idle(canvas, item, text, box)
    return canvas.figure


def _make_head(plan: ExecutionPlan | None, decision: Decision | None, width: float) -> tuple[Paragraph, ...]:
    lines: list[Paragraph] = []
    if plan is not None:
        lines.append(paragraph(describe_plan(plan), _TITLE, width))
        lines.append(paragraph(describe_prediction(plan), _SUBTITLE, width, 2.0))
    elif decision is not None:
        title = describe_outcome(decision.outcome)
        lines.append(paragraph(title[0].upper() + title[1:], _TITLE, width))
    if decision is not None:
        lines.append(paragraph(decision.summary, _SUBTITLE, width, 2.0, max_lines=6))
    return tuple(lines)


def _edge_label(edge: dict[str, Any]) -> tuple[str, ...]:
    """Say what one path carries for each token, and how long it is expected to take."""
    feedback = edge["kind"] == "feedback"
    lines = ["next token"] if feedback else []
    if edge["payload_bytes"] is not None:
        lines.append(f"{format_bytes(edge['payload_bytes'])}{'' if feedback else ' a token'}")
    if edge["seconds"] is not None:
        lines.append(f"{format_seconds(edge['seconds'])}{'' if feedback else ' a request'}")
    return tuple(lines)


class _RouteLayout:
    """Where the participants' boxes and the paths between them go."""

    def __init__(self, cards: list[Card], labels: dict[tuple[str, str], tuple[str, ...]]) -> None:
        self.cards = cards
        self.rows = chain_rows(len(cards)) if cards else ()
        texts = [paragraph(line, _ARROW, CARD_WIDTH) for lines in labels.values() for line in lines]
        label_width = max((text.width for text in texts), default=0.0)
        self.column_gap = max(64.0, label_width + 26.0)
        self.row_gap = max(44.0, 3 * _ARROW.line_height + 22.0)
        turning = len(self.rows) > 1
        if len(cards) > 1:  # a short chain fills the least width
            columns = max(len(row) for row in self.rows)
            self.column_gap = max(self.column_gap, (LEAST_WIDTH - columns * CARD_WIDTH) / (columns - 1))
        self.side = label_width + 30.0 if turning else 0.0
        boxes = (
            chain_boxes([card.height for card in cards], CARD_WIDTH, (self.column_gap, self.row_gap), (0, 0))
            if cards
            else ()
        )
        self.boxes = tuple(box._replace(left=box.left + self.side) for box in boxes)
        self.width = max((box.right for box in self.boxes), default=0.0)
        below = 0.0 if turning or len(cards) < 2 else 26.0 + _ARROW.line_height
        self.height = max((box.bottom for box in self.boxes), default=0.0) + below

    def draw(
        self, canvas: Canvas, origin: Point, labels: dict[tuple[str, str], tuple[str, ...]], network: Any
    ) -> None:
        """Draw boxes and paths with `origin` as the upper left corner."""
        boxes = [box._replace(left=box.left + origin[0], top=box.top + origin[1]) for box in self.boxes]
        places = dict(zip(network.nodes, boxes, strict=True))
        for (source, target), label in labels.items():
            gid = f"label:{source}>{target}"
            if network.edges[source, target]["kind"] == "feedback":
                self._draw_feedback(canvas, places[source], places[target], label, gid, origin[0])
            else:
                _draw_path(canvas, places[source], places[target], label, gid)
        for card, box in zip(self.cards, boxes, strict=True):
            draw_card(canvas, card, box)

    def _draw_feedback(
        self, canvas: Canvas, last: Rect, first: Rect, label: tuple[str, ...], gid: str, left: float
    ) -> None:
        if len(self.rows) == 1:
            lane = last.bottom + 16.0
            start, end = last.left + last.width * 0.5, first.left + first.width * 0.5
            points = ((start, last.bottom), (start, lane), (end, lane), (end, first.bottom))
            canvas.line(points, FAINT, f"line:{gid}")
            canvas.text((start + end) / 2, lane + 3.0, " · ".join(label), _ARROW, "center", gid)
            return
        lane = left + self.side / 2 - 8.0
        points = (
            (last.left, last.center[1]),
            (lane, last.center[1]),
            (lane, first.center[1]),
            (first.left, first.center[1]),
        )
        canvas.line(points, FAINT, f"line:{gid}")
        height = len(label) * _ARROW.line_height
        middle = (last.top + first.bottom) / 2
        widest = max(paragraph(line, _ARROW, CARD_WIDTH).width for line in label)
        canvas.box(Rect(lane - widest / 2 - 4, middle - height / 2 - 2, widest + 8, height + 4), "#ffffff", radius=2)
        for index, line in enumerate(label):
            canvas.text(lane, middle - height / 2 + index * _ARROW.line_height, line, _ARROW, "center", gid)


def _draw_path(canvas: Canvas, source: Rect, target: Rect, label: tuple[str, ...], gid: str) -> None:
    """Draw an arrow to the next box in the row with its label around it, or down to the next row with it beside."""
    if source.top == target.top:
        y = source.top + source.height / 2
        start, end = (source.right, target.left) if source.left < target.left else (source.left, target.right)
        canvas.line(((start, y), (end, y)), LINE, f"line:{gid}")
        offsets = (-_ARROW.line_height - 4.0, 5.0)
        for line, offset in zip(label, offsets, strict=False):
            canvas.text((start + end) / 2, y + offset, line, _ARROW, "center", gid)
        return
    x = source.left + source.width / 2
    canvas.line(((x, source.bottom), (x, target.top)), LINE, f"line:{gid}")
    top = (source.bottom + target.top) / 2 - len(label) * _ARROW.line_height / 2
    for index, line in enumerate(label):
        canvas.text(x + 9.0, top + index * _ARROW.line_height, line, _ARROW, "left", gid)
