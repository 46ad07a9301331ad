"""The real model behind the endpoint: what the official client gets is what the service itself answers."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from inferswarm.fabric.text_side import TextSide
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.serving.service import ServingSettings
from inferswarm.swarm import Model, Service, Swarm
from tests.integration.http_endpoint import ServedSwarm

NAME = "smollm2-135m"
CHAT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three rivers in Europe."}]
PAIRS = tuple((message["role"], message["content"]) for message in CHAT)
GREEDY: Any = {"model": NAME, "messages": CHAT, "temperature": 0, "max_tokens": 12}
DRAWN: Any = GREEDY | {"temperature": 1.0, "top_p": 0.95}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Service]:
    nodes = [Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in ("amber", "birch")]
    model = Model(smollm2_path)
    with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:  # a forced plan needs no measurements
        workload = Workload(prompt_tokens=96, output_tokens=64, concurrency=4)
        plan = swarm.force(model, ("amber", "birch"), cuts=(16,), representation="bf16", workload=workload)
        with swarm.realize(plan, model) as service:
            yield service


@pytest.fixture(scope="module")
def served(service: Service, smollm2_path: Path) -> Iterator[ServedSwarm]:
    settings = ServingSettings(NAME, service.plan.max_positions, service.plan.sessions)
    with ServedSwarm(service._client, settings, texts=TextSide(str(smollm2_path))) as served:
        yield served


@pytest.fixture
def client(served: ServedSwarm) -> OpenAI:
    return served.openai()


def test_chat_and_completion_answer_as_the_service_does(client: OpenAI, service: Service) -> None:
    own = service.generate(chat=PAIRS, max_tokens=12)
    answer = client.chat.completions.create(**GREEDY)
    assert answer.choices[0].message.content == own.text
    assert answer.choices[0].finish_reason == own.finish_reason
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        len(own.record.prompt_ids),
        len(own.tokens),
    )
    streamed = client.chat.completions.create(**GREEDY, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == own.text
    completed = client.completions.create(model=NAME, prompt="The Danube flows", max_tokens=16, temperature=0)
    assert completed.choices[0].text == service.generate("The Danube flows", max_tokens=16).text
    same = client.completions.create(model=NAME, prompt=list(own.record.prompt_ids), max_tokens=12, temperature=0)
    assert same.choices[0].text == own.text


def test_parts_of_a_content_are_joined_as_the_template_side_does(client: OpenAI) -> None:
    parts: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Name"}, {"type": "text", "text": "a river."}]}
    ]
    joined: Any = [{"role": "user", "content": "Name\na river."}]
    answers = [
        client.chat.completions.create(**GREEDY | {"messages": messages, "max_tokens": 8})
        for messages in (parts, joined)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].usage == answers[1].usage


def test_a_seed_gives_the_same_text_also_among_others_and_no_seed_another(client: OpenAI) -> None:
    alone = client.chat.completions.create(**DRAWN, seed=7).choices[0].message.content
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.chat.completions.create, **DRAWN, seed=seed) for seed in (7, 8, 7, 9)]
        together = [future.result().choices[0].message.content for future in asked]
    assert together[0] == together[2] == alone
    assert len({alone, together[1], together[3]}) == 3
    assert client.chat.completions.create(**DRAWN).choices[0].message.content != alone


def test_a_stop_string_ends_the_answer_and_is_no_part_of_it(client: OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    assert whole is not None
    stop = whole[9:12]
    ended = client.chat.completions.create(**GREEDY, stop=["nowhere", stop]).choices[0]
    assert (ended.message.content, ended.finish_reason) == (whole[: whole.index(stop)], "stop")
    streamed = list(client.chat.completions.create(**GREEDY, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole[: whole.index(stop)]
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_are_those_of_the_tokens_that_were_drawn(client: OpenAI) -> None:
    chat = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3).choices[0]
    assert chat.logprobs is not None
    assert chat.logprobs.content is not None
    raw = b"".join(bytes(entry.bytes or ()) for entry in chat.logprobs.content)
    assert raw.decode() == chat.message.content
    for entry in chat.logprobs.content:
        values = [other.logprob for other in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, values[0]), "greedy takes the likeliest"
        assert sum(map(math.exp, values)) <= 1 + 1e-6
    streamed = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3, stream=True)
    told = [entry for chunk in streamed if (found := chunk.choices[0].logprobs) for entry in found.content or ()]
    assert told == chat.logprobs.content
    completion = client.completions.create(model=NAME, prompt="The Danube", max_tokens=6, temperature=0, logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == completion.choices[0].text
    assert [len(top) for top in logprobs.top_logprobs or ()] == [2] * 6
    assert logprobs.text_offset == [sum(map(len, (logprobs.tokens or [])[:index])) for index in range(6)]


def test_biases_and_extensions_reach_the_sampler(client: OpenAI, service: Service) -> None:
    own = service.generate(chat=PAIRS, max_tokens=4)
    banned = client.chat.completions.create(**GREEDY | {"max_tokens": 4, "logit_bias": {str(own.tokens[0]): -100}})
    assert banned.choices[0].message.content != own.text
    narrow = client.chat.completions.create(**DRAWN | {"max_tokens": 4}, extra_body={"top_k": 1})
    assert narrow.choices[0].message.content == own.text
    penalized = client.chat.completions.create(**GREEDY, extra_body={"repetition_penalty": 1.9}, presence_penalty=2)
    assert penalized.choices[0].message.content != client.chat.completions.create(**GREEDY).choices[0].message.content


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(served: ServedSwarm, service: Service) -> None:
    long = [{"role": "user", "content": "river " * 400}]
    for stream in (False, True):
        status, body, _ = served.post("/v1/chat/completions", {"model": NAME, "messages": long, "stream": stream})
        error = body["error"]
        assert (status, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
        assert f"at most {service.plan.max_positions}" in error["message"]
