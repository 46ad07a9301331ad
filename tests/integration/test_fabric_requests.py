"""Requests that are odd, late or given up: each ends by itself, and nobody else notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.errors import AdmissionError, CommitRefused, EngineError, SpecError, WireError
from inferswarm.fabric import messages as m
from tests.integration.null_swarm import LONG, LongAnswer, NullSwarm, expected
from tests.unit.fabric.processes import wait_until

PROMPT = tuple(range(20))


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NullSwarm]:
    with NullSwarm(tmp_path_factory.mktemp("swarm"), ("amber", "birch")) as swarm:
        swarm.realize(("amber", "birch"))
        yield swarm


def assert_serves(swarm: NullSwarm) -> None:
    assert swarm.generate(PROMPT, 10).record.tokens == expected(PROMPT, 10).tokens


@pytest.mark.parametrize(
    "question",
    [
        m.Generate(token_ids=(3_000_000_000,), max_tokens=1),
        m.Generate(token_ids=(-1,), max_tokens=1),
        m.Generate(token_ids=PROMPT, max_tokens=2**40),
        m.ShowSession(session=2**60),
        m.Replay(session=-1),
    ],
)
def test_numbers_that_cannot_be_are_refused_and_the_coordinator_serves_on(
    swarm: NullSwarm, question: m.Question
) -> None:
    with pytest.raises(WireError) as refused:
        swarm.ask(question)
    assert refused.value.code == "MALFORMED_MESSAGE"
    assert_serves(swarm)


@pytest.mark.parametrize("question", [m.Generate(text="\ud800", max_tokens=1), m.ShowSession(session=2**70)])
def test_what_no_message_can_carry_is_refused_before_it_is_sent(swarm: NullSwarm, question: m.Question) -> None:
    with pytest.raises(SpecError):
        swarm.ask(question)
    assert_serves(swarm)


def test_a_coordinator_that_hangs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferswarm.fabric.client.SILENCE_SECONDS", 1.0)
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        assert swarm.client is not None
        os.kill(swarm.coordinator().pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match="did not answer"):
            swarm.client.ask(m.ShowSession(session=1))
        os.kill(swarm.coordinator().pid, signal.SIGCONT)


def test_an_answer_that_nobody_waits_for_is_cancelled_and_makes_room(swarm: NullSwarm) -> None:
    assert swarm.client is not None
    places = []
    for _ in range(3):  # more than the plan has sessions for
        events = swarm.client.events(m.Generate(token_ids=PROMPT, max_tokens=LONG))
        first = next(event for event in events if isinstance(event, m.TokenCommitted))
        events.close()
        places.append(first.session)
        assert wait_until(lambda number=first.session: swarm.record(number).state == "CANCELLED", 5.0)
    for number in places:
        record = swarm.record(number)
        assert record.tokens == expected(PROMPT, len(record.tokens)).tokens
        assert len(record.tokens) < LONG
    assert_serves(swarm)


def test_a_request_for_another_epoch_is_refused_and_retires_nothing(swarm: NullSwarm) -> None:
    epoch = swarm.status().epoch
    assert epoch is not None
    for question in (
        m.Generate(token_ids=PROMPT, max_tokens=1, epoch=epoch + 1),
        m.StageReports(epoch=epoch + 1),
        m.Replay(session=1, epoch=epoch + 1),
    ):
        with pytest.raises(CommitRefused) as refused:
            swarm.ask(question)
        assert refused.value.code == "RETIRED_OR_SUPERSEDED_EPOCH"
    assert swarm.ask(m.Retire(epoch=epoch + 1)) == m.Done()
    assert swarm.status().epoch == epoch
    assert_serves(swarm)


def test_a_replay_of_no_tokens_is_refused(swarm: NullSwarm) -> None:
    session = swarm.generate(PROMPT, 3).record.session
    with pytest.raises(AdmissionError, match="max_tokens"):
        swarm.ask(m.Replay(session=session, max_tokens=0))


def test_the_loss_of_a_node_that_is_not_used_disturbs_no_answer(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber", "birch", "cedar")) as swarm:
        swarm.realize(("amber", "birch"))
        answer = LongAnswer(swarm, PROMPT, 3000)
        answer.wait_for(20)
        os.kill(swarm.agents["cedar"].pid, signal.SIGKILL)
        assert wait_until(lambda: len(swarm.status().nodes) == 2, 10.0)
        assert answer.join().record.tokens == expected(PROMPT, 3000).tokens
