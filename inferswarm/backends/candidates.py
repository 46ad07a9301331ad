"""Which tokens remain after temperature, top-k, top-p and min-p, and how likely each is. Torch-free.

Wherever tokens are ranked, the rank is by logit, highest first, and the lowest id comes first of exact equals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferswarm.strategies.sampling import Sampling

Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""Finite logits, [vocabulary]."""
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


class Candidates(NamedTuple):
    """What may be drawn, in the order of ids. Weights are probabilities up to a factor; the largest is 1."""

    ids: Ids | None
    """None: every id."""
    weights: Weights

    def at(self, fraction: float) -> int:
        """Return the first id at which the cumulative weight exceeds `fraction`, in [0, 1), of the whole."""
        cumulative = np.cumsum(self.weights)
        index = int(np.searchsorted(cumulative, fraction * cumulative[-1], side="right"))
        return index if self.ids is None else int(self.ids[index])


def most_likely(logits: Logits, count: int) -> Ids:
    """Return the `count` best ids by rank, or all when there are not so many."""
    size = len(logits)
    if count < size:
        last = np.partition(logits, size - count)[size - count]
        above = np.flatnonzero(logits > last)
        equal = np.flatnonzero(logits == last)[: count - len(above)]
        ids = np.sort(np.concatenate((above, equal)))
    else:
        ids = np.arange(size)
    return _ranked(logits, ids)


def _ranked(logits: Logits, ids: Ids) -> Ids:
    """Return ids, given in ascending order, by rank."""
    return ids[np.argsort(-logits[ids], kind="stable")]


def candidates_of(logits: Logits, sampling: Sampling) -> Candidates:
    """Apply temperature (above 0), top-k, top-p and min-p, in this order.

    Top-p counts probabilities among what top-k left. The token with which the sum reaches p is kept too. Min-p
    compares with the most likely token, which every filter keeps. Computed in float64.
    """
    ids: Ids | None = None
    if 0 < sampling.top_k < len(logits):
        ids = np.sort(most_likely(logits, sampling.top_k))
        logits = logits[ids]
    with np.errstate(over="ignore"):  # at a tiny temperature all but the best become minus infinity: weight 0
        weights = np.exp((logits.astype(np.float64) - float(logits.max())) / sampling.temperature)
    if sampling.top_p < 1:
        kept = _nucleus(logits, weights, sampling.top_p)
        ids, logits, weights = kept if ids is None else ids[kept], logits[kept], weights[kept]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return Candidates(ids, weights)


def _nucleus(logits: Logits, weights: Weights, top_p: float) -> Ids:
    """Return the places, in ascending order, of the best tokens whose weights together reach `top_p` of all."""
    total = float(np.cumsum(weights)[-1])
    needed = top_p * total
    # All tokens lighter than this weigh less than 1 - top_p together, so the answer lies among the others. They are
    # chosen by logit, because exp need not be monotone in its last bit and a rank must not depend on that.
    light = (1 - top_p) * total / len(weights)
    places = np.flatnonzero(logits >= logits[weights >= light].min())
    order = _ranked(logits, places)
    cumulative = np.cumsum(weights[order])
    if cumulative[-1] < needed and len(order) < len(logits):  # rounding ate the difference
        order = _ranked(logits, np.arange(len(logits)))
        cumulative = np.cumsum(weights[order])
    count = int(np.searchsorted(cumulative, needed, side="left")) + 1
    return np.sort(order[:count])
