"""What stages of a recovered route hold: kept state is used as far as it goes, each position is computed once."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from inferswarm.backends.partition import Step, session_steps
from inferswarm.fabric.holding import Holding, SessionNeed, plan_holding
from inferswarm.fabric.messages import SessionHeld

STEPS = session_steps(20, 6, 8)  # prompt in chunks of 8, 8 and 4, then five single steps: the last is computed next
KNOWN = 25
NEED = SessionNeed(7, b"terms", STEPS)


def hold(*held: tuple[int, int] | None) -> Holding:
    """Return what is ordered when the stages hold so many positions, with payloads kept from there on."""
    return plan_holding([NEED], [{} if item is None else {7: SessionHeld(7, *item)} for item in held])


def positions(holding: Holding) -> list[int]:
    return [orders[0].positions for orders in holding.orders]


@pytest.mark.parametrize(
    ("held", "expected", "fed_from", "refilled"),
    [
        ((None, None, None), [0, 0, 0], 0, []),
        (((24, 24), (24, 24), (24, 24)), [24, 24, 24], 24, []),
        (((25, 25), (24, 24), (22, 22)), [22, 22, 22], 22, []),
        (((24, 0), None, (24, 24)), [24, 0, 24], 24, [0]),
        (((24, 0), (24, 0), None), [24, 24, 0], 24, [1]),
        ((None, (24, 0), (24, 24)), [0, 24, 24], 0, []),
        (((24, 24), None, (24, 24)), [0, 0, 24], 0, []),
        (((24, 0), (24, 9), None), [24, 0, 0], 24, [0]),
        (((18, 0), (16, 0), None), [16, 16, 0], 16, [1]),
    ],
    ids=["cold", "all", "shortest", "middle", "last", "first", "no payloads", "the one before", "in a chunk"],
)
def test_kept_state_is_used_and_the_rest_comes_from_what_was_kept_before_it(
    held: tuple[tuple[int, int] | None, ...], expected: list[int], fed_from: int, refilled: list[int]
) -> None:
    holding = hold(*held)
    assert positions(holding) == expected
    assert holding.fed_from == {7: fed_from}
    assert [index for index, refills in enumerate(holding.refills) if refills] == refilled
    assert all((item.first, item.end) == (0, max(expected)) for refills in holding.refills for item in refills)


def test_a_prompt_that_was_computed_without_a_result_is_begun_at_its_last_chunk() -> None:
    prompt_only = SessionNeed(7, b"", (Step(0, 8), Step(8, 8), Step(16, 4)))
    holding = plan_holding([prompt_only], [{7: SessionHeld(7, 20, 0)}, {7: SessionHeld(7, 20, 20)}])
    assert positions(holding) == [16, 16]


def walked(holding: Holding, held: list[Mapping[int, SessionHeld]]) -> list[list[int]]:
    """Return the positions that each stage computes, when everybody does as ordered and all that is known is fed."""
    count = len(held)
    state = [orders[0].positions for orders in holding.orders]
    computed: list[list[int]] = [[] for _ in range(count)]

    def give(index: int, step: Step) -> None:
        assert step.start == state[index], f"stage {index} is at {state[index]} and is given {step}"
        state[index] += step.count
        computed[index] += range(step.start, step.start + step.count)
        if index + 1 < count and step.start >= holding.orders[index][0].passes_from:
            give(index + 1, step)

    for index, refills in enumerate(holding.refills):
        for refill in refills:
            assert held[index][7].journal_from == 0
            for step in STEPS:
                if refill.first <= step.start < refill.end:
                    give(index + 1, step)
    for step in STEPS:
        if step.start >= holding.fed_from[7]:
            give(0, step)
    assert state == [KNOWN] * count
    return computed


@pytest.mark.parametrize("seed", range(300))
def test_whatever_is_held_every_stage_gets_each_position_that_it_lacks_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    ends = [step.start + step.count for step in STEPS]
    held: list[Mapping[int, SessionHeld]] = []
    for _ in range(chance.randint(1, 5)):
        position = chance.choice([0, *ends])
        journal_from = chance.choice([0, position])
        held.append({7: SessionHeld(7, position, journal_from)} if position else {})
    computed = walked(plan_holding([NEED], held), held)
    for stage in computed:
        assert stage == sorted(set(stage))
        assert stage[-1] == KNOWN - 1, "the next result needs every stage's last step"
