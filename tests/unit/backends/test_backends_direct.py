"""Driving executors in one process: the grid, recorded steps, forced tokens, where it ends, what it refuses."""

from __future__ import annotations

import pytest

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.partition import Step, session_steps
from inferswarm.errors import FabricError, SpecError
from tests.unit.backends.backends_support import assign, built, chain, small_description

PROMPT = list(range(1, 71))


@pytest.fixture(scope="module")
def executor():
    return built(assign(small_description(), primitive="null", chunk_positions=256))


def test_steps_follow_the_grid_and_the_last_token_is_never_computed(executor):
    result = run_direct(executor, PROMPT, max_tokens=5, chunk_positions=64)
    assert result.steps == session_steps(70, 5, 64)
    assert sum(step.count for step in result.steps) == 70 + 5 - 1
    assert len(result.tokens) == len(result.logits_digests) == len(result.margins) == 5


def test_it_ends_with_a_stop_token_which_is_part_of_the_result(executor):
    free = run_direct(executor, PROMPT, max_tokens=6, chunk_positions=64)
    stopped = run_direct(executor, PROMPT, max_tokens=6, chunk_positions=64, stop_ids=[free.tokens[2]])
    assert stopped.tokens == free.tokens[:3]


def test_forced_tokens_are_followed_whatever_is_sampled(executor):
    forced = [9, 9, 9, 9]
    result = run_direct(executor, PROMPT, max_tokens=5, chunk_positions=64, forced=forced)
    alone = [run_direct(executor, PROMPT + forced[:count], max_tokens=1, chunk_positions=256) for count in range(5)]
    assert result.logits_digests == tuple(item.logits_digests[0] for item in alone)


def test_given_steps_are_run_as_given_and_sample_at_their_ends(executor):
    forced = [5, 6, 7, 8]
    steps = (Step(0, 69), Step(69, 3), Step(72, 2))
    result = run_direct(executor, PROMPT, max_tokens=9, chunk_positions=64, steps=steps, forced=forced)
    single = run_direct(executor, PROMPT, max_tokens=5, chunk_positions=64, forced=forced)
    assert result.steps == steps
    assert result.logits_digests == (single.logits_digests[2], single.logits_digests[4])


def test_steps_over_unknown_tokens_are_refused(executor):
    with pytest.raises(SpecError, match="70 are known"):
        run_direct(executor, PROMPT, max_tokens=3, chunk_positions=64, steps=(Step(0, 72),))


def test_an_empty_prompt_is_refused_before_any_session(executor):
    with pytest.raises(SpecError, match="at least one token"):
        run_direct(executor, [], max_tokens=3, chunk_positions=64)


def test_the_session_is_closed_whatever_happens(executor):
    with pytest.raises(FabricError, match="not in the vocabulary"):
        run_direct(executor, [9999], max_tokens=3, chunk_positions=64)
    run_direct(executor, [1], max_tokens=1, chunk_positions=64)


def test_a_chain_without_a_head_samples_nothing():
    executors = chain(small_description(), (0, 2, 4), primitive="null")
    with pytest.raises(FabricError, match="does not hold the head"):
        run_split_direct(executors, PROMPT, max_tokens=1, chunk_positions=64)


def test_a_participant_that_cannot_open_leaves_the_others_closed():
    first, last = chain(small_description(), (0, 3, 6), primitive="null")
    last.open("other")
    with pytest.raises(FabricError, match="sessions are taken"):
        run_split_direct((first, last), PROMPT, max_tokens=1, chunk_positions=64)
    first.open("direct")
