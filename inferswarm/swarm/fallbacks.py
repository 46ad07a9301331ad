"""What to go on with when a Node of a plan is lost: chosen beforehand, because its planner may not be there then."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from inferswarm.backends.assignment import make_assignments
from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.evidence.store import ObservationStore
from inferswarm.fabric import messages as m
from inferswarm.planner import ExecutionPlan, Inputs, PlanningProblem, SolverLimits
from inferswarm.planner.resolving import Resolver, value_of
from inferswarm.resources.types import ResourceGraph
from inferswarm.swarm.model import Model
from inferswarm.swarm.model_artifacts import ArtifactTerms, needed_artifacts
from inferswarm.swarm.path_measuring import addresses_of_plan

PLANNING_SECONDS = 2.0
"""For all fallbacks of a plan together: a service is not kept waiting for what may never be needed."""


def order_of(
    plan: ExecutionPlan,
    *,
    store: ObservationStore,
    model: Model,
    problem: PlanningProblem,
    graph: ResourceGraph,
    run_ahead: int,
    terms: ArtifactTerms | None = None,
) -> m.Fallback:
    """Return what it takes to realize a plan; with `terms` its Nodes acquire what they need into their stores.

    Raises SpecError as `make_assignments` does, ArtifactError as `needed_artifacts`.
    """
    assignments = make_assignments(plan, model.description, model.opened.object, problem, graph)
    return m.Fallback(
        plan=plan,
        assignments=assignments,
        run_ahead=run_ahead,
        paths=addresses_of_plan(store, plan),
        artifacts=msgspec.UNSET if terms is None else needed_artifacts(model, plan, assignments, terms),
    )


def plans_without_a_node(plan: ExecutionPlan, inputs: Inputs) -> tuple[ExecutionPlan, ...]:
    """Return, for each Node of a plan, the best plan without it, the best of all first; each of them once.

    `inputs` are those that the plan was decided from. Representation and primitive stay, because sessions go on with
    the same model in the same arithmetic. Nothing is guessed: a Node without which nothing is feasible has no entry.
    """
    nodes = dict.fromkeys(placement.node_id for placement in plan.placements)
    resolver = Resolver(SolverLimits(seconds=PLANNING_SECONDS), len(nodes))
    found: dict[str, ExecutionPlan] = {}
    for node in nodes:
        policy = inputs.policy
        policy = replace(
            policy, excluded_nodes=(*policy.excluded_nodes, node), representations=(plan.representation,)
        )
        try:
            best = resolver.best(inputs._replace(policy=policy))
        except SpecError:
            continue  # a pinned Node cannot be left out: the operator wants this plan or none
        if best is not None and best.plan is not None and best.plan.primitive == plan.primitive:
            found[digest(best.plan)] = best.plan
    found.pop(digest(plan), None)
    return tuple(sorted(found.values(), key=value_of))


def fallbacks_of(
    plan: ExecutionPlan, inputs: Inputs | None, ordered: Callable[[ExecutionPlan], m.Fallback]
) -> tuple[m.Fallback, ...]:
    """Return the orders for them. A plan that was not decided here (`inputs` None) or that mixes has none."""
    if inputs is None or any(isinstance(item.representation, str) for item in plan.placements):
        return ()
    return tuple(ordered(other) for other in plans_without_a_node(plan, inputs))
