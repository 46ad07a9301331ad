"""Agents and Coordinators that are killed or stopped: typed errors, lapsed leases, new incarnations, true ledgers."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from inferswarm.errors import (
    AuthorityUncertain,
    CommitRefused,
    EngineError,
    InferSwarmError,
    SpecError,
    StageLost,
)
from inferswarm.fabric import messages as m
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine
from inferswarm.strategies.sampling import choose_sampling
from tests.integration.null_swarm import LEASE_SECONDS, NODE_NAMES, LongAnswer, NullSwarm, expected, node_id
from tests.unit.fabric.processes import all_gone, wait_until

PROMPT = tuple(range(20))
SOON = LEASE_SECONDS + 3.0


def assert_serves(swarm: NullSwarm) -> int:
    """Realize a plan over all Nodes, answer, retire; returns the epoch."""
    epoch = swarm.realize().epoch
    assert swarm.generate(PROMPT, 10).record.tokens == expected(PROMPT, 10).tokens
    swarm.ask(m.Retire())
    return epoch


def both(swarm: NullSwarm, *, patient: bool = False) -> tuple[LongAnswer, LongAnswer]:
    """Ask for two answers at once, and wait until both are under way."""
    answers = (
        LongAnswer(swarm, PROMPT, 2000, patient=patient),
        LongAnswer(swarm, PROMPT[:5], 1900, patient=patient),
    )
    for answer in answers:
        answer.wait_for(20, seed=11)
    return answers


def assert_undisturbed(answers: tuple[LongAnswer, LongAnswer]) -> None:
    """Wait for both answers: every token came once, and is that of a run that nothing happened to."""
    for answer, prompt, num_tokens in zip(answers, (PROMPT, PROMPT[:5]), (2000, 1900), strict=True):
        record, wanted = answer.join(60.0).record, expected(prompt, num_tokens)
        assert tuple(answer.tokens) == record.tokens == wanted.tokens
        assert record.logits_digests == wanted.logits_digests


def test_answers_wait_for_a_killed_agent_and_go_on_where_they_were(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        epoch = swarm.realize().epoch
        _, birch = swarm.stages()
        incarnation = swarm.node("birch").incarnation
        answers = both(swarm)
        os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
        assert all_gone([birch], 2.0), "a stage outlived its agent"
        swarm.replace_agent("birch")
        assert_undisturbed(answers)
        assert swarm.node("birch").incarnation != incarnation
        assert swarm.status().epoch == epoch + 1
        swarm.ask(m.Retire())

        swarm.realize()
        stuck = swarm.stages()[1]
        os.kill(stuck.pid, signal.SIGSTOP)  # it can notice nothing by itself
        os.kill(swarm.node("birch").pid, signal.SIGKILL)
        assert all_gone([stuck], 2.0), "a stage that was stuck outlived its agent"


def test_answers_go_on_over_the_next_plan_when_a_node_is_lost(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, NODE_NAMES) as swarm:
        epoch = swarm.realize(("amber", "birch"), fallbacks=[("birch", "amber"), ("amber", "cedar")]).epoch
        answers = both(swarm)
        os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
        assert_undisturbed(answers)
        assert swarm.status().epoch == epoch + 1
        assert swarm.generate(PROMPT, 5, epoch=epoch).reports[1].node_id == node_id("cedar")


def test_answers_fail_with_what_was_lost_when_no_node_comes_back_in_time(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, patience_seconds=0.5) as swarm:
        swarm.realize()
        amber, birch = swarm.stages()
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(20, seed=11)
        os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
        error = answer.error(SOON)
        assert isinstance(error, StageLost)
        assert (error.node, error.participant) == ("birch", "its agent")
        record = swarm.record(answer.session)
        assert (record.state, error.committed) == ("FAILED", len(record.tokens))
        assert record.tokens == expected(PROMPT, len(record.tokens)).tokens
        assert all_gone([amber, birch], 5.0)
        assert [node.name for node in swarm.status().nodes] == ["amber"]
        with pytest.raises(CommitRefused, match="NO_ACTIVE_AUTHORITY"):
            swarm.generate(PROMPT, 1)
        swarm.replace_agent("birch")
        swarm.wait_for_nodes(2)
        assert_serves(swarm)


def test_a_stopped_agent_loses_its_lease_and_returns_as_another_member(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        epoch = swarm.realize().epoch
        amber, _ = swarm.stages()
        incarnation = swarm.node("amber").incarnation
        answers = both(swarm)
        os.kill(swarm.agents["amber"].pid, signal.SIGSTOP)
        assert wait_until(lambda: [node.name for node in swarm.status().nodes] == ["birch"], SOON)
        assert amber.runs(), "a stopped agent cannot stop its stage"
        os.kill(swarm.agents["amber"].pid, signal.SIGCONT)
        assert all_gone([amber], 5.0), "a stage of the old epoch survived"
        assert_undisturbed(answers)
        returned = swarm.node("amber").incarnation
        assert returned != incarnation
        assert wait_until(lambda: (swarm.status().epoch or 0) > epoch, SOON)  # the other may be lost too
        time.sleep(LEASE_SECONDS)
        assert swarm.node("amber").incarnation == returned, "it went on joining again and again"


def test_a_stopped_coordinator_commits_nothing_under_its_lapsed_lease(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        swarm.realize()
        answers = both(swarm)
        coordinator = swarm.coordinator()
        os.kill(coordinator.pid, signal.SIGSTOP)
        time.sleep(1.5 * LEASE_SECONDS)
        os.kill(coordinator.pid, signal.SIGCONT)
        assert_undisturbed(answers)
        swarm.ask(m.Retire())
        assert_serves(swarm)


def test_answers_go_on_when_a_stage_is_lost_because_it_needs_more_than_its_envelope(tmp_path: Path) -> None:
    """The limit is lowered from outside, under what the stage has already; its successor has the Node's own again."""
    history = tuple(range(300, 900)) * 10
    penalized = choose_sampling(temperature=0.9, repetition_penalty=1.2, seed=3)
    with NullSwarm(tmp_path, limit_bytes=600_000_000, mechanism="rlimit-data") as swarm:
        epoch = swarm.realize().epoch
        answer = LongAnswer(swarm, PROMPT, 2000)
        answer.wait_for(20, seed=12)
        resource.prlimit(swarm.stages()[0].pid, resource.RLIMIT_DATA, (2**20, 2**20))
        swarm.generate(history, 5, sampling=penalized)  # what the stage has to remember of it is too much
        record, wanted = answer.join(60.0).record, expected(PROMPT, 2000)
        assert tuple(answer.tokens) == record.tokens == wanted.tokens
        assert record.logits_digests == wanted.logits_digests
        assert swarm.status().epoch == epoch + 1
        inspected = [swarm.ask(m.OnNode(node_id=node_id(name), command=m.InspectNode())) for name in swarm.nodes]
        assert [report.overflows for report in inspected if isinstance(report, m.NodeReport)] == [1, 0]


def test_stages_without_a_coordinator_end_after_a_while(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, grace_seconds=1.0) as swarm:
        swarm.realize()
        stages, agents = swarm.stages(), list(swarm.agents.values())
        os.kill(swarm.coordinator().pid, signal.SIGKILL)
        assert all_gone(stages, SOON), "stages went on without a Coordinator"
        assert all(agent.runs() for agent in agents)
    assert all_gone(agents, 1.0)


def test_a_coordinator_that_is_started_again_adopts_the_stages_and_each_token_is_seen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferswarm.fabric.client.SILENCE_SECONDS", 2.0)
    with NullSwarm(tmp_path) as swarm:
        epoch = swarm.realize().epoch
        done = swarm.generate(PROMPT, 15).record
        stages = swarm.stages()
        incarnations = {node.incarnation for node in swarm.status().nodes}
        answers = both(swarm, patient=True)
        swarm.restart_coordinator()
        for answer, prompt, num_tokens in zip(answers, (PROMPT, PROMPT[:5]), (2000, 1900), strict=True):
            assert isinstance(answer.error(), EngineError)
            seen = dict(enumerate(answer.tokens, len(prompt)))
            last = len(prompt) + len(seen)
            events: list[object] = []
            record = swarm.ask(m.Follow(session=answer.session, from_position=last), events.append)
            assert isinstance(record, m.SessionRecord)
            more = [(event.position, event.token) for event in events if isinstance(event, m.TokenCommitted)]
            assert [position for position, _ in more] == list(range(last, last + len(more)))
            seen |= dict(more)
            wanted = expected(prompt, num_tokens)
            assert tuple(seen.values()) == record.tokens == wanted.tokens
            assert (record.state, record.logits_digests) == ("COMPLETED", wanted.logits_digests)
        assert swarm.record(done.session) == done
        status = swarm.status()
        assert (status.term, status.epoch) == (2, epoch + 1)
        assert {node.incarnation for node in status.nodes} == incarnations
        assert all(stage.runs() for stage in stages), "a stage was started anew"
        assert swarm.generate(PROMPT, 5, epoch=epoch).record.tokens == expected(PROMPT, 5).tokens
        swarm.ask(m.Retire(epoch=epoch))
        assert all_gone(stages, 5.0)
        assert_serves(swarm)


def test_a_second_coordinator_of_a_scope_is_refused_and_the_first_serves_on(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        with pytest.raises(AuthorityUncertain, match="'null' is held by"):
            NullSwarm(tmp_path)
        assert_serves(swarm)


def test_a_port_in_use_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        port = int(swarm.endpoint.rpartition(":")[2])
        (tmp_path / "other").mkdir()
        with pytest.raises(EngineError, match="cannot listen there") as refused:
            NullSwarm(tmp_path / "other", port=port)
        assert refused.value.process == f"tcp://127.0.0.1:{port}"
        assert_serves(swarm)
    NullSwarm(tmp_path / "other", ("amber",), port=port).stop()


@pytest.mark.parametrize("path", ["missing/ledger", "."], ids=["no parent", "a directory"])
def test_a_ledger_that_cannot_be_written_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(SpecError) as refused:
        NullSwarm(tmp_path, ledger=path)
    assert refused.value.field == "ledger"


def test_a_second_node_of_the_same_name_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        other = LocalEngine(swarm.settings)
        other._endpoint = swarm.endpoint
        other.start_agent(NodeLaunch("another id", "amber", None))
        error = ended(other)
        assert isinstance(error, SpecError)
        assert (error.field, error.found) == ("node name", "amber")
        assert [node.node_id for node in swarm.status().nodes] == [node_id("amber")]
        assert_serves(swarm)


def test_an_agent_with_a_wrong_token_is_refused(tmp_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        settings = swarm.settings
        other = LocalEngine(type(settings)(scope=settings.scope, ledger=settings.ledger, token="wrong"))
        other._endpoint = swarm.endpoint
        other.start_agent(NodeLaunch(node_id("birch"), "birch", None))
        error = ended(other)
        assert isinstance(error, SpecError)
        assert error.field == "token"
        assert [node.name for node in swarm.status().nodes] == ["amber"]


def ended(engine: LocalEngine) -> InferSwarmError:
    """Wait until an agent of this engine has ended, and return what it ended with."""
    found: list[InferSwarmError] = []

    def has_ended() -> bool:
        try:
            engine.check_agents()
        except InferSwarmError as error:
            found.append(error)
        return bool(found)

    assert wait_until(has_ended, 10.0)
    engine.stop()
    return found[0]
