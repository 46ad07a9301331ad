"""What was planned and ordered by one swarm object: problems, inputs of decisions, and the plans that may serve."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec

from inferswarm.backends.assignment import make_assignments
from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.planner import ExecutionPlan, Inputs, PathCurve, PlanningProblem, Policy, Workload
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.shape import shape_digest
from inferswarm.swarm.declared import DeclaredNodes
from inferswarm.swarm.fallbacks import fallbacks_of, order_of
from inferswarm.swarm.ground import Ground
from inferswarm.swarm.known import SCRATCH_METRIC, economics_of, measured_paths, scratch_terms
from inferswarm.swarm.model import Model
from inferswarm.swarm.model_artifacts import ArtifactTerms, needed_artifacts, refuse_without_stores
from inferswarm.swarm.reservations import with_participants


class Ordered(NamedTuple):
    """A plan that was ordered, or that an order names to go on with, and what it was made for."""

    plan: ExecutionPlan
    model: Model
    policy: Policy
    """What the operator demanded when it was decided; nothing for a plan that somebody named."""
    run_ahead: int


class PlannedHere:
    """Remembers what one swarm object planned, and makes the inputs and orders of what comes next."""

    def __init__(self, ground: Ground) -> None:
        """Nothing was planned yet."""
        self._ground = ground
        self._problems: dict[str, tuple[Model, PlanningProblem]] = {}
        self._inputs: dict[str, Inputs] = {}
        self._ordered: dict[str, Ordered] = {}

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that anything was planned for."""
        return tuple(model for model, _ in self._problems.values())

    def problem(self, model: Model, workload: Workload, nodes: DeclaredNodes | None = None) -> PlanningProblem:
        """Return the planning problem of a model, with what was measured of scratch and of stages' processes.

        `nodes` are others than those that are declared now.
        """
        nodes = nodes or self._ground.nodes
        scratch = scratch_terms(self._ground.store.query(metric=SCRATCH_METRIC), shape_digest(model.description))
        problem = model.problem(workload, scratch=scratch)
        problem = with_participants(problem, nodes.reservations.participant_bytes)
        self._problems[digest(problem)] = (model, problem)
        return problem

    def inputs(self, model: Model, workload: Workload, policy: Policy, nodes: DeclaredNodes | None = None) -> Inputs:
        """Return everything that a decision is made from, as it is now; `nodes` as for `problem`."""
        nodes = nodes or self._ground.nodes
        graph = nodes.graph
        problem = self.problem(model, workload, nodes)
        shape, currency = shape_digest(model.description), nodes.currency(graph)
        economics = economics_of(self._ground.store, shape, problem, graph, currency)
        in_force = self._ground.keeper.in_force(graph)
        return Inputs(problem, graph, workload, policy, economics, health=in_force)

    def decided(self, plan: ExecutionPlan, inputs: Inputs) -> None:
        """Remember what a plan was decided from."""
        self._inputs[digest(plan)] = inputs

    def resolve(self, plan: ExecutionPlan, model: Model | None) -> tuple[Model, PlanningProblem]:
        """Return the model and the problem that a plan was made for; a given model is taken where it lies.

        Raises SpecError for a plan that was made for none known here, unless the model is given.
        """
        known = self._problems.get(plan.problem_digest)
        if known is not None and (model is None or model.description == known[0].description):
            return model or known[0], known[1]
        if model is None:
            raise SpecError("model", None, "the model of a plan that was not made by this swarm object")
        return model, self.problem(model, plan.workload)

    def order(
        self,
        plan: ExecutionPlan,
        model: Model | None,
        graph: ResourceGraph,
        run_ahead: int,
        policy: Policy | None = None,
    ) -> m.Realize:
        """Return the order for a plan, with the plans to go on with when a Node is lost.

        Raises as `resolve`, SpecError for a model of which only headers are here in a swarm without stores, and
        ArtifactError as `needed_artifacts`.
        `policy` is what the operator demands, where the decision was made under more than that.
        """
        model, problem = self.resolve(plan, model)
        self._ground.watch.refuse_shut(model)
        refuse_without_stores(model, self._ground.has_stores)
        one = partial(
            order_of,
            store=self._ground.store,
            model=model,
            problem=problem,
            graph=graph,
            run_ahead=run_ahead,
            terms=self._terms(graph) if self._ground.has_stores else None,
        )
        inputs = self._inputs.get(digest(plan))
        fallbacks = fallbacks_of(plan, inputs, one)
        policy = policy or (Policy() if inputs is None else inputs.policy)
        for ordered in (plan, *(item.plan for item in fallbacks)):
            self._ordered[digest(ordered)] = Ordered(ordered, model, policy, run_ahead)
        return m.Realize(**msgspec.structs.asdict(one(plan)), model_path=str(model.path), fallbacks=fallbacks)

    def needed(self, plan: ExecutionPlan, model: Model, graph: ResourceGraph) -> m.NeededArtifacts:
        """Return what the participants of a plan acquire. Raises as `needed_artifacts`."""
        model, problem = self.resolve(plan, model)
        assignments = make_assignments(plan, model.description, model.opened.object, problem, graph)
        return needed_artifacts(model, plan, assignments, self._terms(graph))

    def paths(self, graph: ResourceGraph) -> tuple[PathCurve, ...]:
        """Return what was measured of the paths between Nodes."""
        return measured_paths(self._ground.store, graph, self._ground.nodes.currency(graph))

    def _terms(self, graph: ResourceGraph) -> ArtifactTerms:
        ground = self._ground
        return ArtifactTerms(
            ground.hash_policy, self.paths(graph), ground.source_policy, ground.settings.keep_results
        )

    def ordered(self, plan_digest: str | None) -> Ordered | None:
        """Return what was ordered here under a plan's digest; None for a plan of somebody else."""
        return None if plan_digest is None else self._ordered.get(plan_digest)
