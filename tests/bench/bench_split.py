"""Decode rate of two loopback stages (one thread each) over that of the unsplit chain in one process (one thread).

Rounds alternate (A B, B A, …) so that a drift of the machine touches both alike. A round is one answer of the same
prompt to the same length; its sample is the median time between tokens.
"""

from __future__ import annotations

import statistics
import tempfile
import time

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.base import StageExecutor
from inferswarm.backends.direct import materialized
from inferswarm.planner import Policy, Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Service, Swarm
from tests.bench.report import conditions, median_interval, write

ROUNDS = 12
NUM_TOKENS = 48
PROMPT = "Write a short story about a lighthouse keeper who"
ENVELOPE_BYTES = 2_000_000_000


def _unsplit_gap(executor: StageExecutor, prompt: tuple[int, ...]) -> float:
    """Return the median seconds of one decode step of the chain in this process."""
    executor.open("bench")
    payload = b"".join(token.to_bytes(4, "little") for token in prompt)
    token = executor.step("bench", 0, len(prompt), payload, sample=True).token
    gaps = []
    for position in range(len(prompt), len(prompt) + NUM_TOKENS - 1):
        assert token is not None
        started = time.perf_counter()
        token = executor.step("bench", position, 1, token.to_bytes(4, "little"), sample=True).token
        gaps.append(time.perf_counter() - started)
    executor.close("bench")
    return statistics.median(gaps)


def _split_gap(service: Service, prompt: tuple[int, ...], hops: list[float]) -> float:
    answer = service.generate(prompt, max_tokens=NUM_TOKENS, ignore_stop=True)
    hops += answer.hop_seconds
    return statistics.median(answer.inter_token_seconds)


def main() -> None:
    """Measure both representations, print the ratios, keep the samples."""
    taken = conditions()
    model = Model("smollm2-135m")
    prompt = model.opened.text.codec.encode(PROMPT)
    workload = Workload(prompt_tokens=len(prompt), output_tokens=NUM_TOKENS)
    middle = 1 + model.description.num_blocks // 2
    samples: dict[str, list[float]] = {}
    results = {}
    nodes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in ("left", "right")]
    print(f"split: ms between tokens, two loopback stages and unsplit, 1 thread each ({ROUNDS} interleaved rounds)")
    print(f"{'':6}  {'unsplit':>8}  {'split':>8}  {'split rate / unsplit rate':>26}  {'hop, µs':>8}")
    with tempfile.TemporaryDirectory() as state, Swarm.local(nodes, state=state) as swarm:
        swarm.measure()
        for representation in ("fp32", "bf16"):
            pinned = Policy(
                pinned_nodes=("left", "right"), pinned_cuts=(middle - 1,), representations=(representation,)
            )
            decision = swarm.plan(model, workload, pinned)
            plan = decision.plan
            problem = swarm.problem(model, workload)
            (executor,) = materialized(unsplit_assignments(plan, model.description, model.opened.object, problem))
            unsplit, split, hops = [], [], []
            with swarm.realize(plan, model) as service:
                _unsplit_gap(executor, prompt)
                _split_gap(service, prompt, [])
                for number in range(ROUNDS):
                    for which in ("unsplit", "split") if number % 2 else ("split", "unsplit"):
                        if which == "unsplit":
                            unsplit.append(_unsplit_gap(executor, prompt))
                        else:
                            split.append(_split_gap(service, prompt, hops))
            samples |= {
                f"{representation} unsplit": unsplit,
                f"{representation} split": split,
                f"{representation} hops": hops,
            }
            ratios = [one / two for one, two in zip(unsplit, split, strict=True)]
            low, ratio, high = median_interval(ratios)
            results[representation] = {"ratio": ratio, "low": low, "high": high, "target": 0.95}
            alone, both = statistics.median(unsplit) * 1e3, statistics.median(split) * 1e3
            hop = statistics.median(hops) * 1e6
            print(f"{representation:6}  {alone:8.2f}  {both:8.2f}  {ratio:12.3f} ({low:.3f}–{high:.3f})  {hop:8.0f}")
    write("split", samples, results, taken)


if __name__ == "__main__":
    main()
