"""Orders for plans that nobody decided: given Nodes, given cuts, the best first, straight to the Coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.fabric import messages as m
from inferswarm.planner import Workload
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.fallbacks import order_of

RUN_AHEAD = 2


def order_over(
    swarm: Swarm,
    model: Model,
    nodes: Sequence[str],
    workload: Workload,
    *,
    cuts: Sequence[int] | None = None,
    representation: str = "bf16",
) -> m.Fallback:
    """Return what it takes to realize a plan over these Nodes: cut as given, or in parts of about equal length."""
    num_units = len(model.description.unit_ids)
    if cuts is None:
        cuts = [num_units * index // len(nodes) - 1 for index in range(1, len(nodes))]
    plan = swarm.force(model, nodes, cuts=cuts, representation=representation, workload=workload)
    problem = swarm.problem(model, workload)
    return order_of(
        plan, store=swarm.store, model=model, problem=problem, graph=swarm.graph.document, run_ahead=RUN_AHEAD
    )


def realize_first(model_path: str | None, choices: Sequence[m.Fallback]) -> m.Realize:
    """Return the question that realizes the first order, with the others to go on with."""
    first, *others = choices
    return m.Realize(
        plan=first.plan,
        assignments=first.assignments,
        model_path=model_path,
        run_ahead=first.run_ahead,
        paths=first.paths,
        fallbacks=tuple(others),
    )
