"""Names of answers, slots, problems, log-probabilities, and faults that are logged without their text."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from inferswarm.errors import (
    AdmissionError,
    CommitRefused,
    EngineError,
    FabricError,
    InferSwarmError,
    ModelError,
    SpecError,
    StageLost,
    WireError,
)
from inferswarm.fabric import messages as m
from inferswarm.serving.answers import Answer
from inferswarm.serving.bodies import Bodies
from inferswarm.serving.identity import SessionNames
from inferswarm.serving.problems import Refusal, problem_of
from inferswarm.serving.server import PlacesOnly, bind, url_of
from inferswarm.serving.service import ServingSettings
from inferswarm.serving.slots import Slots
from inferswarm.serving.streams import EventStream


@pytest.mark.parametrize("scope", ["local", "a-b-12", "x_y"])
@pytest.mark.parametrize("is_chat", [True, False])
def test_a_name_is_read_back_by_whoever_has_the_key(scope, is_chat):
    names = SessionNames(b"key", scope, "model")
    name = names.name(17, is_chat=is_chat)
    assert names.read(name) == (17, is_chat)
    for other in (
        SessionNames(b"other", scope, "model"),
        SessionNames(b"key", scope + "x", "model"),
        SessionNames(b"key", scope, "other"),
    ):
        assert other.read(name) is None


@pytest.mark.parametrize(
    "name", ["", "-", "chatcmpl-local-17-", "chatcmpl-local-18-TAG", "cmpl-local-17-TAG", "é-1-2"]
)
def test_names_that_were_not_made_stand_for_nothing(name):
    names = SessionNames(b"key", "local", "model")
    tag = names.name(17, is_chat=True).rpartition("-")[2]
    assert names.read(name.replace("TAG", tag)) is None


@pytest.mark.parametrize(
    ("error", "status", "param", "code"),
    [
        (AdmissionError("sessions", 5, "at most 4"), 429, None, "sessions_taken"),
        (
            AdmissionError("prompt tokens + max_tokens", "9 + 1 = 10", "at most 8"),
            400,
            "messages",
            "context_length_exceeded",
        ),
        (AdmissionError("messages[1].role", "x", "another"), 400, "messages[1].role", "invalid_value"),
        (AdmissionError("prompt", "", "a text"), 400, "messages", "invalid_value"),
        (AdmissionError("logit_bias", "id 9", "less"), 400, "logit_bias", "invalid_value"),
        (SpecError("sampling", "x", "y"), 400, None, "invalid_value"),
        (WireError("MALFORMED_MESSAGE", "x"), 400, None, "invalid_value"),
        (CommitRefused("NO_ACTIVE_AUTHORITY", "x"), 503, None, "no_active_authority"),
        (StageLost("birch", "stage-1", "killed", 3), 503, None, "stage_lost"),
        (EngineError("coordinator", "has gone"), 503, None, "engine_error"),
        (ModelError("m", "its template fails"), 500, None, "model_error"),
        (FabricError("x"), 500, None, "fabric_error"),
        (InferSwarmError("x"), 500, None, "infer_swarm_error"),
    ],
)
def test_every_error_has_a_status_and_a_code(error, status, param, code):
    problem = problem_of(error)
    assert (problem.status, problem.param, problem.code) == (status, param, code)
    assert (problem.retry_after_seconds is not None) == (status in (429, 503))
    assert str(error) in problem.message


def test_a_prompt_is_called_as_the_request_calls_it():
    error = AdmissionError("prompt", "", "a text")
    assert [problem_of(error, is_chat=is_chat).param for is_chat in (True, False)] == ["messages", "prompt"]


def test_slots_are_given_in_order_and_the_queue_has_an_end():
    async def scenario() -> list[str]:
        slots, order = Slots(1, 2, 0.2), []
        leave = asyncio.Event()

        async def take(name: str) -> None:
            async with slots.place():
                order.append(name)
                await leave.wait()

        tasks = [asyncio.create_task(take(name)) for name in "abc"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (slots.is_full, slots.num_waiting, order) == (True, 2, ["a"])
        with pytest.raises(Refusal) as full:
            await take("d")
        order.append(full.value.problem.code)
        tasks[1].cancel()  # whoever gives up leaves the queue
        await asyncio.sleep(0.01)
        assert slots.num_waiting == 1
        with pytest.raises(Refusal) as late:
            await take("e")
        order.append(late.value.problem.code)
        leave.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        order.extend(type(outcome).__name__ for outcome in outcomes)
        assert (slots.is_full, slots.num_waiting) == (False, 0)
        async with slots.place():
            pass
        return order

    assert asyncio.run(scenario()) == [
        "a",
        "queue_full",
        "queue_timeout",
        "NoneType",
        "CancelledError",
        "Refusal",
    ]


class Breaking(Answer):
    """An answer whose code has a fault, before or after it has begun to stream."""

    starts = False

    async def _answer(self, stream: EventStream) -> Response | None:
        if self.starts:
            await stream.start()
        raise KeyError("what somebody wrote")


@pytest.mark.parametrize("starts", [False, True])
def test_a_fault_of_the_server_is_told_without_its_text_and_without_an_end_mark(starts: bool):
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def scenario() -> None:
        serving: Any = SimpleNamespace(settings=ServingSettings("m", 8, 1), running=set())
        answer = Breaking(serving, is_chat=True)
        answer.starts = starts
        with pytest.raises(KeyError):  # the server logs it
            await answer({"type": "http", "method": "POST"}, receive, send)

    asyncio.run(scenario())
    assert sent[0]["status"] == (200 if starts else 500)
    assert not sent[-1].get("more_body", False), "the response was not ended"
    body = b"".join(message.get("body", b"") for message in sent)
    assert b"internal_error" in body
    assert b"somebody" not in body
    assert b"DONE" not in body


class Texts:
    """Three tokens: a word, half a character, an end token."""

    stop_ids = (2,)

    def token_bytes(self, token: int) -> bytes:
        return (b" sky", b"\xe2\x80", b"<end>")[token]


def told(token: int, *logprobs: tuple[int, float]) -> m.TokenCommitted:
    return m.TokenCommitted(request=1, session=1, position=9, token=token, text="", logprobs=logprobs)


TOKENS = (told(0, (0, -0.5), (0, -0.5), (1, -1.5)), told(1, (1, -0.25), (1, -0.25), (0, -2.0)), told(2, (2, -0.1)))


@pytest.mark.parametrize("is_chat", [True, False])
def test_log_probabilities_leave_out_end_tokens_and_name_parts_of_characters(is_chat):
    bodies = Bodies("id", "model", None, is_chat=is_chat, texts=Texts())
    logprobs: Any = bodies.piece("", TOKENS)["choices"][0]["logprobs"]
    if is_chat:
        assert [entry["token"] for entry in logprobs["content"]] == [" sky", "bytes:\\xe2\\x80"]
        assert logprobs["content"][1]["bytes"] == [0xE2, 0x80]
        assert [other["logprob"] for other in logprobs["content"][0]["top_logprobs"]] == [-0.5, -1.5]
    else:
        assert logprobs["token_logprobs"] == [-0.5, -0.25]
        assert logprobs["top_logprobs"][0] == {" sky": -0.5, "bytes:\\xe2\\x80": -1.5}
        assert logprobs["text_offset"] == [0, 4]


def test_a_logged_fault_has_its_place_and_not_its_text():
    try:
        raise KeyError("what somebody wrote")
    except KeyError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "a fault", (), sys.exc_info())
    text = PlacesOnly("%(message)s").format(record)
    assert "KeyError" in text
    assert "test_serving_parts.py" in text
    assert "what somebody wrote" not in text


def test_a_port_in_use_and_an_address_that_is_none_are_refused():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = int(url_of(listener).rpartition(":")[2])
        with pytest.raises(EngineError, match="cannot be taken"):
            bind("127.0.0.1", port)
    with pytest.raises(SpecError, match="port"):
        bind("127.0.0.1", 70_000)
