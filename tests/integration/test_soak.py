"""A short soak over the null backend, and a Node that goes up and down: what a long run must not violate, in seconds.

`make soak` is the long one.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.audit import read_audit
from inferswarm.fabric.recovery_records import TransitionOutcome
from tests.integration.null_swarm import NODE_NAMES, LongAnswer, NullSwarm, expected, node_id
from tests.soak.running import soak
from tests.unit.fabric.processes import wait_until

pytestmark = pytest.mark.long

SECONDS = 10.0
MEAN_PAUSE_SECONDS = 0.5
FLAPS = 5
PROMPT = tuple(range(20))


def test_nothing_that_must_hold_is_violated_in_ten_seconds_of_losses_under_load() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    soaked = soak("null", SECONDS, seed, print, mean_pause=MEAN_PAUSE_SECONDS)
    assert soaked.violations == ()
    assert soaked.counts["answers"] > 0
    assert sum(soaked.transitions.values()) > 0, soaked.counts
    assert soaked.num_commits >= soaked.counts["tokens"] > 0


def test_a_node_that_goes_up_and_down_changes_the_plan_once_and_each_change_is_recorded(tmp_path: Path) -> None:
    """The plan leaves it at its first loss. That it comes and goes after that is nobody's loss, however often."""
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        epoch = swarm.realize(("amber", "birch"), fallbacks=[("amber", "cedar")]).epoch
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(20, seed=4)
        for _ in range(FLAPS):
            before = swarm.node("birch").incarnation
            os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
            swarm.agents["birch"] = swarm.start_agent("birch")
            assert wait_until(lambda before=before: incarnation_of(swarm) not in (None, before), 20.0)
        assert wait_until(lambda: swarm.status().epoch == epoch + 1, 20.0)
        seen = len(answer.tokens)
        assert wait_until(lambda: len(answer.tokens) > seen, 20.0), "the answer does not go on"
        assert answer.outcome is None
        assert tuple(answer.tokens[:seen]) == expected(PROMPT, seen).tokens
        swarm.ask(m.Retire())
        answer.error()
        items = [entry.item for entry in read_audit(Path(swarm.settings.ledger))]
        lost = [item for item in items if isinstance(item, ev.MemberLost)]
        assert [item.node_id for item in lost] == [node_id("birch")] * FLAPS
        records = [item.record for item in items if isinstance(item, ev.TransitionRecorded)]
        assert {record.number for record in records} == {1}
        assert records[-1].outcome is TransitionOutcome.ACTIVATED


def incarnation_of(swarm: NullSwarm) -> str | None:
    """Return birch's incarnation; None while it is no member."""
    return next((node.incarnation for node in swarm.status().nodes if node.name == "birch"), None)
