"""The endpoint over real processes that compute nothing, asked by the official client and by plain connections."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.text_side import TextSide
from inferswarm.serving.service import ServingSettings
from tests.integration.http_endpoint import ServedSwarm
from tests.integration.null_swarm import LONG, NullSwarm, expected, null_plan
from tests.models import small_vocabulary, write_small_llama
from tests.unit.fabric.processes import wait_until

NODES = ("amber", "birch")
NUM_SESSIONS = 4
PROMPT = list(range(20))
NUM_FOLLOWED = 400
CHAT: Any = [{"role": "user", "content": "hi"}]
SETTINGS = ServingSettings("null", 2 * LONG, NUM_SESSIONS, queue_length=2, queue_seconds=10.0, patience_seconds=1.0)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose end token the null backend, which has 1,000 tokens, never draws."""
    tokens, _, _ = small_vocabulary(2000)
    metadata = {
        "tokenizer.ggml.tokens": ["<|a|>", "<|b|>", "<|c|>", *tokens[3:]],
        "tokenizer.ggml.eos_token_id": 1999,
    }
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return write_small_llama(path, vocab=2000, chat_template=template, metadata=metadata)


@pytest.fixture(scope="module")
def text(model_file: Path) -> TextSide:
    return TextSide(str(model_file))


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[NullSwarm]:
    with NullSwarm(tmp_path_factory.mktemp("swarm"), NODES) as swarm:
        swarm.realize(plan=null_plan(NODES, sessions=NUM_SESSIONS), text_of=model_file)
        yield swarm


def serve(swarm: NullSwarm, text: TextSide | None = None, **fields: Any) -> ServedSwarm:
    wait = fields.pop("wait", True)
    assert swarm.client is not None
    return ServedSwarm(swarm.client, SETTINGS._replace(**fields), texts=text, wait=wait)


@pytest.fixture(scope="module")
def served(swarm: NullSwarm, text: TextSide) -> Iterator[ServedSwarm]:
    with serve(swarm, text) as served:
        yield served


def session_of(served: ServedSwarm, name: str) -> int:
    assert served.serving is not None
    named = served.serving.names.read(name)
    assert named is not None
    return named.session


def text_of(text: TextSide, tokens: tuple[int, ...]) -> str:
    detokenizer = text.detokenizer()
    return "".join(map(detokenizer.push, tokens)) + detokenizer.finish()


def ask_long(served: ServedSwarm, **fields: Any) -> openai.Stream[Any]:
    return served.openai().completions.create(model="null", prompt=PROMPT, max_tokens=LONG, stream=True, **fields)


# -- answers --


def test_whole_and_streamed_answers_are_what_the_ledger_has(
    served: ServedSwarm, swarm: NullSwarm, text: TextSide
) -> None:
    client = served.openai()
    for is_chat in (True, False):
        if is_chat:
            whole: Any = client.chat.completions.create(model="null", messages=CHAT, max_tokens=40)
            shown = whole.choices[0].message.content
        else:
            whole = client.completions.create(model="null", prompt=PROMPT, max_tokens=40)
            shown = whole.choices[0].text
        record = swarm.record(session_of(served, whole.id))
        assert record.state == "COMPLETED"
        assert shown == text_of(text, record.tokens)
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
            len(record.prompt_ids),
            len(record.tokens),
        )
        assert whole.usage.total_tokens == len(record.prompt_ids) + len(record.tokens)
        assert whole.choices[0].finish_reason == record.reason
        assert whole.system_fingerprint.endswith(f"-e{record.epoch}")
        options: Any = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 40}
        if is_chat:
            chunks = list(client.chat.completions.create(model="null", messages=CHAT, **options))
            pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
            assert chunks[0].choices[0].delta.role == "assistant"
        else:
            chunks = list(client.completions.create(model="null", prompt=PROMPT, **options))
            pieces = [chunk.choices[0].text for chunk in chunks[:-1]]
        assert "".join(pieces) == shown
        assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [
            None,
            whole.choices[0].finish_reason,
        ]


def test_four_answers_stream_side_by_side(served: ServedSwarm, swarm: NullSwarm, text: TextSide) -> None:
    prompts = [[start, *PROMPT] for start in range(NUM_SESSIONS)]
    sessions: list[int] = []
    states: list[str] = []
    begun = threading.Barrier(
        NUM_SESSIONS, lambda: states.extend(swarm.record(number).state for number in sessions), timeout=20.0
    )

    def answer(prompt: list[int]) -> str:
        stream = served.openai().completions.create(model="null", prompt=prompt, max_tokens=400, stream=True)
        first = next(iter(stream))
        sessions.append(session_of(served, first.id))
        begun.wait()  # nobody goes on before everybody has a piece
        return first.choices[0].text + "".join(chunk.choices[0].text for chunk in stream)

    with concurrent.futures.ThreadPoolExecutor(NUM_SESSIONS) as pool:
        answers = list(pool.map(answer, prompts))
    assert states == ["OPEN"] * NUM_SESSIONS, "answers were computed one after the other"
    for prompt, shown in zip(prompts, answers, strict=True):
        assert shown == text_of(text, expected(prompt, 400).tokens)


def test_without_a_limit_a_chat_answer_may_fill_the_context(served: ServedSwarm, swarm: NullSwarm) -> None:
    with served.openai().chat.completions.create(model="null", messages=CHAT, stream=True) as stream:
        record = swarm.record(session_of(served, next(iter(stream)).id))
    assert record.max_tokens + len(record.prompt_ids) == SETTINGS.max_positions
    assert wait_until(lambda: swarm.record(record.session).state != "OPEN", 5.0)


# -- clients that go away, wait, or do not read --


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_ends_its_session_on_every_stage(
    served: ServedSwarm, swarm: NullSwarm, streams: bool
) -> None:
    body = {"model": "null", "prompt": PROMPT, "max_tokens": LONG, "stream": streams}
    before = max(report.positions for report in swarm.stage_reports())
    with (
        contextlib.suppress(httpx2.ReadTimeout),  # of a whole answer there is nothing to read
        httpx2.Client(timeout=httpx2.Timeout(20.0, read=0.5)) as client,
        client.stream("POST", f"{served.url}/v1/completions", json=body) as response,
    ):
        next(response.iter_bytes())
    session = last_session(swarm)
    assert wait_until(lambda: swarm.record(session).state == "CANCELLED", 5.0), swarm.record(session).state
    assert 0 < len(swarm.record(session).tokens) < 2000
    counts = [report.positions for report in swarm.stage_reports()]
    assert max(counts) > before
    assert [report.positions for report in swarm.stage_reports()] == counts, "a stage still computes"
    with concurrent.futures.ThreadPoolExecutor(NUM_SESSIONS) as pool:  # every session of the plan is free again
        answers = list(pool.map(lambda _: swarm.generate(PROMPT, 5), range(NUM_SESSIONS)))
    assert [answer.record.tokens for answer in answers] == [expected(PROMPT, 5).tokens] * NUM_SESSIONS


def last_session(swarm: NullSwarm) -> int:
    """Return the number of the newest session."""
    number = 0
    with contextlib.suppress(SpecError):
        for number in itertools.count(1):
            swarm.record(number)
    return number - 1


def test_a_client_that_does_not_read_is_given_up_and_others_are_not_held(
    served: ServedSwarm, swarm: NullSwarm
) -> None:
    body = {"model": "null", "prompt": PROMPT, "max_tokens": LONG, "stream": True}
    request = httpx2.Request("POST", f"{served.url}/v1/completions", json=body)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(served.address)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        content = request.read()
        deaf.sendall(head + b"content-length: %d\r\n\r\n" % len(content) + content)
        heard = b""
        while (found := re.search(rb'"id":"([^"]+)"', heard)) is None:
            heard += deaf.recv(512)
        session = session_of(served, found.group(1).decode())
        assert served.openai().completions.create(model="null", prompt=PROMPT, max_tokens=20).usage
        assert wait_until(lambda: swarm.record(session).state == "CANCELLED", 20.0)
    assert len(swarm.record(session).tokens) < LONG


def test_requests_beyond_all_sessions_wait_in_a_queue_that_ends(served: ServedSwarm, swarm: NullSwarm) -> None:
    assert served.serving is not None
    slots = served.serving.slots
    with contextlib.ExitStack() as open_streams, concurrent.futures.ThreadPoolExecutor(2) as pool:
        streams = [open_streams.enter_context(ask_long(served)) for _ in range(NUM_SESSIONS)]
        assert wait_until(lambda: slots.is_full, 5.0)
        waiting = [
            pool.submit(served.openai().completions.create, model="null", prompt=PROMPT, max_tokens=3)
            for _ in range(SETTINGS.queue_length)
        ]
        assert wait_until(lambda: slots.num_waiting == SETTINGS.queue_length, 5.0)
        with pytest.raises(openai.RateLimitError) as refused:
            served.openai().completions.create(model="null", prompt=PROMPT, max_tokens=3)
        assert refused.value.code == "queue_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()
        assert [future.result(20.0).usage.completion_tokens for future in waiting] == [3, 3]


# -- sessions' events --


def test_a_client_that_reconnects_gets_every_token_from_its_position_on(
    served: ServedSwarm, swarm: NullSwarm
) -> None:
    body: Any = {"model": "null", "prompt": PROMPT, "max_tokens": NUM_FOLLOWED}
    with served.openai().completions.create(**body, stream=True) as stream:
        first = next(iter(stream))
        begin = len(PROMPT) + 3
        followed = served.events(f"/v1/sessions/{first.id}/events?from={begin}")  # while the session is computed
        rest = "".join(chunk.choices[0].text for chunk in stream)
    record = swarm.record(session_of(served, first.id))
    assert record.state == "COMPLETED"
    tokens = [event for position, event in followed if position is not None]
    assert [event["session"]["token"] for event in tokens] == list(record.tokens[3:])
    assert [position for position, _ in followed if position is not None] == list(
        range(begin, len(PROMPT) + NUM_FOLLOWED)
    )
    tail = "".join(event["choices"][0]["text"] for event in tokens)
    assert (first.choices[0].text + rest).endswith(tail)
    assert [event["choices"][0]["finish_reason"] for _, event in followed[-3:-2]] == ["length"]
    assert followed[-1][1] == "[DONE]"
    again = served.events(f"/v1/sessions/{first.id}/events", **{"last-event-id": str(begin - 1)})
    assert [pair for pair in again if pair[0] is not None and pair[1].pop("created")] == [
        pair for pair in followed if pair[0] is not None and pair[1].pop("created")
    ]


def test_the_events_of_a_cancelled_session_end_with_an_error(served: ServedSwarm, swarm: NullSwarm) -> None:
    with ask_long(served) as stream:
        name = next(iter(stream)).id
    assert wait_until(lambda: swarm.record(session_of(served, name)).state == "CANCELLED", 5.0)
    *tokens, (_, last) = served.events(f"/v1/sessions/{name}/events")
    assert len(tokens) == len(swarm.record(session_of(served, name)).tokens)
    assert last["error"]["code"] == "session_cancelled"


@pytest.mark.parametrize("name", ["chatcmpl-test-1-0123456789abcdef", "1", "x", "cmpl-test-1"])
def test_nobody_reads_a_session_whose_name_was_not_given_out(served: ServedSwarm, name: str) -> None:
    status, body = served.get(f"/v1/sessions/{name}/events")
    assert (status, body["error"]["code"]) == (404, "session_not_found")


# -- readiness, losses, the end --


def test_the_endpoint_is_ready_when_a_forward_has_passed_and_not_without_an_epoch(
    tmp_path: Path, model_file: Path
) -> None:
    with NullSwarm(tmp_path, NODES, patience_seconds=0.2) as swarm, serve(swarm, wait=False) as served:
        assert served.get("/healthz")[0] == 200
        assert served.get("/readyz")[0] == 503
        with pytest.raises(openai.InternalServerError) as refused:
            served.openai().completions.create(model="null", prompt=PROMPT, max_tokens=3)
        assert (refused.value.status_code, refused.value.code) == (503, "no_active_authority")
        plan = null_plan(NODES, sessions=NUM_SESSIONS)
        swarm.realize(plan=plan)
        assert wait_until(lambda: served.get("/readyz")[0] == 200, 10.0), served.get("/readyz")
        assert [report.positions for report in swarm.stage_reports()] == [1, 1], "no forward has passed"
        swarm.ask(m.Retire())
        assert wait_until(lambda: served.get("/readyz")[0] == 503, 10.0)
        assert "no epoch has authority" in served.get("/readyz")[1]["reason"]
        epoch = swarm.realize(plan=plan).epoch
        assert wait_until(lambda: served.get("/readyz")[0] == 200, 10.0)
        assert served.get("/readyz")[1]["epoch"] == epoch

        with served.openai().completions.create(model="null", prompt=PROMPT, max_tokens=LONG, stream=True) as stream:
            os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
            seen: list[Any] = []
            with pytest.raises(openai.APIError) as lost:
                seen.extend(stream)
        assert lost.value.code == "stage_lost"
        assert "birch" in lost.value.message
        assert [chunk.choices[0].finish_reason for chunk in seen if chunk.choices] == [None] * len(seen)


def test_a_server_that_stops_tells_its_clients_and_cancels_their_sessions(swarm: NullSwarm, text: TextSide) -> None:
    with serve(swarm, text) as served:
        stream = iter(ask_long(served))
        session = session_of(served, next(stream).id)
        served.stop()
        with pytest.raises(openai.APIError) as stopped:
            list(stream)
    assert stopped.value.code == "server_stopping"
    assert wait_until(lambda: swarm.record(session).state == "CANCELLED", 5.0)


# -- refusals --


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("chat/completions", {"model": "other", "messages": CHAT}, 404, "model", "model_not_found"),
        ("chat/completions", {"messages": CHAT}, 400, "model", "missing_required_parameter"),
        ("chat/completions", {"model": "null", "messages": CHAT, "tools": [{}]}, 400, "tools", "unsupported_value"),
        ("chat/completions", {"model": "null", "messages": CHAT, "stpo": "x"}, 400, "stpo", "unknown_parameter"),
        (
            "completions",
            {"model": "null", "prompt": [1, 2], "max_tokens": 2 * LONG},
            400,
            "prompt",
            "context_length_exceeded",
        ),
        ("completions", {"model": "null", "prompt": ""}, 400, "prompt", "invalid_value"),
        ("completions", {"model": "null", "prompt": [5000]}, 400, "prompt", "invalid_value"),
        (
            "completions",
            {"model": "null", "prompt": [1], "logit_bias": {"5000": 1}},
            400,
            "logit_bias",
            "invalid_value",
        ),
        ("completions", b"{", 400, None, "invalid_json"),
        ("completions", b"[1]", 400, None, "invalid_type"),
        ("nothing", {}, 404, None, "unknown_url"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused_in_the_protocols_shape(
    served: ServedSwarm, path: str, body: Any, status: int, param: str | None, code: str, stream: bool
) -> None:
    sent = body | {"stream": stream} if isinstance(body, dict) else body
    found, answer, _ = served.post(f"/v1/{path}", sent)
    error = answer["error"]
    assert (found, error["type"], error["param"], error["code"]) == (status, "invalid_request_error", param, code)
    assert error["message"]


def test_pages_of_other_places_cannot_use_an_endpoint_on_this_machine(served: ServedSwarm) -> None:
    body = {"model": "null", "prompt": [1]}
    assert served.post("/v1/completions", body, host="evil.example")[0] == 421
    assert served.post("/v1/completions", body, **{"content-type": "text/plain"})[0] == 415
    assert served.post("/v1/completions", body, host="localhost:8000")[0] == 200


def test_models_are_listed_and_looked_up(served: ServedSwarm) -> None:
    client = served.openai()
    assert [model.id for model in client.models.list()] == ["null"]
    assert client.models.retrieve("null").owned_by == "inferswarm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
