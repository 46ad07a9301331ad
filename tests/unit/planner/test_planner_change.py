"""A change is made when it pays, when it is likely to, and when it has been calm; each refusal names its numbers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from inferswarm.errors import SpecError
from inferswarm.planner import (
    ChangeHistory,
    ChangePolicy,
    ProposedChange,
    after_change,
    gain_confidence,
    judge_change,
)
from inferswarm.planner.change import decayed_penalty, is_suppressed
from inferswarm.planner.plan import Interval


def propose(**changes) -> ProposedChange:
    fields = {
        "present_request_seconds": 2.0,
        "proposed_request_seconds": 1.0,
        "remaining_requests": 100,
        "preparation_seconds": 50.0,
        "interruption_seconds": 5.0,
        "confidence": 0.95,
    }
    return ProposedChange(**(fields | changes))


def test_a_change_that_pays_is_made_with_its_numbers() -> None:
    verdict = judge_change(propose())
    assert verdict.go
    assert (verdict.benefit_seconds, verdict.break_even_requests) == (100.0, 50.0)
    assert verdict.reasons == ("it gains 100.0 s and costs 50.0 s",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"remaining_requests": 49}, "49 remaining requests gain 49.0 s, the preparation costs 50.0 s"),
        ({"remaining_requests": 50}, "50 remaining requests gain 50.0 s"),
        ({"confidence": 0.89}, "confidence 0.89, at least 0.90"),
        ({"interruption_seconds": 90.5}, "nothing would be served for 90.5 s, at most 90.0 s"),
        ({"proposed_request_seconds": 1.95, "remaining_requests": 10**6}, "the gain is 2.5% of a request"),
        ({"proposed_request_seconds": 2.5}, "no gain: a request would take 500 ms more"),
        ({"proposed_request_seconds": 2.0}, "no gain"),
    ],
)
def test_each_reason_to_stay_is_named_with_its_numbers(changes, words) -> None:
    verdict = judge_change(propose(**changes))
    assert not verdict.go
    assert len(verdict.reasons) == 1
    assert words in verdict.reasons[0]


def test_everything_that_speaks_against_it_is_named() -> None:
    verdict = judge_change(propose(remaining_requests=1, confidence=0.1, interruption_seconds=1000.0))
    assert len(verdict.reasons) == 3


@pytest.mark.parametrize("changes", [{"confidence": 0.9}, {"interruption_seconds": 90.0}])
def test_what_just_reaches_a_limit_is_allowed(changes) -> None:
    assert judge_change(propose(**changes)).go


def test_a_recovery_is_made_whatever_it_costs() -> None:
    history = ChangeHistory(penalty=50.0, last_change_seconds=0.0, suppressed=True)
    worst = propose(reason="recovery", proposed_request_seconds=9.0, confidence=0.0, interruption_seconds=900.0)
    verdict = judge_change(worst, history=history)
    assert verdict.go
    assert "recovery" in verdict.reasons[0]


def test_a_plan_that_is_hardly_better_does_not_take_turns_with_the_other() -> None:
    # Two plans that take turns at being 4 % better: with hysteresis no change is ever made.
    turns = [(1.0, 0.96), (0.96, 0.93)]
    changes = [
        propose(present_request_seconds=now, proposed_request_seconds=other, remaining_requests=10**9)
        for now, other in turns
    ]
    assert not any(judge_change(change).go for change in changes)
    assert all(judge_change(change, ChangePolicy(min_gain_share=0.0)).go for change in changes)


def test_no_change_follows_another_at_once() -> None:
    policy = ChangePolicy(min_seconds_between_changes=60.0)
    history = after_change(ChangeHistory(), policy, 100.0)
    assert "the last change was 59.0 s ago" in judge_change(propose(), policy, history, 159.0).reasons[0]
    assert judge_change(propose(), policy, history, 160.0).go


def test_the_penalty_halves_with_each_half_life() -> None:
    policy = ChangePolicy(penalty_half_life_seconds=10.0)
    history = ChangeHistory(penalty=4.0, at_seconds=5.0)
    assert [decayed_penalty(history, policy, at) for at in (5.0, 15.0, 25.0)] == [4.0, 2.0, 1.0]


def test_a_flapping_resource_moves_a_plan_a_few_times_and_then_waits() -> None:
    policy, history, made = ChangePolicy(), ChangeHistory(), []
    for now in range(0, 7200, 60):  # a change would pay each minute
        if judge_change(propose(), policy, history, float(now)).go:
            history = after_change(history, policy, float(now))
            made.append(now)
    assert made[:4] == [0, 60, 120, 180]
    # After the burst: quiet until the penalty has decayed from above 3 to 1, more than one half-life and a half.
    assert made[4] - made[3] > 1.5 * policy.penalty_half_life_seconds
    assert len(made) < 120 / 8


def test_suppression_ends_at_the_lower_threshold_and_not_before() -> None:
    policy = ChangePolicy(penalty_half_life_seconds=100.0, suppress_at=2.0, reuse_at=1.0)
    history = after_change(ChangeHistory(penalty=1.0), policy, 0.0)
    assert history.suppressed
    assert is_suppressed(history, policy, 99.0)
    assert not is_suppressed(history, policy, 100.0)
    assert "suppressed after too many changes" in judge_change(propose(), policy, history, 99.0).reasons[0]


def test_a_change_during_suppression_keeps_it() -> None:
    policy = ChangePolicy(penalty_half_life_seconds=100.0, suppress_at=4.0, reuse_at=1.0)
    history = ChangeHistory(penalty=2.0, suppressed=True)
    assert after_change(history, policy, 0.0).suppressed


def test_time_does_not_run_backwards() -> None:
    history = after_change(ChangeHistory(), ChangePolicy(), 100.0)
    with pytest.raises(SpecError, match="now_seconds"):
        judge_change(propose(), history=history, now_seconds=99.0)


@pytest.mark.parametrize(
    "changes", [{"remaining_requests": -1}, {"preparation_seconds": -0.1}, {"confidence": 1.1}, {"confidence": -0.1}]
)
def test_numbers_that_describe_no_change_are_refused(changes) -> None:
    with pytest.raises(SpecError):
        propose(**changes)


def test_a_gain_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        propose(proposed_request_seconds=float("nan"))


@pytest.mark.parametrize(
    "changes",
    [
        {"min_confidence": 1.5},
        {"min_gain_share": -0.1},
        {"max_interruption_seconds": -1.0},
        {"penalty_half_life_seconds": 0.0},
        {"reuse_at": 3.0},
    ],
)
def test_parameters_that_make_no_policy_are_refused(changes) -> None:
    with pytest.raises(SpecError):
        ChangePolicy(**changes)


@pytest.mark.parametrize(
    ("present", "proposed", "expected"),
    [
        ((2, 2, 2), (1, 1, 1), 1.0),
        ((1, 1, 1), (1, 1, 1), 0.0),
        ((1, 2, 3), (0, 0.5, 1), 1.0),
        ((0, 0.5, 1), (1, 2, 3), 0.0),
        ((0, 1, 2), (0, 1, 2), 0.5),
        ((0, 1, 2), (1, 1, 1), 0.5),
        ((1, 1, 1), (0, 1, 4), 0.25),
        ((0, 1, 2), (1, 2, 3), 0.125),
    ],
)
def test_confidence_is_the_share_of_pairs_with_a_gain(present, proposed, expected) -> None:
    assert gain_confidence(Interval(*present), Interval(*proposed)) == pytest.approx(expected)


def test_confidence_agrees_with_drawing_pairs() -> None:
    rng = random.Random(3)
    for _ in range(5):
        ends = [sorted(rng.uniform(0, 10) for _ in range(2)) for _ in range(2)]
        one, other = (Interval(low, (low + high) / 2, high) for low, high in ends)
        drawn = [rng.uniform(*ends[1]) < rng.uniform(*ends[0]) for _ in range(20_000)]
        assert gain_confidence(one, other) == pytest.approx(sum(drawn) / len(drawn), abs=0.02)


def test_more_overlap_is_less_confidence() -> None:
    present = Interval(1.0, 1.5, 2.0)
    confidences = [gain_confidence(present, Interval(at, at + 0.5, at + 1.0)) for at in (0.0, 0.3, 0.6, 0.9, 1.2)]
    assert all(before > after for before, after in pairwise(confidences))


def test_confidence_of_an_interval_out_of_order_is_refused() -> None:
    with pytest.raises(SpecError, match="between its bounds"):
        gain_confidence(Interval(2.0, 1.0, 3.0), Interval(1.0, 1.0, 1.0))
