"""The real model over real processes: split answers equal the unsplit execution, and a killed stage loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.direct import materialized, run_split_direct
from inferswarm.backends.partition import UnitRepresentation
from inferswarm.errors import EngineError, EnvelopeExceeded
from inferswarm.fabric import messages as m
from inferswarm.fabric.proc import maps_torch
from inferswarm.planner import ExecutionPlan, Workload
from inferswarm.resources import Envelope
from inferswarm.strategies.sampling import choose_sampling
from inferswarm.swarm import Generation, Model, Swarm
from tests.mixing import mix
from tests.unit.fabric.processes import wait_until

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


DRAWN = choose_sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=11, logprobs=1)
QUESTIONS = (
    m.Generate(chat=tuple(m.ChatMessage(*item) for item in CHAT), max_tokens=40, ignore_stop=True),
    m.Generate(text=MULTI_BYTE * 3, max_tokens=30, ignore_stop=True, sampling=DRAWN),
)


def stage_on(swarm: Swarm, node_name: str) -> int:
    """Return the process id of the one stage on a Node."""
    (agent,) = [node.pid for node in swarm.status().nodes if node.name == node_name]
    (stage,) = psutil.Process(agent).children()
    return stage.pid


def test_an_answer_goes_on_after_its_coordinator_was_killed_and_whoever_follows_it_sees_all_of_it(
    swarm: Swarm, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferswarm.fabric.client.SILENCE_SECONDS", 2.0)
    plan = force(swarm, model, "bf16", ("amber", "birch"), (15,))
    client, question = swarm._connected(), QUESTIONS[1]
    with swarm.realize(plan, model) as service, ThreadPoolExecutor(1) as pool:
        undisturbed = generated(client.ask(question))
        stages = [stage_on(swarm, name) for name in ("amber", "birch")]
        seen: dict[int, m.TokenCommitted] = {}

        def heard(event: object) -> None:
            if isinstance(event, m.TokenCommitted):
                seen[event.position] = event

        asked = pool.submit(client.ask, question, heard)
        assert wait_until(lambda: len(seen) >= 7, 30.0)
        os.kill(swarm.status().pid, signal.SIGKILL)
        assert wait_until(lambda: swarm._engine.processes()[0].exit_status is not None, 5.0)
        swarm._engine.start_coordinator()
        with pytest.raises(EngineError):
            asked.result(30.0)
        first = next(iter(seen.values()))
        follow = m.Follow(session=first.session, from_position=max(seen) + 1)
        before = len(seen)
        record = client.ask(follow, heard)
        assert isinstance(record, m.SessionRecord)
        assert len(seen) > before
        assert tuple(event.token for event in seen.values()) == record.tokens == undisturbed.record.tokens
        assert record.logits_digests == undisturbed.record.logits_digests
        assert "".join(event.text for event in seen.values()) == undisturbed.text
        assert [stage_on(swarm, name) for name in ("amber", "birch")] == stages, "a stage was started anew"
        assert swarm.status().epoch == service.epoch + 1


def generated(answer: m.ClientAnswer) -> m.Generated:
    assert isinstance(answer, m.Generated)
    return answer


@pytest.mark.long
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


@pytest.mark.slow
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


@pytest.mark.slow
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
