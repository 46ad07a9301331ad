"""Our plan against memory-proportional, equal and greedy splits, really served, on stand-ins for two topologies.

Each Node of a shipped topology becomes one virtual Node of this machine. How much of a model each can hold, and which
is the fastest, is carried over; how much faster, the Links and cores of its own are not: see `stand_ins`.

The other splits are those of `bench_planner`, over the same Nodes in the order that each rule prescribes, in the same
representation, priced by the same curves: where a part does not fit, what is too much moves to the next Node, and of
two readings of *equal* and *memory-proportional* the one that is predicted to be faster counts. Where a rule as it is
would be refused, the refusal's numbers are printed. Splits that are one plan are served once.

Everything is measured once for each topology, before anything is predicted. Then rounds go through all plans in an
order shuffled anew: realize, and for each workload one answer that is not counted and two that are. A split's ratio
is its request time over ours, of one round's medians; shown are the median over the rounds, the least and greatest.

    python -m tests.bench.bench_splits [--quick | --all] [--rounds N]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferswarm.errors import EnvelopeExceeded
from inferswarm.planner import Policy, Workload
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.solvers import Steps
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.simulated import SimulatedSwarm
from inferswarm.units import format_bytes
from tests.bench import bench_planner
from tests.bench.bench_prediction import COUNTED_ANSWERS, REST_SECONDS, SMOLLM, prompt_of
from tests.bench.bench_topologies import TOPOLOGIES, compare
from tests.bench.report import SEED, conditions, write
from tests.bench.split_rows import (
    OURS,
    Answer,
    Ratio,
    Route,
    Served,
    Split,
    as_it_is,
    compared_rows,
    print_rows,
    route_of,
    shortages,
)
from tests.bench.stand_ins import STAND_INS, THERE, Seat, StandIn, envelopes_of, need_of, seats_of

ROUNDS = 3
AMPLE_BYTES = 2_000_000_000
"""What every Node has while it is measured: room for each unit in each representation. Nothing is planned in it."""
SHORT = Workload(prompt_tokens=24, output_tokens=12)
LONG = Workload(prompt_tokens=448, output_tokens=12)
CELLS = {"8B-like": (("bf16", SHORT), ("fp32", SHORT)), "24B-like": (("bf16", SHORT),)}
"""Representations and workloads by what the stand-in is for: what five minutes allow."""
ALL_CELLS = {stand.title: (("bf16", SHORT), ("bf16", LONG), ("fp32", SHORT), ("fp32", LONG)) for stand in STAND_INS}
QUICK_CELLS = {"8B-like": (("bf16", SHORT),)}


def ask(swarm: Swarm, model: Model, representation: str, workload: Workload) -> list[Split]:
    """Return our plan and what each rule comes to, all priced by the same curves."""
    decision = swarm.plan(model, workload, Policy(representations=(representation,)), measure=False)
    found = [Split(OURS, decision.plan)]
    assert decision.inputs is not None
    problem, graph, economics = decision.inputs.problem, decision.inputs.graph, decision.inputs.economics
    which = [item.representation for item in problem.implementations].index(representation)
    built = bench_planner.built_of(bench_planner.Swarm(problem, graph, economics), which, workload)
    instance, names = built.instance, [site.node.name for site in built.sites]
    listed = [names.index(node.name) for node in graph.nodes]
    room = {names[site]: float(instance.room[instance.holds[site][0].memory]) for site in listed}
    plain = {
        "memory-proportional": room,
        "equal": dict.fromkeys(room, 1.0),
        "greedy": {names[bench_planner.fastest_first(instance, listed)[0]]: 1.0},
    }

    def pinned(steps: Steps) -> ExecutionPlan | None:
        route = Route(tuple(names[site] for site, _ in steps), tuple(instance.ends[end - 1] for _, end in steps))
        policy = Policy(representations=(representation,), pinned_nodes=route.nodes, pinned_cuts=route.cuts)
        return swarm.plan(model, workload, policy, measure=False).document.plan

    for rule, steps in bench_planner.split_steps(instance, listed).items():
        route = as_it_is(len(problem.units), plain[rule])
        cuts, kept = route.cuts, representation
        forced = swarm.force(model, route.nodes, cuts=cuts, representation=kept, workload=workload)
        lacking = shortages([account for part in forced.placements for account in part.accounts])
        said = "the fastest alone" if rule == "greedy" else "as it is"
        refused = f"{said} ({route.name}): {lacking}" if lacking else ""
        found.append(Split(rule, None if steps is None else pinned(steps), refused))
    return found


def serve(
    swarm: Swarm, model: Model, plan: ExecutionPlan, workloads: Sequence[Workload]
) -> dict[Workload, list[Answer]]:
    """Realize a plan once; return the counted answers to each workload's prompt."""
    taken: dict[Workload, list[Answer]] = {workload: [] for workload in workloads}
    with swarm.realize(plan, model) as service:
        for workload in workloads:
            prompt = prompt_of(model, workload.prompt_tokens)
            for number in range(1 + COUNTED_ANSWERS):
                time.sleep(REST_SECONDS)
                answer = service.generate(prompt, max_tokens=workload.output_tokens, ignore_stop=True)
                if number:
                    gaps, times = answer.inter_token_seconds, answer.record.commit_seconds
                    taken[workload].append(Answer(answer.ttft_seconds, statistics.mean(gaps), times[-1]))
    return taken


def compete(
    swarm: Swarm,
    model: Model,
    representation: str,
    workloads: Sequence[Workload],
    rounds: int,
    shuffle: random.Random,
) -> Served:
    """Ask for all plans, then serve each in every round.

    A plan that several workloads ask for is realized once, with room for the longest of them.
    """
    splits = {workload: ask(swarm, model, representation, workload) for workload in workloads}
    plans: dict[Route, dict[Workload, ExecutionPlan]] = {}
    for workload, asked in splits.items():
        for split in asked:
            if split.plan is not None:
                plans.setdefault(route_of(split.plan), {})[workload] = split.plan
    served = Served(splits, {}, {})
    for _ in range(rounds):
        for route in shuffle.sample(list(plans), len(plans)):
            if route in served.stopped:
                continue
            wanted = shuffle.sample(list(plans[route]), len(plans[route]))
            longest = max(wanted, key=lambda workload: workload.positions)
            try:
                answers = serve(swarm, model, plans[route][longest], wanted)
            except EnvelopeExceeded as error:
                served.stopped[route] = str(error)
                continue
            for workload, found in answers.items():
                served.taken.setdefault((route, workload), []).append(found)
    return served


def introduce(stand: StandIn, seats: Sequence[Seat], envelopes: Mapping[str, Sequence[Envelope]]) -> dict[str, Any]:
    """Print what stands for what, and what the splits cost on the topology itself by its declared figures.

    Return what is kept of it.
    """
    kept: dict[str, Any] = {
        "model": stand.title,
        "nodes": [seat._asdict() for seat in seats],
        "memory_bytes": {form: [node.memory_bytes for node in nodes] for form, nodes in envelopes.items()},
    }
    print(f"\n{stand.topology}, as if for the {stand.title} model in {THERE}")
    for place, seat in enumerate(seats):
        sizes = (f"{format_bytes(nodes[place].memory_bytes)} for {form}" for form, nodes in envelopes.items())
        threads = "1 thread" if seat.threads == 1 else f"{seat.threads} threads"
        print(f"  {seat.name:8} for {seat.stands_for}: holds {seat.share:.0%}; {threads}, {', '.join(sizes)}")
    compared = compare(stand.model, TOPOLOGIES / f"{stand.topology}.toml")
    plan = compared.decision.plan
    if plan is not None and plan.prediction is not None:
        value = plan.prediction.request.point
        ratios = ", ".join(f"{name} {compared.others[name] / value:.2f}" for name in compared.others)
        print(f"  by declared figures, the whole topology with its Links: over our {value:.2f} s, {ratios}")
        kept["declared"] = {OURS: value, **compared.others}
    return kept


def run(
    stand: StandIn,
    cells: Sequence[tuple[str, Workload]],
    rounds: int,
    shuffle: random.Random,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Served]]:
    """Measure a stand-in's Nodes, then serve every cell's plans; return what is kept of it, and what was served."""
    simulated, model = SimulatedSwarm.load(TOPOLOGIES / f"{stand.topology}.toml"), Model(SMOLLM)
    seats = seats_of(simulated.topology, need_of(simulated.problem(stand.model, LONG), THERE, LONG))
    forms = tuple(dict.fromkeys(form for form, _ in cells))
    results = {}
    with tempfile.TemporaryDirectory() as state:
        ample = [Envelope(name=seat.name, threads=seat.threads, memory_bytes=AMPLE_BYTES) for seat in seats]
        with Swarm.local(ample, state=state) as swarm:
            swarm.measure()
            swarm.measure_units(model, LONG, forms)
            graph, problem = swarm.graph.document, swarm.problem(model, LONG)
        names = {node.id: node.name for node in graph.nodes}
        bases = {names[memory.node_id]: memory.reserved_bytes.value or 0 for memory in graph.memory_resources}
        envelopes = {form: envelopes_of(seats, bases, need_of(problem, form, LONG)) for form in forms}
        kept = introduce(stand, seats, envelopes)
        say("measured")
        for form in forms:
            workloads = [workload for other, workload in cells if other == form]
            with Swarm.local(envelopes[form], state=state) as swarm:
                results[form] = compete(swarm, model, form, workloads, rounds, shuffle)
            say(f"{form}: {rounds} rounds")
    return kept, results


def main(arguments: Sequence[str] = ()) -> None:
    """Serve all splits on all stand-ins, print the tables, keep the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", action="store_true", help="one topology, one workload, two rounds: to check")
    kind.add_argument("--all", action="store_true", help="every stand-in in both representations, with both prompts")
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args(arguments)
    chosen = QUICK_CELLS if options.quick else ALL_CELLS if options.all else CELLS
    rounds = options.rounds or (2 if options.quick else ROUNDS)
    taken_under = conditions()
    print(
        f"splits: {SMOLLM} on stand-ins, {rounds} shuffled rounds of {COUNTED_ANSWERS} counted answers; "
        f"load {taken_under['load_average']}\n"
        "carried over: how much of a model each Node can hold, and which Node is the fastest; not carried over: how "
        "much faster\n(speeds are those of threads), Links (all are the loopback's), cores of one's own "
        f"({taken_under['usable_cpus']} are shared)"
    )
    began, shuffle = time.monotonic(), random.Random(SEED)
    samples: dict[str, list[float]] = {}
    results: dict[str, Any] = {}
    faster: list[str] = []
    for stand in STAND_INS:
        cells = chosen.get(stand.title, ())
        if not cells:
            continue
        name = f"{stand.topology} for {stand.title}"
        results[name], found = run(
            stand,
            cells,
            rounds,
            shuffle,
            lambda what: print(f"  [{time.monotonic() - began:.0f} s] {what}", flush=True),
        )
        for form, workload in cells:
            key = f"{name}, {form} {workload.prompt_tokens} + {workload.output_tokens} tokens"
            print(f"\n{key}")
            rows = compared_rows(found[form], workload)
            print_rows(rows)
            results[key] = [
                {field: item._asdict() if isinstance(item, Answer | Ratio) else item for field, item in row.items()}
                for row in rows
            ]
            for row in rows:
                if "ratio" in row and row["served_as"] == row["rule"] and row["ratio"].middle < 1:
                    middle, least, greatest = row["ratio"]
                    faster.append(f"{key}: {row['rule']} took {middle:.3f} ({least:.3f}–{greatest:.3f}) of our time")
            for (route, other), taken in found[form].taken.items():
                for place, field in enumerate(Answer._fields if other == workload else ()):
                    samples[f"{key}, {route.name}: {field}"] = [answer[place] for some in taken for answer in some]
    print(f"\nmeasured to be faster than ours: {len(faster) or 'none'}")
    for text in faster:
        print(f"  {text}")
    write(
        "splits-quick" if options.quick else "splits-all" if options.all else "splits", samples, results, taken_under
    )


if __name__ == "__main__":
    main(sys.argv[1:])
