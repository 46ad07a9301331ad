"""What is done to a serving swarm from outside, at a position that its clients have seen, and what comes of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import psutil

from inferswarm.arms.answers import Rows, keep_rows, rows_of
from inferswarm.arms.streams import PATIENCE_SECONDS, Followed, Streams
from inferswarm.campaigns.arm import Arm
from inferswarm.errors import EngineError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.swarm import Service, Swarm
from inferswarm.swarm.event_log import SwarmEvent

LOOK_SECONDS = 0.05
STAGE_MODULE = "fabric.stage_main"
"""In the command line of every stage."""
EARLIEST, LATEST_BEFORE_END = 4, 16
"""A loss comes after so many tokens, and so many before the end: it always falls into an answer."""


class Prompt(NamedTuple):
    """One question with its undisturbed answer: what every disturbed one is held against."""

    key: str
    ids: tuple[int, ...]
    rows: Rows
    representation: str


def prompts_of(service: Service, questions: Mapping[str, tuple[int, ...]], num_tokens: int) -> tuple[Prompt, ...]:
    """Ask each question once while nothing disturbs, and return what came back."""
    found = []
    for key, ids in questions.items():
        answer = service.generate(ids, max_tokens=num_tokens, ignore_stop=True)
        found.append(Prompt(key, ids, rows_of(answer.record), answer.partition.representation))
    return tuple(found)


class Disturbed(NamedTuple):
    """One disturbance: the seconds until the slowest stream had its next token, and all streams after their end."""

    seconds: float
    streams: tuple[Followed, ...]


def disturb(
    arm: Arm,
    service: Service,
    prompts: Sequence[Prompt],
    act: Callable[[], None],
    *,
    condition: str,
    block: int,
    chance: random.Random,
) -> Disturbed:
    """Answer all prompts at once, act at a random observed position, and keep what came of it.

    Series, with `condition` and `block`: `wait-seconds` (from the act to the token that ends the longest gap, of the
    slowest stream), `acted-at-tokens`, and of each stream what `keep_stream` keeps.
    """
    num_tokens = len(prompts[0].rows.token_ids)
    at = chance.randint(EARLIEST, num_tokens - LATEST_BEFORE_END)
    questions = {
        prompt.key: m.Generate(token_ids=prompt.ids, max_tokens=num_tokens, ignore_stop=True) for prompt in prompts
    }
    with Streams(service, questions) as streams:
        streams.wait_for(at)
        acted = time.monotonic()
        act()
        found = streams.finish()
    for prompt, followed in zip(prompts, found, strict=True):
        keep_stream(arm, prompt, followed, condition, f"{condition} {block} {prompt.key}", block)
    seconds = max(followed.longest_wait(acted) for followed in found)
    arm.sample("acted-at-tokens", at, "tokens", condition=condition, block=block)
    arm.sample("wait-seconds", seconds, "s", condition=condition, block=block)
    return Disturbed(seconds, found)


def keep_stream(arm: Arm, prompt: Prompt, followed: Followed, condition: str, key: str, block: int) -> None:
    """Keep what came of one stream.

    Series: `sessions-lost`, `positions-missed`, `positions-repeated`, `tokens-unlike-ledger` and `rows-differing`.
    Outputs: `disturbed` and `undisturbed` under one key. The undisturbed answer of a prompt was computed once, and is
    written beside each answer that is held against it.
    """
    counts = {
        "sessions-lost": (0 if followed.record is not None else 1, "sessions"),
        "positions-missed": (followed.num_gaps, "positions"),
        "positions-repeated": (followed.num_repeated, "positions"),
        "tokens-unlike-ledger": (followed.num_unlike_ledger, "tokens"),
    }
    for series, (value, unit) in counts.items():
        arm.sample(series, value, unit, condition=condition, key=key, block=block)
    if followed.record is None:
        arm.progress(f"{key} was lost: {followed.error}")
        return
    rows = rows_of(followed.record)
    computed_in = followed.partition.representation
    keep_rows(arm, rows, condition="disturbed", key=key, representation=computed_in)
    keep_rows(arm, prompt.rows, condition="undisturbed", key=key, representation=prompt.representation)
    differing = prompt.rows.differing(rows)
    arm.sample("rows-differing", differing, "rows", condition=condition, key=key, block=block)


def agent_of(swarm: Swarm, node: str) -> int:
    """Return the process of a Node's agent. Raises EngineError when it is no member."""
    for member in swarm.status().nodes:
        if member.name == node:
            return member.pid
    raise EngineError(f"Node {node}", "is no member")


def stage_of(swarm: Swarm, node: str) -> int:
    """Return the process of a Node's stage: of several, as with a spare, the one that holds most.

    Raises EngineError when it has none.
    """
    stages = [
        child
        for child in psutil.Process(agent_of(swarm, node)).children()
        if STAGE_MODULE in " ".join(child.cmdline())
    ]
    if not stages:
        raise EngineError(f"Node {node}", "has no stage")
    largest: int = max(stages, key=lambda stage: stage.memory_info().rss).pid
    return largest


def serving_nodes(swarm: Swarm) -> tuple[str, ...]:
    """Return the Nodes that have a stage now."""
    found = []
    for member in swarm.status().nodes:
        children = psutil.Process(member.pid).children()
        found += [member.name] if any(STAGE_MODULE in " ".join(child.cmdline()) for child in children) else []
    return tuple(found)


def kill(pids: Iterable[int]) -> None:
    """Kill processes, all of which are there, with SIGKILL."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait_for_epoch(swarm: Swarm, before: int | None) -> int:
    """Wait until another epoch has authority and return it. Raises EngineError when none has in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (epoch := swarm.status().epoch) in (None, before):
        if time.monotonic() > deadline:
            raise EngineError("Coordinator", f"no epoch {PATIENCE_SECONDS:.0f} s after epoch {before}")
        time.sleep(LOOK_SECONDS)
    assert epoch is not None, "it is neither None nor the one before"
    return epoch


def keep_authority(arm: Arm, events: Iterable[SwarmEvent], condition: str = "") -> int:
    """Keep, from the ledger's record, how many epochs had authority after each that got it; return how many did.

    Series: `epochs-with-authority` by epoch, each of which must be 1: an epoch that settles has given it away, one
    that was lost or retired has none.
    """
    holding: set[int] = set()
    num = 0
    for event in events:
        match event.document:
            case ev.EpochActivated(epoch=epoch):
                holding.add(epoch)
                num += 1
                arm.sample("epochs-with-authority", len(holding), "epochs", condition=condition, key=f"{epoch}")
            case ev.EpochLost(epoch=epoch) | ev.EpochSettling(epoch=epoch):
                holding.discard(epoch)
            case _:
                pass
    return num
