"""A family that nobody described, over two Nodes: planned and run like any other model, equal to its host."""

from __future__ import annotations

from typing import Any

import pytest

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.direct import materialized, run_direct
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from tests.families import VOCABULARY, write_tokenizer
from tests.hosted import load_host, run_host, save_family

WORKLOAD = Workload(prompt_tokens=96, output_tokens=32)
TOKENS = 12
LIVELY: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 3, "logprobs": 2}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = save_family("gpt_neox", tmp_path_factory.mktemp("gpt-neox"), vocab_size=VOCABULARY)
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    nodes = [Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in ("amber", "birch")]
    with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:
        yield swarm


def test_two_nodes_answer_what_the_unsliced_host_answers(path, swarm):
    model = Model(path, backend="transformers")
    plan = swarm.force(model, ("amber", "birch"), cuts=(2,), representation="fp32", workload=WORKLOAD)
    assert plan.primitive == "transformers"
    prompt = [(index * 37 + 5) % 89 for index in range(80)]
    with swarm.realize(plan) as service:
        answer = service.generate(prompt, max_tokens=TOKENS, ignore_stop=True)
        lively = service.generate(prompt, max_tokens=TOKENS, ignore_stop=True, **LIVELY)
        assert service.replay().tokens == lively.tokens
        held = [report.source_bytes for report in service.stage_reports()]
    (unsplit,) = unsplit_assignments(plan, model.description, model.opened.object, swarm.problem(model, WORKLOAD))
    (executor,) = materialized((unsplit,))
    direct = run_direct(executor, prompt, max_tokens=TOKENS, chunk_positions=plan.chunk_positions)
    tokens, digests = run_host(load_host(path), (*prompt, *answer.tokens), direct.steps)
    first = len(direct.steps) - TOKENS
    assert answer.tokens == direct.tokens == tuple(tokens[first:])
    assert direct.logits_digests == tuple(digests[first:])
    sampled = run_direct(
        executor,
        prompt,
        max_tokens=TOKENS,
        chunk_positions=plan.chunk_positions,
        sampling=lively.record.sampling,
    )
    assert (sampled.tokens, sampled.logprobs) == (lively.tokens, lively.logprobs)
    assert lively.tokens != answer.tokens
    assert sum(held) == unsplit.requirement.bytes  # no weight twice, none left out


@pytest.mark.slow
def test_it_is_measured_and_planned_like_any_other_model(path, swarm):
    decision = swarm.plan(Model(path), WORKLOAD)
    assert decision.plan.primitive == "transformers"
    with swarm.realize(decision.plan) as service:
        assert len(service.generate("hello", max_tokens=4, ignore_stop=True).tokens) == 4
