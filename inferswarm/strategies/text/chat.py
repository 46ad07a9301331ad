"""A model's own chat template: messages in, a prompt or its token ids out.

The template runs in the bounded sandbox of `sandbox.py`, which says what is not covered. It gets `messages`, `tools`,
`documents`, `add_generation_prompt`, the names of the model's special tokens (`bos_token` …) and the caller's
variables. A variable that it is not given is undefined, as in transformers: empty text, and false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from inferswarm.errors import ModelError, SpecError
from inferswarm.strategies.text.messages import (
    Message,
    check_messages,
    check_plain,
    contents,
    copied,
    with_joined_parts,
    with_parts,
    with_reasoning,
)
from inferswarm.strategies.text.shielding import Shield
from inferswarm.strategies.text.tokenizer import TextCodec

REASONING_TAGS: Final = ("<think>", "<thinking>", "<thought>", "<reasoning>", "<seed:think>", "[THINK]")
"""What a generation prompt may end with: the model's answer then begins inside its reasoning."""
_MAX_TEMPLATE_CHARACTERS: Final = 1 << 20
_PROBE: Final = ("probe 5d1f", "probe 83ca")


class ChatPrompt(NamedTuple):
    """A rendered conversation: its `text`, and the reasoning tag that it `opens` for the answer, if any."""

    text: str
    opens: str | None


class ChatIds(NamedTuple):
    """A conversation as token `ids`, its rendered `text`, and the reasoning tag that it `opens`, if any."""

    ids: tuple[int, ...]
    text: str
    opens: str | None


class ChatTemplate:
    """One compiled template. Safe to use from several threads.

    `template` is the jinja2 text (None when the model has none), `special_tokens` the names that it may use
    (`bos_token`, `eos_token` …), `now` the clock behind `strftime_now`, `clock` (seconds) the one that bounds a
    rendering. Raises SpecError when the model has no template, ModelError when it cannot be compiled.
    """

    def __init__(
        self,
        template: str | None,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if template is None:
            raise SpecError(
                "chat", source, "a model with a chat template; this one completes raw text only (--raw at the CLI)"
            )
        from jinja2 import TemplateError

        from inferswarm.strategies.text import sandbox

        self.source = source
        self.text = template
        self._special_tokens = dict(special_tokens or {})
        self._sandbox = sandbox
        self._environment = (
            sandbox.TemplateEnvironment(now) if clock is None else sandbox.TemplateEnvironment(now, clock)
        )
        self._template_error = TemplateError
        if len(template) > _MAX_TEMPLATE_CHARACTERS:
            raise ModelError(source, f"the chat template has {len(template):,} characters; that is too long")
        try:
            self._template = self._environment.from_string(template)
        except (TemplateError, SyntaxError, RecursionError) as error:
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
        """Return the text of the prompt for a conversation. `encode_chat` makes its ids.

        `add_generation_prompt` opens the assistant's turn. `variables` are passed to the template. Where a template
        takes text only, the parts of a content are joined, a line each; where it takes parts only, a text becomes
        one. Raises SpecError for messages that are not messages (see `check_messages`) or are too long, for data
        that are not JSON-like, and for a conversation that the template itself refuses, naming the role when it is
        a role; ModelError when the template fails or exceeds its bounds.
        """
        check_messages(messages)
        for name, value in {"tools": tools, "documents": documents, **variables}.items():
            check_plain(value, name)
        length, limit = sum(map(len, contents(messages))), self._sandbox.MAX_CHARACTERS
        if length > limit:
            raise SpecError("messages", f"{length:,} characters", f"at most {limit:,}")
        given = self._special_tokens | copied(variables)
        given |= {"tools": copied(tools), "documents": copied(documents)}
        given["add_generation_prompt"] = add_generation_prompt
        with self._environment.within():
            fitting = self._fitting(messages)
            try:
                return self._rendered(fitting, given)
            except self._sandbox.Refused as refusal:
                raise self._refusal(fitting, given, str(refusal)) from refusal

    def prompt(self, messages: Sequence[Message], **options: Any) -> ChatPrompt:
        """Return the prompt and the reasoning tag that it ends in, if any; options and errors as `render`."""
        text = self.render(messages, **options)
        return ChatPrompt(text, self._opened(text, messages, options))

    def _opened(self, text: str, messages: Sequence[Message], options: Mapping[str, Any]) -> str | None:
        """Return the reasoning tag at the end of `text`, unless a message put it there."""
        ending = text.rstrip()
        tag = next((tag for tag in REASONING_TAGS if ending.endswith(tag)), None)
        if tag is None or not options.get("add_generation_prompt", True):
            return None
        if any(content.rstrip().endswith(tag) for content in contents(messages)):
            closed = self.render(messages, **{**options, "add_generation_prompt": False})
            return None if closed == text else tag
        return tag

    def _fitting(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return plain copies of the messages with contents of the kind that the template takes."""
        has_parts = any(not isinstance(message.get("content"), (str, type(None))) for message in messages)
        if has_parts and not self._takes_parts:
            messages = with_joined_parts(messages)
        elif not has_parts and not self._takes_text and self._takes_parts:
            messages = with_parts(messages)
        return [copied(with_reasoning(message)) for message in messages]

    @cached_property
    def _takes_text(self) -> bool:
        """Whether a content that is text reaches the prompt."""
        return self._passes_on("\n".join(_PROBE))

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the parts of a content reach the prompt, as text and not as the list that they are in."""
        return self._passes_on([{"type": "text", "text": text} for text in _PROBE])

    def _passes_on(self, content: Any) -> bool:
        given = self._special_tokens | {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            text = self._rendered([{"role": "user", "content": content}], given)
        except (self._sandbox.Refused, ModelError):
            return False
        return all(probe in text for probe in _PROBE) and "'text'" not in text and '"text"' not in text

    def _refusal(self, messages: list[dict[str, Any]], given: Mapping[str, Any], words: str) -> SpecError:
        """Return the error for what the template refused; it names a role when without it all is well."""
        for role in sorted({message["role"] for message in messages} - {"user", "assistant"}):
            try:
                self._rendered([message for message in messages if message["role"] != role], given)
            except (self._sandbox.Refused, ModelError):
                continue
            place = next(index for index, message in enumerate(messages) if message["role"] == role)
            return SpecError(
                f"messages[{place}].role", role, f"a role that the model's chat template takes; it says: {words}"
            )
        roles = [message["role"] for message in messages]
        return SpecError("messages", roles, f"what the model's chat template takes; it says: {words}")

    def _rendered(self, messages: list[dict[str, Any]], given: Mapping[str, Any]) -> str:
        """Render once. Raises Refused, ModelError."""
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate({**given, "messages": messages}):
                length += len(piece)
                if length > self._sandbox.MAX_CHARACTERS:
                    raise self._sandbox.BoundExceeded(
                        f"it writes more than {self._sandbox.MAX_CHARACTERS:,} characters"
                    )
                self._environment.check()
                pieces.append(piece)
        except (self._sandbox.BoundExceeded, MemoryError) as error:
            why = str(error) or "it needs more memory than there is"
            raise ModelError(self.source, f"the chat template was stopped: {why}") from error
        except (
            self._template_error,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RuntimeError,  # also RecursionError
        ) as error:
            raise ModelError(self.source, f"the chat template failed: {type(error).__name__}: {error}") from error
        return "".join(pieces)


def encode_chat(
    codec: TextCodec,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> ChatIds:
    """Return the ids of a conversation, with the assistant's turn opened.

    The template's control tokens become tokens. Names of control tokens in anything that the caller gives (contents,
    names, tools, documents, variables, and everything in them) stay plain text, tokenized as such: no message can end
    its own turn. A template that looks for such a name in a message does not find it there. `variables` may hold
    `add_generation_prompt`. The beginning token goes first as the model declares, unless the template wrote it.
    Raises as `ChatTemplate.render` and `TextCodec.encode`.
    """
    check_messages(messages)
    for name, value in {"tools": tools, "documents": documents, **variables}.items():
        check_plain(value, name)
    shield = Shield(codec.special_names(), template.text)
    hidden = shield.hide({"messages": list(messages), "tools": tools, "documents": documents, "variables": variables})
    try:
        shown = template.prompt(
            hidden["messages"], tools=hidden["tools"], documents=hidden["documents"], **hidden["variables"]
        )
    except SpecError as error:  # the template's words may quote a message
        raise SpecError(error.field, error.found, shield.restore(error.needed)) from error
    if not shield.hides:
        return ChatIds(codec.encode(shown.text, parse_special=True), shown.text, shown.opens)
    ids: list[int] = []
    for piece, is_plain in shield.pieces(shown.text):
        ids += codec.encode(piece, parse_special=not is_plain, add_bos=False, at_start=not ids)
    if ids[:1] != [codec.bos_id]:
        ids = [*codec.encode("", parse_special=True), *ids]
    return ChatIds(tuple(ids), shield.restore(shown.text), shown.opens)
