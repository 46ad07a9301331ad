"""What earlier tokens and biases do to a row of logits before anything is chosen from it. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inferswarm.errors import FabricError
from inferswarm.strategies.sampling import Sampling

LIMIT = 1e300
"""Adjusted logits are kept within +- this, so that no setting turns a finite logit into an infinity."""

Values = npt.NDArray[np.float64]


class History:
    """A session's tokens by position: the prompt, then what was generated."""

    def __init__(self, tokens: Sequence[int], prompt_tokens: int) -> None:
        """Take the tokens that are known, the first `prompt_tokens` of which are the prompt."""
        self._tokens = list(tokens)
        self._prompt_tokens = prompt_tokens
        self._count()

    def _count(self) -> None:
        self._seen = dict.fromkeys(self._tokens)
        self._generated = Counter(self._tokens[self._prompt_tokens :])

    def cut(self, position: int) -> None:
        """Forget tokens from `position` on. Raises FabricError when one before it is not known."""
        if position > len(self._tokens):
            known = f"{len(self._tokens)} tokens are known to the sampler"
            raise FabricError(f"position {position} needs every token before it, and {known}")
        if position < len(self._tokens):
            del self._tokens[position:]
            self._count()

    def append(self, token: int) -> None:
        """Keep the token that follows."""
        self._tokens.append(token)
        self._seen[token] = None
        if len(self._tokens) > self._prompt_tokens:
            self._generated[token] += 1

    def seen(self) -> npt.NDArray[np.int64]:
        """Return the ids that occur anywhere, each once."""
        return np.fromiter(self._seen, np.int64, len(self._seen))

    def generated(self) -> tuple[npt.NDArray[np.int64], Values]:
        """Return the ids that were generated, each once, and how often."""
        ids = np.fromiter(self._generated, np.int64, len(self._generated))
        return ids, np.fromiter(self._generated.values(), np.float64, len(self._generated))


class Adjustment:
    """Penalties and biases of one session."""

    def __init__(self, sampling: Sampling, history: History | None) -> None:
        """`history` may be None only when nothing is penalized."""
        self._sampling = sampling
        self._history = history
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._bias = np.array([value for _, value in sampling.logit_bias], np.float64)

    @property
    def changes_nothing(self) -> bool:
        """Whether rows stay as they are."""
        return self._history is None and not len(self._bias_ids)

    def apply(self, row: npt.NDArray[np.float32]) -> Values:
        """Return the row in float64 with everything applied, [vocabulary].

        Repetition penalty, then frequency and presence penalties, then biases. Raises FabricError when a token of
        the history or a bias is outside the row.
        """
        values = row.astype(np.float64)
        if self._history is not None:
            self._penalize(values, self._history)
        if len(self._bias_ids):
            _check_ids(self._bias_ids, values)
            values[self._bias_ids] += self._bias
        return values

    def _penalize(self, values: Values, history: History) -> None:
        sampling = self._sampling
        if sampling.repetition_penalty != 1:
            ids = history.seen()
            _check_ids(ids, values)
            with np.errstate(over="ignore"):  # an overflow ends at the limit
                touched = values[ids]
                touched = np.where(
                    touched > 0, touched / sampling.repetition_penalty, touched * sampling.repetition_penalty
                )
            values[ids] = np.clip(touched, -LIMIT, LIMIT)
        if sampling.frequency_penalty or sampling.presence_penalty:
            ids, counts = history.generated()
            _check_ids(ids, values)
            values[ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def _check_ids(ids: npt.NDArray[np.int64], values: Values) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= len(values)):
        wrong = int(ids.max() if ids.max() >= len(values) else ids.min())
        raise FabricError(
            f"token {wrong} of the session's history or biases is outside a row of {len(values)} logits"
        )
