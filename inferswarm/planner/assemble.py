"""From a route to a plan document: who holds what, how much memory it takes, how long it should take."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inferswarm.errors import SpecError
from inferswarm.planner.cost import Pricing, mixture_of, predict
from inferswarm.planner.economics import Economics
from inferswarm.planner.memory import RangeMemory, accounts_of
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Implementation, PlanningProblem, Workload
from inferswarm.planner.sites import GraphView, Leg, Mode, Route


class Case(NamedTuple):
    """One implementation of one problem, for one workload, on one snapshot: all that candidates have in common.

    For a mixture, `implementation` has its name in place of a representation.
    """

    problem: PlanningProblem
    implementation: Implementation
    workload: Workload
    memory: RangeMemory
    """Of the implementation; of the first one of a mixture."""
    pricing: Pricing
    problem_digest: str
    graph_digest: str
    parts: tuple[Implementation, ...]
    """What a participant may be: the implementation itself, or one of those that are mixed."""
    memories: tuple[RangeMemory, ...]
    """Of each part."""

    def memory_in(self, mode: Mode) -> RangeMemory:
        """Return the memory of a participant that works in that mode."""
        for part, memory in zip(self.parts, self.memories, strict=True):
            if mode.representation in ("", part.representation):
                return memory
        raise AssertionError(f"{mode} is no mode of {self.implementation.representation}")

    def accounts(self, route: Route) -> tuple[tuple[MemoryAccount, ...], ...]:
        """Return every account of each participant, that of the nearest Memory Resource first."""
        return accounts_of(route, [self.memory_in(leg.mode) for leg in route])


def make_case(
    problem: PlanningProblem,
    implementation: Implementation,
    workload: Workload,
    economics: Economics,
    digests: tuple[str, str],
    view: GraphView | None = None,
) -> Case:
    """Prepare memory and prices of one implementation; `digests` are the problem's and the graph's.

    An implementation whose representation is the name of one of the problem's mixtures is that mixture. Without
    `view` no two paths share a segment. Raises SpecError for a workload beyond the strategy's longest session, for
    contradictory economics, and for a mixture of what the problem does not have.
    """
    mixture = mixture_of(problem, implementation)
    parts: tuple[Implementation, ...] = (implementation,)
    if mixture is not None:
        parts = tuple(
            item
            for item in problem.implementations
            if item.primitive == mixture.primitive and item.representation in mixture.representations
        )
        if len(parts) != len(mixture.representations):
            known = [item.representation for item in problem.implementations if item.primitive == mixture.primitive]
            raise SpecError(f"mixture {mixture.name}", mixture.representations, f"some of {known}, each once")
    memories = tuple(RangeMemory(problem, part, workload) for part in parts)
    pricing = Pricing(problem, implementation, workload, economics, view=view)
    return Case(problem, implementation, workload, memories[0], pricing, *digests, parts, memories)


def build_plan(case: Case, route: Route) -> ExecutionPlan:
    """Write the plan that a route amounts to. It is priced when every curve that it needs is there."""
    mixture = mixture_of(case.problem, case.implementation)
    placements = []
    for index, (leg, accounts) in enumerate(zip(route, case.accounts(route), strict=True)):
        apart = leg.states_memory
        placements.append(
            Placement(
                participant=f"stage-{index}",
                node_id=leg.site.node.id,
                node_name=leg.site.node.name,
                compute_unit_id=leg.site.id,
                threads=leg.site.compute_unit.threads,
                first_unit=leg.first_unit,
                end_unit=leg.end_unit,
                unit_ids=tuple(unit.id for unit in case.problem.units[leg.first_unit : leg.end_unit]),
                states=case.memory_in(leg.mode).states(leg.first_unit, leg.end_unit),
                memory=accounts[0],
                representation=leg.mode.representation or msgspec.UNSET,
                states_memory_id=msgspec.UNSET if apart is None else apart.id,
                states_memory=msgspec.UNSET if apart is None else accounts[1],
            )
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
        placements=tuple(placements),
        prediction=predict(case.pricing, route),
        payload_representation=msgspec.UNSET if mixture is None else mixture.payload_representation,
    )


def plan_route(plan: ExecutionPlan, view: GraphView) -> Route:
    """Return the route that a plan amounts to.

    Raises SpecError for a Compute Unit that the snapshot lacks, and for a Memory Resource that it does not address.
    """
    legs = []
    for placement in plan.placements:
        site = view.site(placement.compute_unit_id, "plan placements")
        place = 0
        if not isinstance(placement.states_memory_id, msgspec.UnsetType):
            further = [memory.id for memory in site.further]
            if placement.states_memory_id not in further:
                raise SpecError("plan placements: states_memory_id", placement.states_memory_id, f"one of {further}")
            place = 1 + further.index(placement.states_memory_id)
        own = placement.representation
        mode = Mode("" if isinstance(own, msgspec.UnsetType) else own, place)
        legs.append(Leg(site, placement.first_unit, placement.end_unit, mode))
    return tuple(legs)
