"""New stages come up with the sessions, whatever share of the machine both get, and streams hardly notice."""

from __future__ import annotations

import pytest

from inferswarm.fabric.pacing import (
    BATCH_SECONDS,
    ENOUGH_AT_ONCE,
    FIRST_TURN,
    MOST_AT_ONCE,
    UNNOTICED_SECONDS,
    UNNOTICED_TIMES,
    Pace,
)


def rounds(usual: float, step: float, asking: float, missing: float) -> tuple[int, float]:
    """Return how many batches pass until at most two steps are missing, and the longest gap between two tokens.

    A token takes `usual` seconds, a step of the new stages `step`, each twice that while both compute; asking takes
    `asking` for each batch. In turns, one token follows each batch.
    """
    pace = Pace(usual)
    longest_of_all = longest = 0.0
    for number in range(10_000):
        if missing <= 2:
            return number, longest_of_all
        steps = min(pace.at_once, int(missing))
        if pace.takes_turns:
            seconds, committed = steps * step + asking, 1
            gap = seconds + usual
        else:
            seconds, gap = 2 * steps * step + asking, 2 * usual
            committed = round(seconds / (2 * usual))
        pace.saw(steps, committed, seconds, longest)
        assert 1 <= pace.at_once <= MOST_AT_ONCE
        longest = gap  # it ends with the token behind the batch, and is seen with the next
        longest_of_all = max(longest_of_all, gap)
        missing += committed - steps
    raise AssertionError(f"never came up: {missing} steps are missing, {pace.at_once} at once")


def test_faster_stages_come_up_without_taking_turns_and_a_few_steps_at_a_time() -> None:
    pace = Pace(0.1)
    for _ in range(100):
        pace.saw(pace.at_once, 0, pace.at_once * 0.03 + 0.002, 0.1)
        assert pace.at_once <= 2, "a long batch takes the machine from the old stages"
    assert not pace.takes_turns


@pytest.mark.parametrize(("usual", "step"), [(0.02, 0.02), (0.02, 0.03), (0.03, 0.03), (0.001, 0.001), (0.3, 0.4)])
def test_stages_that_are_no_faster_come_up_in_turns_that_nobody_notices(usual: float, step: float) -> None:
    number, longest = rounds(usual, step, asking=0.005, missing=300)
    assert number < 500
    assert longest <= max(UNNOTICED_SECONDS, UNNOTICED_TIMES * usual) + step


def test_what_takes_only_asking_is_given_in_larger_batches() -> None:
    pace = Pace(0.05)
    for _ in range(10):
        pace.saw(pace.at_once, 0, BATCH_SECONDS / 4, 0.05)
    assert (pace.at_once, pace.takes_turns) == (MOST_AT_ONCE, False)


def in_turns(usual: float = 0.03) -> Pace:
    pace = Pace(usual)
    while not pace.takes_turns:
        pace.saw(pace.at_once, pace.at_once, pace.at_once * usual, 2 * usual)
        assert pace.at_once <= ENOUGH_AT_ONCE or pace.takes_turns
    assert pace.at_once == FIRST_TURN
    return pace


def test_a_turn_gets_longer_while_one_more_step_fits_and_shorter_after_a_gap_that_is_seen() -> None:
    pace = in_turns()
    for wanted, longest in ((3, 0.04), (3, 0.04), (4, 0.04), (4, 0.06), (4, 0.06)):
        pace.saw(pace.at_once, 1, 0.02 * pace.at_once, longest)
        assert pace.at_once == wanted, "what a longer turn came to shows one turn later"
    pace.saw(4, 1, 0.08, 0.9 * UNNOTICED_SECONDS)
    assert pace.at_once == 3


def test_the_new_stages_get_there_even_where_that_is_noticed() -> None:
    pace = in_turns()
    for _ in range(5):
        pace.saw(pace.at_once, 2, 1.0, 10 * UNNOTICED_SECONDS)
        assert pace.at_once == 3


def test_turns_end_when_they_are_not_needed() -> None:
    pace = in_turns()
    pace.saw(40, 2, 0.05, 0.05)
    assert not pace.takes_turns
