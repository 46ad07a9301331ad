"""A plan whose stages are there, what is asked of its assignments, and what its stages hold of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from inferswarm.backends.base import StageAssignment
from inferswarm.backends.representing import carried_by, check_backend
from inferswarm.documents import digest
from inferswarm.errors import RealizationFailed, SpecError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.frames import Address
from inferswarm.fabric.holding import Holding
from inferswarm.planner.plan import ExecutionPlan, Placement
from inferswarm.strategies.chain import Description


class RunningPlan(NamedTuple):
    """A plan that has authority, and where its stages are."""

    plan: ExecutionPlan
    plan_digest: str
    realization: str
    epoch: int
    stages: tuple[m.Materialized, ...]
    endpoints: tuple[str, ...]
    pids: tuple[int, ...]
    run_ahead: int
    vocabulary_size: int
    address: Address
    """What this epoch's frames carry."""
    model: str = ""
    """Digest of the model as the stages hold it (`model_digest`); empty where it is not known."""
    paths: tuple[m.PathUse, ...] = ()
    """The measured paths that messages take, in route order."""
    fed_from: Mapping[int, int] = {}
    """Sessions that the stages hold already, each with the position from which the first stage gets tokens."""


def first_plan(order: m.Realize) -> m.Fallback:
    """Return the plan that an order asks for, without its fallbacks."""
    return m.Fallback(
        plan=order.plan,
        assignments=order.assignments,
        run_ahead=order.run_ahead,
        paths=order.paths,
        artifacts=order.artifacts,
    )


Held = Sequence[Mapping[int, m.SessionHeld]]
"""What each stage of a route holds of each session, in route order."""


Hold = Callable[[Held], Holding]
"""Says what the stages of a new route are to hold."""


class Recovery(NamedTuple):
    """What makes an attempt one of a change that is under way."""

    transition: int
    adopts: ev.Adoption | None
    """The stages that are taken over, if any."""
    hold: Hold


def check_assignments(plan: ExecutionPlan, assignments: tuple[StageAssignment, ...]) -> str:
    """Return the plan's digest.

    Raises SpecError unless there is one assignment for each placement, of this plan, with its representations, and
    for what the plan's backend cannot do (`representing.check_backend`).
    """
    plan_digest = digest(plan)
    check_backend(plan)
    if len(assignments) != len(plan.placements):
        raise SpecError("assignments", len(assignments), f"{len(plan.placements)}, one for each placement")
    for placement, assignment in zip(plan.placements, assignments, strict=True):
        wanted = (
            placement.participant,
            placement.first_unit,
            placement.end_unit,
            plan_digest,
            plan.primitive,
            plan.representation_of(placement),
            carried_by(plan),
        )
        found = (
            assignment.participant,
            assignment.first_unit,
            assignment.end_unit,
            assignment.plan_digest,
            assignment.primitive,
            assignment.representation,
            assignment.boundary_representation,
        )
        if found != wanted:
            raise SpecError(f"assignment of {placement.participant}", found, f"the plan's {wanted}")
    return plan_digest


def model_digest(description: Description, placements: Iterable[Placement], stages: Iterable[m.Materialized]) -> str:
    """Return the digest of a description and of what all states were read from: the same for every cut.

    Empty where it is not known of a state. Raises RealizationFailed when two participants read another thing for the
    same state: their Nodes hold different models.
    """
    known: dict[str, str | None] = {}
    for placement, stage in zip(placements, stages, strict=True):
        for state in stage.states:
            if known.setdefault(state.state_id, state.source_digest) != state.source_digest:
                reason = f"{placement.participant} read another {state.state_id} than a participant before it"
                raise RealizationFailed(placement.node_name, reason)
    if not known or None in known.values():
        return ""
    return digest((digest(description), sorted(known.items())))
