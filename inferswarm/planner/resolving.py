"""Solving again: the best plan of a question that was varied, without the account of every family.

What-if analyses ask many small variations of one question. They need the best plan, its value and what is proved,
not why each of the others was rejected. All of them spend one budget of time and of solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from inferswarm.documents import digest
from inferswarm.evidence.health import Health
from inferswarm.planner.aiming import aimed_case, aimed_value, open_sites, solve_case
from inferswarm.planner.assemble import Case, build_plan, make_case
from inferswarm.planner.contention import Further, Searchable, look_further, searchable
from inferswarm.planner.decide import decide
from inferswarm.planner.economics import Economics, usable
from inferswarm.planner.gates import Rules, representation_refusals, resolve_policy
from inferswarm.planner.goals import Aim, broken_by, goal_of
from inferswarm.planner.modes import families_of, searched
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.planner.problem import PlanningProblem, Policy, Workload
from inferswarm.planner.qualification import QualificationRecord
from inferswarm.planner.ranking import is_below
from inferswarm.planner.sites import GraphView
from inferswarm.planner.solvers.exact import MAX_EXACT_SITES
from inferswarm.planner.solvers.gauges import Goal
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.planner.standing import Standing
from inferswarm.resources.types import ResourceGraph

LEAST_DIFFERENCE = 1e-3
"""Relative: a difference below this is none. It is less than anybody notices, and far more than solvers round."""


class Inputs(NamedTuple):
    """Everything that a decision is made from."""

    problem: PlanningProblem
    graph: ResourceGraph
    workload: Workload
    policy: Policy
    economics: Economics
    allow_estimates: bool = False
    health: tuple[Health, ...] = ()
    qualification: tuple[QualificationRecord, ...] = ()

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
            qualification=self.qualification,
        )

    def rules(self, view: GraphView) -> Rules:
        """Return the policy resolved against what there is. Raises SpecError as `planner.decide` does."""
        problem = searched(self.problem, self.policy)
        return resolve_policy(self.policy, problem, view, self.qualification, self.curves.paths)

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


Describe = Callable[[ExecutionPlan], str]
"""How to call a plan: `describe`, or with the names of one decision's Compute Units `Names.plan`."""


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
    return predicted_value(plan.workload, plan.prediction)


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
        rules = inputs.rules(view)
        best = Best()
        for case in cases_of(inputs, rules):
            found = self._solve(case, inputs, view, rules, aim, best.value)
            if found is None:
                return _decided(inputs, self._limits._replace(seconds=max(0.0, self.left)))
            bound = min(best.bound, found.bound)
            best = (found if _preferred(found, best) else best)._replace(bound=bound)
        return best

    def reach(self, inputs: Inputs, goal: Goal, known: float) -> Best | None:
        """Return the best plan for a goal whose value is below `known`; its limits are those of `inputs` or stricter.

        None when the budget is spent, or where there are too many Compute Units to try all plans.
        """
        if self.spent:
            return None
        self.num_solved += 1
        view = inputs.view
        rules = inputs.rules(view)
        best = Best(value=known)
        for case in cases_of(inputs, rules):
            among = searchable(case, rules, open_sites(case, view, rules))
            if among is None:
                return None
            found = self._further(case, rules, among, goal, best.value)
            plan = best.plan if found.route is None else build_plan(case, found.route)
            best = Best(found.value, plan, min(best.bound, found.bound))
        return best

    def _solve(
        self, case: Case, inputs: Inputs, view: GraphView, rules: Rules, aim: Aim, cutoff: float
    ) -> Best | None:
        """Solve one implementation; None where only a decision can judge what the limits leave of many units."""
        sites, goal = open_sites(case, view, rules), goal_of(case.workload, rules.policy, aim)
        if rules.pinned:
            among = searchable(case, rules, sites)
            assert among is not None, "pins leave few enough"
            found = self._further(case, rules, among, goal, cutoff)
            if found.route is None:
                return Best(bound=found.bound)
            return Best(found.value, build_plan(case, found.route), found.bound)
        limits = self._limits._replace(seconds=max(0.0, self.left))
        built, solution = solve_case(aimed_case(case, inputs.curves, aim), rules, sites, limits, cutoff)
        plan = None if solution.steps is None else build_plan(case, built.route(solution.steps))
        value = math.inf if plan is None else aimed_value(case, plan, rules.view, aim)
        broken = bool(broken_by(plan, rules.policy))
        settled = not broken and not is_below(solution.bound, min(value, cutoff))
        overlooked = solution.value is not None and is_below(solution.value, value)
        if solution.status == "INFEASIBLE" or settled:
            return Best(value, plan, solution.bound)
        # Where the search of many units only leaves a gap, there is nothing more to be seen.
        more = broken or overlooked or len(sites) <= MAX_EXACT_SITES
        among = searchable(case, rules, sites) if more else None
        if among is None and broken:
            return None if aim == "workload" else Best(bound=solution.bound)
        if among is None:
            return Best(value, plan, solution.bound)
        kept = Best() if broken else Best(value, plan)
        found = self._further(case, rules, among, goal, min(kept.value, cutoff))
        if found.route is not None:
            kept = Best(found.value, build_plan(case, found.route))
        return kept._replace(bound=max(found.bound, min(solution.bound, kept.value)))

    def _further(self, case: Case, rules: Rules, among: Searchable, goal: Goal, known: float) -> Further:
        clock = self._limits.clock
        return look_further(case, rules, among, goal, known, clock, clock() + max(0.0, self.left))


def cases_of(inputs: Inputs, rules: Rules) -> Iterator[Case]:
    """Yield the case of each implementation that the policy allows, over what it leaves of the snapshot."""
    digests = digest(inputs.problem), digest(inputs.graph)
    problem = searched(inputs.problem, inputs.policy)
    for implementation in families_of(problem):
        if not representation_refusals(rules, implementation):
            yield make_case(problem, implementation, inputs.workload, inputs.curves, digests, rules.view)


def _preferred(found: Best, best: Best) -> bool:
    """Whether a plan comes first: by value, then fewer participants, then names, as in a decision."""
    if found.plan is None or best.plan is None:
        return found.plan is not None
    mine = found.value, len(found.plan.placements), found.plan.representation, found.plan.primitive
    return mine < (best.value, len(best.plan.placements), best.plan.representation, best.plan.primitive)


def _decided(inputs: Inputs, limits: SolverLimits) -> Best:
    """Return the best plan in the workload's objective, through the decision that knows pins and limits."""
    decision = inputs.decide(limits)
    if decision.plan is None:
        settled = all(report.status == "INFEASIBLE" for report in decision.solvers)
        return Best(bound=math.inf if settled and decision.outcome == "NO_FEASIBLE_PLAN" else 0.0)
    return Best(value_of(decision.plan), decision.plan, 0.0 if decision.bound is None else decision.bound)
