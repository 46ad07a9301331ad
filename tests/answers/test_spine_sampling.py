"""The real model, sampled: split answers equal the unsplit execution bit for bit, replays too, and text stops."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.direct import materialized, run_direct
from inferswarm.errors import AdmissionError, SpecError
from inferswarm.planner import ExecutionPlan, Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Generation, Model, Service, Swarm
from tests.models import write_small_llama

WORKLOAD = Workload(prompt_tokens=96, output_tokens=64)
CHAT = (("user", "Tell me a story about a lighthouse."),)
LIVELY: dict[str, Any] = {"temperature": 1.2, "top_p": 0.95, "repetition_penalty": 1.1, "frequency_penalty": 0.3}


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model(smollm2_path)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    nodes = [Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in ("amber", "birch")]
    with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:
        yield swarm  # nothing is measured: forced plans need no prices


@pytest.fixture(scope="module")
def plan(swarm: Swarm, model: Model) -> ExecutionPlan:
    return swarm.force(model, ("amber", "birch"), cuts=(15,), representation="fp32", workload=WORKLOAD)


@pytest.fixture(scope="module")
def service(swarm: Swarm, model: Model, plan: ExecutionPlan) -> Iterator[Service]:
    with swarm.realize(plan, model) as service:
        yield service


def test_a_sampled_answer_equals_the_unsplit_execution_and_its_replay(
    swarm: Swarm, model: Model, plan: ExecutionPlan, service: Service
) -> None:
    answers = [
        service.generate(chat=CHAT, max_tokens=24, ignore_stop=True, logprobs=2, **LIVELY),
        service.generate(chat=CHAT, max_tokens=24, ignore_stop=True, temperature=0.8, top_k=40, min_p=0.02, seed=9),
    ]
    replays = [service.replay(answer.session) for answer in answers]
    (executor,) = materialized(
        unsplit_assignments(plan, model.description, model.opened.object, swarm.problem(model, plan.workload))
    )
    for answer, replay in zip(answers, replays, strict=True):
        assert answer.seed is not None
        unsplit = run_direct(
            executor,
            answer.record.prompt_ids,
            max_tokens=24,
            chunk_positions=plan.chunk_positions,
            sampling=answer.record.sampling,
        )
        for other in (unsplit, replay.record):
            assert other.tokens == answer.tokens
            assert other.logits_digests == answer.record.logits_digests
            assert other.logprobs == answer.logprobs
        assert (replay.seed, replay.text) == (answer.seed, answer.text)
    assert answers[1].seed == 9


def test_the_seed_decides_the_answer(service: Service) -> None:
    first = service.generate(chat=CHAT, max_tokens=16, **LIVELY)
    second = service.generate(chat=CHAT, max_tokens=16, **LIVELY)
    again = service.generate(chat=CHAT, max_tokens=16, seed=first.seed, **LIVELY)
    assert first.seed != second.seed
    assert first.tokens != second.tokens
    assert again.tokens == first.tokens
    assert f"seed {first.seed}" in repr(first)
    assert service.generate(chat=CHAT, max_tokens=2).seed is None


def greedy_text(service: Service) -> Generation:
    return service.generate(chat=CHAT, max_tokens=40)


def test_a_stop_string_ends_a_real_answer(service: Service) -> None:
    whole = greedy_text(service)
    stop = whole.text[30:37]
    before = whole.text[: whole.text.index(stop)]
    pieces = list(service.stream(chat=CHAT, max_tokens=40, stop=[stop]))
    answer = service.last
    assert answer is not None
    assert "".join(pieces) == answer.text == before
    assert (answer.finish_reason, answer.matched_stop) == ("stop", stop)
    assert answer.tokens == whole.tokens[: len(answer.tokens)]
    assert repr(stop) in repr(answer)
    replay = service.replay(answer.session)
    assert (replay.text, replay.tokens, replay.matched_stop) == (before, answer.tokens, stop)
    assert greedy_text(service).tokens == whole.tokens


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"temperature": -1.0}, SpecError),
        ({"temprature": 1.0}, SpecError),
        ({"stop": "one text"}, SpecError),
        ({"stop": [""]}, AdmissionError),
        ({"stop": ["x"] * 17}, AdmissionError),
        ({"logit_bias": {49152: 1.0}}, AdmissionError),
        ({"seed": -1}, SpecError),
    ],
)
def test_wrong_settings_are_refused(service: Service, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        service.generate("x", max_tokens=2, **arguments)


@pytest.mark.slow
def test_the_command_line_shows_what_it_sampled(tmp_path: Path) -> None:
    small = write_small_llama(tmp_path / "small.gguf")
    command = [sys.executable, "-c", "from inferswarm.cli import main; main()", "run", "Hello", "--json", "--raw"]
    command += ["-m", str(small), "--node", "a:threads=1,memory=1GB", "--state", str(tmp_path), "--max-tokens", "8"]
    command += ["--temperature", "1.5", "--top-k", "50", "--logprobs", "1", "--presence-penalty", "0.5"]
    command += ["--top-p", "0.99", "--min-p", "0.001", "--repetition-penalty", "1.1", "--frequency-penalty", "0.1"]
    command += ["--logit-bias", "28=-5", "--stop", "\u2603", "--seed", str(2**64 - 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["seed"] == str(2**64 - 1)
    assert [logprobs[0][0] for logprobs in shown["logprobs"]] == shown["tokens"]
    assert all(len(logprobs) == 2 for logprobs in shown["logprobs"])
    assert shown["matched_stop"] is None
    assert f"seed {2**64 - 1}" in done.stderr
