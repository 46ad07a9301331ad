"""The messages of a conversation, checked before any template sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from inferswarm.errors import SpecError

Message = Mapping[str, Any]
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_ROLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what no template can be given.

    A message is a mapping of JSON-like values with a `role` (one plain word: templates build control tokens out of
    it) and a `content`: text, or a list of parts `{"type": "text", "text": …}`. The content may be missing or None
    where an assistant calls tools. Raises SpecError naming the message and what is wrong with it.
    """
    if not messages:
        raise SpecError("messages", [], "at least one message")
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise SpecError(name, message, "a mapping with a role and a content")
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise SpecError(f"{name}.role", role, "one word of letters, digits, '_', '-' and '.'")
        content = message.get("content")
        if isinstance(content, (list, tuple)) and content:
            for number, part in enumerate(content):
                _check_part(f"{name}.content[{number}]", part)
        elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise SpecError(f"{name}.content", content, "text, or a list of text parts")
        check_plain(message, name)


def check_plain(value: Any, name: str) -> None:
    """Refuse a value that is not made of mappings with text as keys, lists, text, finite numbers, booleans, None.

    Raises SpecError naming the place; `name` is that of the whole.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise SpecError(name, key, "text as every key")
            check_plain(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            check_plain(item, f"{name}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise SpecError(name, value, "a finite number")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise SpecError(name, value, "a mapping, a list, text, a number, a boolean or None")


def copied(value: Any) -> Any:
    """Return a checked value made of plain dicts and lists, so that templates find the methods they call."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return value


def with_joined_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages with text contents only: parts become one text, each on a line of its own."""
    joined = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            content = "\n".join(part["text"] for part in content)
        joined.append({**message, "content": content} if "content" in message else dict(message))
    return joined


def with_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages with lists of parts only: a text becomes the only part."""
    parted = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        parted.append({**message, "content": content} if "content" in message else dict(message))
    return parted


def with_reasoning(message: Message) -> dict[str, Any]:
    """Return a message whose reasoning, if any, has the two names that templates read, as in transformers.

    The first of `reasoning_content`, `thinking` and `reasoning` that is there counts.
    """
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def contents(messages: Sequence[Message]) -> Iterator[str]:
    """Yield every text that is a content or a part of one."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif content is not None:
            yield from (part["text"] for part in content)


def _check_part(name: str, part: Any) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else part
    if kind != "text":
        raise SpecError(f"{name}.type", kind, "'text'; this model is given nothing but text")
    if not isinstance(part.get("text"), str) or set(part) != {"type", "text"}:
        raise SpecError(name, part, "a part {'type': 'text', 'text': …} and nothing else in it")
