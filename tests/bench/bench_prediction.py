"""What plans were predicted to take against what they took: time to the first token, and from token to token.

Every cell is a plan (one to four stages on Nodes of unlike threads and envelopes, in one representation) with a
workload. All predictions are made before anything is served. Then rounds go through all cells in an order shuffled
anew: realize, one answer that is not counted, two that are. What a cell took is the median over all counted answers;
of an answer, the mean time between its tokens. Beside the error stands what the same cell differs by from itself: the
median distance of an answer from its cell's median.

Coverage is the share of cells whose measured median lies in the predicted interval, with the one-sided 95 %
Clopper–Pearson bound of that share.

    python -m tests.bench.bench_prediction [--quick] [--rounds N] [--state DIRECTORY]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import beta

from inferswarm.planner import Policy, Workload
from inferswarm.planner.plan import ExecutionPlan, Interval, Prediction
from inferswarm.resources import Envelope
from inferswarm.swarm import Generation, Model, Swarm
from tests.bench.report import SEED, conditions, write

ROUNDS = 3
COUNTED_ANSWERS = 2
REST_SECONDS = 0.1
TARGET_ERROR, TARGET_COVERAGE = 0.08, 0.90
NODES = (
    Envelope(name="amber", threads=1, memory_bytes=2_000_000_000),
    Envelope(name="birch", threads=2, memory_bytes=1_800_000_000),
    Envelope(name="cedar", threads=1, memory_bytes=1_000_000_000),
    Envelope(name="drift", threads=2, memory_bytes=700_000_000),
)
SHORT = Workload(prompt_tokens=24, output_tokens=24)
LONG = Workload(prompt_tokens=448, output_tokens=24)
SMOLLM, GEMMA = "smollm2-135m", "gemma-3-270m"


class Cell(NamedTuple):
    """One plan that is asked for, with its workload."""

    model: str
    nodes: tuple[str, ...]
    representation: str
    workload: Workload
    cuts: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Say what it is in one line."""
        cuts = "" if not self.cuts else f" cut {','.join(map(str, self.cuts))}"
        return f"{self.model} {self.representation} {'+'.join(self.nodes)}{cuts} {self.workload.prompt_tokens} tokens"


def _both(model: str, representation: str, *nodes: str, cuts: tuple[int, ...] = ()) -> tuple[Cell, ...]:
    return tuple(Cell(model, nodes, representation, workload, cuts) for workload in (SHORT, LONG))


ALL_CELLS = (
    *_both(SMOLLM, "bf16", "amber"),
    *_both(SMOLLM, "fp32", "amber"),
    *_both(SMOLLM, "bf16", "birch"),
    *_both(SMOLLM, "fp32", "birch"),
    *_both(SMOLLM, "bf16", "amber", "cedar"),
    *_both(SMOLLM, "fp32", "amber", "birch"),
    *_both(SMOLLM, "bf16", "birch", "drift"),
    *_both(SMOLLM, "bf16", "cedar", "birch", cuts=(8,)),
    *_both(SMOLLM, "bf16", "amber", "cedar", "birch"),
    *_both(SMOLLM, "fp32", "amber", "birch", "drift"),
    *_both(SMOLLM, "bf16", "amber", "birch", "cedar", "drift"),
    *_both(SMOLLM, "fp32", "amber", "birch", "cedar", "drift"),
    *_both(GEMMA, "bf16", "birch"),
    Cell(GEMMA, ("amber",), "fp32", SHORT),
    *_both(GEMMA, "bf16", "amber", "birch"),
    Cell(GEMMA, ("amber", "birch"), "fp32", SHORT),
    *_both(GEMMA, "bf16", "amber", "drift", "birch"),
)
QUICK_CELLS = (
    *_both(SMOLLM, "bf16", "amber"),
    *_both(SMOLLM, "bf16", "amber", "cedar"),
    Cell(SMOLLM, ("birch",), "fp32", SHORT),
    Cell(SMOLLM, ("amber", "birch"), "fp32", SHORT),
    *_both(SMOLLM, "bf16", "amber", "cedar", "birch"),
)


class Taken(NamedTuple):
    """Seconds of every counted answer of a cell, in the order taken."""

    ttft: list[float]
    inter_token: list[float]


class Judged(NamedTuple):
    """One quantity of one cell: what was predicted and what was measured."""

    name: str
    predicted: Interval
    measured: float
    spread: float
    """Median distance of an answer from the cell's median, relative to it."""

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.predicted.point / self.measured

    @property
    def covered(self) -> bool:
        """Whether the measured median lies in the predicted interval."""
        return self.predicted.low <= self.measured <= self.predicted.high


def prompt_of(model: Model, num_tokens: int) -> tuple[int, ...]:
    """Return ordinary ids: spread over the vocabulary, the same for every run."""
    size = model.description.vocabulary_size
    return tuple((index * 7919 + 101) % size for index in range(num_tokens))


def answer_seconds(answer: Generation) -> tuple[float, float]:
    """Return the time to the first token and the mean time between tokens."""
    gaps = answer.inter_token_seconds
    return answer.ttft_seconds, sum(gaps) / len(gaps)


def judge(names: Sequence[str], predicted: Sequence[Interval], taken: Sequence[Sequence[float]]) -> list[Judged]:
    """Put predictions beside measurements."""
    judged = []
    for name, interval, samples in zip(names, predicted, taken, strict=True):
        middle = statistics.median(samples)
        spread = statistics.median(abs(sample - middle) for sample in samples) / middle
        judged.append(Judged(name, interval, middle, spread))
    return judged


def least_coverage(covered: int, total: int) -> float:
    """Return the one-sided 95 % Clopper–Pearson bound: the coverage is at least this."""
    return 0.0 if covered == 0 else float(beta.ppf(0.05, covered, total - covered + 1))


def report(title: str, judged: Sequence[Judged], unit: float) -> dict[str, float]:
    """Print a table and its summary; return the summary."""
    print(f"\n{title}\n{'':64}  {'predicted':>22}  {'measured':>9}  {'ratio':>6}  {'spread':>6}")
    for item in judged:
        bounds = item.predicted
        low, point, high = bounds.low * unit, bounds.point * unit, bounds.high * unit
        mark = " " if item.covered else "*"
        print(
            f"{item.name:64}  {point:8.2f} ({low:5.1f}–{high:6.1f})  {item.measured * unit:8.2f}{mark}  "
            f"{item.ratio:6.3f}  {item.spread:6.1%}"
        )
    errors = [abs(item.ratio - 1) for item in judged]
    covered = sum(item.covered for item in judged)
    summary = {
        "median_absolute_error": statistics.median(errors),
        "largest_absolute_error": max(errors),
        "median_ratio": statistics.median(item.ratio for item in judged),
        "repeat_noise": statistics.median(item.spread for item in judged),
        "coverage": covered / len(judged),
        "coverage_at_least": least_coverage(covered, len(judged)),
        "cells": float(len(judged)),
    }
    print(
        f"median |error| {summary['median_absolute_error']:.1%} (target {TARGET_ERROR:.0%}), largest "
        f"{summary['largest_absolute_error']:.1%}, median ratio {summary['median_ratio']:.3f}, repeat noise "
        f"{summary['repeat_noise']:.1%}; {covered} of {len(judged)} in their interval (* not): "
        f"{summary['coverage']:.0%}, at least {summary['coverage_at_least']:.0%} (target {TARGET_COVERAGE:.0%})"
    )
    return summary


def main(arguments: Sequence[str] = ()) -> None:
    """Predict all cells, serve them in interleaved rounds, print and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few cells, two rounds: to check, not to claim")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--state", default=None, help="keep the measurements in this state directory")
    options = parser.parse_args(arguments)
    cells = QUICK_CELLS if options.quick else ALL_CELLS
    rounds = options.rounds or (2 if options.quick else ROUNDS)
    used = {name for cell in cells for name in cell.nodes}
    nodes = [node for node in NODES if node.name in used]
    taken_under = conditions()
    with (
        tempfile.TemporaryDirectory() as temporary,
        Swarm.local(nodes, state=options.state or temporary) as swarm,
    ):
        models = {name: Model(name) for name in dict.fromkeys(cell.model for cell in cells)}
        began = time.monotonic()
        for model in models.values():
            swarm.measure(model, LONG)
        print(f"measured {len(nodes)} Nodes and {len(models)} models in {time.monotonic() - began:.0f} s")
        plans = [_plan(swarm, models[cell.model], cell) for cell in cells]
        taken = [Taken([], []) for _ in cells]
        shuffle = random.Random(SEED)
        for number in range(rounds):
            order = list(range(len(cells)))
            shuffle.shuffle(order)
            for index in order:
                _serve(swarm, models[cells[index].model], cells[index], plans[index][0], taken[index])
            print(f"round {number + 1} of {rounds} done")
    names = [cell.name for cell in cells]
    predictions = [prediction for _, prediction in plans]
    ttft = judge(names, [item.ttft for item in predictions], [item.ttft for item in taken])
    decode = judge(names, [item.inter_token for item in predictions], [item.inter_token for item in taken])
    results = {
        "ttft": report("time to the first token, ms", ttft, 1e3),
        "decode": report("from token to token, ms", decode, 1e3),
    }
    cells_kept = {
        f"{item.name}: {what}": {
            "low": item.predicted.low,
            "point": item.predicted.point,
            "high": item.predicted.high,
        }
        for what, judged in (("ttft", ttft), ("decode", decode))
        for item in judged
    }
    samples = {f"{name}: ttft": item.ttft for name, item in zip(names, taken, strict=True)}
    samples |= {f"{name}: decode": item.inter_token for name, item in zip(names, taken, strict=True)}
    write(
        "prediction-quick" if options.quick else "prediction",
        samples,
        {**results, "predicted": cells_kept},
        taken_under,
    )


def _plan(swarm: Swarm, model: Model, cell: Cell) -> tuple[ExecutionPlan, Prediction]:
    policy = Policy(representations=(cell.representation,), pinned_nodes=cell.nodes, pinned_cuts=cell.cuts)
    decision = swarm.plan(model, cell.workload, policy, measure=False)
    plan = decision.document.plan
    if plan is None or plan.prediction is None:
        raise SystemExit(f"{cell.name}: {decision.explain()}")
    return plan, plan.prediction


def _serve(swarm: Swarm, model: Model, cell: Cell, plan: ExecutionPlan, taken: Taken) -> None:
    prompt = prompt_of(model, cell.workload.prompt_tokens)
    with swarm.realize(plan, model) as service:
        for number in range(1 + COUNTED_ANSWERS):
            time.sleep(REST_SECONDS)
            answer = service.generate(prompt, max_tokens=cell.workload.output_tokens, ignore_stop=True)
            if number:
                first, gap = answer_seconds(answer)
                taken.ttft.append(first)
                taken.inter_token.append(gap)


if __name__ == "__main__":
    main(sys.argv[1:])
