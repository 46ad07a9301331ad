"""From observations to the planner's economics: which records apply here, fitted to curves; what is missing and why.

A service curve is made of records of `unit-seconds` (unit s) whose subject is the Compute Unit and whose context
names the backend, the representation, the cost class, the phase, the Compute Unit's thread count and the model's
shape, all equal to what is asked; and the version of torch and the CPU's model, where the facts of the Node (`torch`,
`cpu`) state them. `positions` and `context.positions` say which point of the curve a record measured.

A path curve is made of records of `message-seconds` (unit s, one way, software included) whose subject is the
directed pair of Nodes; `payload.bytes` is the point, `transport` the way that was measured.

Records that differ in what neither the graph nor the asker states (two versions of torch, two CPUs, two transports)
are not mixed: the curve is missing until only one kind remains. Curves are made only where a plan could use them: on
Compute Units that are available and have the backend's and the representation's tags, and over available Links.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from inferswarm.errors import MeasurementError
from inferswarm.evidence.applicability import Selection, select
from inferswarm.evidence.fits import PathPoint, ServicePoint, fit_path, fit_service
from inferswarm.evidence.types import Observation
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.types import ComputeUnit, ResourceGraph

SERVICE_METRIC = "unit-seconds"
PATH_METRIC = "message-seconds"
SECONDS = "s"
PHASES: tuple[Phase, ...] = ("first-pass", "step")
_ON_TORCH = ("torch", "transformers")
"""Primitives whose records hold for one version of torch."""


def path_subject(source: str, target: str) -> str:
    """Return the subject of records about messages from one Node (id) to another."""
    return f"path:{source}->{target}"


def phases_of(problem: PlanningProblem) -> dict[str, tuple[Phase, ...]]:
    """Return the phases in which each cost class is priced: units of the newest position only have but steps."""
    phases: dict[str, tuple[Phase, ...]] = {}
    for unit in problem.units:
        needed: tuple[Phase, ...] = ("step",) if unit.only_last_position else PHASES
        phases[unit.cost_class] = max(phases.get(unit.cost_class, ()), needed, key=len)
    return phases


def make_economics(
    problem_cost_classes: Iterable[str] | Mapping[str, Sequence[Phase]],
    description_shape: str,
    graph: ResourceGraph,
    observations: Iterable[Observation],
    *,
    primitive: str = "torch",
    representations: Sequence[str],
    transport: str | None = None,
) -> Economics:
    """Return the curves that apply to these cost classes on this graph, and what is missing, each with its reason.

    `problem_cost_classes` are names, each priced in both phases, or the mapping of `phases_of`. The records'
    `model.shape` must be `description_shape`; `transport`, when given, must be a path record's own. The same inputs
    in any order give the same document. Each reason in `missing` that concerns a Compute Unit holds its id in
    parentheses. Raises SpecError when the graph contradicts itself.
    """
    swarm = SwarmGraph(graph)
    records = tuple(observations)
    if isinstance(problem_cost_classes, Mapping):
        wanted = {name: tuple(phases) for name, phases in problem_cost_classes.items()}
    else:
        wanted = dict.fromkeys(problem_cost_classes, PHASES)
    services: list[ServiceCurve] = []
    paths: list[PathCurve] = []
    missing: list[str] = []
    for unit in sorted(graph.compute_units, key=lambda unit: unit.id):
        for representation in sorted(set(representations)):
            if not _executes(unit, primitive, representation):
                continue
            for cost_class, phases in sorted(wanted.items()):
                for phase in phases:
                    question = _Question(swarm, unit, primitive, representation, cost_class, phase, description_shape)
                    try:
                        services.append(_service(question, records))
                    except MeasurementError as error:
                        missing.append(f"{question}: {error}")
    for source, target in sorted({(link.source, link.target) for link in graph.links if link.available}):
        try:
            paths.append(_path(source, target, transport, records))
        except MeasurementError as error:
            names = f"{swarm.node(source).name} → {swarm.node(target).name}"
            missing.append(f"{PATH_METRIC} {names}: {error}")
    return Economics(services=tuple(services), paths=tuple(paths), missing=tuple(missing))


def _executes(unit: ComputeUnit, primitive: str, representation: str) -> bool:
    needed = {f"backend:{primitive}", f"representation:{representation}"}
    return unit.available and needed <= set(unit.capabilities)


class _Question(NamedTuple):
    """One service curve that is wanted."""

    swarm: SwarmGraph
    unit: ComputeUnit
    primitive: str
    representation: str
    cost_class: str
    phase: Phase
    shape: str

    def __str__(self) -> str:
        """Name what is wanted, for people."""
        node = self.swarm.node(self.unit.node_id).name
        what = f"{SERVICE_METRIC} of {self.cost_class} in {self.representation}, {self.phase}"
        return f"{what}, on {node} ({self.unit.id})"

    @property
    def context(self) -> dict[str, str]:
        """Return what a record must state to answer it."""
        required = {
            "backend": self.primitive,
            "representation": self.representation,
            "cost.class": self.cost_class,
            "phase": self.phase,
            "threads": str(self.unit.threads),
            "model.shape": self.shape,
        }
        stated = {named.name: named.fact.value for named in self.swarm.node(self.unit.node_id).facts}
        for key, matters in (("torch", self.primitive in _ON_TORCH), ("cpu", self.unit.kind == "cpu")):
            value = stated.get(key)
            if matters and value is not None:
                required[key] = value
        return required


def _service(question: _Question, records: Sequence[Observation]) -> ServiceCurve:
    found = select(records, question.unit.id, SERVICE_METRIC, question.context, unit=SECONDS)
    _refuse_mixture(found, ("torch", "cpu"))
    points: dict[tuple[int, int], tuple[float, ...]] = {}
    for record in found.applicable:
        key = (_count(record, "positions", 1), _count(record, "context.positions", 0))
        points[key] = points.get(key, ()) + record.samples
    fit = fit_service([ServicePoint(*key, samples) for key, samples in sorted(points.items())])
    return ServiceCurve(
        compute_unit_id=question.unit.id,
        cost_class=question.cost_class,
        representation=question.representation,
        phase=question.phase,
        base_seconds=fit.base_seconds,
        seconds_per_position=fit.seconds_per_position,
        seconds_per_position_context=fit.seconds_per_position_context,
        low=fit.low,
        high=fit.high,
        evidence_ids=_ids(found),
    )


def _path(source: str, target: str, transport: str | None, records: Sequence[Observation]) -> PathCurve:
    required = {} if transport is None else {"transport": transport}
    found = select(records, path_subject(source, target), PATH_METRIC, required, unit=SECONDS)
    _refuse_mixture(found, ("transport",))
    points: dict[int, tuple[float, ...]] = {}
    for record in found.applicable:
        payload = _count(record, "payload.bytes", 0)
        points[payload] = points.get(payload, ()) + record.samples
    fit = fit_path([PathPoint(payload, samples) for payload, samples in sorted(points.items())])
    return PathCurve(
        source=source,
        target=target,
        latency_seconds=fit.latency_seconds,
        seconds_per_byte=fit.seconds_per_byte,
        low=fit.low,
        high=fit.high,
        evidence_ids=_ids(found),
    )


def _refuse_mixture(found: Selection, keys: Sequence[str]) -> None:
    """Raise MeasurementError when nothing applies, or when what applies is of several kinds."""
    if found.unknown_reason is not None:
        raise MeasurementError(found.unknown_reason)
    for key in keys:
        values = sorted({record.context_value(key) or "(not stated)" for record in found.applicable})
        if len(values) > 1:
            raise MeasurementError(f"records differ in {key} ({', '.join(values)}) and nothing says which holds here")


def _count(record: Observation, key: str, at_least: int) -> int:
    text = record.context_value(key)
    if text is None or not (text.isascii() and text.isdigit()) or int(text) < at_least:
        raise MeasurementError(f"record {record.id} states {key} as {text!r}, needed a count of at least {at_least}")
    return int(text)


def _ids(found: Selection) -> tuple[str, ...]:
    return tuple(sorted({record.id for record in found.applicable}))
