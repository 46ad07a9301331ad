"""From a request's JSON to the question for the Coordinator. What cannot be done is refused, never left out.

The fields, their ranges and their defaults are those of OpenAI's chat and completion endpoints, with `top_k`, `min_p`
and `repetition_penalty` as extensions. Without a temperature tokens are drawn at 1, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.messages.client import MAX_COUNT
from inferswarm.serving.fields import Fields
from inferswarm.serving.problems import Problem, Refusal, bad_request
from inferswarm.strategies.sampling import (
    MAX_BIAS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    SEED_END,
    Sampling,
    SamplingArguments,
    check_stop_strings,
    choose_sampling,
)

MAX_STOP = 4
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for `/v1/completions`; a chat answer may fill the context."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of messages, and what templates are given for them: they know no developer."""
_WITHOUT_EFFECT = ("user", "safety_identifier", "metadata", "prompt_cache_key")
_NEUTRAL: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("n", (1,), "1: one answer for each request"),
    ("stream_options", (), "nothing where `stream` is not true"),
    ("store", (False,), "false: answers are not kept for later"),
    ("service_tier", ("auto", "default"), "'auto' or 'default'"),
)
_NEUTRAL_CHAT: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("tools", ([],), "no tools: this server calls none"),
    ("tool_choice", ("none", "auto"), "'none': this server calls no tools"),
    ("parallel_tool_calls", (True, False), "a truth value"),
    ("functions", ([],), "no functions: this server calls none"),
    ("function_call", ("none", "auto"), "'none': this server calls no functions"),
    ("response_format", ({"type": "text"},), "{'type': 'text'}: answers are not constrained"),
    ("modalities", (["text"],), "['text']"),
)
_NEUTRAL_COMPLETION: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("echo", (False,), "false: the prompt is not repeated"),
    ("best_of", (1,), "1: one answer is computed"),
    ("suffix", ("",), "no suffix"),
)
_UNSUPPORTED = {
    "audio": "this server answers with text",
    "prediction": "no predicted output is used",
    "reasoning_effort": "the model decides how long it reasons",
    "verbosity": "the model decides how long it answers",
    "web_search_options": "this server searches nothing",
    "guided_json": "answers are not constrained",
    "ignore_eos": "the model's own end tokens end an answer",
}


class Wanted(NamedTuple):
    """What one request asks for."""

    question: m.Generate
    is_chat: bool
    stream: bool
    include_usage: bool


def read_request(document: object, model: str, *, is_chat: bool) -> Wanted:
    """Read one request to a server of `model`. Raises Refusal naming the parameter that is wrong."""
    fields = Fields(document)
    asked_for = fields.require("model")
    if asked_for != model:
        shown = asked_for if isinstance(asked_for, str) else repr(asked_for)
        message = f"the model {shown!r} is not served here; this server has {model!r}"
        raise Refusal(Problem(404, message, param="model", code="model_not_found"))
    stream = fields.flag("stream")
    include_usage = stream and _include_usage(fields)
    max_tokens = _max_tokens(fields, is_chat)
    sampling = _sampling(fields, _logprobs(fields, is_chat))
    stop = _stop(fields)
    chat = _chat(fields.require("messages")) if is_chat else ()
    text, token_ids = (None, ()) if is_chat else _prompt(fields.require("prompt"))
    for field, neutral, why in (*_NEUTRAL, *(_NEUTRAL_CHAT if is_chat else _NEUTRAL_COMPLETION)):
        fields.only(field, neutral, why)
    fields.ignore(*_WITHOUT_EFFECT)
    fields.finish(_UNSUPPORTED)
    question = m.Generate(
        text=text, chat=chat, token_ids=token_ids, max_tokens=max_tokens, sampling=sampling, stop=stop
    )
    return Wanted(question, is_chat, stream, include_usage)


def _include_usage(fields: Fields) -> bool:
    options = fields.take("stream_options")
    if options is None:
        return False
    inner = Fields(options, "stream_options")
    include_usage = inner.flag("include_usage")
    inner.only("include_obfuscation", (False,), "false: nothing is padded")
    inner.finish({})
    return include_usage


def _max_tokens(fields: Fields, is_chat: bool) -> int | None:
    limits = {name: fields.whole(name, 1, MAX_COUNT) for name in ("max_tokens", "max_completion_tokens")}
    given = {value for value in limits.values() if value is not None}
    if len(given) > 1:
        raise bad_request("max_completion_tokens", f"max_tokens and max_completion_tokens differ: {limits}")
    if given:
        return given.pop()
    return None if is_chat else DEFAULT_COMPLETION_TOKENS


def _logprobs(fields: Fields, is_chat: bool) -> int | None:
    """Return how many alternatives are reported with each token; None: nothing is."""
    if not is_chat:
        return fields.whole("logprobs", 0, MAX_LOGPROBS)
    wanted = fields.flag("logprobs")
    number = fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if number is not None and not wanted:
        fields.refuse("top_logprobs", number, "`logprobs` to be true as well")
    return (number or 0) if wanted else None


def _sampling(fields: Fields, logprobs: int | None) -> Sampling:
    infinity = float("inf")
    arguments = SamplingArguments(
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0, above_low=True),
        top_k=fields.whole("top_k", 0, MAX_COUNT) or 0,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.0, infinity, above_low=True),
        presence_penalty=fields.number("presence_penalty", 0.0, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -MAX_PENALTY, MAX_PENALTY),
        logit_bias=_logit_bias(fields.take("logit_bias")),
        seed=fields.whole("seed", 0, SEED_END - 1),
        logprobs=logprobs,
    )
    return choose_sampling(**arguments)


def _logit_bias(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise bad_request("logit_bias", "logit_bias must be an object of token ids and numbers", "invalid_type")
    inner = Fields(value, "logit_bias")
    biases: dict[int, float] = {}
    for key in map(str, value):
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and str(int(key)) == key):
            message = f"logit_bias: found the key {key!r:.40}, needed a token id"
            raise bad_request("logit_bias", message, "invalid_value")
        biases[int(key)] = inner.number(key, 0.0, -MAX_BIAS, MAX_BIAS)
    return biases


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        fields.refuse("stop", value, "a text or a list of texts", "invalid_type")
    if len(texts) > MAX_STOP:
        fields.refuse("stop", f"{len(texts)} texts", f"at most {MAX_STOP}")
    try:
        check_stop_strings(tuple(texts))
    except SpecError as error:
        raise bad_request(error.field, str(error), "invalid_value") from error
    return tuple(texts)


def _prompt(value: object) -> tuple[str | None, tuple[int, ...]]:
    """Return a prompt as text, or as token ids: a text, a list of ids, or a list of one of them."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise bad_request("prompt", f"prompt: found {len(value)} prompts, needed one", "unsupported_value")
        value = value[0]
    if isinstance(value, str):
        return value, ()
    if not isinstance(value, list) or not value:
        raise bad_request("prompt", "prompt must be a text or a list of token ids that is not empty", "invalid_type")
    for index, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_COUNT:
            name = f"prompt[{index}]"
            raise bad_request(name, f"{name}: found {token!r:.40}, needed a token id", "invalid_type")
    return None, tuple(value)


def _chat(value: object) -> tuple[m.ChatMessage, ...]:
    if not isinstance(value, list) or not value:
        raise bad_request("messages", "messages must be a list of at least one message", "invalid_type")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(value: object, place: str) -> m.ChatMessage:
    fields = Fields(value, place)
    role = fields.require("role")
    if not isinstance(role, str) or role not in ROLES:
        fields.refuse("role", role, f"one of {sorted(ROLES)}", "unsupported_value")
    content = fields.require("content")
    if isinstance(content, list) and content:
        texts: str | tuple[str, ...] = tuple(
            _part(part, f"{place}.content[{index}]") for index, part in enumerate(content)
        )
    elif isinstance(content, str):
        texts = content
    else:
        fields.refuse("content", content, "a text or a list of text parts", "invalid_type")
    for field in ("tool_calls", "annotations"):  # what clients send back of an answer without any
        fields.only(field, ([],), "none: this server calls no tools")
    fields.finish({"name": "templates are given roles only"})
    return m.ChatMessage(ROLES[role], texts)


def _part(value: object, place: str) -> str:
    fields = Fields(value, place)
    kind = fields.require("type")
    if kind != "text":
        fields.refuse("type", kind, "'text'; this server is given nothing but text", "unsupported_value")
    text = fields.require("text")
    if not isinstance(text, str):
        fields.refuse("text", text, "a text", "invalid_type")
    fields.finish({})
    return text
