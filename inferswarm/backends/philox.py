"""Philox 4x32-10: random numbers that are a function of a key and a counter, with nothing kept in between.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). Checked against the
known-answer vectors that its authors publish.
"""

from __future__ import annotations

_WORD = 2**32 - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
_MANTISSA_BITS = 53

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Return four random 32-bit words for a counter of four and a key of two."""
    first, second, third, fourth = counter
    left, right = key
    for _ in range(_NUM_ROUNDS):
        low, high = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
        first, second, third, fourth = (
            (high >> 32) ^ second ^ left,
            high & _WORD,
            (low >> 32) ^ fourth ^ right,
            low & _WORD,
        )
        left, right = (left + _KEY_STEPS[0]) & _WORD, (right + _KEY_STEPS[1]) & _WORD
    return first, second, third, fourth


def uniform(seed: int, position: int) -> float:
    """Return the number of `position` in the sequence of `seed`, both u64: uniform on [0, 1) in steps of 2^-53.

    The seed's low word is the first of the key, the position's low word the first of the counter; the first word of
    the output is the upper half of 64 bits, of which the upper 53 count.
    """
    counter = (position & _WORD, position >> 32 & _WORD, 0, 0)
    upper, lower, _, _ = philox(counter, (seed & _WORD, seed >> 32 & _WORD))
    return float((upper << 32 | lower) >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
