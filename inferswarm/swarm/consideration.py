"""One question whether to serve by another plan: why it is asked, and what was found out about it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from inferswarm.documents import digest
from inferswarm.errors import InfeasiblePlan, SpecError
from inferswarm.fabric.recovery_records import Trigger
from inferswarm.planner import ChangePolicy, ExecutionPlan, Inputs, Policy, force_plan
from inferswarm.planner.plan import Decision
from inferswarm.resources.types import ResourceGraph
from inferswarm.swarm.considered import ConsideredChange, Outcome
from inferswarm.swarm.weighing import Weighed


class Question(NamedTuple):
    """Why another plan is considered, and by what rules."""

    trigger: Trigger
    detail: str
    requests: float | None
    """How many requests are expected to come; None: see `weighing.expected_requests`."""
    policy: ChangePolicy
    notes: tuple[str, ...] = ()
    """What could not be found out, and so counts as unknown."""


class Consideration(NamedTuple):
    """What was found out about a change so far."""

    against: tuple[str, ...] = ()
    present: ExecutionPlan | None = None
    proposed: ExecutionPlan | None = None
    inputs: Inputs | None = None
    decision: Decision | None = None
    weighed: Weighed | None = None
    by_policy: bool = False

    @property
    def graph(self) -> ResourceGraph:
        """The resources that it was decided over."""
        assert self.inputs is not None, "asked for what was decided"
        return self.inputs.graph

    @property
    def decision_digest(self) -> str:
        """Of the decision; empty where none was made."""
        return "" if self.decision is None else digest(self.decision)

    def as_view(
        self, question: Question, outcome: Outcome, reasons: tuple[str, ...], epoch: int | None
    ) -> ConsideredChange:
        """Return what people see of it."""
        weighed = self.weighed
        view = ConsideredChange(question.detail, outcome, reasons, epoch, self.present, self.proposed)
        if weighed is None:
            return view
        return view._replace(
            change=weighed.change,
            bringing_up=weighed.bringing_up,
            verdict=weighed.verdict,
            mode=weighed.mode,
            no_room=weighed.no_room,
        )


def priced_again(plan: ExecutionPlan, inputs: Inputs) -> ExecutionPlan | None:
    """Return a plan with the prices of now; None where it could not be made now.

    Its prices may have changed since it was decided: what was measured meanwhile counts for both plans.
    """
    try:
        return force_plan(
            inputs.problem,
            inputs.graph,
            plan.workload,
            inputs.economics,
            tuple(item.compute_unit_id for item in plan.placements),
            tuple(item.end_unit for item in plan.placements[:-1]),
            plan.representation,
            allow_estimates=inputs.allow_estimates,
            health=inputs.health,
        )
    except (InfeasiblePlan, SpecError):
        return None


def policy_among(policy: Policy, graph: ResourceGraph) -> Policy:
    """Return a policy without the Nodes that it excludes or approves and that are not there: they cannot be used."""
    known = {node.id for node in graph.nodes} | {node.name for node in graph.nodes}
    excluded = tuple(name for name in policy.excluded_nodes if name in known)
    approved = policy.approved_nodes
    if not isinstance(approved, msgspec.UnsetType) and known & set(approved):
        approved = tuple(name for name in approved if name in known)
    return replace(policy, excluded_nodes=excluded, approved_nodes=approved)
