"""The planner's search: seconds, proved bound and gap by size, and what other ways of splitting would cost.

Each swarm is synthetic and unlike: Nodes of log-normal speed and memory, scattered over a plane so that paths differ;
no Node holds the chain alone. The chain is a first unit, so many alike, and a last one, in the proportions of a
decoder. Everything is planned on documents, for one request of 256 + 128 tokens, with one thread and at most ten
seconds. *search* is the solver alone (*cpu*: its processor time), *decide* the whole decision with its reasons.

The other splits are judged by the same costs and memory: *equal* and *memory-proportional* go through the Nodes as
they are listed, over all of them or over the fewest, roomiest first, that hold the chain, whichever is
better; *greedy* fills the fastest Nodes first. Where a split does not fit, what is too much moves to the next Node.
`bench_topologies` judges the same splits on the shipped topologies.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from inferswarm.documents import digest
from inferswarm.planner import Economics, PathCurve, PlanningProblem, Policy, ServiceCurve, SolverLimits, Workload
from inferswarm.planner import decide as decide_plan
from inferswarm.planner.assemble import make_case
from inferswarm.planner.gates import capacity_refusals, unit_refusals
from inferswarm.planner.problem import (
    Boundary,
    ExecutionUnit,
    Implementation,
    RepresentationBytes,
    StateUnit,
    TransientTerm,
)
from inferswarm.planner.sites import GraphView
from inferswarm.planner.solvers import Built, Instance, Steps, build_instance, evaluate, solve
from inferswarm.planner.solvers.instance import longest_ranges
from inferswarm.resources.types import ComputeUnit, Link, MemoryResource, Node, ResourceGraph, declared
from tests.bench.report import SEED, conditions, write

SIZES = ((80, 6), (80, 8), (80, 12), (80, 16), (80, 24), (80, 32), (128, 200))
SWARMS = 3
"""Of each size, with seeds of their own."""
LIMITS = SolverLimits(seconds=10.0)
TARGETS = {16: 1.0, 32: 5.0, 200: 10.0}
"""Seconds of search, on two cores."""
WORKLOAD = Workload(prompt_tokens=256, output_tokens=128)
SPLITS = ("memory-proportional", "equal", "greedy")
FORM = "int4"
MEGABYTE = 10**6


class Swarm(NamedTuple):
    """The documents of one synthetic world."""

    problem: PlanningProblem
    graph: ResourceGraph
    economics: Economics


def bytes_of(amount: int) -> tuple[RepresentationBytes, ...]:
    return (RepresentationBytes(FORM, amount),)


def make_problem(num_blocks: int) -> PlanningProblem:
    """A first unit and a last one that share no state, and blocks alike between them."""
    names = ["first", *(f"block-{index}" for index in range(num_blocks)), "last"]
    classes = ["first", *["block"] * num_blocks, "last"]
    sizes = [30 * MEGABYTE, *[12 * MEGABYTE] * num_blocks, 32 * MEGABYTE]
    return PlanningProblem(
        id=f"chain-{num_blocks}",
        strategy="synthetic/1",
        units=tuple(
            ExecutionUnit(
                id=name,
                cost_class=kind,
                states=(name,),
                mutable_bytes_per_position=bytes_of(1024) if kind == "block" else (),
                only_last_position=kind == "last",
            )
            for name, kind in zip(names, classes, strict=True)
        ),
        states=tuple(StateUnit(id=name, sizes=bytes_of(size)) for name, size in zip(names, sizes, strict=True)),
        boundaries=(Boundary(legal=True, payload_bytes_per_position=bytes_of(4096)),) * (num_blocks + 1),
        feedback_bytes=64,
        implementations=(Implementation(primitive="plain", representation=FORM),),
        transients=(
            TransientTerm(name="staging", representation=FORM, fixed_bytes=5 * MEGABYTE),
            TransientTerm(name="work", representation=FORM, cost_classes=("block",), fixed_bytes=3 * MEGABYTE),
        ),
        max_positions=4096,
        chunk_positions=64,
        comparator="exact/1",
    )


def make_swarm(num_blocks: int, num_nodes: int, seed: int) -> Swarm:
    """Unlike Nodes that hold the chain about 2.2 times over together, and none of them alone."""
    rng = random.Random(seed)
    problem = make_problem(num_blocks)
    names = [f"node-{index:03}" for index in range(num_nodes)]
    places = {name: (rng.random(), rng.random()) for name in names}
    typical = max(3.0, 2.2 * num_blocks / num_nodes)
    services, memories = [], []
    for name in names:
        blocks = min(max(1.2, rng.lognormvariate(0, 0.7) * typical), 0.8 * num_blocks)
        memories.append(
            MemoryResource(
                id=f"mem-{name}",
                node_id=name,
                kind="ram",
                capacity_bytes=declared(20 * MEGABYTE + int(blocks * 12.5 * MEGABYTE)),
                reserved_bytes=declared(0),
                enforcement="none",
            )
        )
        step = 0.002 / rng.lognormvariate(0, 0.8)
        passing = step * 0.15 * rng.lognormvariate(0, 0.4)
        for kind, factor in (("first", 0.1), ("block", 1.0), ("last", 3.0)):
            for phase, base, each in (("step", step * factor, 0.0), ("first-pass", 0.0, passing * factor)):
                services.append(
                    ServiceCurve(
                        compute_unit_id=f"cu-{name}",
                        cost_class=kind,
                        representation=FORM,
                        phase=phase,  # type: ignore[arg-type]
                        base_seconds=base,
                        seconds_per_position=each,
                    )
                )
    paths = []
    for a, b in permutations(names, 2):
        apart = ((places[a][0] - places[b][0]) ** 2 + (places[a][1] - places[b][1]) ** 2) ** 0.5
        latency = 0.0002 + 0.003 * apart * rng.uniform(0.8, 1.2)
        paths.append(PathCurve(source=a, target=b, latency_seconds=latency, seconds_per_byte=8e-9))
    graph = ResourceGraph(
        swarm_id="synthetic",
        nodes=tuple(Node(id=name, name=name, host_id=name) for name in names),
        compute_units=tuple(
            ComputeUnit(id=f"cu-{name}", node_id=name, kind="cpu", name=name, threads=1, memory_ids=(f"mem-{name}",))
            for name in names
        ),
        memory_resources=tuple(memories),
        links=tuple(
            Link(
                id=f"{path.source}-{path.target}",
                source=path.source,
                target=path.target,
                kind="ethernet",
                nominal_bits_per_second=declared(10**9),
            )
            for path in paths
        ),
    )
    return Swarm(problem, graph, Economics(services=tuple(services), paths=tuple(paths)))


def built_of(swarm: Swarm, which: int = 0, workload: Workload = WORKLOAD) -> Built:
    """Return one implementation's instance over the Compute Units that can execute it, and which those are."""
    implementation = swarm.problem.implementations[which]
    case = make_case(swarm.problem, implementation, workload, swarm.economics, (digest(swarm.problem), "unused"))
    view = GraphView(swarm.graph)
    able = tuple(site for site in view.sites if not unit_refusals(site, implementation) + capacity_refusals(site))
    return build_instance(case, view, able)


def instance_of(swarm: Swarm, which: int = 0) -> Instance:
    """Return the instance of one implementation over the Compute Units that can execute it."""
    return built_of(swarm, which).instance


def packed(instance: Instance, order: Sequence[int], wanted: Sequence[float]) -> Steps | None:
    """Return a split that holds about `wanted` atoms in this order; what is too much moves on. None: none fits."""
    reach = longest_ranges(instance)
    steps: list[tuple[int, int]] = []
    first, goal = 0, 0.0
    for site, share in zip(order, wanted, strict=True):
        goal += share
        end = min(reach[site][first], max(first + 1, round(goal)))
        if end > first:
            steps.append((site, end))
            first = end
        if first == instance.num_atoms:
            return fitting(instance, steps)
    while first < instance.num_atoms and steps:
        # What is left goes to the last that has room: its range grows, and all after it move.
        site, end = steps[-1]
        start = steps[-2][1] if len(steps) > 1 else 0
        if reach[site][start] <= end:
            return None
        first = min(reach[site][start], instance.num_atoms)
        steps[-1] = (site, first)
    return fitting(instance, steps)


def fitting(instance: Instance, steps: list[tuple[int, int]]) -> Steps | None:
    """Return a split as it is, or None where it does not fit or cannot be priced."""
    return None if evaluate(instance, steps) is None else tuple(steps)


def value_of(instance: Instance, steps: Steps) -> float:
    """Return the value of a split that fits."""
    value = evaluate(instance, steps)
    assert value is not None
    return value


def split_steps(instance: Instance, listed: Sequence[int] = ()) -> dict[str, Steps | None]:
    """Return the other splits; None where one does not fit. `listed`: the sites as they are listed (none: by id)."""
    sites, atoms = list(listed) or list(range(instance.num_sites)), instance.num_atoms
    room = [float(instance.room[holds[0].memory]) for holds in instance.holds]
    roomiest = sorted(sites, key=lambda site: -room[site])
    found: dict[str, Steps | None] = {}
    for name in ("equal", "memory-proportional"):
        fit = []
        for count in range(1, min(atoms, len(sites)) + 1):
            if sum(room[site] for site in roomiest[:count]) < instance.peak(0, atoms):
                continue
            order = sorted(roomiest[:count], key=sites.index)
            weights = [room[site] if name != "equal" else 1.0 for site in order]
            steps = packed(instance, order, [atoms * weight / sum(weights) for weight in weights])
            if steps is not None:
                fit.append(steps)
                break
        everyone = sorted(roomiest[: min(atoms, len(sites))], key=sites.index)
        weights = [room[site] if name != "equal" else 1.0 for site in everyone]
        whole = packed(instance, everyone, [atoms * weight / sum(weights) for weight in weights])
        fit += [] if whole is None else [whole]
        found[name] = min(fit, key=lambda steps: value_of(instance, steps), default=None)
    found["greedy"] = packed(instance, fastest_first(instance, sites), [float(atoms)] * len(sites))
    return found


def fastest_first(instance: Instance, sites: Sequence[int]) -> list[int]:
    """Return the sites by what one block takes on them."""
    return sorted(sites, key=lambda site: part.seconds if (part := instance.costs[site][1]) is not None else 1e9)


def others(instance: Instance) -> dict[str, float | None]:
    """Return the values of the other splits; None where one does not fit."""
    return {
        name: None if steps is None else value_of(instance, steps) for name, steps in split_steps(instance).items()
    }


def main() -> None:
    """Search, print the table, keep the samples."""
    taken = conditions()
    samples: dict[str, list[float]] = {}
    results: dict[str, object] = {}
    print(f"planner: {SWARMS} swarms of each size, {LIMITS.num_threads} thread, load {taken['load_average']}")
    print("blocks  units   search s (worst)   cpu s   decide s  target   value s   bound s      gap  proved by")
    ratios: dict[str, list[float]] = {}
    rows = []
    for num_blocks, num_nodes in SIZES:
        key = f"{num_blocks} over {num_nodes}"
        gaps, values, bounds, methods = [], [], [], []
        for number in range(SWARMS):
            swarm = make_swarm(num_blocks, num_nodes, SEED + number)
            instance = instance_of(swarm)
            before = time.process_time()
            solution = solve(instance, LIMITS)
            samples.setdefault(f"cpu {key}", []).append(time.process_time() - before)
            assert solution.value is not None, "every swarm holds its chain"
            samples.setdefault(f"search {key}", []).append(solution.wall_seconds)
            started = time.perf_counter()
            decision = decide_plan(swarm.problem, swarm.graph, WORKLOAD, Policy(), swarm.economics, LIMITS)
            samples.setdefault(f"decide {key}", []).append(time.perf_counter() - started)
            assert decision.plan is not None
            gaps.append(solution.gap)
            values.append(solution.value)
            bounds.append(solution.bound)
            methods.append(f"{solution.method}: {solution.status.lower()}")
            for name, value in others(instance).items():
                if value is not None:
                    samples.setdefault(f"{name} {key}", []).append(value / solution.value)
        searched, decided = samples[f"search {key}"], samples[f"decide {key}"]
        target = "" if num_nodes not in TARGETS else f"≤ {TARGETS[num_nodes]:g} s"
        busy = statistics.median(samples[f"cpu {key}"])
        print(
            f"{num_blocks:6}  {num_nodes:5}  {statistics.median(searched):8.2f} ({max(searched):6.2f})  {busy:6.2f}  "
            f"{statistics.median(decided):9.2f}  {target:>6}  {values[0]:8.3f}  {bounds[0]:8.3f}  {max(gaps):7.3%}  "
            f"{', '.join(sorted(set(methods)))}"
        )
        results[key] = {"search": statistics.median(searched), "worst": max(searched), "gap": max(gaps)}
        ratios = {name: samples.get(f"{name} {key}", []) for name in SPLITS}
        rows.append((num_blocks, num_nodes, ratios))
    print("\nother splits, predicted time over the plan's (median; – where none fits)")
    print("blocks  units  memory-proportional     equal    greedy")
    for num_blocks, num_nodes, ratios in rows:
        texts = [f"{statistics.median(values):.2f}" if values else "–" for values in ratios.values()]
        print(f"{num_blocks:6}  {num_nodes:5}  {texts[0]:>19}  {texts[1]:>8}  {texts[2]:>8}")
        results[f"ratios {num_blocks} over {num_nodes}"] = dict(zip(ratios, texts, strict=True))
    write("planner", samples, results, taken)


if __name__ == "__main__":
    main()
