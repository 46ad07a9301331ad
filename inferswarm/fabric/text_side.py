"""The Coordinator's text: tokenizer, chat template and ends of an answer of one model. No tensor is read.

Works for every model whose text files are understood, also where only another library knows the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from inferswarm.errors import AdmissionError, SpecError
from inferswarm.fabric.messages import ChatMessage
from inferswarm.strategies.catalog import resolve_model
from inferswarm.strategies.text.chat import ChatIds, encode_chat
from inferswarm.strategies.text.detokenizer import Detokenizer
from inferswarm.strategies.text.source import open_text

Result = TypeVar("Result")


class TextSide:
    """Text in, token ids out, and back."""

    def __init__(self, model_path: str) -> None:
        """Read the text of the model at `model_path` and build the tokenizer.

        Raises as `resolve_model` and `open_text`.
        """
        self._text = open_text(resolve_model(model_path))
        self.stop_ids: tuple[int, ...] = tuple(sorted(self._text.stop_ids))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of raw text. Raises AdmissionError when there is nothing to answer."""
        if not text:
            raise AdmissionError("prompt", "", "a text that is not empty")
        return _admitted(lambda: self._text.codec.encode(text))

    def encode_chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return the ids of a conversation, with the assistant's turn opened; errors as `chat_prompt`."""
        return self.chat_prompt([_mapping(message) for message in messages]).ids

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> ChatIds:
        """Return the ids of a conversation, its text, and the reasoning tag that its end opens for the answer.

        Contents may be lists of text parts; `variables` go to the template (`tools`, `documents`, its own). Names of
        control tokens in any of it stay plain text. Raises AdmissionError for a model without a chat template, for
        messages or variables that cannot be used, and when there is nothing to answer; ModelError when the template
        itself fails.
        """
        asked = _admitted(lambda: encode_chat(self._text.codec, self._text.chat, messages, **variables))
        if not any(message.get("content") or message.get("tool_calls") for message in messages):
            raise AdmissionError("prompt", "", "at least one message that is not empty")
        return asked

    def prompt_ids(self, prompt: str, *, raw: bool) -> tuple[int, ...]:
        """Return the ids of a single prompt: as it is, or as a user's first message."""
        return self.encode(prompt) if raw else self.encode_chat((ChatMessage("user", prompt),))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; none for an id beyond the tokenizer's, which models may draw."""
        return self._text.codec.token_bytes(token) if token < self._text.codec.size else b""

    def detokenizer(self) -> Detokenizer:
        """Return a fresh incremental detokenizer for an answer."""
        return Detokenizer(self._text.codec)


def _admitted(encode: Callable[[], Result]) -> Result:
    try:
        return encode()
    except SpecError as error:
        raise AdmissionError(_place(error.field), error.found, error.needed) from error


def _mapping(message: ChatMessage) -> dict[str, Any]:
    """Return a message as templates are given it."""
    content = message.content
    parts = content if isinstance(content, str) else [{"type": "text", "text": text} for text in content]
    return {"role": message.role, "content": parts}


def _place(field: str) -> str:
    """Return what a caller of the service calls a field: what is wrong with the text is wrong with the prompt."""
    return "prompt" if field == "text" else field
