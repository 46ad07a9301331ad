"""Exactly the bytes that one participant needs: from its units to its states to their tensors' ranges."""

from __future__ import annotations

from inferswarm.artifacts.requirement import Declaration, check_requirement, refuse_whole_object
from inferswarm.artifacts.taxonomy import COVERAGE_INCOMPLETE, IDENTITY_MISMATCH
from inferswarm.artifacts.types import ModelObject, ParticipantRequirement
from inferswarm.documents import digest
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.planner.problem import PlanningProblem
from inferswarm.strategies.chain import Description, state_tensors, unit_states


def declare(description: Description, first_unit: int, end_unit: int) -> Declaration:
    """Return the states of the units [first_unit, end_unit) and the names of their tensors; a shared state once.

    Raises SpecError when the interval is empty or leaves the chain.
    """
    num_units = len(description.unit_ids)
    if not 0 <= first_unit < end_unit <= num_units:
        raise SpecError("units", (first_unit, end_unit), f"a non-empty interval within 0 to {num_units}")
    tensors = state_tensors(description)
    states = dict.fromkeys(
        state for index in range(first_unit, end_unit) for state in unit_states(description, index)
    )
    return {state: tuple(tensors[state]) for state in states}


def derive_requirement(
    description: Description,
    model_object: ModelObject,
    problem: PlanningProblem,
    participant: str,
    first_unit: int,
    end_unit: int,
) -> ParticipantRequirement:
    """Return the tensors that the units [first_unit, end_unit) need, in file order, each once.

    Raises SpecError for an impossible interval; ArtifactError when `problem` is not about this description
    (`PROVENANCE_IDENTITY_MISMATCH`), when the object lacks a tensor (`REQUIRED_STATE_COVERAGE_INCOMPLETE`), and
    when a participant without all states would need the whole object.
    """
    declaration = declare(description, first_unit, end_unit)
    _check_problem(description, problem, participant)
    needed = {name for names in declaration.values() for name in names}
    requirement = ParticipantRequirement(
        participant=participant,
        problem_digest=digest(problem),
        files=model_object.files,
        tensors=tuple(
            sorted(
                (tensor for tensor in model_object.tensors if tensor.name in needed),
                key=lambda tensor: (tensor.file, tensor.range),
            )
        ),
        state_ids=tuple(declaration),
    )
    check_requirement(requirement, model_object, declaration)
    # A tied head behind every block needs all states without holding all units.
    if len(declaration) < len(state_tensors(description)):
        refuse_whole_object(requirement, model_object)
    return requirement


def _check_problem(description: Description, problem: PlanningProblem, participant: str) -> None:
    """Refuse a problem whose chain or states are not those of the description."""
    if tuple(unit.id for unit in problem.units) != description.unit_ids:
        raise ArtifactError(IDENTITY_MISMATCH, participant, f"problem {problem.id} has another chain of units")
    for index, unit in enumerate(problem.units):
        if unit.states != unit_states(description, index):
            raise ArtifactError(
                COVERAGE_INCOMPLETE, participant, f"problem {problem.id} gives {unit.id} the states {unit.states}"
            )
