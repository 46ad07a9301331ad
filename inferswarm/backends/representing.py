"""What a plan says about representations and places of states, held against what its backend can do. Torch-free.

A participant that is given payloads in a representation that holds its own exactly, and passes its results on in it,
computes what it would compute beside its neighbors. So the only values that are ever rounded are those that reach a
unit that computes in less than the unit before it, and every plan with the same representation of each unit has the
same ones.
"""

from __future__ import annotations

import msgspec

from inferswarm.backends.partition import Representations, UnitRepresentation, merge_representations
from inferswarm.backends.registry import keeps_states_apart, representations_of
from inferswarm.backends.sessions import check_payload
from inferswarm.errors import SpecError
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem


def plan_representations(plan: ExecutionPlan) -> Representations:
    """Return what each unit of a plan computes in, as runs of neighbors with one representation."""
    return merge_representations(
        UnitRepresentation(item.first_unit, item.end_unit, plan.representation_of(item)) for item in plan.placements
    )


def carried_by(plan: ExecutionPlan) -> str:
    """Return what payloads between the plan's participants travel in."""
    carried = plan.payload_representation
    return plan.representation if isinstance(carried, msgspec.UnsetType) else carried


def mixes(plan: ExecutionPlan) -> bool:
    """Return whether a plan says for each participant, or for payloads, what is not the plan's own representation."""
    own = (*(item.representation for item in plan.placements), plan.payload_representation)
    return any(not isinstance(said, msgspec.UnsetType) for said in own)


def check_backend(plan: ExecutionPlan) -> None:
    """Refuse what the plan asks of its backend and the backend cannot do.

    Raises SpecError, naming the participant: an unknown primitive; a representation that the backend lacks; payloads
    that would round a participant's results or inputs, so that the place of a cut would decide bits; states that
    shall lie elsewhere than where the participant computes.
    """
    offered = representations_of(plan.primitive)
    for placement in plan.placements:
        who, own = f"placement {placement.participant}", plan.representation_of(placement)
        if own not in offered:
            needed = f"one of {list(offered)}, which primitive {plan.primitive!r} has"
            raise SpecError(f"{who} representation", own, needed)
        check_payload(who, own, carried_by(plan))
        elsewhere = placement.states_memory_id
        if not isinstance(elsewhere, msgspec.UnsetType) and not keeps_states_apart(plan.primitive):
            needed = f"none: {plan.primitive!r} keeps states where it computes, in {placement.memory.memory_id}"
            raise SpecError(f"{who} states_memory_id", elsewhere, needed)


def check_mixture(plan: ExecutionPlan, problem: PlanningProblem) -> None:
    """Refuse a plan that mixes what its problem does not declare a mixture. Raises SpecError."""
    if not mixes(plan):
        return
    declared = () if isinstance(problem.mixtures, msgspec.UnsetType) else problem.mixtures
    legal = [mixture for mixture in declared if mixture.primitive == plan.primitive]
    mixture = next((mixture for mixture in legal if mixture.name == plan.representation), None)
    if mixture is None:
        names = [item.name for item in legal]
        needed = f"a mixture that problem {problem.id} declares for {plan.primitive!r}: {names}"
        raise SpecError("plan representation", plan.representation, needed)
    if carried_by(plan) != mixture.payload_representation:
        needed = f"{mixture.payload_representation}, that of mixture {mixture.name}"
        raise SpecError("plan payload_representation", carried_by(plan), needed)
    for placement in plan.placements:
        if (own := plan.representation_of(placement)) not in mixture.representations:
            needed = f"one of {list(mixture.representations)}, those of mixture {mixture.name}"
            raise SpecError(f"placement {placement.participant} representation", own, needed)
