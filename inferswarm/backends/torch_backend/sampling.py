"""A row of logits as torch computed it, handed to a sampler as numbers that no library's rounding can touch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import xxhash

from inferswarm.backends.base import Drawn, Sampler


class Sample(NamedTuple):
    """What was drawn, and the xxh3-128 of the raw logits row."""

    drawn: Drawn
    logits_digest: str


def draw_token(logits: torch.Tensor, sampler: Sampler, position: int) -> Sample:
    """Return the token at `position` drawn from `logits`, [vocabulary], in any floating type.

    Raises FabricError when a logit is a NaN or an infinity.
    """
    row = logits.cpu()
    digest = xxhash.xxh3_128_hexdigest(row.view(torch.uint8).numpy().data)
    return Sample(sampler.draw(row.float().numpy(), position), digest)
