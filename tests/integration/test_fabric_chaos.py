"""Kills at every position of an answer, four sessions at once: each answer is that of a run that nothing happened to.

Kills are signals from outside, sent at an observed commit and a random moment later. A sample runs always, every
position and every kind with `-m slow`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.integration.null_swarm import NODE_NAMES, LongAnswer, NullSwarm, expected, null_plan
from tests.unit.fabric.processes import all_gone, identify, wait_until

NUM_TOKENS = 48
PROMPTS = (tuple(range(100)), tuple(range(50, 70)), (7,), tuple(range(900, 933)))
LONGEST_PAUSE_SECONDS = 0.01
slow = pytest.mark.slow


class Undisturbed(NamedTuple):
    """What an answer must be."""

    tokens: tuple[int, ...]
    digests: tuple[str, ...]


def stage_of(swarm: NullSwarm, name: str) -> int:
    """Return the process of the one stage on a Node, as soon as what an earlier epoch left there has ended."""
    agent = psutil.Process(swarm.agents[name].pid)
    assert wait_until(lambda: len(agent.children()) == 1, 20.0), agent.children()
    return agent.children()[0].pid


def kill_stage(swarm: NullSwarm, chance: random.Random) -> None:
    os.kill(stage_of(swarm, chance.choice(NODE_NAMES)), signal.SIGKILL)


def stop_stage(swarm: NullSwarm, chance: random.Random) -> None:
    os.kill(stage_of(swarm, chance.choice(NODE_NAMES)), signal.SIGSTOP)


def kill_two(swarm: NullSwarm, chance: random.Random) -> None:
    for pid in [stage_of(swarm, name) for name in chance.sample(NODE_NAMES, 2)]:
        os.kill(pid, signal.SIGKILL)


def kill_agent(swarm: NullSwarm, chance: random.Random) -> None:
    name = chance.choice(NODE_NAMES)
    os.kill(swarm.agents[name].pid, signal.SIGKILL)
    (ended,) = [child for child in swarm.engine._agents if child.role == f"agent {name}"]
    swarm.engine._agents.remove(ended)
    ended.let_go()
    ended.wait_until_gone(time.monotonic() + 5.0)
    swarm.agents[name] = swarm.start_agent(name)


KINDS: tuple[Callable[[NullSwarm, random.Random], None], ...] = (kill_stage, stop_stage, kill_two, kill_agent)


def disturb(
    swarm: NullSwarm, wanted: Sequence[Undisturbed], at: Sequence[int], kinds: Sequence[int], seed: int
) -> None:
    """Answer all prompts once for each of `at`, with one kill when the first answer is that long."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    for position in at:
        epoch = swarm.status().epoch
        assert epoch is not None
        answers = [LongAnswer(swarm, prompt, NUM_TOKENS) for prompt in PROMPTS]
        first = answers[0]
        assert wait_until(lambda first=first, n=position: len(first.tokens) >= n or first.outcome is not None, 60.0)
        time.sleep(chance.uniform(0, LONGEST_PAUSE_SECONDS))
        KINDS[chance.choice(kinds)](swarm, chance)
        for answer, undisturbed in zip(answers, wanted, strict=True):
            record = answer.join(90.0).record
            assert tuple(answer.tokens) == record.tokens == undisturbed.tokens, f"disturbed at {position}"
            assert record.logits_digests == undisturbed.digests
        assert wait_until(lambda epoch=epoch: (swarm.status().epoch or epoch) > epoch, 60.0)


@pytest.mark.parametrize(
    ("primitive", "at", "kinds"),
    [
        pytest.param("null", (0, 24), (0, 1, 2), id="a sample"),
        pytest.param("null", range(NUM_TOKENS + 1), (0, 1), id="every position", marks=slow),
        pytest.param("null", range(0, NUM_TOKENS + 1, 4), (2, 3), id="two stages or an agent", marks=slow),
        pytest.param("torch", range(0, NUM_TOKENS + 1, 3), (0, 1, 2), id="with real kernels", marks=slow),
    ],
)
@pytest.mark.timeout(1800)
def test_answers_do_not_notice_what_is_killed_at_any_position(
    tmp_path: Path, primitive: str, at: Sequence[int], kinds: Sequence[int]
) -> None:
    with NullSwarm(tmp_path, NODE_NAMES, patience_seconds=60.0) as swarm:
        swarm.realize(plan=null_plan(NODE_NAMES, sessions=len(PROMPTS), primitive=primitive, max_positions=256))
        wanted = []
        for prompt in PROMPTS:
            record = swarm.generate(prompt, NUM_TOKENS).record
            wanted.append(Undisturbed(record.tokens, record.logits_digests))
        disturb(swarm, wanted, at, kinds, random.SystemRandom().randrange(2**32))


@pytest.mark.rule(46)
def test_what_a_frozen_node_sends_when_it_thaws_is_refused_and_counted_and_changes_nothing(tmp_path: Path) -> None:
    """A real late result: the stage was stopped with work before it, and goes on when another epoch has answered.

    Mutation: let `Address.mismatch` compare the plan alone.
    """
    late = "RETIRED_OR_SUPERSEDED_EPOCH"
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        swarm.realize(("amber", "birch"), fallbacks=[("amber", "cedar")])
        frozen, agent = identify(stage_of(swarm, "birch")), swarm.agents["birch"]
        answer = LongAnswer(swarm, PROMPTS[0], 400)
        answer.wait_for(20, seed=46)
        for pid in (agent.pid, frozen.pid):  # the agent first: it would kill a stage that is stopped
            os.kill(pid, signal.SIGSTOP)
        record = answer.join(60.0).record
        assert record.tokens == tuple(answer.tokens) == expected(PROMPTS[0], 400).tokens
        before = swarm.refusals()
        os.kill(frozen.pid, signal.SIGCONT)
        assert wait_until(lambda: swarm.refusals().get(late, 0) > before.get(late, 0), 10.0), swarm.refusals()
        assert swarm.record(record.session) == record
        os.kill(agent.pid, signal.SIGCONT)
        assert all_gone([frozen], 10.0), "a stage of an epoch that is over survived"
        swarm.wait_for_nodes(len(NODE_NAMES))
