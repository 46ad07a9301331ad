"""Scalings of rotary positions: their limits, and the pairs between."""

import math

import pytest

from inferswarm.strategies.dense.rope_scaling import (
    linear_rope,
    llama3_rope,
    longrope_magnitude,
    longrope_rope,
    yarn_magnitude,
    yarn_rope,
)

BASE, SIZE, PAIRS = 10000.0, 64, 32


def turns(pair, positions):
    return positions / (2 * math.pi * BASE ** (2 * pair / SIZE))


def test_linear_slows_every_pair_alike():
    assert linear_rope(BASE, SIZE, 3.0).factors == (3.0,) * PAIRS
    assert linear_rope(BASE, SIZE, 1.0).factors == ()


def test_llama3_leaves_fast_pairs_scales_slow_ones_and_joins_them_without_a_jump():
    rope = llama3_rope(BASE, SIZE, factor=8.0, low=1.0, high=4.0, original_positions=8192)
    for pair, factor in enumerate(rope.factors):
        if turns(pair, 8192) > 4.0:
            assert factor == 1.0
        elif turns(pair, 8192) < 1.0:
            assert factor == 8.0
        else:
            assert 1.0 < factor < 8.0
    assert list(rope.factors) == sorted(rope.factors)
    assert {1.0, 8.0} < set(rope.factors)


def test_yarn_goes_over_between_the_pairs_of_its_betas():
    rope = yarn_rope(BASE, SIZE, factor=4.0, original_positions=4096, magnitude=1.0)
    for pair, factor in enumerate(rope.factors):
        if turns(pair, 4096) > 32.0 * 1.4:
            assert factor == 1.0
        elif turns(pair, 4096) < 1.0 / 1.4:
            assert factor == 4.0
    assert list(rope.factors) == sorted(rope.factors)


def test_yarn_without_truncation_has_another_ramp():
    arguments = {"factor": 4.0, "original_positions": 4096, "magnitude": 1.0}
    assert yarn_rope(BASE, SIZE, **arguments).factors != yarn_rope(BASE, SIZE, **arguments, truncate=False).factors


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (yarn_magnitude(1.0), 1.0),
        (yarn_magnitude(0.5), 1.0),
        (yarn_magnitude(math.e), 1.1),
        (yarn_magnitude(math.e, 2.0), 1.2),
        (longrope_magnitude(1.0, 4096), 1.0),
        (longrope_magnitude(32.0, 4096), 1.1902380714238083),
    ],
)
def test_magnitudes(found, expected):
    assert math.isclose(found, expected)


def test_longrope_has_its_short_factors_up_to_the_original_positions():
    short, long = (1.0,) * PAIRS, (2.0,) * PAIRS
    rope = longrope_rope(BASE, SIZE, short=short, long=long, original_positions=4096, magnitude=1.0)
    assert (rope.factors_for(4096), rope.factors_for(4097)) == (short, long)


@pytest.mark.parametrize(
    "make",
    [
        lambda: llama3_rope(BASE, SIZE, factor=8.0, low=4.0, high=4.0, original_positions=8192),
        lambda: yarn_rope(1.0, SIZE, factor=4.0, original_positions=4096, magnitude=1.0),
        lambda: yarn_rope(
            BASE, SIZE, factor=4.0, original_positions=4096, magnitude=1.0, beta_fast=1.0, beta_slow=1.0
        ),
        lambda: longrope_rope(BASE, SIZE, short=(1.0,), long=(1.0,), original_positions=9, magnitude=1.0),
        lambda: longrope_magnitude(2.0, 1),
    ],
)
def test_what_no_rope_follows_from_is_refused(make):
    with pytest.raises(ValueError, match=r"needed|needs"):
        make()
