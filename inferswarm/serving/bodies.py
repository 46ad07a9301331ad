"""The bodies of answers, whole and in chunks, as OpenAI's protocol has them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from inferswarm.fabric import messages as m

Body = dict[str, Any]


class TokenBytes(Protocol):
    """What log-probabilities need of a model's text: `fabric.text_side.TextSide` is one."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The model's own end tokens, which are no part of an answer's text."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for, none for one that stands for nothing."""
        ...


def token_name(raw: bytes) -> str:
    """Return a token's bytes as text; where they are no whole characters, as `bytes:` and their hexadecimal form.

    >>> token_name(b" sky")
    ' sky'
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Usage(NamedTuple):
    """Counts of tokens; an end token counts as generated."""

    prompt_tokens: int
    completion_tokens: int

    def body(self) -> Body:
        """Return the JSON object."""
        return {**self._asdict(), "total_tokens": self.prompt_tokens + self.completion_tokens}


class Bodies:
    """Makes the bodies of one answer."""

    def __init__(
        self,
        name: str,
        model: str,
        fingerprint: str | None,
        *,
        is_chat: bool,
        texts: TokenBytes | None,
        include_usage: bool = False,
    ) -> None:
        """`texts` is needed for log-probabilities; with `include_usage` a stream's last chunk tells the usage."""
        self._is_chat = is_chat
        self._texts = texts
        self._offset = 0
        kind = "chat.completion" if is_chat else "text_completion"
        created = int(time.time())
        head: Body = {"id": name, "created": created, "model": model, "system_fingerprint": fingerprint}
        self._whole = {**head, "object": kind}
        self._chunk = {**head, "object": f"{kind}.chunk" if is_chat else kind}
        if include_usage:
            self._chunk["usage"] = None  # of every chunk but the last

    def opening(self) -> Body | None:
        """Return the chunk that opens an answer: who speaks. None where there is nothing to say."""
        if not self._is_chat:
            return None
        return self._chunk | {"choices": [self._choice({"delta": {"role": "assistant", "content": ""}})]}

    def piece(self, text: str, tokens: Sequence[m.TokenCommitted]) -> Body:
        """Return the chunk with a piece of text and the log-probabilities of its tokens, if they have any."""
        content = {"delta": {"content": text}} if self._is_chat else {"text": text}
        return self._chunk | {"choices": [self._choice(content, self._logprobs(tokens))]}

    def closing(self, finish_reason: str) -> Body:
        """Return the chunk that says why an answer ended."""
        content: Body = {"delta": {}} if self._is_chat else {"text": ""}
        return self._chunk | {"choices": [self._choice(content, None, finish_reason)]}

    def usage(self, usage: Usage) -> Body:
        """Return the last chunk where the usage was asked for."""
        return self._chunk | {"choices": [], "usage": usage.body()}

    def whole(self, text: str, tokens: Sequence[m.TokenCommitted], finish_reason: str, usage: Usage) -> Body:
        """Return a whole answer."""
        content: Body = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = self._choice(content, self._logprobs(tokens), finish_reason)
        return self._whole | {"choices": [choice], "usage": usage.body()}

    @staticmethod
    def _choice(content: Body, logprobs: Body | None = None, finish_reason: str | None = None) -> Body:
        return {"index": 0, **content, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[m.TokenCommitted]) -> Body | None:
        """Return the log-probabilities of tokens, end tokens left out; None when there are none to report."""
        texts = self._texts
        if texts is None or not any(token.logprobs for token in tokens):
            return None
        told = [
            [(texts.token_bytes(number), value) for number, value in token.logprobs]
            for token in tokens
            if token.logprobs and token.token not in texts.stop_ids
        ]
        if self._is_chat:
            return {"content": [_chat_entry(*entries[0], entries[1:]) for entries in told], "refusal": None}
        body: Body = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for (raw, value), *others in told:
            body["tokens"].append(token_name(raw))
            body["token_logprobs"].append(value)
            body["top_logprobs"].append({token_name(other): logprob for other, logprob in others})
            body["text_offset"].append(self._offset)
            self._offset += len(token_name(raw))
        return body


def _chat_entry(raw: bytes, logprob: float, others: Sequence[tuple[bytes, float]] | None = None) -> Body:
    entry: Body = {"token": token_name(raw), "logprob": logprob, "bytes": list(raw)}
    if others is not None:
        entry["top_logprobs"] = [_chat_entry(*other) for other in others]
    return entry
