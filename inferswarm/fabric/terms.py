"""What OPEN and RESULT frames carry: the terms of a session on its way in, a token on its way out."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from inferswarm.backends.base import LogProbabilities
from inferswarm.strategies.sampling import GREEDY_SAMPLING, Sampling


class SessionTerms(msgspec.Struct, frozen=True, array_like=True):
    """What the stages must know of a session. `stop_ids` end it when sampled; `run_ahead` is in positions.

    `session_positions` is the longest that the session could become when it was first opened: a replay keeps it,
    whatever its own `max_tokens`.
    """

    prompt_tokens: int
    max_tokens: int
    session_positions: int
    stop_ids: tuple[int, ...]
    run_ahead: int
    sampling: Sampling = GREEDY_SAMPLING
    """Obeyed by the stage that holds the head."""
    history: tuple[int, ...] = ()
    """Tokens known when the session is opened, from position 0 on; empty where `sampling` does not look at them."""
    committed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of the answer that are committed when the session is opened: it has outlived an epoch."""


class ResultBody(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a RESULT frame."""

    token: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    logits_digest: str
    margin: float
    logprobs: LogProbabilities | None = None
    """As `backends.base.Drawn` has them."""

    def first_unusable(self) -> str | None:
        """Return the first number that is none, in words; None when all are finite."""
        if not math.isfinite(self.margin):
            return f"margin {self.margin}"
        for token, value in self.logprobs or ():
            if not math.isfinite(value):
                return f"log-probability {value} of token {token}"
        return None
