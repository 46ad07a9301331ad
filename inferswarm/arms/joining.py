"""Nodes that come and go under load: answers follow each other without a pause while something slow is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, pairwise
from typing import NamedTuple

from inferswarm.arms.disturbing import Prompt, keep_stream
from inferswarm.arms.streams import Followed, Streams
from inferswarm.campaigns.arm import Arm
from inferswarm.errors import EngineError
from inferswarm.fabric import messages as m
from inferswarm.swarm import Service

SETTLE_SECONDS = 0.5
"""After the deed, tokens that still belong to it are on their way."""
BEFORE_TOKENS = 4
"""So many tokens of every stream are seen before the deed begins."""


class UnderLoad(NamedTuple):
    """What was done while answers went on: how long it took, the longest gap of any stream in it, all streams."""

    seconds: float
    longest_gap: float
    usual_gap: float
    """Median between tokens of all streams outside of it."""
    streams: tuple[Followed, ...]


def do_under_load(
    arm: Arm, service: Service, prompts: Sequence[Prompt], act: Callable[[], object], *, condition: str, block: int
) -> UnderLoad:
    """Ask all prompts at once, again and again, while `act` is done in another thread, and keep what came of it.

    Series, with `condition` and `block`: `deed-seconds`, `pause-seconds` (the longest gap between two tokens of any
    stream while it was done), and of each stream what `keep_stream` keeps. Raises what `act` raises.
    """
    num_tokens = len(prompts[0].rows.token_ids)
    questions = {
        prompt.key: m.Generate(token_ids=prompt.ids, max_tokens=num_tokens, ignore_stop=True) for prompt in prompts
    }
    deed: Future[tuple[float, float]] | None = None
    found: list[Followed] = []
    with ThreadPoolExecutor(1) as pool:
        for number in count():
            with Streams(service, questions) as streams:
                streams.wait_for(BEFORE_TOKENS)
                deed = deed or pool.submit(_timed, act)
                batch = streams.finish()
            for prompt, followed in zip(prompts, batch, strict=True):
                keep_stream(arm, prompt, followed, condition, f"{condition} {block} {number} {prompt.key}", block)
            found += batch
            if deed.done():
                began, ended = deed.result()
                break
    inside, outside = _gaps(found, began, ended + SETTLE_SECONDS)
    if not inside or not outside:
        raise EngineError("streams", f"no token fell into what was done ({condition}, {block})")
    arm.sample("deed-seconds", ended - began, "s", condition=condition, block=block)
    arm.sample("pause-seconds", max(inside), "s", condition=condition, block=block)
    return UnderLoad(ended - began, max(inside), sorted(outside)[len(outside) // 2], tuple(found))


def _timed(act: Callable[[], object]) -> tuple[float, float]:
    began = time.monotonic()
    act()
    return began, time.monotonic()


def _gaps(streams: Sequence[Followed], began: float, ended: float) -> tuple[list[float], list[float]]:
    """Return the gaps between tokens that overlap a time, and the others."""
    inside: list[float] = []
    outside: list[float] = []
    for followed in streams:
        for earlier, later in pairwise(followed.seen):
            overlaps = later.at > began and earlier.at < ended
            (inside if overlaps else outside).append(later.at - earlier.at)
    return inside, outside
