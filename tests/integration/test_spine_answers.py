"""The real model over real processes: split answers equal the unsplit execution, and a killed stage loses nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.direct import materialized, run_split_direct
from inferswarm.backends.partition import UnitRepresentation
from inferswarm.errors import CommitRefused, EnvelopeExceeded, StageLost
from inferswarm.fabric.proc import maps_torch
from inferswarm.planner import ExecutionPlan, Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Generation, Model, Service, Swarm
from tests.mixing import mix

NUM_TOKENS = 24
WORKLOAD = Workload(prompt_tokens=96, output_tokens=64)
CHAT = (("user", "Name three rivers in Europe and one city on each."),)
MULTI_BYTE = "Zürich, 東京 und São Paulo 🌍: 你好 means"


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model(smollm2_path)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    nodes = [Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in ("amber", "birch", "cedar")]
    with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:
        yield swarm  # nothing is measured: forced plans need no prices


def force(
    swarm: Swarm, model: Model, representation: str, nodes: tuple[str, ...], cuts: tuple[int, ...]
) -> ExecutionPlan:
    return swarm.force(model, nodes, cuts=cuts, representation=representation, workload=WORKLOAD)


def assert_equals_unsplit(swarm: Swarm, model: Model, plan: ExecutionPlan, answer: Generation) -> None:
    problem = swarm.problem(model, plan.workload)
    unsplit = run_split_direct(
        materialized(unsplit_assignments(plan, model.description, model.opened.object, problem)),
        answer.record.prompt_ids,
        max_tokens=len(answer.tokens),
        chunk_positions=plan.chunk_positions,
    )
    assert unsplit.tokens == answer.tokens
    assert unsplit.logits_digests == answer.record.logits_digests
    assert unsplit.steps == answer.partition.steps


@pytest.mark.parametrize(
    ("representation", "nodes", "cuts"),
    [
        ("bf16", ("amber", "birch"), (15,)),
        ("fp32", ("birch", "amber", "cedar"), (0, 22)),
    ],
)
def test_a_split_answer_equals_the_unsplit_execution_bitwise(
    swarm: Swarm, model: Model, representation: str, nodes: tuple[str, ...], cuts: tuple[int, ...]
) -> None:
    plan = force(swarm, model, representation, nodes, cuts)
    with swarm.realize(plan, model) as service:
        assert not maps_torch(service.coordinator_pid)
        chat = service.generate(chat=CHAT, max_tokens=NUM_TOKENS)
        raw = service.generate(MULTI_BYTE, max_tokens=NUM_TOKENS, ignore_stop=True)
        edge = service.generate(tuple(range(100, 164)), max_tokens=8, ignore_stop=True)
        for stage in service.realized.stages:
            assert stage.source_bytes == stage.required_bytes > 0
        assert all(report.state_bytes_moved == 0 for report in service.stage_reports())
    assert len(edge.record.prompt_ids) == plan.chunk_positions  # exactly at the edge of a chunk
    for answer in (chat, raw, edge):
        assert [report.positions for report in answer.reports] == [answer.expected_positions] * len(nodes)
        assert_equals_unsplit(swarm, model, plan, answer)


def stream_and_kill(service: Service, pid: int, commits: int, delay_seconds: float) -> None:
    """Send SIGKILL to a stage once so many tokens are committed, plus a delay, and go on listening."""
    for index, _ in enumerate(service.stream_tokens(chat=CHAT, max_tokens=64, ignore_stop=True)):
        if index + 1 == commits:
            time.sleep(delay_seconds)
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_stages_killed_at_random_commits_are_replayed_bit_for_bit(swarm: Swarm, model: Model, kills: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    plan = force(swarm, model, "bf16", ("amber", "birch"), (15,))
    with swarm.realize(plan, model) as service:
        undisturbed = service.generate(chat=CHAT, max_tokens=64, ignore_stop=True)
        epoch = service.epoch
    for number in range(kills):
        victim = number % 2
        commits = chance.randint(1, 40)
        with swarm.realize(plan, model) as service:
            assert service.epoch > epoch
            epoch = service.epoch
            with pytest.raises(StageLost) as caught:
                stream_and_kill(service, service.realized.pids[victim], commits, chance.uniform(0, 0.03))
            error = caught.value
            assert error.node == plan.placements[victim].node_name
            assert error.committed is not None
            assert error.committed >= commits
            session = undisturbed.session + 2 * number + 1
            broken = service.record(session)
            assert broken.state == "FAILED"
            assert broken.tokens == undisturbed.tokens[: len(broken.tokens)]
            assert broken.logits_digests == undisturbed.record.logits_digests[: len(broken.tokens)]
            with pytest.raises(CommitRefused, match="NO_ACTIVE_AUTHORITY"):
                service.generate("x", max_tokens=1)
        with swarm.realize(plan, model) as again:
            replayed = again.replay(session)
            epoch = again.epoch
        assert replayed.record.replay_of == session
        assert replayed.tokens == undisturbed.tokens
        assert replayed.record.logits_digests == undisturbed.record.logits_digests
        assert replayed.text == undisturbed.text


def test_a_session_of_a_mixed_plan_equals_the_unsplit_execution_and_is_replayed_over_another_cut(
    swarm: Swarm, model: Model
) -> None:
    first = mix(force(swarm, model, "fp32", ("amber", "birch"), (10,)), "fp32", "bf16")
    with swarm.realize(first, model) as service:
        assert repr(service).endswith("bf16+fp32 over amber (fp32) → birch (bf16), open)")
        answer = service.generate(chat=CHAT, max_tokens=NUM_TOKENS)
    assert_equals_unsplit(swarm, model, first, answer)
    assert answer.partition.representations == (
        UnitRepresentation(0, 11, "fp32"),
        UnitRepresentation(11, 32, "bf16"),
    )
    moved = mix(force(swarm, model, "fp32", ("cedar", "amber", "birch"), (4, 10)), "fp32", "fp32", "bf16")
    with swarm.realize(moved, model) as service:
        replayed = service.replay(answer.session)
    assert replayed.tokens == answer.tokens
    assert replayed.record.logits_digests == answer.record.logits_digests
    assert replayed.record.model == answer.record.model != ""


def test_a_chosen_plan_predicts_and_answers(model: Model, tmp_path: Path) -> None:
    with Swarm.local(state=tmp_path) as swarm:
        decision = swarm.plan(model, Workload(prompt_tokens=16, output_tokens=8))
        assert decision.document.outcome == "SELECTED"
        assert decision.document.proved_optimal
        plan = decision.plan
        assert plan.prediction is not None
        assert plan.prediction.request.low <= plan.prediction.request.point <= plan.prediction.request.high
        before = len(swarm.store)
        assert swarm.measure(model, plan.workload).digest == plan.graph_digest
        assert len(swarm.store) == before  # what is known and applies is not measured again
        with swarm.realize(plan) as service:
            answer = service.generate("The capital of France is", max_tokens=8)
    assert answer.text.startswith(" Paris")


def test_without_a_cgroup_an_envelope_holds_by_a_limit_on_data(model: Model, tmp_path: Path) -> None:
    node = Envelope(name="amber", threads=1, memory_bytes=720_000_000)
    with Swarm.local([node], state=tmp_path, mechanism="rlimit-data") as swarm:
        decision = swarm.plan(model, Workload(prompt_tokens=16, output_tokens=8))
        assert {family.status for family in decision.document.families} == {"RANKED", "TECHNICALLY_INFEASIBLE"}
        assert decision.plan.representation == "bf16"
        with swarm.realize(decision.plan) as service:
            assert service.generate("The capital of France is", max_tokens=8).text.startswith(" Paris")
            (memory,) = swarm.node_memory()
        too_large = swarm.force(model, ["amber"], representation="fp32", workload=decision.plan.workload)
        with pytest.raises(EnvelopeExceeded, match="rlimit-data"):
            swarm.realize(too_large)
    assert memory.report.charged_peak_bytes is not None
    assert memory.report.charged_peak_bytes <= node.memory_bytes
