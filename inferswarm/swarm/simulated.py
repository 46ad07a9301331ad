"""A swarm that exists on paper: planning for a declared topology, without hardware and without measurements.

A plan for it can only rest on an estimate from declared figures, and only when the caller asks for one: otherwise the
decision says, truthfully, that no evidence is there. What an estimate gives is labeled as one wherever it is shown.
Nothing can be measured here, realized or generated.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import NoReturn

from inferswarm.errors import SpecError
from inferswarm.planner.economics import Economics
from inferswarm.planner.eligibility import barred_links
from inferswarm.planner.plan import ESTIMATE, Decision
from inferswarm.planner.problem import PlanningProblem, Policy, Workload
from inferswarm.planner.resolving import Inputs
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.resources.alike import condensed
from inferswarm.resources.topology import Figure, Topology, load_topology
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.chain import Description
from inferswarm.strategies.problem import make_problem
from inferswarm.swarm.displays import WHAT_IF_SECONDS, DecisionView, GraphView, Picture
from inferswarm.swarm.estimating import Assumptions, estimate_economics
from inferswarm.swarm.model import POSITION_QUANTUM, Model
from inferswarm.units import format_rate, format_seconds

LABEL = ESTIMATE
"""What every decision that rests on an estimate says of itself."""
MOST_DRAWN = 12
"""Nodes up to which pictures and texts show every single one."""


class SimulatedSwarm:
    """A declared topology to plan for. Made by `Swarm.simulated`."""

    def __init__(self, topology: Topology, assumptions: Assumptions | None = None) -> None:
        """Wrap a topology; `assumptions` say how much of its nominal figures is believed."""
        self.topology = topology
        self.assumptions = assumptions or Assumptions()

    @classmethod
    def load(cls, path: str | Path, assumptions: Assumptions | None = None) -> SimulatedSwarm:
        """Read a topology file. Raises DocumentError or SpecError naming what is wrong with it."""
        return cls(load_topology(path), assumptions)

    @property
    def graph(self) -> GraphView:
        """The declared resource graph, which shows itself. No path in it was measured."""
        return GraphView(self.topology.graph)

    def problem(self, model: Model | Description, workload: Workload) -> PlanningProblem:
        """Return the planning problem of a model, or of a description of one that nobody needs to have.

        The scratch of kernels is not in it: that is measured on real Nodes. Raises SpecError for a workload that is
        longer than the model's context.
        """
        if isinstance(model, Model):
            return model.problem(workload)
        context = model.context_positions
        if workload.positions > context:
            found = f"{workload.prompt_tokens:,} prompt and {workload.output_tokens:,} output tokens"
            raise SpecError("workload", found, f"at most {context:,} together, the model's context")
        rounded = -(-workload.positions // POSITION_QUANTUM) * POSITION_QUANTUM
        return make_problem(model, max_positions=min(rounded, context))

    def estimate(
        self, model: Model | Description, problem: PlanningProblem, policy: Policy | None = None
    ) -> Economics:
        """Return the cost curves that the declared figures let one expect; see `estimating` for the formula.

        Links that `policy` bars carry nothing. Raises SpecError for kinds and segments of it that are unknown.
        """
        description = model.description if isinstance(model, Model) else model
        barred, _ = barred_links(policy or Policy(), self.topology.graph)
        return estimate_economics(self.topology, description, problem, self.assumptions, barred=barred)

    def plan(
        self,
        model: Model | Description,
        workload: Workload | None = None,
        policy: Policy | None = None,
        *,
        estimate: bool = False,
        limits: SolverLimits | None = None,
    ) -> SimulatedDecision:
        """Decide how the model would run here: which plans fit, and with `estimate` which is expected to be best.

        Without `estimate` the planner selects nothing, because declared figures are no evidence: the decision still
        shows what is feasible and what is not. Raises SpecError for input that is wrong.
        """
        workload = workload or Workload()
        problem = self.problem(model, workload)
        economics = self.estimate(model, problem, policy)
        inputs = Inputs(problem, self.topology.graph, workload, policy or Policy(), economics, estimate)
        return SimulatedDecision(inputs.decide(limits), inputs, estimate)

    def explain(self) -> str:
        """Return what is declared, as text: the topology, its graph, its figures, and how far they are believed.

        Of more than a dozen Nodes, those that are alike are written as one.
        """
        shown = self._shown()
        names = {unit.id: unit.name for unit in shown.compute_units}
        nodes = {node.id: node.name for node in shown.nodes}
        owners = {item.id: nodes[item.node_id] for item in shown.compute_units}
        owners |= {item.id: nodes[item.node_id] for item in shown.memory_resources}
        lines = [f"Topology {self.topology.name}: {self.topology.summary}", "", str(GraphView(shown)).rstrip(), ""]
        lines.append(f"Declared figures, not measured (from: {self.topology.figures_from})")
        for figure in self.topology.figures:
            if figure.subject in owners:
                what = figure.quantity + (f" in {figure.representation}" if figure.representation else "")
                subject = f"{owners[figure.subject]}, {names.get(figure.subject, 'memory')}"
                lines.append(f"  {subject}: {what} {_written(figure)}")
        lines += ["", "Shares of them that an estimate assumes (read, arithmetic, network, copy; software a message)"]
        for name in ("best", "expected", "worst"):
            part = getattr(self.assumptions, name)
            shares = ", ".join(f"{value:.0%}" for value in (part.read, part.arithmetic, part.network, part.copy))
            lines.append(f"  {name:<9} {shares}; {part.message_seconds * 1e6:.0f} µs")
        return "\n".join(lines) + "\n"

    def draw(self, svg: Path | None = None, png: Path | None = None) -> Picture:
        """Return the picture of the declared graph; write it as SVG and PNG where paths are given.

        Of more than a dozen Nodes, those that are alike are drawn as one.
        """
        from inferswarm.views.drawing import draw_graph

        small = self._shown()
        if small == self.topology.graph:
            return self.graph.draw(svg, png)
        title = f"{len(self.topology.graph.nodes)} Nodes, those that are alike drawn as one"
        picture = Picture(draw_graph(small, title=title))
        if svg is not None and png is not None:
            picture.save(svg, png)
        return picture

    def measure(self, *arguments: object, **options: object) -> NoReturn:
        """Refuse: what is declared cannot be measured. Raises SpecError."""
        self._refuse("measure")

    def realize(self, *arguments: object, **options: object) -> NoReturn:
        """Refuse: a plan for declared Nodes cannot be turned into running stages. Raises SpecError."""
        self._refuse("realize")

    def generate(self, *arguments: object, **options: object) -> NoReturn:
        """Refuse: nothing runs here that could generate. Raises SpecError."""
        self._refuse("generate")

    def _shown(self) -> ResourceGraph:
        """Return what people are shown: the whole graph, or one Node for all that are alike where there are many."""
        graph = self.topology.graph
        return graph if len(graph.nodes) <= MOST_DRAWN else condensed(graph)

    def _refuse(self, what: str) -> NoReturn:
        raise SpecError(
            what, f"the declared topology {self.topology.name!r}", "Nodes that exist, such as those of Swarm.local()"
        )

    def __repr__(self) -> str:
        """One honest line."""
        graph = self.topology.graph
        return (
            f"SimulatedSwarm({self.topology.name!r}, declared, nothing measured: {len(graph.nodes)} Nodes, "
            f"{len(graph.compute_units)} Compute Units, {len(graph.links)} Links)"
        )

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return f"<p>{html.escape(repr(self))}</p>{GraphView(self._shown())._repr_html_()}"


class SimulatedDecision(DecisionView):
    """The planner's answer for a declared topology; where it rests on an estimate, it says so first."""

    def __init__(self, document: Decision, inputs: Inputs, estimated: bool) -> None:
        """Wrap a decision; `estimated` tells whether curves were made from declared figures."""
        super().__init__(document, inputs.graph, inputs.problem, inputs)
        self.estimated = estimated

    @property
    def label(self) -> str:
        """What the decision rests on: an estimate from declared figures, or no evidence at all."""
        return LABEL if self.estimated else "no evidence: nothing was measured"

    def explain(self, *, what_if: bool = False, seconds: float = WHAT_IF_SECONDS) -> str:
        """Return what `DecisionView.explain` does, behind a line that says what it rests on."""
        said = super().explain(what_if=what_if, seconds=seconds)
        return f"{self.label.capitalize()}. Nothing here was measured.\n\n{said}"

    def __repr__(self) -> str:
        """One honest line."""
        return f"SimulatedDecision({self.label}; {self.document.outcome}: {self.document.summary})"

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return f"<p><strong>{html.escape(self.label)}</strong></p>{super()._repr_html_()}"


def _written(figure: Figure) -> str:
    """Write a figure with its unit."""
    value = figure.value.value
    assert value is not None  # a figure is declared
    if figure.quantity == "arithmetic":
        return f"{value / 1e9:,.0f} GFLOP/s"
    return format_seconds(value) if figure.quantity in ("unit-overhead", "copy-latency") else format_rate(value)
