"""From observations to the planner's economics: which records apply here, fitted to curves; what is missing and why.

A service curve is made of records of `unit-seconds` (unit s) whose subject is the Compute Unit and whose context
names the backend, the representation, the cost class, the phase, the Compute Unit's thread count and the model's
shape, all equal to what is asked; and the version of torch and the CPU's model, where the facts of the Node (`torch`,
`cpu`) state them. `positions` and `context.positions` say which point of the curve a record measured.

A path curve is made of records of `message-seconds` (unit s, one way, software included) whose subject is the
directed pair of Nodes (or a Node and itself, where it has several Compute Units) and a pair of their addresses;
`payload.bytes` is the point, `transport` the way that was measured. A curve is made of one pair of addresses, the
best (see `strategies.paths`).

What a step costs a participant beside its units (`step-overhead-seconds`) is priced where it arises. A participant
alone computes one step after the other: its overhead is part of the first unit, which every plan has once. Where a
route has several participants, each waits for the others and starts its step cold; what that costs is seen from the
records that were taken after a pause (`pause.seconds` above 0): the whole step less what its units take without a
pause. Each participant of such a route has exactly one path into it, and so this is part of the path. (The overhead
of the first participant of such a route is counted twice, once cold and once not.) A prompt always comes after a
pause; its first unit carries that of the first chunk.

Records that differ in what neither the graph nor the asker states (two versions of torch, two CPUs, two transports)
are not mixed: the curve is missing until only one kind remains. Curves are made only where a plan could use them: on
Compute Units that are available and have the backend's and the representation's tags, and over available Links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from inferswarm.errors import MeasurementError
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.facts import path_subject as path_subject
from inferswarm.evidence.fits import PathPoint, ServicePoint, fit_path, fit_service
from inferswarm.evidence.types import Observation
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.types import ComputeUnit, ResourceGraph
from inferswarm.strategies.dense.description import EMBEDDING
from inferswarm.strategies.overheads import (
    OPENING_METRIC,
    OVERHEAD_METRIC,
    SERVICE_METRIC,
    TOKEN_METRIC,
    Overhead,
    Question,
    Records,
    back_to_back,
    count_of,
    ids_of,
    overhead_of,
    points_of,
    refuse_mixture,
    serving_of,
    waking_of,
)
from inferswarm.strategies.paths import PATH_METRIC as PATH_METRIC
from inferswarm.strategies.paths import best_pair

PHASES: tuple[Phase, ...] = ("first-pass", "step")


def phases_of(problem: PlanningProblem) -> dict[str, tuple[Phase, ...]]:
    """Return the phases in which each cost class is priced.

    Units of the newest position only have but steps; those that open requests are priced for that too.
    """
    phases: dict[str, tuple[Phase, ...]] = {}
    for unit in problem.units:
        needed: tuple[Phase, ...] = ("step",) if unit.only_last_position else PHASES
        if unit.opens_requests is True:
            needed = (*needed, "opening")
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
    currency: Currency | None = None,
) -> Economics:
    """Return the curves that apply to these cost classes on this graph, and what is missing, each with its reason.

    `problem_cost_classes` are names, each priced in both phases and the embedding for opening requests too, or the
    mapping of `phases_of`. The records' `model.shape` must be `description_shape`; `transport`, when given, must be a
    path record's own. `currency`, when given, holds every record against the facts in force. The same inputs in any
    order give the same document. Each reason in `missing` that concerns a Compute Unit holds its id in parentheses.
    Raises SpecError when the graph contradicts itself.
    """
    swarm = SwarmGraph(graph)
    if isinstance(problem_cost_classes, Mapping):
        wanted = {name: tuple(phases) for name, phases in problem_cost_classes.items()}
    else:
        wanted = {name: (*PHASES, "opening") if name == EMBEDDING else PHASES for name in problem_cost_classes}
    records = Records(observations, currency)
    services: list[ServiceCurve] = []
    paths: list[PathCurve] = []
    missing: list[str] = []
    waking: dict[str, list[Overhead]] = {}
    starting: dict[str, list[Overhead]] = {}
    for unit in sorted(graph.compute_units, key=lambda unit: unit.id):
        for representation in sorted(set(representations)):
            if not _executes(unit, primitive, representation):
                continue
            for cost_class, phases in sorted(wanted.items()):
                for phase in phases:
                    question = Question(swarm, unit, primitive, representation, cost_class, phase, description_shape)
                    try:
                        made = _opening if phase == "opening" else _service
                        services.append(made(question, records))
                    except MeasurementError as error:
                        missing.append(f"{question}: {error}")
            for phase in wanted.get(EMBEDDING, ()):
                if phase == "opening":
                    continue
                question = Question(swarm, unit, primitive, representation, "", phase, description_shape)
                try:
                    found = waking_of(question, records)
                except MeasurementError as error:
                    missing.append(f"{OVERHEAD_METRIC} after a pause {question.where}: {error}")
                else:
                    (waking if phase == "step" else starting).setdefault(unit.node_id, []).append(found)
    within = Counter(unit.node_id for unit in graph.compute_units if unit.available)
    ends = {(link.source, link.target) for link in graph.links if link.available}
    ends |= {(node, node) for node, num in within.items() if num > 1}  # participants of one Node talk as any two
    for source, target in sorted(ends):
        try:
            for phase, known in (("step", waking), ("first-pass", starting)):
                if phase in wanted.get(EMBEDDING, ()) and target not in known:
                    where = swarm.node(target).name
                    raise MeasurementError(f"nobody knows what a {phase} after a pause costs on {where}")
            paths.append(_path(source, target, transport, records, waking.get(target, ()), starting.get(target, ())))
        except MeasurementError as error:
            names = f"{swarm.node(source).name} → {swarm.node(target).name}"
            missing.append(f"{PATH_METRIC} {names}: {error}")
    return Economics(services=tuple(services), paths=tuple(paths), missing=tuple(missing))


def _executes(unit: ComputeUnit, primitive: str, representation: str) -> bool:
    needed = {f"backend:{primitive}", f"representation:{representation}"}
    return unit.available and needed <= set(unit.capabilities)


def _service(question: Question, records: Records) -> ServiceCurve:
    found = back_to_back(records.select(question.unit.id, SERVICE_METRIC, question.context))
    refuse_mixture(found, ("torch", "cpu"))
    points = {(positions, context): samples for (_, positions, context), samples in points_of(found).items()}
    ids = ids_of(found)
    if question.cost_class == EMBEDDING:
        beside = [overhead_of(question._replace(cost_class=""), records)]
        beside += [serving_of(question, TOKEN_METRIC, records)] if question.phase == "step" else []
        for overhead in beside:
            points = {key: overhead.added_to(samples) for key, samples in points.items()}
            ids = tuple(sorted({*ids, *overhead.evidence_ids}))
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
        evidence_ids=ids,
    )


def _opening(question: Question, records: Records) -> ServiceCurve:
    """Return what a request costs once: its way in and its first token's way out, and a first chunk after a pause."""
    opening = serving_of(question, OPENING_METRIC, records)
    waking = waking_of(question._replace(cost_class="", phase="first-pass"), records)
    fit = fit_service([ServicePoint(1, 0, waking.added_to(opening.samples))])
    return ServiceCurve(
        compute_unit_id=question.unit.id,
        cost_class=question.cost_class,
        representation=question.representation,
        phase="opening",
        base_seconds=fit.base_seconds,
        low=fit.low,
        high=fit.high,
        evidence_ids=tuple(sorted({*opening.evidence_ids, *waking.evidence_ids})),
    )


def _path(
    source: str,
    target: str,
    transport: str | None,
    records: Records,
    waking: Sequence[Overhead],
    starting: Sequence[Overhead],
) -> PathCurve:
    """Fit the messages of a path, with what the participant that they reach needs to wake.

    Every message wakes it for a step; the first of a request for a chunk, which takes `opening_seconds` more. Where
    several Compute Units or representations may be meant there, the samples of all of them count.
    """
    found = best_pair(source, target, transport, records)
    woken, started = _all_of(waking), _all_of(starting)
    opening: float | msgspec.UnsetType = msgspec.UNSET
    if started.samples:
        opening = max(0.0, median(started.samples) - (median(woken.samples) if woken.samples else 0.0))
    points: dict[int, tuple[float, ...]] = {}
    for record in found.applicable:
        payload = count_of(record, "payload.bytes", 0)
        points[payload] = points.get(payload, ()) + record.samples
    fit = fit_path([PathPoint(payload, woken.added_to(samples)) for payload, samples in sorted(points.items())])
    return PathCurve(
        source=source,
        target=target,
        latency_seconds=fit.latency_seconds,
        seconds_per_byte=fit.seconds_per_byte,
        low=fit.low,
        high=fit.high,
        evidence_ids=tuple(sorted({*ids_of(found), *woken.evidence_ids, *started.evidence_ids})),
        opening_seconds=opening,
    )


def _all_of(overheads: Sequence[Overhead]) -> Overhead:
    return Overhead(
        tuple(sample for item in overheads for sample in item.samples),
        tuple(name for item in overheads for name in item.evidence_ids),
    )
