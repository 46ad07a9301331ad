"""Seconds from a loss to the next token that a client sees, by what was lost: SmolLM2, two stages on this machine.

Every sample is one answer, disturbed at a random token by a signal from outside; its tokens are compared with those
of an undisturbed run, so a recovery that is fast and wrong ends the benchmark. The sample is the time from the signal
to the token that ends the longest gap behind it: tokens that were on their way when it came do not count. All kinds
take turns in each round. With the loss of a Node the plan goes with it: another one, chosen beforehand, is realized
from nothing on the Nodes that are left.
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
from tests.bench.report import SEED, conditions, median_interval, percentile, write
from tests.orders import order_over, realize_first

ROUNDS = 10
BUDGET_SECONDS = 200.0
"""No round begins later: on a slow machine there are fewer."""
NUM_TOKENS = 64
PROMPT = "Write a short story about a lighthouse keeper who"
NODES = ("left", "right")
SPARE = "third"
ENVELOPE_BYTES = 2_000_000_000
SETTLE_SECONDS = 60.0


class Kind(NamedTuple):
    """One way to disturb an answer: which Nodes' stages, or agents, get which signal."""

    nodes: tuple[str, ...]
    signal: signal.Signals
    is_agent: bool
    what: str


REBUILD = Kind(("right",), signal.SIGKILL, False, "last stage killed: filled from the journal")
REPLAY = Kind(NODES, signal.SIGKILL, False, "both stages killed: everything is computed again")
REPLAN = Kind(("right",), signal.SIGKILL, True, "agent killed: its lease runs out, another plan from nothing")
KINDS = (
    REBUILD,
    Kind(("left",), signal.SIGKILL, False, "first stage killed: given the tokens again"),
    REPLAY,
    Kind(("right",), signal.SIGSTOP, False, "last stage stopped: noticed, then as the first"),
    REPLAN,
)


SPARED = (
    REBUILD._replace(what=f"{REBUILD.what}; a spare stood by"),
    KINDS[1]._replace(what=f"{KINDS[1].what}; a spare stood by"),
)
SPARED_SECONDS = 90.0
SPARE_SECONDS = 10.0
"""By then a spare that was used has been replaced: it is begun after 5 s."""


def processes_of(swarm: Swarm, kind: Kind) -> list[int]:
    """Return the processes that a kind of loss is about: of a Node's stages the one that holds states."""
    agents = {node.name: node.pid for node in swarm.status().nodes}
    if kind.is_agent:
        return [agents[name] for name in kind.nodes]
    children = [psutil.Process(agents[name]).children() for name in kind.nodes]
    return [max(stages, key=lambda stage: stage.memory_info().rss).pid for stages in children]


def disturbed(client: Client, question: m.Generate, at: int, act: Callable[[], None]) -> tuple[float, m.Generated]:
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
    if not reached.wait(SETTLE_SECONDS):
        raise AssertionError(f"no {at} tokens within {SETTLE_SECONDS:.0f} s")
    acted = time.perf_counter()
    act()
    asking.join()
    (answer,) = found
    assert isinstance(answer, m.Generated)
    after = [max(time for time in times if time <= acted), *(time for time in times if time > acted)]
    longest = max(pairwise(after), key=lambda gap: gap[1] - gap[0])
    return longest[1] - acted, answer


def wait_for_epoch(swarm: Swarm, before: int | None) -> None:
    """Wait until another epoch serves. Raises AssertionError when none does."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while swarm.status().epoch in (None, before):
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing serves {SETTLE_SECONDS:.0f} s after epoch {before}")
        time.sleep(0.05)


def _ordered_again(swarm: Swarm, client: Client, order: m.Realize) -> None:
    """Bring the lost Node back and the first plan into force."""
    swarm.rejoin(REPLAN.nodes[0])
    client.ask(m.Retire())
    client.ask(order)


def main() -> None:
    """Measure every kind of loss, all taking turns, print median and 95th percentile, keep the samples."""
    taken = conditions()
    samples: dict[str, list[float]] = {kind.what: [] for kind in (*KINDS, *SPARED)}
    token_seconds, lease_seconds = _measure(KINDS, samples, BUDGET_SECONDS, spares=False)
    _measure(SPARED, samples, SPARED_SECONDS, spares=True)
    _report(samples, token_seconds, lease_seconds, taken)


def _measure(
    kinds: Sequence[Kind], samples: dict[str, list[float]], budget_seconds: float, *, spares: bool
) -> tuple[float, float]:
    """Take samples of some kinds of loss in one swarm; return the seconds of a token and of a lease."""
    chance = random.Random(SEED)
    model = Model("smollm2-135m")
    prompt = tuple(model.opened.text.codec.encode(PROMPT))
    question = m.Generate(token_ids=prompt, max_tokens=NUM_TOKENS, ignore_stop=True)
    envelopes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in (*NODES, SPARE)]
    with (
        tempfile.TemporaryDirectory() as state,
        Swarm.local(envelopes, state=state, spares=spares) as swarm,
    ):
        workload = Workload(prompt_tokens=len(prompt), output_tokens=NUM_TOKENS)
        choices = [order_over(swarm, model, nodes, workload) for nodes in (NODES, (NODES[0], SPARE))]
        order = realize_first(str(model.path), choices)
        client = swarm._connected()
        client.ask(order)
        undisturbed = client.ask(question)
        assert isinstance(undisturbed, m.Generated)
        token_seconds = statistics.median(b - a for a, b in pairwise(undisturbed.record.commit_seconds))
        began_at = time.monotonic()
        for _ in range(ROUNDS):
            if time.monotonic() - began_at > budget_seconds:
                break
            for kind in kinds:
                if spares:
                    time.sleep(SPARE_SECONDS)
                epoch, pids = swarm.status().epoch, processes_of(swarm, kind)

                def act(pids: Sequence[int] = pids, number: signal.Signals = kind.signal) -> None:
                    for pid in pids:
                        os.kill(pid, number)

                seconds, answer = disturbed(client, question, chance.randint(4, NUM_TOKENS - 16), act)
                if answer.record.logits_digests != undisturbed.record.logits_digests:
                    raise AssertionError(f"another answer after: {kind.what}")
                samples[kind.what].append(seconds)
                wait_for_epoch(swarm, epoch)
                if kind.is_agent:
                    _ordered_again(swarm, client, order)
        return token_seconds, swarm._engine._settings.lease_seconds  # type: ignore[attr-defined]


def _report(
    samples: dict[str, list[float]], token_seconds: float, lease_seconds: float, taken: dict[str, object]
) -> None:
    rounds = len(samples[REBUILD.what])
    print(
        f"recovery: seconds from the signal to the next token ({rounds} rounds, of which the 95th percentile is the "
        f"largest;\n{token_seconds * 1e3:.1f} ms a token, leases of {lease_seconds:g} s)"
    )
    print(f"{'':62}  {'p50':>6}  {'(95 % interval)':>17}  {'p95':>6}  {'× rebuild':>9}")
    results: dict[str, object] = {}
    for what, seconds in samples.items():
        low, middle, high = median_interval(seconds)
        worst = percentile(seconds, 0.95)
        pairs = zip(seconds, samples[REBUILD.what], strict=False)  # with spares there are fewer, of another swarm
        ratio = median_interval([mine / other for mine, other in pairs])
        results[what] = {"p50": [low, middle, high], "p95": worst, "ratio_to_rebuild": ratio}
        print(f"{what:62}  {middle:6.2f}  ({low:6.2f} to {high:6.2f})  {worst:6.2f}  {ratio[1]:9.2f}")
    results |= {"token_seconds": token_seconds, "lease_seconds": lease_seconds}
    write("recovery", samples, results, taken)


if __name__ == "__main__":
    main()
