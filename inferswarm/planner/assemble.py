"""From a route to a plan document: who holds what, how much memory it takes, how long it should take."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.planner.cost import Pricing, predict
from inferswarm.planner.economics import Economics
from inferswarm.planner.memory import RangeMemory
from inferswarm.planner.plan import ExecutionPlan, Placement
from inferswarm.planner.problem import Implementation, PlanningProblem, Workload
from inferswarm.planner.sites import GraphView, Leg, Route


class Case(NamedTuple):
    """One implementation of one problem, for one workload, on one snapshot: all that candidates have in common."""

    problem: PlanningProblem
    implementation: Implementation
    workload: Workload
    memory: RangeMemory
    pricing: Pricing
    problem_digest: str
    graph_digest: str


def make_case(
    problem: PlanningProblem,
    implementation: Implementation,
    workload: Workload,
    economics: Economics,
    digests: tuple[str, str],
    view: GraphView | None = None,
) -> Case:
    """Prepare memory and prices of one implementation; `digests` are the problem's and the graph's.

    Without `view` no two paths share a segment.
    Raises SpecError for a workload beyond the strategy's longest session and for contradictory economics.
    """
    return Case(
        problem,
        implementation,
        workload,
        RangeMemory(problem, implementation, workload),
        Pricing(problem, implementation, workload, economics, view=view),
        *digests,
    )


def build_plan(case: Case, route: Route) -> ExecutionPlan:
    """Write the plan that a route amounts to. It is priced when every curve that it needs is there."""
    placements = tuple(
        Placement(
            participant=f"stage-{index}",
            node_id=leg.site.node.id,
            node_name=leg.site.node.name,
            compute_unit_id=leg.site.id,
            threads=leg.site.compute_unit.threads,
            first_unit=leg.first_unit,
            end_unit=leg.end_unit,
            unit_ids=tuple(unit.id for unit in case.problem.units[leg.first_unit : leg.end_unit]),
            states=case.memory.states(leg.first_unit, leg.end_unit),
            memory=account,
        )
        for index, (leg, account) in enumerate(zip(route, case.memory.route_accounts(route), strict=True))
    )
    return ExecutionPlan(
        problem_digest=case.problem_digest,
        graph_digest=case.graph_digest,
        primitive=case.implementation.primitive,
        representation=case.implementation.representation,
        workload=case.workload,
        chunk_positions=case.problem.chunk_positions,
        max_positions=case.memory.max_positions,
        sessions=case.memory.sessions,
        placements=placements,
        prediction=predict(case.pricing, route),
    )


def plan_route(plan: ExecutionPlan, view: GraphView) -> Route:
    """Return the route that a plan amounts to. Raises SpecError for a Compute Unit that the snapshot lacks."""
    return tuple(
        Leg(view.site(placement.compute_unit_id, "plan placements"), placement.first_unit, placement.end_unit)
        for placement in plan.placements
    )
