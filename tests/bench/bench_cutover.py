"""The largest pause between two tokens of a stream while its plan is changed beside it: SmolLM2 on this machine.

Each sample is one stream. Somewhere in it another plan is ordered, prepared beside the one that serves, and given
authority (make before break). The sample is the longest time between two tokens, as the client sees them, from the
order to five seconds behind its answer. It is held against the stream's own median before the order: at most 0.1 s
or three times the median, whichever is more, at the 95th percentile. Each stream is compared with an undisturbed one.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from tests.bench.report import SEED, conditions, median_interval, percentile, write
from tests.orders import order_over, realize_first

ROUNDS = 20
BUDGET_SECONDS = 180.0
"""No round begins later: on a slow machine there are fewer."""
NUM_TOKENS = 1000
"""Of the undisturbed stream: more than any round sees."""
AT = (40, 160)
"""Between these numbers of tokens a change is ordered."""
BEHIND_SECONDS = 5.0
NEAR_SECONDS = 1.0
PROMPT = "Write a short story about a lighthouse keeper who"
PLANS = (("left", "right"), ("left", "third"))
ENVELOPE_BYTES = 2_000_000_000
FLOOR_SECONDS = 0.1
TIMES_MEDIAN = 3.0


class Stream(NamedTuple):
    """What one stream showed: its longest pause around the change, its median before it, and the change's seconds."""

    pause: float
    pause_at: float
    """When it ended, in seconds behind the answer to the order; below 0 while it was still prepared."""
    cut_over_pause: float
    """The longest within a second of that answer."""
    median: float
    change: float
    session: int
    tokens: tuple[int, ...]

    @property
    def share(self) -> float:
        """The pause as a share of what it may be: 1 is just allowed."""
        return self.pause / max(FLOOR_SECONDS, TIMES_MEDIAN * self.median)


def changed_stream(client: Client, question: m.Generate, at: int, change: Callable[[], object]) -> Stream:
    """Stream until five seconds behind the answer to a change that is ordered after `at` tokens.

    Raises AssertionError when the stream ends before that, and whatever the change raises.
    """
    times: list[float] = []
    tokens: list[m.TokenCommitted] = []

    def timed() -> tuple[float, float]:
        began_at = time.perf_counter()
        change()
        return began_at, time.perf_counter()

    ordered: Future[tuple[float, float]] | None = None
    with ThreadPoolExecutor(1) as pool, closing(client.events(question)) as events:
        for event in events:
            if not isinstance(event, m.TokenCommitted):
                continue
            times.append(time.perf_counter())
            tokens.append(event)
            if len(times) == at:
                ordered = pool.submit(timed)
            if ordered is not None and ordered.done() and times[-1] > ordered.result()[1] + BEHIND_SECONDS:
                break
        else:
            raise AssertionError(f"the stream ended after {len(times)} tokens")
    began_at, ended_at = ordered.result()
    gaps = [(after, after - before) for before, after in pairwise(times)]
    longest_at, longest = max(((after, gap) for after, gap in gaps if after > began_at), key=lambda item: item[1])
    return Stream(
        pause=longest,
        pause_at=longest_at - ended_at,
        cut_over_pause=max(gap for after, gap in gaps if abs(after - ended_at) < NEAR_SECONDS),
        median=statistics.median(gap for after, gap in gaps if after <= began_at),
        change=ended_at - began_at,
        session=tokens[0].session,
        tokens=tuple(event.token for event in tokens),
    )


def _change(client: Client, swarm: Swarm, model: Model, orders: Sequence[m.Fallback]) -> m.ClientAnswer:
    """Ask for the first order's plan beside the one in force."""
    epoch = swarm.status().epoch
    assert epoch is not None
    return client.ask(
        m.Change(
            order=realize_first(str(model.path), orders),
            epoch=epoch,
            mode=TransitionMode.MAKE_BEFORE_BREAK,
            trigger=Trigger.REQUEST,
            detail="a benchmark asks for it",
        )
    )


def _check(client: Client, stream: Stream, undisturbed: m.SessionRecord) -> None:
    """Raise AssertionError unless a stream is the beginning of the undisturbed one, bit for bit."""
    record = client.ask(m.ShowSession(session=stream.session))
    assert isinstance(record, m.SessionRecord)
    count = len(record.tokens)
    if stream.tokens != undisturbed.tokens[: len(stream.tokens)]:
        raise AssertionError(f"session {stream.session} showed other tokens than an undisturbed stream")
    if record.logits_digests != undisturbed.logits_digests[:count]:
        raise AssertionError(f"session {stream.session} was computed otherwise than an undisturbed stream")


def main() -> None:
    """Change to and fro under one stream each, print what the pauses came to, keep the samples."""
    taken = conditions()
    chance = random.Random(SEED)
    model = Model("smollm2-135m")
    prompt = tuple(model.opened.text.codec.encode(PROMPT))
    question = m.Generate(token_ids=prompt, max_tokens=NUM_TOKENS, ignore_stop=True)
    names = sorted({name for plan in PLANS for name in plan})
    envelopes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in names]
    streams: list[Stream] = []
    with tempfile.TemporaryDirectory() as state, Swarm.local(envelopes, state=state) as swarm:
        workload = Workload(prompt_tokens=len(prompt), output_tokens=NUM_TOKENS, concurrency=2)
        orders = [order_over(swarm, model, nodes, workload) for nodes in PLANS]
        client = swarm._connected()
        client.ask(realize_first(str(model.path), orders))
        undisturbed = client.ask(question)
        assert isinstance(undisturbed, m.Generated)
        began_at = time.monotonic()
        for number in range(ROUNDS):
            if time.monotonic() - began_at > BUDGET_SECONDS:
                break
            to = (orders[(number + 1) % 2], orders[number % 2])
            at = chance.randint(*AT)
            stream = changed_stream(client, question, at, lambda to=to: _change(client, swarm, model, to))
            _check(client, stream, undisturbed.record)
            streams.append(stream)
    _report(streams, taken)


def _report(streams: Sequence[Stream], taken: dict[str, object]) -> None:
    samples = {
        "longest pause": [stream.pause for stream in streams],
        "its end, seconds behind the change's end": [stream.pause_at for stream in streams],
        "longest pause within 1 s of the change's end": [stream.cut_over_pause for stream in streams],
        "median before the change": [stream.median for stream in streams],
        "longest pause over the stream's own median": [stream.pause / stream.median for stream in streams],
        "seconds of the change": [stream.change for stream in streams],
        "longest pause over what it may be": [stream.share for stream in streams],
    }
    print(
        f"cut-over: a plan changed beside the one that serves, {len(streams)} streams; pauses from the order to "
        f"{BEHIND_SECONDS:g} s\nbehind its answer, with the preparation on the same two CPUs"
    )
    print(f"{'':46}  {'p50':>7}  {'(95 % interval)':>19}  {'p95':>7}")
    results: dict[str, object] = {}
    for what, values in samples.items():
        low, middle, high = median_interval(values)
        worst = percentile(values, 0.95)
        results[what] = {"p50": [low, middle, high], "p95": worst}
        print(f"{what:46}  {middle:7.3f}  ({low:7.3f} to {high:7.3f})  {worst:7.3f}")
    holds = percentile(samples["longest pause over what it may be"], 0.95) <= 1
    target = f"p95 of the longest pause at most {FLOOR_SECONDS:g} s or {TIMES_MEDIAN:g} times the stream's own median"
    print(f"target, {target}: {'met' if holds else 'MISSED'}")
    write("cutover", samples, results | {"target": target, "met": holds}, taken)


if __name__ == "__main__":
    main()
