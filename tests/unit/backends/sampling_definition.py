"""The slow definition of sampling: lists, sorting and a loop for each step, written apart from the fast one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from inferswarm.strategies.sampling import Sampling


def adjusted(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
) -> list[float]:
    """Return the logits after penalties and biases."""
    values = [float(logit) for logit in logits]
    for token in {*prompt, *answer}:
        value = values[token]
        penalty = sampling.repetition_penalty
        values[token] = value / penalty if value > 0 else value * penalty
    for token in set(answer):
        values[token] -= sampling.frequency_penalty * list(answer).count(token) + sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        values[token] += bias
    return values


def distribution(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int] = (), answer: Sequence[int] = ()
) -> dict[int, float]:
    """Return the probability of each token that can be drawn."""
    values = adjusted(logits, sampling, prompt, answer)
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if sampling.temperature == 0:
        return {ranked[0]: 1.0}
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    best = values[ranked[0]]
    weights = {token: math.exp((values[token] - best) / sampling.temperature) for token in ranked}
    if sampling.top_p < 1:
        total = math.fsum(weights.values())
        kept, so_far = [], Fraction(0)
        for token in ranked:
            kept.append(token)
            so_far += Fraction(weights[token])
            if so_far >= Fraction(sampling.top_p) * Fraction(total):
                break
        ranked = kept
    if sampling.min_p:
        ranked = [token for token in ranked if weights[token] >= sampling.min_p * weights[ranked[0]]]
    total = math.fsum(weights[token] for token in ranked)
    return {token: weights[token] / total for token in sorted(ranked)}


def at(probabilities: dict[int, float], fraction: float) -> int:
    """Return the first token, in the order of ids, at which the sum of probabilities exceeds a fraction."""
    so_far = 0.0
    for token, probability in probabilities.items():
        so_far += probability
        if so_far > fraction:
            return token
    return max(probabilities)
