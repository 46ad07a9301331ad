"""New stages come up with the sessions, whatever share of the machine both get, and streams hardly notice."""

from __future__ import annotations

import pytest

from inferswarm.fabric.pacing import (
    BATCH_SECONDS,
    ENOUGH_AT_ONCE,
    LEAST_PAUSE_SECONDS,
    MOST_AT_ONCE,
    UNNOTICED_SECONDS,
    Pace,
)


def rounds(usual: float, step: float, asking: float, missing: float, slowed: float = 1.0) -> tuple[int, Pace]:
    """Return how many batches pass until at most two steps are missing, and the pace then.

    A token takes `usual` seconds, while the new stages compute `slowed` times that; they take `step` for each step,
    and `asking` for each batch.
    """
    pace = Pace(usual)
    for number in range(10_000):
        if missing <= 2:
            return number, pace
        steps = min(pace.at_once, int(missing))
        seconds = steps * step + asking
        committed = seconds / (usual * slowed + pace.pause_seconds)
        pace.saw(steps, round(committed), seconds)
        assert pace.pause_seconds + usual < max(UNNOTICED_SECONDS, 3 * usual), "a reader would notice"
        assert 1 <= pace.at_once <= MOST_AT_ONCE
        missing += committed - steps
    raise AssertionError(f"never came up: {missing} steps are missing, {pace.pause_seconds} s of pause")


def test_faster_stages_come_up_without_any_pause_and_a_few_steps_at_a_time() -> None:
    _, pace = rounds(usual=0.1, step=0.03, asking=0.002, missing=500)
    assert pace.pause_seconds == 0.0
    assert pace.at_once <= 2, "a long batch takes the machine from the old stages"


@pytest.mark.parametrize(("usual", "step"), [(0.02, 0.02), (0.02, 0.03), (0.001, 0.001), (0.3, 0.4)])
def test_stages_that_are_no_faster_come_up_because_sessions_pause(usual: float, step: float) -> None:
    number, pace = rounds(usual=usual, step=step, asking=0.005, missing=300)
    assert number < 2000
    assert pace.pause_seconds > 0


def test_what_takes_only_asking_is_given_in_larger_batches() -> None:
    pace = Pace(0.05)
    for _ in range(10):
        pace.saw(pace.at_once, 0, BATCH_SECONDS / 4)
    assert pace.at_once == MOST_AT_ONCE
    assert pace.pause_seconds == 0.0


def test_pauses_end_when_they_are_not_needed() -> None:
    pace = Pace(0.001)
    while pace.at_once < ENOUGH_AT_ONCE:
        pace.saw(1, 1, 0.001)
    pace.saw(64, 64, 0.001)
    assert pace.pause_seconds == LEAST_PAUSE_SECONDS
    pace.saw(64, 64, 0.001)
    assert pace.pause_seconds == 2 * LEAST_PAUSE_SECONDS
    for _ in range(3):
        pace.saw(64, 0, 0.001)
    assert pace.pause_seconds == 0.0


def test_for_the_last_steps_sessions_pause_whatever_is_seen() -> None:
    for usual in (0.01, 0.2):
        pace = Pace(usual)
        pace.last_steps()
        pace.saw(4, 0, 0.001)
        assert 0 < pace.pause_seconds < max(UNNOTICED_SECONDS, 3 * usual) - usual
