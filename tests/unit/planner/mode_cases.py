"""Small worlds in which participants differ in how they work, and an oracle that tries every plan.

The oracle shares no code with the planner: it reads the documents and applies the written objective literally.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations, product
from typing import NamedTuple

import msgspec

from inferswarm.planner.economics import ServiceCurve
from inferswarm.planner.problem import Mix, Mixture, Throughput
from tests.unit.planner.planner_cases import AMBER, COPPER, World, random_world

BOTH = f"{AMBER}+{COPPER}"
replace = msgspec.structs.replace


class Way(NamedTuple):
    """One plan that the oracle tried: what it says of its representation, and for each participant (Compute Unit,
    end, representation, Memory Resource of its states)."""

    representation: str
    stages: tuple[tuple[str, int, str, str], ...]
    fits: bool
    value: float | None


def mixed_world(
    seed: int, *, apart: bool = True, complete: bool = False, max_sites: int = 3, objective=None
) -> World:
    """A random world with two representations, a mixture of them, and Compute Units that address several memories."""
    rng = random.Random(seed)
    while True:
        world = random_world(rng.randrange(10**9), complete=complete, max_sites=max_sites)
        if len(world.problem.implementations) == 2 and len(world.problem.units) <= 5:
            break
    mixture = Mixture(
        name=BOTH,
        primitive="plain",
        representations=(AMBER, COPPER),
        payload_representation=rng.choice((AMBER, COPPER)),
    )
    problem = replace(world.problem, mixtures=(mixture,))
    graph, economics = world.graph, world.economics
    if apart:
        units, more = [], []
        for unit in graph.compute_units:
            others = [
                memory.id
                for memory in graph.memory_resources
                if memory.node_id == unit.node_id and memory.id not in unit.memory_ids
            ]
            memory = next(item for item in graph.memory_resources if item.id == unit.memory_ids[0])
            if not others or rng.random() < 0.3:
                capacity = replace(memory.capacity_bytes, value=rng.randint(300, 1500), provenance="declared")
                more.append(replace(memory, id=f"far-{unit.id}", capacity_bytes=capacity))
                others = [f"far-{unit.id}"]
            tags = ("states:addressable",) if rng.random() < 0.7 else ()
            memory_ids = (*unit.memory_ids, *others)
            units.append(replace(unit, memory_ids=memory_ids, capabilities=(*unit.capabilities, *tags)))
        graph = replace(
            graph, compute_units=tuple(units), memory_resources=(*graph.memory_resources, *_distinct(more))
        )
        services = [
            replace(curve, states="apart", base_seconds=curve.base_seconds * rng.uniform(0.8, 3))
            for curve in economics.services
            if complete or rng.random() < 0.97
        ]
        economics = replace(economics, services=(*economics.services, *services))
    workload = world.workload if objective is None else replace(world.workload, objective=objective)
    return World(problem, graph, workload, economics)


def _distinct(memories):
    return {memory.id: memory for memory in memories}.values()


def try_ways(world: World, mix: bool = True) -> Iterator[Way]:
    """Yield every plan of one representation, and with `mix` every plan of two, over every order, cut and memory."""
    problem, graph = world.problem, world.graph
    num_units = len(problem.units)
    legal = [index + 1 for index, boundary in enumerate(problem.boundaries) if boundary.legal]
    links = {(link.source, link.target) for link in graph.links if link.available}
    capacity = {
        memory.id: None
        if memory.capacity_bytes.value is None or memory.reserved_bytes.value is None
        else memory.capacity_bytes.value - memory.reserved_bytes.value
        for memory in graph.memory_resources
    }
    ways: dict[str, list[tuple[str, str]]] = {}
    for unit in graph.compute_units:
        ways[unit.id] = [
            (item.representation, place)
            for item in problem.implementations
            if set(item.required_capabilities) <= set(unit.capabilities)
            for place in (unit.memory_ids if "states:addressable" in unit.capabilities else unit.memory_ids[:1])
            if capacity[place] is not None and capacity[unit.memory_ids[0]] is not None
        ]
    standing = [unit for unit in graph.compute_units if unit.available]
    for count in range(1, len(standing) + 1):
        for order in permutations(standing, count):
            nodes = [unit.node_id for unit in order]
            closed = zip(nodes, (*nodes[1:], nodes[0]), strict=True)
            if count > 1 and any(a != b and (a, b) not in links for a, b in closed):
                continue
            for cuts in combinations(legal, count - 1):
                ends = (*cuts, num_units)
                for chosen in product(*(ways[unit.id] for unit in order)):
                    used = {representation for representation, _ in chosen}
                    if len(used) > 1 and not mix:
                        continue
                    name = BOTH if len(used) > 1 else used.pop()
                    stages = tuple(
                        (unit.id, end, representation, place)
                        for unit, end, (representation, place) in zip(order, ends, chosen, strict=True)
                    )
                    yield Way(name, stages, _fits(world, order, stages, capacity), _value(world, name, order, stages))


def _size(entries, representation: str) -> int:
    return next((entry.bytes for entry in entries if entry.representation == representation), 0)


def _fits(world: World, order, stages, capacity) -> bool:
    problem, _, workload, _ = world
    positions = workload.prompt_tokens + workload.output_tokens
    positions = min((positions + 63) // 64 * 64, problem.max_positions)
    held: dict[str, int] = {}
    start = 0
    for unit, (_, end, representation, place) in zip(order, stages, strict=True):
        members = problem.units[start:end]
        states = {state for member in members for state in member.states}
        held[place] = held.get(place, 0) + sum(
            _size(item.sizes, representation) for item in problem.states if item.id in states
        )
        rest = 0
        for member in members:
            rest += _size(member.mutable_bytes_per_position, representation) * positions * workload.concurrency
        for term in problem.transients:
            touched = not term.cost_classes or {member.cost_class for member in members} & set(term.cost_classes)
            if term.representation == representation and touched:
                rest += term.fixed_bytes + term.bytes_per_step_position * problem.chunk_positions
        near = unit.memory_ids[0]
        held[near] = held.get(near, 0) + rest
        start = end
    return all(capacity[memory] is not None and need <= capacity[memory] for memory, need in held.items())


def _value(world: World, name: str, order, stages) -> float | None:
    problem, _, workload, economics = world
    prompt, output, grid = workload.prompt_tokens, workload.output_tokens, problem.chunk_positions
    chunks = [(start, min(grid, prompt - start)) for start in range(0, prompt, grid)]
    services: dict[object, ServiceCurve] = {
        (curve.compute_unit_id, curve.cost_class, curve.phase, curve.representation, curve.states == "apart"): curve
        for curve in economics.services
    }
    paths = {(curve.source, curve.target): curve for curve in economics.paths}
    payload_in = name
    if name == BOTH:
        payload_in = problem.mixtures[0].payload_representation
    chunk_times, steps, once, start = [], [], 0.0, 0
    try:
        for unit, (_, end, representation, place) in zip(order, stages, strict=True):
            stage = step = 0.0
            far = place != unit.memory_ids[0]
            for member in problem.units[start:end]:
                stepping = services[unit.id, member.cost_class, "step", representation, far]
                step += stepping.seconds(1, prompt + output / 2)
                if member.only_last_position:
                    once += stepping.seconds(1, prompt - 1)
                else:
                    passing = services[unit.id, member.cost_class, "first-pass", representation, far]
                    stage += sum(passing.seconds(count, at) for at, count in chunks) / len(chunks)
            chunk_times.append(stage)
            steps.append(step)
            start = end
        for (a, b), (_, end, _, _) in zip(pairwise(order), stages, strict=False):
            payload = _size(problem.boundaries[end - 1].payload_bytes_per_position, payload_in)
            path = paths[a.node_id, b.node_id]
            chunk_times.append(sum(path.seconds(payload * count) for _, count in chunks) / len(chunks))
            steps.append(path.seconds(payload))
        if len(order) > 1:
            steps.append(paths[order[-1].node_id, order[0].node_id].seconds(problem.feedback_bytes))
    except KeyError:
        return None
    first_token = sum(chunk_times) + (len(chunks) - 1) * max(chunk_times) + once
    request = first_token + (output - 1) * sum(steps)
    each = max(sum(steps) / workload.concurrency, *steps)
    objective, wait = workload.objective, None
    if isinstance(objective, msgspec.UnsetType):
        return request
    wait = objective.max_inter_token_seconds
    if wait is not None and workload.concurrency * each > wait * (1 + 1e-9):
        return math.inf
    if isinstance(objective, Throughput):
        return each
    assert isinstance(objective, Mix)
    return objective.request_weight * request + (1 - objective.request_weight) * output * each
