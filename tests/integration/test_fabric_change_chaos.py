"""Kills at random moments of a planned change, four sessions at once: each answer is that of an undisturbed run.

Whether the change is made is left open; that something serves afterwards, and that nothing else is left, is not.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from inferswarm.documents import digest
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from tests.integration.null_swarm import NODE_NAMES, LongAnswer, NullSwarm, expected, null_plan, order_of
from tests.unit.fabric.processes import wait_until

NUM_TOKENS = 1200
PROMPTS = (tuple(range(100)), tuple(range(50, 70)), (7,), tuple(range(900, 933)))
ROUTES = (
    ("amber", "birch"),
    ("birch", "cedar"),
    ("cedar", "amber", "birch"),
    ("cedar",),
    ("birch", "amber", "cedar"),
)
MODES = (TransitionMode.MAKE_BEFORE_BREAK, TransitionMode.SAFE_INTERRUPTED_CUTOVER)
VICTIMS = ("old", "new", "coordinator")
LONGEST_CHANGE_SECONDS = 2.0
GRACE_SECONDS = 8.0
"""How long a stage may be left that was being started for a Coordinator that ended."""
PLANS = {route: null_plan(route, sessions=len(PROMPTS), max_positions=NUM_TOKENS + 200) for route in ROUTES}


def stage_pids(swarm: NullSwarm) -> set[int]:
    """Return the processes of all stages that run."""
    found = [child for agent in swarm.agents.values() for child in psutil.Process(agent.pid).children()]
    return {child.pid for child in found if child.is_running() and child.status() != psutil.STATUS_ZOMBIE}


def kill(swarm: NullSwarm, victim: str, old: set[int], chance: random.Random) -> str:
    """Kill what is named; returns what was really killed: before there is a new stage, it is waited for."""
    if victim == "coordinator":
        swarm.restart_coordinator()
        return victim
    if victim == "new":
        deadline = time.monotonic() + LONGEST_CHANGE_SECONDS
        while not stage_pids(swarm) - old and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, LONGEST_CHANGE_SECONDS / 2))
    there = stage_pids(swarm)
    wanted = (there - old if victim == "new" else there & old) or there
    if not wanted:
        return "nothing"
    pid = chance.choice(sorted(wanted))
    try:
        os.kill(pid, chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)))
    except ProcessLookupError:
        return "nothing"
    return "old" if pid in old else "new"


def change(swarm: NullSwarm, route: Sequence[str], mode: TransitionMode, outcomes: list[str]) -> None:
    epoch = swarm.status().epoch
    assert epoch is not None
    assert swarm.client is not None
    order, trigger = order_of(PLANS[tuple(route)]), Trigger.REQUEST
    try:
        swarm.client.ask(m.Change(order=order, epoch=epoch, mode=mode, trigger=trigger, detail="a test asks for it"))
        outcomes.append("made")
    except InferSwarmError as error:
        outcomes.append(f"not made: {error}")


def plan_in_force(swarm: NullSwarm) -> tuple[str, ...] | None:
    found = swarm.status().plan_digest
    return next((route for route, plan in PLANS.items() if digest(plan) == found), None)


def play(swarm: NullSwarm, victim: str, chance: random.Random) -> tuple[str, str]:
    """Change plans while four answers are under way, and kill something; returns what, and what came of it."""
    now = plan_in_force(swarm)
    route = chance.choice([other for other in ROUTES if other != now])
    answers = [LongAnswer(swarm, prompt, NUM_TOKENS, patient=True) for prompt in PROMPTS]
    for answer in answers:
        answer.wait_for(5)
    old, outcomes = stage_pids(swarm), list[str]()
    asker = threading.Thread(target=change, args=(swarm, route, chance.choice(MODES), outcomes))
    started = time.monotonic()
    asker.start()
    time.sleep(chance.uniform(0.0, LONGEST_CHANGE_SECONDS))
    killed = kill(swarm, victim, old, chance)
    asker.join(90.0)
    assert outcomes, "whoever asked for the change was never told"
    print(f"{killed}: {now} to {route}: {outcomes[0]} after {time.monotonic() - started:.1f} s", flush=True)
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        answer._thread.join(90.0)
        assert answer.outcome is not None, f"session {answer.session} goes on for ever: {killed} at {route}"

        def is_done(session: int = answer.session) -> bool:
            return swarm.record(session).state == "COMPLETED"

        assert isinstance(answer.outcome, m.Generated) or killed == "coordinator", answer.outcome
        assert wait_until(is_done, 60.0), swarm.record(answer.session)
        record, wanted = swarm.record(answer.session), expected(prompt, NUM_TOKENS)
        assert record.tokens == wanted.tokens
        assert record.logits_digests == wanted.logits_digests
        assert tuple(answer.tokens) == record.tokens[: len(answer.tokens)], "a token came twice, or not at all"
        assert killed == "coordinator" or len(answer.tokens) == NUM_TOKENS
    return killed, outcomes[0].partition(":")[0]


@pytest.mark.parametrize(
    ("victims", "num_rounds"),
    [
        pytest.param(("new",), 1, id="a sample"),
        *(pytest.param((victim,), 24, id=f"{victim}", marks=pytest.mark.slow) for victim in VICTIMS),
    ],
)
@pytest.mark.timeout(1800)
def test_answers_do_not_notice_what_is_killed_during_a_change_of_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victims: Sequence[str], num_rounds: int
) -> None:
    monkeypatch.setattr("inferswarm.fabric.client.SILENCE_SECONDS", 2.0)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    told: Counter[tuple[str, str]] = Counter()
    with NullSwarm(tmp_path, NODE_NAMES, patience_seconds=60.0, grace_seconds=GRACE_SECONDS) as swarm:
        swarm.realize(plan=PLANS[ROUTES[0]])
        for number in range(num_rounds):
            found = play(swarm, chance.choice(victims), chance)
            told[found] += 1
            print(f"round {number}: {found}", flush=True)
            assert wait_until(lambda: plan_in_force(swarm) is not None, 60.0), "nothing serves"
            num_stages = len(plan_in_force(swarm) or ())
            assert wait_until(lambda n=num_stages: len(stage_pids(swarm)) == n, GRACE_SECONDS + 20.0), (
                num_stages,
                stage_pids(swarm),
            )
    print(dict(told))
