"""Requests as clients write them: what is understood, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from inferswarm.fabric import messages as m
from inferswarm.serving.problems import Refusal
from inferswarm.serving.requests import DEFAULT_COMPLETION_TOKENS, Wanted, read_request

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> Wanted:
    return read_request({"model": "m", "messages": [USER], **fields}, "m", is_chat=True)


def completion(**fields: Any) -> Wanted:
    return read_request({"model": "m", "prompt": "hi", **fields}, "m", is_chat=False)


def refused(read: Any, **fields: Any) -> tuple[int, str | None, str | None]:
    with pytest.raises(Refusal) as refusal:
        read(**fields)
    problem = refusal.value.problem
    assert problem.message
    return problem.status, problem.param, problem.code


def test_without_settings_tokens_are_drawn_as_the_protocol_says():
    wanted = chat()
    assert wanted.question.chat == (m.ChatMessage("user", "hi"),)
    assert wanted.question.max_tokens is None
    assert (wanted.question.sampling.temperature, wanted.question.sampling.seed) == (1.0, None)
    assert (wanted.stream, wanted.include_usage, wanted.question.stop) == (False, False, ())
    assert completion().question.max_tokens == DEFAULT_COMPLETION_TOKENS


def test_every_setting_reaches_the_sampler():
    wanted = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"7": -100, "3": 1.5},
        seed=2**64 - 1,
        logprobs=True,
        top_logprobs=5,
        stop="end",
        max_completion_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    sampling = wanted.question.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    assert penalties == (1.1, -1.0, 2.0)
    assert sampling.logit_bias == ((3, 1.5), (7, -100.0))
    assert (sampling.seed, sampling.logprobs) == (str(2**64 - 1), 5)
    assert (wanted.question.stop, wanted.question.max_tokens) == (("end",), 9)
    assert (wanted.stream, wanted.include_usage) == (True, True)


@pytest.mark.parametrize(
    ("prompt", "text", "token_ids"),
    [("a", "a", ()), (["a"], "a", ()), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2)), ("", "", ())],
)
def test_a_prompt_is_a_text_or_token_ids(prompt, text, token_ids):
    question = completion(prompt=prompt).question
    assert (question.text, question.token_ids) == (text, token_ids)


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ({"role": "developer", "content": "x"}, m.ChatMessage("system", "x")),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, m.ChatMessage("user", ("a",))),
        (
            {"role": "assistant", "content": "x", "refusal": None, "tool_calls": [], "annotations": None},
            m.ChatMessage("assistant", "x"),
        ),
    ],
)
def test_messages_are_given_as_templates_know_them(message, given):
    assert chat(messages=[USER, message]).question.chat[1] == given


NEUTRAL = {
    "n": 1,
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "store": False,
    "service_tier": "auto",
    "user": "someone",
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "seed": None,
    "audio": None,
    "stop": [],
}


@pytest.mark.parametrize("field", sorted(NEUTRAL))
def test_what_changes_nothing_is_accepted(field):
    assert chat(**{field: NEUTRAL[field]}).question == chat().question


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_value"),
        ({"n": True}, "n", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "unsupported_value"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"echo": False}, "echo", "unknown_parameter"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": -1}, "top_k", "invalid_value"),
        ({"min_p": 1.5}, "min_p", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"seed": 2**64}, "seed", "invalid_value"),
        ({"seed": 1.0}, "seed", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", None),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"01": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": []}, "logit_bias", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "unsupported_value"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        ({"messages": []}, "messages", "invalid_type"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "unsupported_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{**USER, "name": "Ann"}]}, "messages[0].name", "unsupported_parameter"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, "messages[0].tool_calls", "unsupported_value"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[1].content[0].type",
            "unsupported_value",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_type"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields, param, code):
    assert refused(chat, **fields) == (400, param, code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ["a", "b"]}, "prompt", "unsupported_value"),
        ({"prompt": []}, "prompt", "invalid_type"),
        ({"prompt": [[]]}, "prompt", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"echo": True}, "echo", "unsupported_value"),
        ({"best_of": 2}, "best_of", "unsupported_value"),
        ({"suffix": "x"}, "suffix", "unsupported_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"tools": []}, "tools", "unknown_parameter"),
    ],
)
def test_completions_refuse_what_they_cannot_do(fields, param, code):
    assert refused(completion, **fields) == (400, param, code)


def test_another_model_is_not_found():
    assert refused(chat, model="other") == (404, "model", "model_not_found")


def test_a_long_value_is_not_sent_back_whole():
    with pytest.raises(Refusal) as refusal:
        chat(stop={"x": "y" * 10_000})
    assert len(refusal.value.problem.message) < 300
