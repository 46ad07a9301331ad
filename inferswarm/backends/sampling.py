"""From one row of raw logits to a token, the same for every backend. Torch-free.

The order of operations, all in float64 on the raw row:

1. the row is checked: a NaN or an infinity anywhere is refused, whatever is asked for;
2. repetition penalty over the ids of prompt and answer (positive logits divided, negative multiplied);
3. frequency and presence penalties over the ids of the answer, as OpenAI's interface defines them;
4. logit biases are added;
5. temperature 0: the largest adjusted logit, the lowest id of exact equals, and nothing else happens;
6. temperature, top-k, top-p, min-p (`candidates`);
7. the inverse of the cumulative distribution over what is left, in the order of ids, at the uniform number that
   Philox gives for (seed, position).

Nothing but the row, the settings, the position and, with penalties, the tokens before it decides; so a token is the
same however the chain is cut, and a position can be drawn again. Greedy without penalties and biases is `best_of`
alone. Margins and log-probabilities are those of the raw row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inferswarm.backends.base import Drawn, Sampler
from inferswarm.backends.candidates import Logits, candidates_of, most_likely
from inferswarm.backends.penalties import Adjustment, History
from inferswarm.backends.philox import uniform
from inferswarm.errors import FabricError
from inferswarm.strategies.sampling import Sampling

Row = npt.NDArray[np.float32]
"""Raw logits, [vocabulary]."""


def best_of(logits: Row) -> tuple[int, float]:
    """Return the most likely token, the lowest id of equals, and how far the second-best logit lies below it.

    Raises FabricError when a logit is a NaN or an infinity.
    """
    token = int(logits.argmax())  # the first of equals
    # a NaN makes both extremes NaN, an infinity is one of them
    if not (math.isfinite(logits[token]) and math.isfinite(logits.min())):
        raise FabricError(f"the logits are not finite (best {logits[token]}, token {token}): nothing is sampled")
    best = float(logits[token])
    others = (logits[:token], logits[token + 1 :])
    second = max((float(part.max()) for part in others if part.size), default=best)
    return token, best - second


def log_probabilities(logits: Row, token: int, count: int) -> tuple[tuple[int, float], ...]:
    """Return (id, natural logarithm of its probability by the raw row): `token`, then the `count` most likely ones.

    A token that was drawn and is among the most likely is there twice. Equals are ordered by id.
    """
    relative = logits.astype(np.float64) - float(logits.max())
    log_total = math.log(float(np.exp(relative).sum()))
    ids = (token, *most_likely(logits, count).tolist()) if count else (token,)
    return tuple((index, float(relative[index]) - log_total) for index in ids)


class GreedySampler:
    """Draws the most likely token."""

    def draw(self, logits: Row, position: int) -> Drawn:
        """Return the most likely token; see `Sampler.draw`."""
        return Drawn(*best_of(logits))


GREEDY = GreedySampler()
"""What draws where nothing else was asked for. It keeps nothing, so all sessions may share it."""


class SessionSampler:
    """Draws one session's tokens by its settings."""

    def __init__(self, sampling: Sampling, history: History | None) -> None:
        """`history` is None when nothing is penalized. Raises SpecError without a seed where one is needed."""
        self._sampling = sampling
        self._seed = sampling.seed_number if sampling.is_drawn else 0
        self._history = history
        self._adjustment = Adjustment(sampling, history)

    def draw(self, logits: Row, position: int) -> Drawn:
        """Return the token at `position`; see `Sampler.draw`.

        Raises FabricError also for a position before which a token is not known and counts.
        """
        best, margin = best_of(logits)
        if self._history is not None:
            self._history.cut(position)
        token = self._choose(logits, best, position)
        if self._history is not None:
            self._history.append(token)
        count = self._sampling.logprobs
        return Drawn(token, margin, None if count is None else log_probabilities(logits, token, count))

    def _choose(self, logits: Row, best: int, position: int) -> int:
        adjusted: Logits = logits  # float32 ranks as float64 does, and the filters compute in float64
        if not self._adjustment.changes_nothing:
            adjusted = self._adjustment.apply(logits)
            best = int(adjusted.argmax())
        if not self._sampling.is_drawn:
            return best
        return candidates_of(adjusted, self._sampling).at(uniform(self._seed, position))


def make_sampler(sampling: Sampling, history: Sequence[int] = (), prompt_tokens: int | None = None) -> Sampler:
    """Return what draws a session's tokens.

    `history` are the tokens known so far, from position 0 on: the prompt, and what was committed when a session goes
    on after a loss. It is needed only when something is penalized (`Sampling.is_penalized`). The first
    `prompt_tokens` of it, by default all, are the prompt. Raises SpecError when a seed is needed and missing.
    """
    if not sampling.is_penalized:
        plain = not sampling.is_drawn and not sampling.logit_bias and sampling.logprobs is None
        return GREEDY if plain else SessionSampler(sampling, None)
    return SessionSampler(sampling, History(history, len(history) if prompt_tokens is None else prompt_tokens))
