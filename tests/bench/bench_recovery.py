"""Seconds from a kill to the next token that a client sees, by what was killed: SmolLM2, two stages on this machine.

Every round is one answer, disturbed at a random token by a signal from outside; its tokens are compared with those of
an undisturbed run, so a recovery that is fast and wrong ends the benchmark. The sample is the time from the signal to
the token that ends the longest gap behind it: tokens that were on their way when it came do not count.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import psutil

from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from tests.bench.report import SEED, conditions, percentile, write

ROUNDS = 12
NUM_TOKENS = 64
PROMPT = "Write a short story about a lighthouse keeper who"
NODES = ("left", "right")
ENVELOPE_BYTES = 2_000_000_000
SETTLE_SECONDS = 60.0


class Kind(NamedTuple):
    """One way to disturb an answer."""

    nodes: tuple[str, ...]
    signal: signal.Signals
    what: str


KINDS = (
    Kind(("right",), signal.SIGKILL, "last stage killed: filled from the journal"),
    Kind(("left",), signal.SIGKILL, "first stage killed: given the tokens again"),
    Kind(NODES, signal.SIGKILL, "both stages killed: everything is computed again"),
    Kind(("right",), signal.SIGSTOP, "last stage stopped: noticed, then as the first"),
)


def _stages(swarm: Swarm, nodes: Sequence[str]) -> list[int]:
    agents = {node.name: node.pid for node in swarm.status().nodes}
    return [child.pid for name in nodes for child in psutil.Process(agents[name]).children()]


def _disturbed(client: Client, question: m.Generate, at: int, act: Callable[[], None]) -> tuple[float, m.Generated]:
    """Answer once, act when `at` tokens were seen; return the seconds until the token that had to be waited for."""
    times: list[float] = []
    reached = threading.Event()
    found: list[m.ClientAnswer] = []

    def heard(event: object) -> None:
        if isinstance(event, m.TokenCommitted):
            times.append(time.perf_counter())
            if len(times) == at:
                reached.set()

    asking = threading.Thread(target=lambda: found.append(client.ask(question, heard)))
    asking.start()
    reached.wait(SETTLE_SECONDS)
    acted = time.perf_counter()
    act()
    asking.join()
    (answer,) = found
    assert isinstance(answer, m.Generated)
    after = [max(time for time in times if time <= acted), *(time for time in times if time > acted)]
    longest = max(pairwise(after), key=lambda gap: gap[1] - gap[0])
    return longest[1] - acted, answer


def _wait_for(swarm: Swarm, epoch: int | None) -> None:
    """Wait until something serves again."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while swarm.status().epoch in (None, epoch) and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    """Measure every kind of loss, all taking turns, print median and 95th percentile, keep the samples."""
    taken = conditions()
    chance = random.Random(SEED)
    model = Model("smollm2-135m")
    prompt = tuple(model.opened.text.codec.encode(PROMPT))
    question = m.Generate(token_ids=prompt, max_tokens=NUM_TOKENS, ignore_stop=True)
    samples: dict[str, list[float]] = {kind.what: [] for kind in KINDS}
    envelopes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in NODES]
    with tempfile.TemporaryDirectory() as state, Swarm.local(envelopes, state=state) as swarm:
        workload = Workload(prompt_tokens=len(prompt), output_tokens=NUM_TOKENS)
        middle = model.description.num_blocks // 2
        plan = swarm.force(model, NODES, cuts=(middle,), representation="bf16", workload=workload)
        client = swarm._connected()
        with swarm.realize(plan, model):
            undisturbed = client.ask(question)
            assert isinstance(undisturbed, m.Generated)
            token_seconds = statistics.median(b - a for a, b in pairwise(undisturbed.record.commit_seconds))
            for _ in range(ROUNDS):
                for kind in KINDS:
                    epoch, pids = swarm.status().epoch, _stages(swarm, kind.nodes)

                    def act(pids: Sequence[int] = pids, number: signal.Signals = kind.signal) -> None:
                        for pid in pids:
                            os.kill(pid, number)

                    seconds, answer = _disturbed(client, question, chance.randint(4, NUM_TOKENS - 16), act)
                    if answer.record.logits_digests != undisturbed.record.logits_digests:
                        raise AssertionError(f"another answer after: {kind.what}")
                    samples[kind.what].append(seconds)
                    _wait_for(swarm, epoch)
    print(
        f"recovery: seconds from the signal to the next token ({ROUNDS} rounds, {token_seconds * 1e3:.1f} ms a token)"
    )
    print(f"{'':52}  {'p50':>6}  {'p95':>6}")
    results = {}
    for what, seconds in samples.items():
        results[what] = {"p50": percentile(seconds, 0.5), "p95": percentile(seconds, 0.95)}
        print(f"{what:52}  {results[what]['p50']:6.2f}  {results[what]['p95']:6.2f}")
    write("recovery", samples, results | {"token_seconds": token_seconds}, taken)


if __name__ == "__main__":
    main()
