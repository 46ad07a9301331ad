"""What plans were predicted to take against what they took: time to the first token, and from token to token.

Every cell is a plan (one to four stages on Nodes of unlike threads and envelopes, in one representation) with a
workload. A round goes through all models and representations in an order shuffled anew. For each it measures the
cost classes again, predicts its cells, and then serves them: realize, one answer that is not counted, two that are.
So every prediction is made before what it predicts, and from measurements of the same minutes: speeds of a shared
machine change by more than what is shown here. The cuts stay those of the first round.

What a cell took is the median over all counted answers (of an answer, the mean time between its tokens); its ratio
is the median over the rounds, of the round's prediction to the round's median. Beside the error stands what the same
cell differs by from itself: the median distance of an answer from its round's median, and of a round's from its
cell's.

Coverage is the share of cells whose measured median lies in the predicted interval (the median one of the rounds),
with the one-sided 95 % Clopper–Pearson bound of that share.

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
from inferswarm.planner.plan import ExecutionPlan, Interval
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


class Round(NamedTuple):
    """One quantity of one cell in one round: what was predicted, and the seconds that the counted answers took."""

    predicted: Interval
    taken: list[float]

    @property
    def middle(self) -> float:
        """The median of what was taken."""
        return statistics.median(self.taken)


class Judged(NamedTuple):
    """One quantity of one cell: what was predicted and what was measured, over all rounds."""

    name: str
    predicted: Interval
    measured: float
    ratio: float
    """Predicted / measured."""
    within: float
    """Median distance of an answer from its round's median, relative to it."""
    between: float
    """Median distance of a round's median from the cell's, relative to it."""
    rounds_covered: int

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


def judge(name: str, rounds: Sequence[Round]) -> Judged:
    """Put the predictions of a cell beside what was measured."""
    measured = statistics.median(sample for item in rounds for sample in item.taken)
    predicted = Interval(*(statistics.median(part) for part in zip(*map(_bounds, rounds), strict=True)))
    return Judged(
        name,
        predicted,
        measured,
        statistics.median(item.predicted.point / item.middle for item in rounds),
        statistics.median(abs(sample / item.middle - 1) for item in rounds for sample in item.taken),
        statistics.median(abs(item.middle / measured - 1) for item in rounds),
        sum(item.predicted.low <= item.middle <= item.predicted.high for item in rounds),
    )


def _bounds(item: Round) -> tuple[float, float, float]:
    return item.predicted.low, item.predicted.point, item.predicted.high


def least_coverage(covered: int, total: int) -> float:
    """Return the one-sided 95 % Clopper–Pearson bound: the coverage is at least this."""
    return 0.0 if covered == 0 else float(beta.ppf(0.05, covered, total - covered + 1))


def report(title: str, judged: Sequence[Judged], unit: float) -> dict[str, float]:
    """Print a table and its summary; return the summary."""
    print(f"\n{title}\n{'':64}  {'predicted':>22}  {'measured':>9}  {'ratio':>6}  {'within':>6}  {'between':>7}")
    for item in judged:
        bounds = item.predicted
        low, point, high = bounds.low * unit, bounds.point * unit, bounds.high * unit
        mark = " " if item.covered else "*"
        print(
            f"{item.name:64}  {point:8.2f} ({low:5.1f}–{high:6.1f})  {item.measured * unit:8.2f}{mark}  "
            f"{item.ratio:6.3f}  {item.within:6.1%}  {item.between:7.1%}"
        )
    errors = [abs(item.ratio - 1) for item in judged]
    covered = sum(item.covered for item in judged)
    summary = {
        "median_absolute_error": statistics.median(errors),
        "largest_absolute_error": max(errors),
        "median_ratio": statistics.median(item.ratio for item in judged),
        "noise_within_rounds": statistics.median(item.within for item in judged),
        "noise_between_rounds": statistics.median(item.between for item in judged),
        "coverage": covered / len(judged),
        "coverage_at_least": least_coverage(covered, len(judged)),
        "rounds_covered": float(sum(item.rounds_covered for item in judged)),
        "cells": float(len(judged)),
    }
    print(
        f"median |error| {summary['median_absolute_error']:.1%} (target {TARGET_ERROR:.0%}), largest "
        f"{summary['largest_absolute_error']:.1%}, median ratio {summary['median_ratio']:.3f}; repeat noise "
        f"{summary['noise_within_rounds']:.1%} within and {summary['noise_between_rounds']:.1%} between rounds; "
        f"{covered} of {len(judged)} in their interval (* not): "
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
        cuts: dict[Cell, tuple[int, ...]] = {}
        ttft: dict[Cell, list[Round]] = {cell: [] for cell in cells}
        decode: dict[Cell, list[Round]] = {cell: [] for cell in cells}
        shuffle = random.Random(SEED)
        for number in range(rounds):
            groups = sorted({(cell.model, cell.representation) for cell in cells})
            shuffle.shuffle(groups)
            for name, representation in groups:
                members = [cell for cell in cells if (cell.model, cell.representation) == (name, representation)]
                shuffle.shuffle(members)
                swarm.measure_units(models[name], LONG, (representation,))
                for cell in members:
                    plan = _plan(swarm, models[name], cell, cuts.get(cell, cell.cuts))
                    cuts[cell] = tuple(placement.end_unit - 1 for placement in plan.placements[:-1])
                    first, gaps = _serve(swarm, models[name], cell, plan)
                    assert plan.prediction is not None
                    ttft[cell].append(Round(plan.prediction.ttft, first))
                    decode[cell].append(Round(plan.prediction.inter_token, gaps))
            print(f"round {number + 1} of {rounds} done after {time.monotonic() - began:.0f} s", flush=True)
    judged = {
        what: [judge(cell.name, found[cell]) for cell in cells]
        for what, found in (("ttft", ttft), ("decode", decode))
    }
    results = {
        "ttft": report("time to the first token, ms", judged["ttft"], 1e3),
        "decode": report("from token to token, ms", judged["decode"], 1e3),
    }
    predicted = {
        f"{cell.name}: {what}": [
            dict(zip(("low", "point", "high"), _bounds(item), strict=True)) for item in found[cell]
        ]
        for what, found in (("ttft", ttft), ("decode", decode))
        for cell in cells
    }
    samples = {
        f"{cell.name}: {what}": [seconds for item in found[cell] for seconds in item.taken]
        for what, found in (("ttft", ttft), ("decode", decode))
        for cell in cells
    }
    write(
        "prediction-quick" if options.quick else "prediction",
        samples,
        {**results, "predicted": predicted, "cuts": {cell.name: cuts[cell] for cell in cells}},
        taken_under,
    )


def _plan(swarm: Swarm, model: Model, cell: Cell, cuts: tuple[int, ...]) -> ExecutionPlan:
    policy = Policy(representations=(cell.representation,), pinned_nodes=cell.nodes, pinned_cuts=cuts)
    decision = swarm.plan(model, cell.workload, policy, measure=False)
    plan = decision.document.plan
    if plan is None or plan.prediction is None:
        raise SystemExit(f"{cell.name}: {decision.explain()}")
    return plan


def _serve(swarm: Swarm, model: Model, cell: Cell, plan: ExecutionPlan) -> tuple[list[float], list[float]]:
    """Return the times to the first token, and the mean times between tokens, of the counted answers."""
    prompt = prompt_of(model, cell.workload.prompt_tokens)
    taken: list[tuple[float, float]] = []
    with swarm.realize(plan, model) as service:
        for number in range(1 + COUNTED_ANSWERS):
            time.sleep(REST_SECONDS)
            answer = service.generate(prompt, max_tokens=cell.workload.output_tokens, ignore_stop=True)
            if number:
                taken.append(answer_seconds(answer))
    return [first for first, _ in taken], [gap for _, gap in taken]


if __name__ == "__main__":
    main(sys.argv[1:])
