"""Small worlds of every kind under limits that are near the figures of real plans, and all plans that they allow.

The oracle tries every route in every mode and judges it by its prediction, so that what parts share and every limit
are in it. It shares the price of a given route with the planner, and nothing of the searches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, permutations, product
from typing import NamedTuple

import msgspec

from inferswarm.planner import Inputs, Policy, Throughput
from inferswarm.planner.assemble import Case, make_case
from inferswarm.planner.cost import predict, price_route, rate_together
from inferswarm.planner.modes import families_of, modes_of, searched, site_refusals
from inferswarm.planner.objective import predicted_value
from inferswarm.planner.problem import Mix
from inferswarm.planner.sites import GraphView, Leg, Route
from inferswarm.resources.types import CoreSet
from tests.unit.planner.mode_cases import mixed_world
from tests.unit.planner.planner_cases import World, random_world

replace = msgspec.structs.replace
EDGE = 1 + 1e-9
"""Figures that are equal but for the order of sums are equal."""


class Figures(NamedTuple):
    """One plan that is allowed and has a price. Seconds; `each` for each token of all sessions together."""

    value: float
    first: float
    step: float
    each: float


def crowded(world: World, rng: random.Random) -> World:
    """Let Links go over few segments, and Compute Units share cores."""
    graph = world.graph
    links = tuple(
        replace(link, segments=tuple(rng.sample(("hub", "cable"), rng.choice((0, 1, 1, 2))))) for link in graph.links
    )
    units = tuple(replace(unit, core_set_id="cores") if rng.random() < 0.5 else unit for unit in graph.compute_units)
    sets = (CoreSet(id="cores", num_cores=rng.randint(1, 4)),)
    return world._replace(
        graph=replace(graph, links=links, compute_units=units, core_sets=sets),
        workload=replace(world.workload, prompt_tokens=60),
    )


def limited_inputs(seed: int, limited: bool = True) -> Inputs:
    """A random question with every price known; with limits that some plans keep, or just none."""
    rng = random.Random(seed)
    objective = rng.choice(
        (msgspec.UNSET, msgspec.UNSET, Throughput(), Mix(request_weight=rng.choice((0.0, 0.3, 0.7, 1.0))))
    )
    kind = rng.choice(("plain", "crowded", "modes"))
    world = mixed_world(seed, complete=True) if kind == "modes" else random_world(seed, complete=True)
    world = crowded(world, rng) if kind == "crowded" else world
    mixing = True if kind == "modes" and rng.random() < 0.5 else msgspec.UNSET
    nodes = tuple(replace(node, host_id=rng.choice(("north", "south"))) for node in world.graph.nodes)
    workload = replace(world.workload, objective=objective, concurrency=rng.choice((1, 2, 4)))
    graph = replace(world.graph, nodes=nodes)
    inputs = Inputs(world.problem, graph, workload, Policy(mix_representations=mixing), world.economics)
    plans = list(allowed_routes(inputs))
    if not limited or not plans:
        return inputs

    def near(figures: list[float]) -> float:
        place = min(int(rng.random() ** 2 * len(figures)), len(figures) - 1)
        return sorted(figures)[place] * rng.choice((1.0, 1.0, 1.01, 0.99))

    later = workload.output_tokens - 1
    some = [figures for _, figures in plans]
    demands: dict[str, object] = {}
    if rng.random() < 0.6:
        demands["max_first_token_seconds"] = near([plan.first for plan in some])
    if rng.random() < 0.35:
        demands["max_request_seconds"] = near([plan.first + later * plan.step for plan in some])
    if rng.random() < 0.2:
        demands["min_tokens_per_second"] = 1 / near([plan.step for plan in some])
    if rng.random() < 0.2:
        demands["max_machines"] = 1
    if rng.random() < 0.15:
        demands["pinned_nodes"] = tuple(leg.site.node.id for leg in rng.choice(plans)[0])
    if objective is not msgspec.UNSET and rng.random() < 0.5:
        wait = near([plan.each * workload.concurrency for plan in some])
        workload = replace(workload, objective=replace(objective, max_inter_token_seconds=wait))
    return inputs._replace(workload=workload, policy=replace(inputs.policy, **demands))


def allowed_plans(inputs: Inputs) -> list[Figures]:
    """Return the figures of every plan that fits and is allowed."""
    return [figures for _, figures in allowed_routes(inputs)]


def allowed_routes(inputs: Inputs) -> Iterator[tuple[Route, Figures]]:
    """Yield every route that fits and that the limits, machines and pins of a question allow, with its figures."""
    problem, policy, workload = searched(inputs.problem, inputs.policy), inputs.policy, inputs.workload
    first_limits = [policy.max_first_token_seconds, workload.max_first_token_seconds]
    limits = (
        min((limit for limit in first_limits if isinstance(limit, float)), default=float("inf")),
        _or_inf(policy.max_request_seconds),
        float("inf") if policy.min_tokens_per_second is None else 1 / policy.min_tokens_per_second,
        _or_inf(workload.max_inter_token_seconds),
    )
    machines = 99 if policy.max_machines is msgspec.UNSET else policy.max_machines
    for implementation in families_of(problem):
        case = make_case(problem, implementation, workload, inputs.curves, ("p", "g"), inputs.view)
        for route in _routes(case, inputs.view):
            nodes = [leg.site.node.id for leg in route]
            if policy.pinned_nodes and nodes != list(policy.pinned_nodes):
                continue
            prediction, prices = predict(case.pricing, route), price_route(case.pricing, route)
            if prediction is None or prices is None or len({leg.site.node.host_id for leg in route}) > machines:
                continue
            each = 1 / rate_together(workload.concurrency, prices).point
            first, step = prediction.ttft.point, prediction.inter_token.point
            found = first, prediction.request.point, step, each * workload.concurrency
            if all(figure <= limit * EDGE for figure, limit in zip(found, limits, strict=True)):
                yield route, Figures(predicted_value(workload, prediction), first, step, each)


def _or_inf(limit: float | msgspec.UnsetType | None) -> float:
    return limit if isinstance(limit, float) else float("inf")


def _routes(case: Case, view: GraphView) -> Iterator[Route]:
    legal = [index + 1 for index, boundary in enumerate(case.problem.boundaries) if boundary.legal]
    sites = [site for site in view.sites if site.compute_unit.available and not site_refusals(case, site)]
    for count in range(1, len(sites) + 1):
        for order in permutations(sites, count):
            around = zip(order, (*order[1:], order[0]), strict=True)
            if count > 1 and not all(view.linked(source.node, target.node) for source, target in around):
                continue
            for cuts, modes in product(combinations(legal, count - 1), product(*(modes_of(case, s) for s in order))):
                if len(case.parts) > 1 and len({mode.representation for mode in modes}) < 2:
                    continue
                ends = (*cuts, len(case.problem.units))
                route = tuple(map(Leg, order, (0, *cuts), ends, modes))
                if all(account.fits for accounts in case.accounts(route) for account in accounts):
                    yield route
