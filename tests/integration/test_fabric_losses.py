"""Agents and Coordinators that are killed or stopped: typed errors, lapsed leases, new incarnations, true ledgers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from inferswarm.errors import AuthorityUncertain, EngineError, InferSwarmError, SpecError, StageLost
from inferswarm.fabric import messages as m
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine
from tests.integration.null_swarm import LEASE_SECONDS, LongAnswer, NullSwarm, expected, node_id
from tests.unit.fabric.processes import all_gone, wait_until

PROMPT = tuple(range(20))
SOON = LEASE_SECONDS + 3.0


def assert_serves(swarm: NullSwarm) -> int:
    """Realize a plan over all Nodes, answer, retire; returns the epoch."""
    epoch = swarm.realize().epoch
    assert swarm.generate(PROMPT, 10).record.tokens == expected(PROMPT, 10).tokens
    swarm.ask(m.Retire())
    return epoch


def test_a_killed_agent_takes_its_stage_along_and_its_node_can_come_back(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        epoch = swarm.realize().epoch
        amber, birch = swarm.stages()
        incarnation = swarm.node("birch").incarnation
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(20, seed=11)
        os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
        assert all_gone([birch], 2.0), "a stage outlived its agent"
        error = answer.error(SOON)
        assert isinstance(error, StageLost)
        assert (error.node, error.participant) == ("birch", "its agent")
        record = swarm.record(answer.session)
        assert (record.state, error.committed) == ("FAILED", len(record.tokens))
        assert record.tokens == expected(PROMPT, len(record.tokens)).tokens
        assert all_gone([amber], 5.0)
        assert [node.name for node in swarm.status().nodes] == ["amber"]
        with pytest.raises(EngineError):
            swarm.engine.check_agents()

        swarm.replace_agent("birch")
        swarm.wait_for_nodes(2)
        assert swarm.node("birch").incarnation != incarnation
        assert assert_serves(swarm) > epoch

        swarm.realize()
        stuck = swarm.stages()[1]
        os.kill(stuck.pid, signal.SIGSTOP)  # it can notice nothing by itself
        os.kill(swarm.node("birch").pid, signal.SIGKILL)
        assert all_gone([stuck], 2.0), "a stage that was stuck outlived its agent"


def test_a_stopped_agent_loses_its_lease_and_returns_as_another_member(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        epoch = swarm.realize().epoch
        amber, birch = swarm.stages()
        incarnation = swarm.node("amber").incarnation
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(20, seed=12)
        os.kill(swarm.agents["amber"].pid, signal.SIGSTOP)
        error = answer.error(SOON)
        assert isinstance(error, StageLost)
        assert (error.node, error.reason) == ("amber", "its lease ran out")
        assert all_gone([birch], 5.0)
        assert [node.name for node in swarm.status().nodes] == ["birch"]
        assert amber.runs(), "a stopped agent cannot stop its stage"
        committed = swarm.record(answer.session).tokens

        os.kill(swarm.agents["amber"].pid, signal.SIGCONT)
        assert all_gone([amber], 5.0), "a stage of the old epoch survived"
        swarm.wait_for_others({incarnation})
        returned = swarm.node("amber").incarnation
        assert swarm.record(answer.session).tokens == committed
        assert assert_serves(swarm) > epoch
        time.sleep(LEASE_SECONDS)
        assert swarm.node("amber").incarnation == returned, "it went on joining again and again"


def test_a_stopped_coordinator_commits_nothing_under_its_lapsed_lease(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        swarm.realize()
        stages, coordinator = swarm.stages(), swarm.coordinator()
        incarnations = {node.incarnation for node in swarm.status().nodes}
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(20, seed=13)
        os.kill(coordinator.pid, signal.SIGSTOP)
        assert all_gone(stages, SOON), "stages went on without a Coordinator"
        os.kill(coordinator.pid, signal.SIGCONT)
        error = answer.error(SOON)
        assert isinstance(error, InferSwarmError)
        record = swarm.record(answer.session)
        assert record.state == "FAILED"
        assert record.tokens == expected(PROMPT, len(record.tokens)).tokens
        swarm.wait_for_others(incarnations)
        assert_serves(swarm)


def test_a_killed_coordinator_is_noticed_by_client_and_agents_and_its_ledger_stays_true(tmp_path: Path) -> None:
    with NullSwarm(tmp_path) as swarm:
        first_epoch = swarm.realize().epoch
        done = swarm.generate(PROMPT, 15).record
        stages, agents = swarm.stages(), list(swarm.agents.values())
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(20, seed=14)
        os.kill(swarm.coordinator().pid, signal.SIGKILL)
        error = answer.error(5.0)
        assert isinstance(error, EngineError)
        assert error.process == "coordinator"
        assert "SIGKILL" in str(error)
        assert answer.seconds < 2.0
        with pytest.raises(EngineError):
            swarm.ask(m.Status())
        with pytest.raises(AuthorityUncertain, match="is held by"):
            NullSwarm(tmp_path)
        assert all_gone(stages, SOON), "stages went on without a Coordinator"
        assert all(agent.runs() for agent in agents)
    assert all_gone(agents, 1.0)

    time.sleep(LEASE_SECONDS)
    with NullSwarm(tmp_path) as heir:
        assert heir.status().term == 2
        orphan = heir.record(answer.session)
        assert (orphan.state, orphan.reason) == ("FAILED", "its Coordinator ended before it did")
        assert len(orphan.tokens) >= len(answer.tokens) >= 20
        assert orphan.tokens == expected(PROMPT, len(orphan.tokens)).tokens
        assert heir.record(done.session) == done
        assert heir.realize().epoch > first_epoch
        replay = heir.ask(m.Replay(session=orphan.session, max_tokens=len(orphan.tokens)))
        assert isinstance(replay, m.Generated)
        assert replay.record.session > orphan.session
        assert replay.record.logits_digests == orphan.logits_digests


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
