"""A model's own chat template, rendered in a sandbox.

The template comes out of a model file, so it runs in jinja2's immutable sandbox: it can neither reach Python's
internals nor change what it is given. It gets `messages`, `tools`, `documents`, `add_generation_prompt`,
`bos_token`, `eos_token`, `raise_exception` and `strftime_now`. Not covered: a bound on how long a hostile template
runs, and names of special tokens inside a message, which a rendered chat does not tell from the template's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from inferswarm.errors import ModelError, SpecError

Message = Mapping[str, Any]


class ChatTemplate:
    """One compiled template.

    `template` is the jinja2 text (None when the file has none), `special_tokens` the names that it may use
    (`bos_token`, `eos_token` …), `now` the clock behind `strftime_now`. Raises SpecError when the model has no
    template, ModelError when it cannot be compiled.
    """

    def __init__(
        self,
        template: str | None,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if template is None:
            raise SpecError("chat", source, "a model with a chat template; this one completes raw text only")
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._template_error = TemplateError
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise ModelError(source, f"the chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt for a conversation; encode it with `parse_special=True`.

        `add_generation_prompt` opens the assistant's turn. `variables` are passed to the template. Raises SpecError
        for messages without a role or text and for those that the template itself refuses, ModelError when the
        template fails.
        """
        _check_messages(messages)
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **(self._special_tokens | variables),
            )
        except _Refused as refusal:
            raise SpecError("messages", [message["role"] for message in messages], str(refusal)) from refusal
        except (
            self._template_error,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ModelError(self.source, f"the chat template failed: {type(error).__name__}: {error}") from error


class _Refused(Exception):
    """The template called `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(f"what the template accepts: {message}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: not escaped for HTML, which jinja2's own filter would do."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise SpecError("messages", [], "at least one message")
    for index, message in enumerate(messages):
        for part in ("role", "content"):
            if not isinstance(message, Mapping) or not isinstance(message.get(part), str):
                raise SpecError(f"messages[{index}]", message, f"a mapping with text as its {part!r}")
