"""Plans that are changed on purpose while answers are under way: beside the old one, or one after the other."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest

from inferswarm.errors import AdmissionError, CommitRefused, InferSwarmError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.audit import read_audit
from inferswarm.fabric.recovery_records import TransitionMode, TransitionOutcome, TransitionRecord, Trigger
from tests.integration.null_swarm import NODE_NAMES, LongAnswer, NullSwarm, expected, null_plan
from tests.unit.fabric.processes import all_gone, wait_until

PROMPT = tuple(range(20))
COLD = TransitionMode.SAFE_INTERRUPTED_CUTOVER
FURTHER = 200
"""Tokens of each answer that have to come after something happened."""


class Answers:
    """Two long answers that are under way."""

    def __init__(self, swarm: NullSwarm) -> None:
        self._swarm = swarm
        self._prompts = (PROMPT, PROMPT[:5])
        self.all = tuple(LongAnswer(swarm, prompt) for prompt in self._prompts)
        for answer in self.all:
            answer.wait_for(20, seed=17)

    @property
    def sessions(self) -> set[int]:
        return {answer.session for answer in self.all}

    def go_on_undisturbed(self) -> None:
        """Let both go on for a while, then end them: each token came once, and is that of an undisturbed run."""
        before = [len(answer.tokens) for answer in self.all]
        for answer, number in zip(self.all, before, strict=True):
            assert wait_until(lambda a=answer, n=number: len(a.tokens) >= n + FURTHER or a.outcome, 30.0)
            assert answer.outcome is None, answer.outcome
        self._swarm.ask(m.Retire())
        for answer, prompt in zip(self.all, self._prompts, strict=True):
            answer.error()
            record = self._swarm.record(answer.session)
            wanted = expected(prompt, len(record.tokens))
            assert record.tokens == wanted.tokens
            assert record.logits_digests == wanted.logits_digests
            assert tuple(answer.tokens) == record.tokens


def transitions(swarm: NullSwarm) -> list[TransitionRecord]:
    """Return the last version of every record that the ledger has, in order."""
    found: dict[int, TransitionRecord] = {}
    for entry in read_audit(Path(swarm.settings.ledger)):
        if isinstance(entry.item, ev.TransitionRecorded):
            found[entry.item.record.number] = entry.item.record
    return [found[number] for number in sorted(found)]


def test_answers_go_over_to_another_plan_that_was_prepared_beside_theirs(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        epoch = swarm.realize(("amber", "birch")).epoch
        old = swarm.stages()
        answers = Answers(swarm)
        assert swarm.change(("cedar", "amber", "birch")).epoch == epoch + 1
        assert all_gone(list(old), 3.0), "the stages of before were not stopped"
        answers.go_on_undisturbed()
        (record,) = transitions(swarm)
        assert (record.outcome, record.mode) == (TransitionOutcome.ACTIVATED, TransitionMode.MAKE_BEFORE_BREAK)
        assert {item.session for item in record.boundaries} == answers.sessions
        assert record.old_epoch == epoch


def test_where_both_plans_do_not_fit_one_ends_before_the_other_begins(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        epoch = swarm.realize(("amber", "birch")).epoch
        old = swarm.stages()
        answers = Answers(swarm)
        changed = swarm.change(("birch", "cedar"), mode=COLD)
        assert changed.epoch == epoch + 1
        assert all_gone(list(old), 1.0)
        answers.go_on_undisturbed()
        (record,) = transitions(swarm)
        assert (record.outcome, record.mode) == (TransitionOutcome.ACTIVATED, COLD)


def test_a_change_that_cannot_be_made_leaves_the_plan_in_force_as_it_was(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        epoch = swarm.realize(("amber", "birch")).epoch
        old = swarm.stages()
        answers = Answers(swarm)
        with pytest.raises(CommitRefused, match="RETIRED_OR_SUPERSEDED_EPOCH"):
            swarm.change(("cedar",), epoch=epoch + 7)
        with pytest.raises(AdmissionError, match="at most 1 at once on that plan"):
            swarm.change((), plan=null_plan(("cedar",), sessions=1))
        with pytest.raises(AdmissionError, match="which that plan reserves memory for"):
            swarm.change((), plan=null_plan(("cedar",), max_positions=100))
        plan = null_plan(("cedar",))
        placements = tuple(msgspec.structs.replace(item, threads=2) for item in plan.placements)
        with pytest.raises(AdmissionError, match="threads of session"):
            swarm.change((), plan=msgspec.structs.replace(plan, placements=placements))
        assert transitions(swarm) == []
        os.kill(swarm.agents["cedar"].pid, signal.SIGSTOP)  # it takes no order
        with pytest.raises(InferSwarmError):
            swarm.change(("amber", "cedar"))
        os.kill(swarm.agents["cedar"].pid, signal.SIGCONT)
        assert [identity.runs() for identity in old] == [True, True]
        assert swarm.status().epoch == epoch
        answers.go_on_undisturbed()
        (record,) = transitions(swarm)
        assert record.outcome is TransitionOutcome.ABORTED_PREPARATION
        assert "cedar" in record.reason


def test_a_loss_while_another_plan_is_prepared_is_recovered_and_one_change_at_a_time_is_made(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        epoch = swarm.realize(("amber", "birch")).epoch
        answers = Answers(swarm)
        outcomes: list[object] = []

        def change() -> None:
            try:
                outcomes.append(swarm.change(("cedar", "birch")))
            except InferSwarmError as error:
                outcomes.append(error)

        stages = swarm.stages()
        asker = threading.Thread(target=change)
        asker.start()
        assert wait_until(lambda: bool(transitions(swarm)), 5.0)
        with pytest.raises(CommitRefused, match="TRANSITION_UNDER_WAY"):
            swarm.change(("cedar",), epoch=epoch)
        os.kill(stages[0].pid, signal.SIGKILL)
        asker.join(30.0)
        assert isinstance(outcomes[0], InferSwarmError), outcomes
        answers.go_on_undisturbed()
        (record,) = transitions(swarm)
        assert record.outcome is TransitionOutcome.ACTIVATED
        assert record.plan_digest == record.old_plan_digest
        assert len(record.attempts) == 1


def test_a_change_that_was_considered_and_not_made_is_recorded(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, NODE_NAMES[:1]) as swarm:
        epoch = swarm.realize().epoch
        swarm.ask(
            m.Retain(epoch=epoch, trigger=Trigger.NODE_JOINED, detail="birch", is_policy=False, reason="no gain")
        )
        swarm.ask(m.Retain(epoch=epoch, trigger=Trigger.REQUEST, detail="calm", is_policy=True, reason="too soon"))
        found = [(record.outcome, record.reason) for record in transitions(swarm)]
        assert found == [
            (TransitionOutcome.RETAINED_CURRENT_EPOCH, "no gain"),
            (TransitionOutcome.RETAINED_BY_POLICY, "too soon"),
        ]
        assert swarm.status().epoch == epoch
