"""The Coordinator's text: tokenizer and chat template of one model, read from its header. No tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferswarm.errors import AdmissionError, SpecError
from inferswarm.fabric.messages import ChatMessage
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.text.detokenizer import Detokenizer


class TextSide:
    """Text in, token ids out, and back."""

    def __init__(self, model_path: str) -> None:
        """Read the header at `model_path` and build the tokenizer. Raises as `DenseModel.open`."""
        self._model = DenseModel.open(model_path)
        self._codec = self._model.text
        self.stop_ids: tuple[int, ...] = tuple(sorted(self._codec.eos_ids))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of raw text. Raises AdmissionError when there is nothing to answer."""
        if not text:
            raise AdmissionError("prompt", "", "a text that is not empty")
        return self._admit(lambda: self._codec.encode(text))

    def encode_chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return the ids of a conversation, with the assistant's turn opened."""
        plain = [{"role": message.role, "content": message.content} for message in messages]
        if not any(message.content for message in messages):
            raise AdmissionError("prompt", "", "at least one message that is not empty")
        rendered = self._model.chat.render(plain)
        return self._admit(lambda: self._codec.encode(rendered, parse_special=True))

    def prompt_ids(self, prompt: str, *, raw: bool) -> tuple[int, ...]:
        """Return the ids of a single prompt: as it is, or as a user's first message."""
        return self.encode(prompt) if raw else self.encode_chat((ChatMessage("user", prompt),))

    def detokenizer(self) -> Detokenizer:
        """Return a fresh incremental detokenizer."""
        return Detokenizer(self._codec)

    @staticmethod
    def _admit(encode: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        try:
            return encode()
        except SpecError as error:
            raise AdmissionError("prompt", error.found, error.needed) from error
