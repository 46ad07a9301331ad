"""Bounds against published values, sample sizes, and how often they hold in simulation."""

from __future__ import annotations

import math
import random

import pytest

from inferswarm.campaigns.statistics import (
    center_of,
    median,
    paired_ratio,
    proportion,
    quantile,
    ratio_of_two,
    samples_for_quantile,
    units_for_interval,
)
from inferswarm.errors import SpecError


@pytest.mark.parametrize(
    ("share", "confidence", "num_above", "needed"),
    [(0.99, 0.99, 0, 459), (0.99, 0.95, 0, 299), (0.99, 0.99, 1, 662), (0.9, 0.95, 0, 29), (0.5, 0.95, 0, 5)],
)
def test_sample_sizes_of_quantiles(share, confidence, num_above, needed):
    assert samples_for_quantile(share, confidence, num_above) == needed


@pytest.mark.parametrize(("confidence", "needed"), [(0.99, 459), (0.95, 299)])
def test_one_sample_less_supports_no_bound(confidence, needed):
    values = [float(value) for value in range(needed)]
    assert quantile(values, 0.99, confidence).high == values[-1]
    assert quantile(values[:-1], 0.99, confidence).high is None


def test_with_662_samples_one_may_lie_above_the_bound():
    values = [float(value) for value in range(662)]
    assert quantile(values, 0.99, 0.99).high == values[-2]
    assert quantile(values[:-1], 0.99, 0.99).high == values[-2]  # the last one: none may lie above


def test_the_exact_lower_bound_is_that_of_the_rule_of_three():
    """All of n true: the bound is (1 - confidence)^(1/n)."""
    found = proportion(30, 30, 0.95, "exact")
    assert found.low == pytest.approx(0.05 ** (1 / 30))
    assert (found.value, found.high) == (1.0, 1.0)


def test_wilson_bounds_are_the_roots_of_the_score():
    """(p - x)^2 = z^2 p (1 - p) / n at both bounds, with z of one side."""
    found = proportion(81, 263, 0.975, "wilson")  # Newcombe, Statistics in Medicine 17 (1998), table I
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_exact_bounds_as_published():
    found = proportion(81, 263, 0.975, "exact")  # Newcombe, as above, method 5
    assert (found.low, found.high) == pytest.approx((0.2527, 0.3676), abs=5e-5)


def test_bounds_of_a_median_are_order_statistics():
    """Of 10 samples the 2nd and the 9th bound the median with 1 - 11/1024 on each side (Conover, table A3)."""
    values = [float(value) for value in range(1, 11)]
    found = median(values, 1 - 11 / 1024 - 1e-9)
    assert found == (5.5, 2.0, 9.0, 10)


def test_a_quantile_is_the_sample_that_so_many_do_not_exceed():
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share, 0.9).value for share in (0.5, 0.9, 0.07)] == [50.0, 90.0, 7.0]


def test_bounds_hold_as_often_as_they_say():
    """200 samples of a known distribution: each one-sided 95 % bound fails in about 5 % of them, never in 11 %."""
    draw = random.Random(20)
    true_median, true_p90 = math.log(2), math.log(10)  # of the exponential distribution
    failures = {"median low": 0, "median high": 0, "p90 high": 0, "exact": 0}
    for _ in range(200):
        values = [draw.expovariate(1) for _ in range(40)]
        middle, high = median(values, 0.95), quantile(values, 0.9, 0.95)
        share = proportion(sum(draw.random() < 0.9 for _ in range(40)), 40, 0.95, "exact")
        failures["median low"] += middle.low > true_median
        failures["median high"] += middle.high < true_median
        failures["p90 high"] += high.high is not None and high.high < true_p90
        failures["exact"] += share.low > 0.9
    assert {name: count for name, count in failures.items() if count > 22} == {}
    assert sum(failures.values()) > 0


def test_intervals_of_ratios_hold_as_often_as_they_say():
    """100 sets of 25 pairs around 1.2: a 95 % interval misses in few, and the seed alone decides what it is."""
    draw = random.Random(3)
    missed = 0
    for _ in range(100):
        pairs = [(1.2 * draw.gauss(1, 0.1), 1.0) for _ in range(25)]
        found = paired_ratio(pairs, "mean", 0.95, 999, 7)
        missed += not found.low <= 1.2 <= found.high
    assert missed <= 14  # binomial: more than that has a chance of 1 in 4,000 at 95 %
    assert found == paired_ratio(pairs, "mean", 0.95, 999, 7) != paired_ratio(pairs, "mean", 0.95, 999, 8)


def test_a_ratio_of_two_sides_resamples_each_for_itself():
    left, right = [2.0, 2.1, 1.9, 2.05, 1.95, 2.02], [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98]
    found = ratio_of_two(left, right, "median", 0.95, 999, 0)
    assert found.value == pytest.approx(2.01)
    assert found.low < 2.01 < found.high
    assert found.num_units == 6


@pytest.mark.parametrize("num_units", [5, 30])
def test_too_few_or_equal_units_have_no_interval(num_units):
    values = [1.0, 1.1, 1.2, 1.3, 1.4] if num_units == 5 else [1.0] * num_units
    assert paired_ratio([(value, 1.0) for value in values], "median", 0.95, 999, 0)[1:3] == (None, None)
    assert units_for_interval(0.95) == 6


@pytest.mark.parametrize(
    "ask",
    [
        lambda: quantile([], 0.5, 0.95),
        lambda: quantile([1.0], 1.0, 0.95),
        lambda: proportion(0, 0, 0.95, "exact"),
        lambda: proportion(1, 1, 1.0, "exact"),
        lambda: paired_ratio([(1.0, 0.0)], "mean", 0.95, 999, 0),
        lambda: paired_ratio([(1.0, 1.0)], "mean", 0.95, 0, 0),
        lambda: ratio_of_two([1.0], [], "mean", 0.95, 999, 0),
    ],
)
def test_what_has_no_answer_is_refused(ask):
    with pytest.raises(SpecError):
        ask()


def test_a_center_is_the_median_or_the_mean():
    assert (center_of([1, 2, 9], "median"), center_of([1, 2, 9], "mean")) == (2.0, 4.0)
