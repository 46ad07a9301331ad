"""From a plan to what each participant must know, and to the unsplit oracle of the same plan."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferswarm.artifacts.types import ModelObject
from inferswarm.backends.base import StageAssignment, UnitBinding, UnitThreads
from inferswarm.backends.partition import Representations, UnitRepresentation
from inferswarm.backends.representing import check_backend, check_mixture, plan_representations
from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.planner.plan import ExecutionPlan, Placement
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.chain import Description
from inferswarm.strategies.requirement import derive_requirement

UNSPLIT = "unsplit"
"""The participant of an oracle that executes the whole chain by itself; with a number where it needs several."""


def make_assignments(
    plan: ExecutionPlan,
    description: Description,
    model_object: ModelObject,
    problem: PlanningProblem,
    graph: ResourceGraph | None = None,
) -> tuple[StageAssignment, ...]:
    """Return one assignment for each placement of `plan`, in the order of the route.

    `graph` is the one that the plan was made for: it says what kind of Compute Unit each placement is on, and which
    CPUs it is bound to. Without it every participant computes on a CPU and is bound to none. Raises SpecError when a
    Compute Unit is not on the placement's Node in the graph, the plan was made for another problem, its placements do
    not cover the chain exactly, it mixes what the problem does not let it mix, or its backend cannot do what it says;
    ArtifactError when the model's bytes do not cover a participant's states.
    """
    _check_plan(plan, problem)
    return tuple(
        _assign(
            plan,
            description,
            model_object,
            problem,
            placement.participant,
            UnitRepresentation(placement.first_unit, placement.end_unit, plan.representation_of(placement)),
            plan.payload_representation,
            msgspec.UNSET if graph is None else _binding(placement, graph),
        )
        for placement in plan.placements
    )


def unsplit_assignments(
    plan: ExecutionPlan,
    description: Description,
    model_object: ModelObject,
    problem: PlanningProblem,
    *,
    representation: str | None = None,
) -> tuple[StageAssignment, ...]:
    """Return the assignments that execute the whole chain in one process with the split's partition.

    One, unless the plan mixes: then one for each run of units that compute in the same representation, wherever the
    plan cuts them. Each unit keeps the number of threads that it has in the plan, so that the result can be compared
    bit for bit. With `representation` all units compute in that one, for comparisons of another kind. Raises as
    `make_assignments`.
    """
    _check_plan(plan, problem)
    runs: Representations = plan_representations(plan)
    if representation is not None:
        runs = (UnitRepresentation(0, runs[-1].end_unit, representation),)
    carried = plan.payload_representation if representation is None else msgspec.UNSET
    names = [UNSPLIT] if len(runs) == 1 else [f"{UNSPLIT}-{index}" for index in range(len(runs))]
    return tuple(
        _assign(plan, description, model_object, problem, name, run, carried)
        for name, run in zip(names, runs, strict=True)
    )


def _assign(
    plan: ExecutionPlan,
    description: Description,
    model_object: ModelObject,
    problem: PlanningProblem,
    participant: str,
    run: UnitRepresentation,
    payload_representation: str | msgspec.UnsetType,
    compute_unit: UnitBinding | msgspec.UnsetType = msgspec.UNSET,
) -> StageAssignment:
    first_unit, end_unit = run.first_unit, run.end_unit
    return StageAssignment(
        participant=participant,
        plan_digest=digest(plan),
        primitive=plan.primitive,
        representation=run.representation,
        description=description,
        first_unit=first_unit,
        end_unit=end_unit,
        threads=tuple(_threads(plan, run)),
        requirement=derive_requirement(description, model_object, problem, participant, first_unit, end_unit),
        max_positions=plan.max_positions,
        sessions=plan.sessions,
        chunk_positions=plan.chunk_positions,
        payload_representation=payload_representation,
        compute_unit=compute_unit,
    )


def _binding(placement: Placement, graph: ResourceGraph) -> UnitBinding:
    for unit in graph.compute_units:
        if (unit.id, unit.node_id) == (placement.compute_unit_id, placement.node_id):
            cpus = () if isinstance(unit.cpus, msgspec.UnsetType) else unit.cpus
            return UnitBinding(id=unit.id, kind=unit.kind, cpus=cpus)
    needed = f"a Compute Unit of Node {placement.node_name} in the graph"
    raise SpecError(f"placement {placement.participant}: compute unit", placement.compute_unit_id, needed)


def _threads(plan: ExecutionPlan, run: UnitRepresentation) -> Iterator[UnitThreads]:
    for placement in plan.placements:
        first_unit = max(placement.first_unit, run.first_unit)
        end_unit = min(placement.end_unit, run.end_unit)
        if first_unit < end_unit:
            yield UnitThreads(first_unit, end_unit, placement.threads)


def _check_plan(plan: ExecutionPlan, problem: PlanningProblem) -> None:
    """Refuse a plan of another problem, with missing, repeated or reordered units, or that nobody can execute so."""
    if plan.problem_digest != digest(problem):
        raise SpecError(
            "plan problem_digest", plan.problem_digest, f"that of problem {problem.id}, {digest(problem)}"
        )
    next_unit = 0
    for placement in plan.placements:
        expected = tuple(unit.id for unit in problem.units[next_unit : placement.end_unit])
        if placement.first_unit != next_unit or not expected or placement.unit_ids != expected:
            raise SpecError(
                f"placement {placement.participant}",
                (placement.first_unit, placement.end_unit, placement.unit_ids),
                f"the units from {next_unit} on: {expected}",
            )
        next_unit = placement.end_unit
    if next_unit != len(problem.units):
        raise SpecError("plan placements", f"units 0 to {next_unit}", f"all {len(problem.units)} units")
    check_mixture(plan, problem)
    check_backend(plan)
