"""From a plan to what each participant must know, and to the unsplit oracle of the same plan."""

from __future__ import annotations

from inferswarm.artifacts.types import ModelObject
from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem
from inferswarm.strategies.chain import Description
from inferswarm.strategies.requirement import derive_requirement

UNSPLIT = "unsplit"
"""The participant of an oracle that executes the whole chain by itself."""


def make_assignments(
    plan: ExecutionPlan, description: Description, model_object: ModelObject, problem: PlanningProblem
) -> tuple[StageAssignment, ...]:
    """Return one assignment for each placement of `plan`, in the order of the route.

    Raises SpecError when the plan was made for another problem or its placements do not cover the chain exactly;
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
            (UnitThreads(placement.first_unit, placement.end_unit, placement.threads),),
        )
        for placement in plan.placements
    )


def unsplit_assignment(
    plan: ExecutionPlan, description: Description, model_object: ModelObject, problem: PlanningProblem
) -> StageAssignment:
    """Return the assignment that executes the whole chain in one place with the split's partition.

    Each unit keeps the number of threads that it has in the plan, so that the result can be compared bit for bit.
    Raises as `make_assignments`.
    """
    _check_plan(plan, problem)
    threads = tuple(
        UnitThreads(placement.first_unit, placement.end_unit, placement.threads) for placement in plan.placements
    )
    return _assign(plan, description, model_object, problem, UNSPLIT, threads)


def _assign(
    plan: ExecutionPlan,
    description: Description,
    model_object: ModelObject,
    problem: PlanningProblem,
    participant: str,
    threads: tuple[UnitThreads, ...],
) -> StageAssignment:
    first_unit, end_unit = threads[0].first_unit, threads[-1].end_unit
    return StageAssignment(
        participant=participant,
        plan_digest=digest(plan),
        primitive=plan.primitive,
        representation=plan.representation,
        description=description,
        first_unit=first_unit,
        end_unit=end_unit,
        threads=threads,
        requirement=derive_requirement(description, model_object, problem, participant, first_unit, end_unit),
        max_positions=plan.max_positions,
        sessions=plan.sessions,
        chunk_positions=plan.chunk_positions,
    )


def _check_plan(plan: ExecutionPlan, problem: PlanningProblem) -> None:
    """Refuse a plan of another problem, and one whose placements leave out, repeat or reorder units."""
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
