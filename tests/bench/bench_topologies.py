"""The shipped topologies: what our plan is expected to do, how near to the best it is proved, what others cost.

Two descriptions are planned for, of the sizes of an 8B and a 70B decoder, for one request of 256 + 128 tokens, priced
by each topology's declared figures: nothing here is a measurement of a machine, and all splits are judged by the same
costs and the same memory. The other splits are those of `bench_planner`; each takes the best of all representations.
`bench_splits` serves such splits on stand-ins for two of the topologies and measures them.
*proved ≤* is the search's bound over the plan's own time: no plan that can be priced takes less than that share.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from inferswarm.planner.plan import Decision
from inferswarm.strategies.dense.description import DecoderDescription, plain_decoder
from inferswarm.swarm.simulated import SimulatedSwarm
from inferswarm.units import format_seconds
from tests.bench.bench_planner import LIMITS, SPLITS, WORKLOAD, Swarm, instance_of, others
from tests.bench.report import conditions, write

TOPOLOGIES = Path("experiments/topologies")


class Compared(NamedTuple):
    """One model on one topology: the decision, the seconds that it took, and the other splits' request times."""

    decision: Decision
    seconds: float
    others: dict[str, float]
    """Only those that fit."""


def decoder(num_blocks: int, hidden_size: int, feed_forward_size: int, num_heads: int) -> DecoderDescription:
    """Return a plain decoder with eight key-value heads of 128 and a head of its own."""
    return plain_decoder(
        architecture="bench",
        vocabulary_size=128_256,
        hidden_size=hidden_size,
        feed_forward_size=feed_forward_size,
        num_blocks=num_blocks,
        num_heads=num_heads,
        num_key_value_heads=8,
        head_size=128,
        context_positions=8192,
        tied_head=False,
    )


MODELS = {"8B-like": decoder(32, 4096, 14336, 32), "70B-like": decoder(80, 8192, 28672, 64)}


def compare(model: DecoderDescription, path: Path) -> Compared:
    """Plan by declared figures, and judge the other splits by the same curves."""
    simulated = SimulatedSwarm.load(path)
    problem = simulated.problem(model, WORKLOAD)
    started = time.perf_counter()
    decision = simulated.plan(model, WORKLOAD, estimate=True, limits=LIMITS)
    spent = time.perf_counter() - started
    swarm = Swarm(problem, simulated.topology.graph, simulated.estimate(model, problem))
    found: dict[str, float] = {}
    for which in range(len(problem.implementations)):
        for name, value in others(instance_of(swarm, which)).items():
            if value is not None:
                found[name] = min(found.get(name, value), value)
    return Compared(decision.document, spent, found)


def row(name: str, compared: Compared) -> tuple[str, dict[str, object]]:
    """Return the line of the table, and what is kept of it."""
    decision, spent, found = compared
    plan = decision.plan
    if plan is None or plan.prediction is None:
        kept: dict[str, object] = {"outcome": decision.outcome, "summary": decision.summary, "seconds": spent}
        return f"{name:13} {decision.outcome}: {decision.summary}", kept
    value = plan.prediction.request.point
    assert decision.bound is not None
    assert decision.gap is not None
    ratios = {split: found[split] / value for split in SPLITS if split in found}
    texts = [f"{ratios[split]:.2f}" if split in ratios else "–" for split in SPLITS]
    methods = sorted({f"{report.method}: {report.status.lower()}" for report in decision.solvers})
    parts = len(plan.placements)
    line = (
        f"{name:13} {parts:6} {plan.representation:5} {format_seconds(plan.prediction.ttft.point):>9} "
        f"{plan.prediction.decode_rate.point:7.2f} {format_seconds(value):>9} {decision.bound / value:9.4f} "
        f"{decision.gap:8.3%} {spent:8.2f} {texts[0]:>12} {texts[1]:>7} {texts[2]:>7}  {', '.join(methods)}"
    )
    return line, {
        "outcome": decision.outcome,
        "nodes": [placement.node_name for placement in plan.placements],
        "representation": plan.representation,
        "ttft_seconds": plan.prediction.ttft.point,
        "tokens_per_second": plan.prediction.decode_rate.point,
        "request_seconds": value,
        "bound_seconds": decision.bound,
        "gap": decision.gap,
        "proved_optimal": decision.proved_optimal,
        "seconds": spent,
        "ratios": ratios,
        "solvers": methods,
    }


def main() -> None:
    """Compare on every shipped topology, print the tables, keep the numbers."""
    taken = conditions()
    samples: dict[str, list[float]] = {}
    results: dict[str, object] = {}
    print(f"topologies: estimates from declared figures, at most {LIMITS.seconds:g} s of search a decision")
    for title, model in MODELS.items():
        length = f"{WORKLOAD.prompt_tokens} + {WORKLOAD.output_tokens} tokens"
        print(f"\n{title}, {length}; other splits: their time over the plan's (– where none fits)")
        print(
            "topology      stages form       TTFT   tok/s   request  proved ≤      gap decide s  proportional   equal"
            "  greedy  proved by"
        )
        for path in sorted(TOPOLOGIES.glob("*.toml")):
            compared = compare(model, path)
            line, kept = row(path.stem, compared)
            print(line, flush=True)
            key = f"{title} on {path.stem}"
            results[key] = kept
            samples[f"decide {key}"] = [compared.seconds]
    write("topologies", samples, results, taken)


if __name__ == "__main__":
    main()
