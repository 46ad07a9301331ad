"""Documents with a face: what notebooks show of graphs and decisions. The documents themselves stay plain data."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.planner.economics import PathCurve
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.planner.problem import PlanningProblem
from inferswarm.planner.resolving import Inputs
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.paths import PathReport
from inferswarm.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WHAT_IF_SECONDS = 10.0
"""What asking again may take in all, unless the caller says otherwise."""


class Picture:
    """A drawing that notebooks show by itself, whichever matplotlib backend they use."""

    def __init__(self, figure: Figure) -> None:
        """Wrap a figure."""
        self.figure = figure

    def save(self, svg: Path, png: Path) -> None:
        """Write the drawing in both formats."""
        from inferswarm.views.drawing import save_figure

        save_figure(self.figure, svg, png)

    def __repr__(self) -> str:
        """One honest line."""
        width, height = self.figure.get_size_inches()
        return f"Picture({width:.1f} × {height:.1f} inches)"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """Return the drawing as PNG and SVG, and as a line of text."""
        from inferswarm.views.drawing import figure_png, figure_svg

        return {
            "image/png": base64.b64encode(figure_png(self.figure)).decode(),
            "image/svg+xml": figure_svg(self.figure),
            "text/plain": repr(self),
        }


class GraphView:
    """A resource graph that shows itself."""

    def __init__(
        self, document: ResourceGraph, paths: tuple[PathCurve, ...] = (), pairs: tuple[PathReport, ...] = ()
    ) -> None:
        """Wrap a graph, with what was measured of the paths between its Nodes, and over which addresses."""
        self.document = document
        self.paths = paths
        self.pairs = pairs

    @property
    def digest(self) -> str:
        """The graph's identity."""
        return digest(self.document)

    def draw(self, svg: Path | None = None, png: Path | None = None) -> Picture:
        """Return the picture; write it as SVG and PNG where paths are given."""
        from inferswarm.views.drawing import draw_graph

        picture = Picture(draw_graph(self.document, self.paths))
        if svg is not None and png is not None:
            picture.save(svg, png)
        return picture

    def __repr__(self) -> str:
        """One honest line."""
        memory = sum(item.capacity_bytes.value or 0 for item in self.document.memory_resources)
        nodes = ", ".join(node.name for node in self.document.nodes)
        return f"ResourceGraph({len(self.document.nodes)} Nodes: {nodes}; {format_bytes(memory)} of memory)"

    def __str__(self) -> str:
        """The graph as text."""
        from inferswarm.views.text import graph_text

        return graph_text(self.document, self.pairs)

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        from inferswarm.views.html import graph_html

        return str(graph_html(self.document, self.pairs))


class DecisionView:
    """The planner's answer, with its explanation and its picture."""

    def __init__(
        self,
        document: Decision,
        graph: ResourceGraph,
        problem: PlanningProblem,
        inputs: Inputs | None = None,
    ) -> None:
        """Wrap a decision with the graph and the problem that it was made for, and all else that can be varied."""
        self.document = document
        self.graph = graph
        self.problem = problem
        self.inputs = inputs
        self.notes: tuple[str, ...] = ()
        """What the health of the resources says beside it, one line each."""

    @property
    def plan(self) -> ExecutionPlan:
        """The chosen plan. Raises InfeasiblePlan, with the violations, when there is none."""
        from inferswarm.planner import require_plan

        return require_plan(self.document)

    def explain(self, *, what_if: bool = False, seconds: float = WHAT_IF_SECONDS) -> str:
        """Return why this plan, why no other, and what is left unused.

        With `what_if` also what would have to be different, what else was to be had and what is worth measuring: each
        is solved again, within so many `seconds`. Raises SpecError for `what_if` where the inputs are not known.
        """
        from inferswarm.planner import explain, varied
        from inferswarm.planner.pareto import front_of_ranked

        if not what_if:
            front = None if self.inputs is None else front_of_ranked(self.inputs, self.document)
            return explain(self.document, front=front) + "".join(f"health: {note}\n" for note in self.notes)
        if self.inputs is None:
            raise SpecError("what_if", "a decision without its inputs", "the decision of a swarm's plan()")
        return explain(self.document, varied(self.inputs, self.document, seconds))

    def draw(self, svg: Path | None = None, png: Path | None = None) -> Picture:
        """Return the plan's picture; write it as SVG and PNG where paths are given."""
        from inferswarm.views.drawing import draw_plan

        picture = Picture(draw_plan(self.document, self.graph, problem=self.problem))
        if svg is not None and png is not None:
            picture.save(svg, png)
        return picture

    def __repr__(self) -> str:
        """One honest line."""
        return f"Decision({self.document.outcome}: {self.document.summary})"

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        from inferswarm.views.html import decision_html

        return str(decision_html(self.document))
