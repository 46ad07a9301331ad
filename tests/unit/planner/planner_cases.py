"""Small planning problems in opaque words, and an oracle that tries every plan.

The oracle shares no code with the planner: it reads the documents and applies the written objective literally.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations
from typing import NamedTuple

from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.planner.problem import (
    Boundary,
    ExecutionUnit,
    Implementation,
    PlanningProblem,
    RepresentationBytes,
    StateUnit,
    TransientTerm,
    Workload,
)
from inferswarm.resources.types import (
    ComputeUnit,
    Fact,
    Link,
    MemoryResource,
    Node,
    ResourceGraph,
    declared,
    observed,
    unknown,
)

AMBER, COPPER = "amber", "copper"
"""Representations."""
ENOUGH = 10**9


def sizes(amount: int, representations: Sequence[str] = (AMBER,)) -> tuple[RepresentationBytes, ...]:
    """Bytes that halve with each further representation."""
    return tuple(RepresentationBytes(name, amount >> index) for index, name in enumerate(representations))


def make_problem(
    num_units: int = 4,
    *,
    state_bytes: int = 1000,
    mutable_bytes: int = 0,
    illegal: Iterable[int] = (),
    payload_bytes: int = 8,
    feedback_bytes: int = 4,
    chunk_positions: int = 16,
    max_positions: int = 4096,
    representations: Sequence[str] = (AMBER,),
    required: tuple[str, ...] = (),
    transients: tuple[TransientTerm, ...] = (),
    tied: bool = False,
    last_only: bool = False,
) -> PlanningProblem:
    """A chain of equal units `u0 …` of class `violet`, each with a state; `tied` gives the last one the first's.

    With `last_only` the last unit is of class `ochre` and looks at the newest position only.
    """
    units = []
    for index in range(num_units):
        last = index == num_units - 1
        units.append(
            ExecutionUnit(
                id=f"u{index}",
                cost_class="ochre" if last and last_only else "violet",
                states=("s0",) if last and tied else (f"s{index}",),
                mutable_bytes_per_position=sizes(mutable_bytes, representations) if mutable_bytes else (),
                only_last_position=last and last_only,
            )
        )
    cuts = set(illegal)
    return PlanningProblem(
        id="problem",
        strategy="opaque/1",
        units=tuple(units),
        states=tuple(
            StateUnit(id=f"s{index}", sizes=sizes(state_bytes, representations)) for index in range(num_units)
        ),
        boundaries=tuple(
            Boundary(legal=index not in cuts, payload_bytes_per_position=sizes(payload_bytes, representations))
            for index in range(num_units - 1)
        ),
        feedback_bytes=feedback_bytes,
        implementations=tuple(
            Implementation(primitive="plain", representation=name, required_capabilities=required)
            for name in representations
        ),
        transients=transients,
        max_positions=max_positions,
        chunk_positions=chunk_positions,
        comparator="exact/1",
    )


def make_graph(
    capacities: Mapping[str, int | None],
    *,
    reserved: int | None = 0,
    links: Iterable[tuple[str, str]] | None = None,
    capabilities: tuple[str, ...] = (),
    unavailable: Iterable[str] = (),
) -> ResourceGraph:
    """One Compute Unit and one Memory Resource per Node name; every pair is linked unless `links` says otherwise."""
    names = list(capacities)
    pairs = permutations(names, 2) if links is None else links
    absent = set(unavailable)
    return ResourceGraph(
        swarm_id="swarm",
        nodes=tuple(Node(id=f"node-{name}", name=name, host_id="somewhere") for name in names),
        compute_units=tuple(
            ComputeUnit(
                id=f"cu-{name}",
                node_id=f"node-{name}",
                kind="cpu",
                name=name,
                threads=1,
                memory_ids=(f"mem-{name}",),
                capabilities=capabilities,
                available=name not in absent,
            )
            for name in names
        ),
        memory_resources=tuple(make_memory(name, capacity, reserved) for name, capacity in capacities.items()),
        links=tuple(make_link(source, target) for source, target in pairs),
    )


def make_memory(name: str, capacity: int | None, reserved: int | None) -> MemoryResource:
    def fact(amount: int | None) -> Fact[int]:
        return unknown("nobody could read it") if amount is None else declared(amount)

    return MemoryResource(
        id=f"mem-{name}",
        node_id=f"node-{name}",
        kind="ram",
        capacity_bytes=fact(capacity),
        reserved_bytes=fact(reserved),
        enforcement="none",
    )


def make_link(source: str, target: str, available: bool = True) -> Link:
    return Link(
        id=f"link-{source}-{target}",
        source=f"node-{source}",
        target=f"node-{target}",
        kind="ethernet",
        nominal_bits_per_second=observed(10**9, "test"),
        available=available,
    )


def make_economics(
    seconds: Mapping[str, float],
    *,
    path_seconds: float | Mapping[tuple[str, str], float] = 0.001,
    seconds_per_byte: float = 0.0,
    cost_classes: Sequence[str] = ("violet", "ochre"),
    representations: Sequence[str] = (AMBER,),
    low: float = 1.0,
    high: float = 1.0,
) -> Economics:
    """Each unit takes `seconds[name]` for a step, and for each position of a first pass, on the Node of that name."""
    services = []
    for name, amount in seconds.items():
        for cost_class in cost_classes:
            for representation in representations:
                common = {
                    "compute_unit_id": f"cu-{name}",
                    "cost_class": cost_class,
                    "representation": representation,
                    "low": low,
                    "high": high,
                }
                services.append(
                    ServiceCurve(phase="step", base_seconds=amount, evidence_ids=(f"step-{name}",), **common)
                )
                services.append(
                    ServiceCurve(
                        phase="first-pass",
                        base_seconds=0.0,
                        seconds_per_position=amount,
                        evidence_ids=(f"pass-{name}",),
                        **common,
                    )
                )
    paths = []
    for source, target in permutations(seconds, 2):
        latency = path_seconds if isinstance(path_seconds, float) else path_seconds.get((source, target))
        if latency is not None:
            paths.append(
                PathCurve(
                    source=f"node-{source}",
                    target=f"node-{target}",
                    latency_seconds=latency,
                    seconds_per_byte=seconds_per_byte,
                    low=low,
                    high=high,
                    evidence_ids=(f"path-{source}-{target}",),
                )
            )
    return Economics(services=tuple(services), paths=tuple(paths))


class World(NamedTuple):
    """Everything that a decision is made from, but the policy."""

    problem: PlanningProblem
    graph: ResourceGraph
    workload: Workload
    economics: Economics


class Tried(NamedTuple):
    """One plan that the oracle tried, and what it found. Without a price, `seconds` and `step` are None."""

    representation: str
    sites: tuple[str, ...]
    ends: tuple[int, ...]
    lack: float
    """Bytes that the Memory Resource with the least room lacks; at most 0 when the plan fits, inf when unknown."""
    seconds: float | None
    step: float | None

    @property
    def fits(self) -> bool:
        return self.lack <= 0

    @property
    def family(self) -> tuple[str, tuple[str, ...]]:
        return self.representation, tuple(sorted(self.sites))


def try_everything(world: World) -> Iterator[Tried]:
    """Yield every plan over available, capable, connected Compute Units with legal cuts."""
    problem, graph = world.problem, world.graph
    num_units = len(problem.units)
    legal = [index + 1 for index, boundary in enumerate(problem.boundaries) if boundary.legal]
    links = {(link.source, link.target) for link in graph.links if link.available}
    for implementation in problem.implementations:
        able = [
            unit
            for unit in graph.compute_units
            if unit.available and set(implementation.required_capabilities) <= set(unit.capabilities)
        ]
        for count in range(1, len(able) + 1):
            for order in permutations(able, count):
                hops = [(a.node_id, b.node_id) for a, b in pairwise((*order, order[0]))] if count > 1 else []
                if any(a != b and (a, b) not in links for a, b in hops):
                    continue
                for cuts in combinations(legal, count - 1):
                    ends = (*cuts, num_units)
                    ranges = list(zip((0, *cuts), ends, strict=True))
                    lack = _lack(world, implementation.representation, order, ranges)
                    seconds, step = _price(world, implementation.representation, order, ranges)
                    sites = tuple(unit.id for unit in order)
                    yield Tried(implementation.representation, sites, ends, lack, seconds, step)


def _lack(world: World, representation: str, order, ranges) -> float:
    problem, graph, workload, _ = world
    positions = workload.prompt_tokens + workload.output_tokens
    positions = min((positions + 63) // 64 * 64, problem.max_positions)
    state_bytes = {state.id: _size(state.sizes, representation) for state in problem.states}
    memories = {memory.id: memory for memory in graph.memory_resources}
    held: dict[str, int] = {}
    for unit, (start, end) in zip(order, ranges, strict=True):
        members = problem.units[start:end]
        need = sum(state_bytes[state] for state in {state for member in members for state in member.states})
        for member in members:
            need += _size(member.mutable_bytes_per_position, representation) * positions * workload.concurrency
        for term in problem.transients:
            touched = not term.cost_classes or {member.cost_class for member in members} & set(term.cost_classes)
            if term.representation == representation and touched:
                need += term.fixed_bytes + term.bytes_per_step_position * problem.chunk_positions
        held[unit.memory_ids[0]] = held.get(unit.memory_ids[0], 0) + need
    lacks = []
    for memory_id, need in held.items():
        capacity = memories[memory_id].capacity_bytes.value
        reserved = memories[memory_id].reserved_bytes.value
        room = math.nan if capacity is None or reserved is None else capacity - reserved
        lacks.append(math.inf if math.isnan(room) else need - room)
    return max(lacks)


def _size(entries, representation: str) -> int:
    return next((entry.bytes for entry in entries if entry.representation == representation), 0)


def _price(world: World, representation: str, order, ranges) -> tuple[float | None, float | None]:
    problem, _, workload, economics = world
    prompt, output, grid = workload.prompt_tokens, workload.output_tokens, problem.chunk_positions
    chunks = [(start, min(grid, prompt - start)) for start in range(0, prompt, grid)]
    services = {
        (curve.compute_unit_id, curve.cost_class, curve.phase): curve
        for curve in economics.services
        if curve.representation == representation
    }
    paths = {(curve.source, curve.target): curve for curve in economics.paths}
    chunk_times, once, step = [], 0.0, 0.0
    try:
        for unit, (start, end) in zip(order, ranges, strict=True):
            stage = 0.0
            for member in problem.units[start:end]:
                stepping = services[unit.id, member.cost_class, "step"]
                step += stepping.seconds(1, prompt + output / 2)
                if member.only_last_position:
                    once += stepping.seconds(1, prompt - 1)
                else:
                    passing = services[unit.id, member.cost_class, "first-pass"]
                    stage += sum(passing.seconds(count, at) for at, count in chunks) / len(chunks)
            chunk_times.append(stage)
        for (a, b), (start, _) in zip(pairwise(order), ranges[1:], strict=True):
            payload = _size(problem.boundaries[start - 1].payload_bytes_per_position, representation)
            path = paths[a.node_id, b.node_id]
            chunk_times.append(sum(path.seconds(payload * count) for _, count in chunks) / len(chunks))
            step += path.seconds(payload)
        if len(order) > 1:
            step += paths[order[-1].node_id, order[0].node_id].seconds(problem.feedback_bytes)
    except KeyError:
        return None, None
    first_token = sum(chunk_times) + (len(chunks) - 1) * max(chunk_times) + once
    return first_token + (output - 1) * step, step


def random_world(seed: int, *, complete: bool = False, max_sites: int = 4) -> World:
    """A world of up to 7 units and 4 Compute Units with everything that may differ; `complete` leaves no gaps."""
    rng = random.Random(seed)
    representations = (AMBER, COPPER)[: rng.choice((1, 1, 2))]
    num_units = rng.choice((1, 3, 4, 5, 6, 7))
    classes = ("violet", "ochre", "teal")
    units = tuple(
        ExecutionUnit(
            id=f"u{index}",
            cost_class=rng.choice(classes),
            states=tuple({f"s{index}", *rng.sample(("s0", "extra"), rng.choice((0, 0, 1)))}),
            mutable_bytes_per_position=sizes(rng.choice((0, 1, 2)), representations) if rng.random() < 0.7 else (),
            only_last_position=index == num_units - 1 and rng.random() < 0.5,
        )
        for index in range(num_units)
    )
    names = [f"s{index}" for index in range(num_units)] + ["extra"]
    problem = PlanningProblem(
        id=f"random-{seed}",
        strategy="opaque/1",
        units=units,
        states=tuple(StateUnit(id=name, sizes=sizes(rng.randint(50, 400), representations)) for name in names),
        boundaries=tuple(
            Boundary(legal=rng.random() < 0.85, payload_bytes_per_position=sizes(rng.randint(0, 64), representations))
            for _ in range(num_units - 1)
        ),
        feedback_bytes=4,
        implementations=tuple(
            Implementation(primitive="plain", representation=name, required_capabilities=(f"can:{name}",))
            for name in representations
        ),
        transients=tuple(
            TransientTerm(
                name=f"t{index}",
                representation=rng.choice(representations),
                cost_classes=tuple(rng.sample(classes, rng.randint(0, 2))),
                fixed_bytes=rng.randint(0, 100),
                bytes_per_step_position=rng.randint(0, 3),
            )
            for index in range(rng.randint(0, 2))
        ),
        max_positions=rng.choice((100, 1000)),
        chunk_positions=rng.choice((8, 16, 64)),
        comparator="exact/1",
    )
    workload = Workload(
        prompt_tokens=rng.randint(1, 60), output_tokens=rng.choice((1, 2, 5, 40)), concurrency=rng.choice((1, 1, 2))
    )
    graph = _random_graph(rng, representations, complete, rng.randint(min(2, max_sites), max_sites))
    return World(problem, graph, workload, _random_economics(rng, graph, classes, representations, complete))


def _random_graph(rng: random.Random, representations, complete: bool, num_sites: int) -> ResourceGraph:
    nodes, units, memories = [], [], []
    for index in range(num_sites):
        if index == 0 or rng.random() < 0.8:
            nodes.append(Node(id=f"node-{index}", name=f"name-{index}", host_id="somewhere"))
        node = nodes[-1].id
        same = [memory.id for memory in memories if memory.node_id == node]
        if same and rng.random() < 0.6:
            memory_id = same[0]
        else:
            memory_id = f"mem-{index}"
            capacity = None if not complete and rng.random() < 0.07 else rng.randint(300, 2000)
            memories.append(make_memory(str(index), capacity, rng.randint(0, 100)))
            memories[-1] = MemoryResource(
                id=memory_id,
                node_id=node,
                kind="ram",
                capacity_bytes=memories[-1].capacity_bytes,
                reserved_bytes=memories[-1].reserved_bytes,
                enforcement="none",
            )
        tags = tuple(f"can:{name}" for name in representations if complete or rng.random() < 0.9)
        units.append(
            ComputeUnit(
                id=f"cu-{index}",
                node_id=node,
                kind="cpu",
                name=f"unit {index}",
                threads=rng.randint(1, 4),
                memory_ids=(memory_id,),
                capabilities=tags,
                available=complete or rng.random() < 0.93,
            )
        )
    links = [
        Link(
            id=f"link-{a.id}-{b.id}",
            source=a.id,
            target=b.id,
            kind="ethernet",
            nominal_bits_per_second=unknown("test"),
            available=complete or rng.random() < 0.95,
        )
        for a, b in permutations(nodes, 2)
        if complete or rng.random() < 0.9
    ]
    return ResourceGraph(
        swarm_id="swarm",
        nodes=tuple(nodes),
        compute_units=tuple(units),
        memory_resources=tuple(memories),
        links=tuple(links),
    )


def _random_economics(
    rng: random.Random, graph: ResourceGraph, classes, representations, complete: bool
) -> Economics:
    gap = 0.0 if complete else rng.choice((0.0, 0.0, 0.05, 0.3))
    services = [
        ServiceCurve(
            compute_unit_id=unit.id,
            cost_class=cost_class,
            representation=representation,
            phase=phase,
            base_seconds=rng.uniform(0.001, 0.1),
            seconds_per_position=rng.uniform(0, 0.01) if phase == "first-pass" else 0.0,
            seconds_per_position_context=rng.uniform(0, 0.0005),
            low=rng.uniform(0.5, 1.0),
            high=rng.uniform(1.0, 2.0),
        )
        for unit in graph.compute_units
        for cost_class in classes
        for representation in representations
        for phase in ("first-pass", "step")
        if rng.random() >= gap
    ]
    nodes = [node.id for node in graph.nodes]
    paths = [
        PathCurve(
            source=a,
            target=b,
            latency_seconds=rng.uniform(0, 0.01),
            seconds_per_byte=rng.uniform(0, 0.0001),
            low=rng.uniform(0.5, 1.0),
            high=rng.uniform(1.0, 2.0),
        )
        for a in nodes
        for b in nodes
        if rng.random() >= gap
    ]
    return Economics(services=tuple(services), paths=tuple(paths))
