"""From one row of logits to a token: greedy, the lowest id wins exact ties. What is not a number is refused."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import xxhash

from inferswarm.errors import FabricError


class Sample(NamedTuple):
    """A sampled token, the xxh3-128 of the raw logits row, and how far the second-best logit lies below the best."""

    token: int
    logits_digest: str
    margin: float


def sample_greedy(logits: torch.Tensor) -> Sample:
    """Return the most likely token of `logits`, [vocabulary], in any floating type.

    Raises FabricError when a logit is a NaN or an infinity.
    """
    row = logits.cpu()
    digest = xxhash.xxh3_128_hexdigest(row.view(torch.uint8).numpy().data)
    values = row.float().numpy()
    token = int(values.argmax())  # the first of equals
    # a NaN makes both extremes NaN, an infinity is one of them
    if not (math.isfinite(values[token]) and math.isfinite(values.min())):
        raise FabricError(f"the logits are not finite (best {values[token]}, token {token}): nothing is sampled")
    best = float(values[token])
    others = (values[:token], values[token + 1 :])
    second = max((float(part.max()) for part in others if part.size), default=best)
    return Sample(token, digest, best - second)
