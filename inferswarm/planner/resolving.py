"""Solving again: the best plan of a question that was varied, without the account of every family.

What-if analyses ask many small variations of one question. They need the best plan, its value and what is proved,
not why each of the others was rejected. All of them spend one budget of time and of solves.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from inferswarm.documents import digest
from inferswarm.evidence.health import Health
from inferswarm.planner.assemble import Case, build_plan, make_case
from inferswarm.planner.cost import Pricing
from inferswarm.planner.decide import decide
from inferswarm.planner.economics import Economics, usable
from inferswarm.planner.gates import (
    Rules,
    allowed_sites,
    capacity_refusals,
    integrity_refusals,
    resolve_policy,
    unit_refusals,
)
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy, Throughput, Workload
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import GraphView, Site
from inferswarm.planner.solvers.building import build_instance
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.planner.solvers.solving import solve
from inferswarm.planner.standing import Standing
from inferswarm.resources.types import ResourceGraph

Aim = Literal["workload", "first-token", "next-token", "throughput"]
"""What to make best: the workload's own objective, or one figure alone."""
LEAST_DIFFERENCE = 1e-3
"""Relative: a difference below this is none. It is less than anybody notices, and far more than solvers round."""
MANY_TOKENS = 10**6
"""Steps that outweigh every first token, where the time between tokens alone counts."""


class Inputs(NamedTuple):
    """Everything that a decision is made from."""

    problem: PlanningProblem
    graph: ResourceGraph
    workload: Workload
    policy: Policy
    economics: Economics
    allow_estimates: bool = False
    health: tuple[Health, ...] = ()

    @property
    def view(self) -> GraphView:
        """The snapshot with its health, as a decision sees it."""
        return GraphView(self.graph, Standing(self.health))

    def decide(self, limits: SolverLimits | None = None) -> Decision:
        """Return the decision. Raises SpecError as `planner.decide` does."""
        return decide(
            self.problem,
            self.graph,
            self.workload,
            self.policy,
            self.economics,
            limits,
            allow_estimates=self.allow_estimates,
            health=self.health,
        )

    @property
    def curves(self) -> Economics:
        """The curves that may be used."""
        return usable(self.economics, self.allow_estimates)


class Best(NamedTuple):
    """The best plan that was found. No plan that can be priced has a smaller value than `bound`.

    Values are seconds: of a request, or for each token where throughput counts; infinite without a plan.
    """

    value: float = math.inf
    plan: ExecutionPlan | None = None
    bound: float = math.inf

    def surely_better_than(self, other: Best) -> bool:
        """Whether it has a plan that is better than any that the other question allows."""
        return self.plan is not None and (
            other.bound == math.inf or self.value < other.bound * (1 - LEAST_DIFFERENCE)
        )

    def surely_no_better_than(self, other: Best) -> bool:
        """Whether no plan of this question is better than the other's best one."""
        return self.bound >= other.value * (1 - LEAST_DIFFERENCE) or (self.bound == math.inf)


def family_of(plan: ExecutionPlan) -> tuple[str, tuple[str, ...]]:
    """Return what a plan has in common with its family: representation and Compute Units."""
    return plan.representation, tuple(sorted(placement.compute_unit_id for placement in plan.placements))


def describe(plan: ExecutionPlan) -> str:
    """Write which Nodes a plan uses, in the order of its route, and in what representation.

    Where one Node takes part several times, its Compute Units are named.
    """
    nodes = [placement.node_name for placement in plan.placements]
    named = [
        node if nodes.count(node) == 1 else f"{node}/{placement.compute_unit_id}"
        for node, placement in zip(nodes, plan.placements, strict=True)
    ]
    return f"{plan.representation} over {' → '.join(named)}"


def value_of(plan: ExecutionPlan) -> float:
    """Return the value of a plan's own objective in seconds; infinite for a plan without a price."""
    if plan.prediction is None:
        return math.inf
    together = plan.prediction.throughput
    return plan.prediction.request.point if isinstance(together, msgspec.UnsetType) else 1 / together.point


class Resolver:
    """Solves variations of one question until the time or the number of solves is spent; then it says so."""

    def __init__(self, limits: SolverLimits, most_solves: int) -> None:
        """Start the clock of `limits`, whose `seconds` are for all solves together."""
        self._limits = limits
        self._most_solves = most_solves
        self._started = limits.clock()
        self.num_solved = 0

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._limits.seconds - (self._limits.clock() - self._started)

    @property
    def spent(self) -> bool:
        """Whether nothing may be solved any more."""
        return self.left <= 0 or self.num_solved >= self._most_solves

    def best(self, inputs: Inputs, aim: Aim = "workload") -> Best | None:
        """Return the best plan that is feasible and allowed, or None when the budget is spent.

        Raises SpecError for input that is wrong.
        """
        if self.spent:
            return None
        self.num_solved += 1
        view = inputs.view
        rules = resolve_policy(inputs.policy, inputs.problem, view)
        if rules.pinned:
            return _pinned(inputs, self._limits._replace(seconds=max(0.0, self.left)))
        best = Best()
        digests = digest(inputs.problem), digest(inputs.graph)
        for implementation in inputs.problem.implementations:
            if rules.policy.representations and implementation.representation not in rules.policy.representations:
                continue
            case = make_case(inputs.problem, implementation, inputs.workload, inputs.curves, digests, view)
            found = self._solve(case, _aimed(case, inputs, implementation, aim), view, rules, best.value)
            bound = min(best.bound, found.bound)
            best = (found if _preferred(found, best) else best)._replace(bound=bound)
        return best

    def _solve(self, case: Case, aimed: Case, view: GraphView, rules: Rules, cutoff: float) -> Best:
        policy = rules.policy
        sites = open_sites(case, view, rules)
        built = build_instance(aimed, view, sites, policy.min_tokens_per_second, policy.max_participants)
        limits = self._limits._replace(seconds=max(0.0, self.left))
        solution = solve(built.instance, limits, cutoff=cutoff)
        if solution.steps is None or solution.value is None:
            return Best(bound=solution.bound)
        limit = None if aimed.workload.throughput is None else aimed.workload.throughput.max_inter_token_seconds
        if limit is not None and aimed.workload.concurrency * solution.value > limit * (1 + SLACK):
            return Best()
        plan = build_plan(case, built.route(solution.steps))
        # Paths that share a segment make a plan worse than the search sees; its bound holds all the same.
        value = max(solution.value, value_of(plan)) if aimed is case else solution.value
        return Best(value, plan, solution.bound)


def open_sites(case: Case, view: GraphView, rules: Rules) -> tuple[Site, ...]:
    """Return the sites that pass the gates of feasibility and integrity, and that no policy excludes."""
    implementation = case.implementation
    able = (
        site
        for site in view.sites
        if not unit_refusals(site, implementation) + capacity_refusals(site)
        and not integrity_refusals(implementation, (site,))
    )
    return allowed_sites(implementation, able, rules)


def _aimed(case: Case, inputs: Inputs, implementation: Implementation, aim: Aim) -> Case:
    """Return the case whose value is the figure to make best; memory stays that of the workload."""
    if aim == "workload":
        return case
    wanted = Throughput() if aim == "throughput" else msgspec.UNSET
    workload = msgspec.structs.replace(inputs.workload, objective=wanted)
    later = {"first-token": 0, "next-token": MANY_TOKENS}.get(aim)
    pricing = Pricing(inputs.problem, implementation, workload, inputs.curves, later)
    return case._replace(workload=workload, pricing=pricing)


def _preferred(found: Best, best: Best) -> bool:
    """Whether a plan comes first: by value, then fewer participants, then names, as in a decision."""
    if found.plan is None or best.plan is None:
        return found.plan is not None
    mine = found.value, len(found.plan.placements), found.plan.representation, found.plan.primitive
    return mine < (best.value, len(best.plan.placements), best.plan.representation, best.plan.primitive)


def _pinned(inputs: Inputs, limits: SolverLimits) -> Best:
    """Return the best plan of an operator's order, through the decision that knows pins."""
    decision = inputs.decide(limits)
    if decision.plan is None:
        return Best(bound=math.inf if decision.outcome == "NO_FEASIBLE_PLAN" else 0.0)
    return Best(value_of(decision.plan), decision.plan, 0.0 if decision.bound is None else decision.bound)
